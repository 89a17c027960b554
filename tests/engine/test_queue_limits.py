"""The time that requests may wait in the queue of an op: refused, or delayed."""

import gc
import weakref

import pytest

from penstock.batching.batcher import BatchPolicy
from penstock.batching.queue_policy import QueuePolicy
from penstock.engine.engine import EngineOptions
from penstock.engine.submission import Submission
from penstock.errors import ServiceBusy
from penstock.request import Outcome
from tests.engine.test_engine import EngineHarness, make_harness
from tests.engine.test_priorities import run_all

REJECT = QueuePolicy(timeout=1.0)
DELAY = QueuePolicy(timeout=1.0, delay=True)


def harness(*policies: QueuePolicy, workers: int = 1) -> EngineHarness:
    """One op, whose worker takes one request at a time."""
    levels = len(policies)
    made = make_harness(
        policy=BatchPolicy(levels=levels, ageing=100.0, delays=True),
        options=EngineOptions(levels=levels, ageing=100.0, queue=policies),
        workers=workers,
    )
    made.engine.level_of = lambda submission: int(str(submission.feed.get("level", 0)))
    return made


def test_a_request_that_waits_too_long_is_busy_though_no_worker_is_idle() -> None:
    made = harness(REJECT)
    runs, waits = made.request(), made.request()
    made.clock.advance(0.9)
    later = made.request()
    made.clock.advance(0.2)
    error = made.answer(waits).error
    assert isinstance(error, ServiceBusy)
    assert "op 'op'" in str(error)
    assert not made.answers[runs.data_id], "a request that runs goes on"
    for _ in range(2):
        made.workers["op"].finish()
        made.clock.run()
    made.clock.advance(5.0)
    assert made.answer(runs).error is made.answer(later).error is None


def test_a_delayed_request_goes_behind_those_that_are_in_time() -> None:
    made = harness(DELAY)
    requests = {"runs": made.request(), "late": made.request()}
    made.clock.advance(1.1)
    requests |= {"new": made.request(), "newer": made.request()}
    assert run_all(made, "op", requests) == ["runs", "new", "newer", "late"]
    assert made.answer(requests["late"]).error is None


def test_each_priority_has_its_policy() -> None:
    made = harness(QueuePolicy(), REJECT)
    made.request()
    high, low = made.request(level=0), made.request(level=1)
    made.clock.advance(1.1)
    assert isinstance(made.answer(low).error, ServiceBusy)
    assert not made.answers[high.data_id]


@pytest.mark.parametrize(("asked", "seconds"), [(0.5, 0.5), (3.0, 1.0)])
def test_a_caller_s_limit_only_shortens_the_service_s(asked: float, seconds: float) -> None:
    made = harness(REJECT)
    made.request()
    made.engine.level_of = lambda submission: setattr(submission, "queue_timeout", asked) or 0
    waits = made.request()
    made.clock.advance(seconds - 0.01)
    assert not made.answers[waits.data_id]
    made.clock.advance(0.05)
    assert isinstance(made.answer(waits).error, ServiceBusy)


def test_an_answered_request_is_not_kept_until_its_limit() -> None:
    class Large:
        pass

    made = harness(REJECT, workers=1)
    values = [Large(), Large()]
    kept = [weakref.ref(each) for each in values]
    runs, cancelled = (made.request(value=each) for each in values)
    made.engine.cancel(cancelled)
    made.workers["op"].finish()
    made.clock.run()
    assert made.answer(runs).error is None
    made.answers.clear()
    made.request()  # the queue forgets cancelled samples in front of it
    del values, runs, cancelled
    gc.collect()
    assert [each() for each in kept] == [None, None]


def test_what_waits_too_long_in_a_later_op_has_begun() -> None:
    made = make_harness({"a": ["@"], "b": ["a"]}, options=EngineOptions(queue=(REJECT,)))
    runs, later = made.request(), made.request()
    for _ in (runs, later):
        made.workers["a"].finish()
        made.clock.run()
    made.request()
    first = made.request()
    made.clock.advance(1.1)
    assert begun(made, later)
    assert not begun(made, first)


def test_what_a_full_queue_of_a_later_op_refuses_has_begun() -> None:
    made = make_harness({"a": ["@"], "b": ["a"]}, policy=BatchPolicy(capacity=1))
    requests = [made.request()]
    made.workers["a"].finish()
    made.clock.run()
    requests += [made.request(), made.request()]
    for _ in range(2):
        made.workers["a"].finish()
        made.clock.run()
    assert begun(made, requests[2])
    assert not any(made.answers[each.data_id] for each in requests[:2])


def test_a_request_may_have_begun_if_another_of_its_first_ops_runs() -> None:
    made = make_harness(
        {"a": ["@"], "b": ["@"], "c": ["a", "b"]}, options=EngineOptions(queue=(REJECT,))
    )
    made.request()
    waits = made.request()
    made.workers["b"].finish()
    made.clock.run()
    made.clock.advance(1.1)
    made.workers["b"].finish()
    made.clock.run()
    assert begun(made, waits)


def test_a_refusal_by_what_an_op_calls_comes_after_the_beginning() -> None:
    made = make_harness()
    called = made.request()
    made.workers["op"].finish(outcomes=[Outcome(None, ServiceBusy("the one behind it is busy"))])
    made.clock.run()
    assert begun(made, called)


def test_a_request_that_makes_room_while_a_later_op_keeps_it_has_begun() -> None:
    made = make_harness(
        {"a": ["@"], "b": ["a"]},
        policy=BatchPolicy(levels=2, ageing=100.0),
        options=EngineOptions(levels=2, ageing=100.0, max_requests=3),
    )
    made.engine.level_of = lambda submission: int(str(submission.feed.get("level", 0)))
    made.request(level=1)
    later = made.request(level=1)
    for _ in range(2):
        made.workers["a"].finish()
        made.clock.run()
    made.request(level=1)  # a runs it
    made.request(level=0)
    assert begun(made, later)


def begun(made: EngineHarness, submission: Submission) -> bool:
    """Whether a part of a refused request may have run; its caller has no hint then."""
    error = made.answer(submission).error
    assert isinstance(error, ServiceBusy)
    assert (error.retry_after is None) is error.has_begun
    return error.has_begun
