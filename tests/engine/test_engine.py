"""The engine under a virtual clock: admission, deadlines, cancellation, timeouts, drain."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from penstock.batching.batcher import Batcher, BatchPolicy, FifoQueue
from penstock.batching.costs import BatchCosts
from penstock.batching.learned import LearnedBatcher
from penstock.batching.queues import batcher_for
from penstock.engine.engine import Engine, EngineOptions, log_dropped
from penstock.engine.graph import ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import (
    DeadlineExceeded,
    HookFailed,
    OpTimeout,
    RequestError,
    ServiceBusy,
    ServiceClosed,
)
from penstock.executors.work import WorkOptions
from penstock.instrument import Instrument, Instruments, RequestInfo
from penstock.request import Batch, CloseReason, Outcome, Sample
from penstock.testing.clock import ManualClock
from penstock.testing.executor import FakeExecutor
from tests.graph.test_dag import plan_of


class RecordingInstrument(Instrument):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def dispatched(self, op: str, batch: Batch, now: float) -> None:
        self.lines.append(f"{op} {batch.data_ids} {batch.reason.value}")

    def late(self, op: str, batch: Batch, now: float) -> None:
        self.lines.append(f"late {op} {batch.data_ids}")


@dataclass
class EngineHarness:
    """An engine with a manual clock and fake workers."""

    engine: Engine
    clock: ManualClock
    workers: dict[str, FakeExecutor]
    recorded: RecordingInstrument
    answers: dict[int, list[Outcome]] = field(default_factory=dict)

    def submit(
        self,
        reply: Callable[[Outcome], object],
        life: float = 60.0,
        log_id: int = 0,
        **feed: object,
    ) -> Submission:
        submission = Submission(self.engine.graphs[0], dict(feed), life, log_id)
        self.engine.submit(submission, lambda _, outcome: reply(outcome))
        return submission

    def request(self, life: float = 60.0, **feed: object) -> Submission:
        outcomes: list[Outcome] = []
        submission = self.submit(outcomes.append, life, **feed)
        self.answers[submission.data_id] = outcomes
        self.clock.run()
        return submission

    def answer(self, submission: Submission) -> Outcome:
        (outcome,) = self.answers[submission.data_id]
        return outcome


def make_harness(
    edges: dict[str, list[str]] | None = None,
    *,
    policy: BatchPolicy | None = None,
    options: EngineOptions | None = None,
    work: WorkOptions | None = None,
    workers: int = 1,
    attempts: int = 1,
    instruments: Sequence[Instrument] = (),
    queue: Callable[[BatchPolicy], Batcher | FifoQueue] = Batcher,
) -> EngineHarness:
    edges = edges or {"op": ["@"]}
    plan = plan_of(edges, list(edges)[-1], attempts=attempts)
    clock = ManualClock()
    recorded = RecordingInstrument()
    engine = Engine(clock, options, Instruments([recorded, *instruments], log_dropped))
    graph = ServedGraph(engine, plan)
    executors = {name: FakeExecutor(workers) for name in plan.names}
    for name in plan.names:
        graph.add_op(
            name,
            queue=queue(policy or BatchPolicy()),
            executor=executors[name],
            options=work or WorkOptions(),
        )
    engine.add(graph)
    return EngineHarness(engine, clock, executors, recorded)


def test_a_request_runs_its_ops_in_order_and_is_answered_once() -> None:
    h = make_harness({"a": ["@"], "b": ["a"]})
    submission = h.request(x=1)
    h.workers["a"].finish()
    h.clock.run()
    h.workers["b"].finish()
    assert h.answer(submission).value == {"x": 1}
    stats = h.engine.statistics()
    assert (stats.admitted, stats.replied, stats.inside) == (1, 1, 0)


def test_data_ids_start_and_step_as_configured() -> None:
    h = make_harness(options=EngineOptions(first_id=2, id_step=3))
    assert [h.request().data_id for _ in range(3)] == [2, 5, 8]


def test_a_request_over_the_limit_is_refused_without_effect_on_others() -> None:
    h = make_harness(options=EngineOptions(max_requests=2))
    first = h.request()
    h.request()
    with pytest.raises(ServiceBusy):
        h.request()
    h.workers["op"].finish()
    assert h.answer(first).error is None
    h.request()
    assert h.engine.statistics().refused == 1


def test_a_full_queue_of_the_first_op_refuses_a_request() -> None:
    h = make_harness({"a": ["@"], "b": ["a"]}, policy=BatchPolicy(capacity=1))
    h.request()  # running
    h.request()  # queued
    with pytest.raises(ServiceBusy, match="'a'"):
        h.request()


def test_a_full_queue_of_a_later_op_ends_the_request_with_an_error() -> None:
    h = make_harness({"a": ["@"], "b": ["a"]}, policy=BatchPolicy(capacity=1), workers=3)
    h.workers["b"].workers = 3
    submissions = [h.request() for _ in range(3)]
    h.engine.stages[1]._busy = 3  # no worker takes from b's queue
    for _ in range(3):
        h.workers["a"].finish()
        h.clock.run()
    errors = [answers[0].error for answers in h.answers.values() if answers]
    assert len(errors) == 2
    assert all(isinstance(error, ServiceBusy) for error in errors)
    assert h.answers[submissions[0].data_id] == []


def test_requests_over_max_running_wait_and_are_not_refused() -> None:
    h = make_harness(options=EngineOptions(max_running=1), workers=4)
    first, second = h.request(), h.request()
    assert [b.data_ids for b in h.workers["op"].batches()] == [[first.data_id]]
    h.workers["op"].finish()
    h.clock.run()
    assert [b.data_ids for b in h.workers["op"].batches()] == [[second.data_id]]


def test_a_queued_request_past_its_deadline_is_answered_and_never_dispatched() -> None:
    h = make_harness()
    h.request()
    late = h.request(life=0.5)
    h.clock.advance(0.6)
    error = h.answer(late).error
    assert isinstance(error, DeadlineExceeded)
    h.workers["op"].finish()
    h.clock.run()
    assert h.workers["op"].batches() == []


def test_a_result_after_the_deadline_is_dropped() -> None:
    h = make_harness()
    submission = h.request(life=0.5)
    h.clock.advance(1.0)
    h.workers["op"].finish()
    assert isinstance(h.answer(submission).error, DeadlineExceeded)


def deadline_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if "deadline" in line.getMessage()]


def test_a_request_past_the_time_limit_has_one_log_line_with_op_and_ids(
    caplog: pytest.LogCaptureFixture,
) -> None:
    h = make_harness({"a": ["@"], "b": ["a"]}, options=EngineOptions(time_limit=1.0))
    submissions = [h.submit(lambda _: None, log_id=7) for _ in range(2)]
    h.clock.advance(2.0)
    h.workers["a"].finish()
    h.clock.run()
    first, second = (f"(data_id={each.data_id} log_id=7)" for each in submissions)
    assert deadline_messages(caplog) == [
        f"op a: the request's deadline passed while it ran {first}",
        f"op a: the request's deadline passed while it waited {second}",
    ]


@pytest.mark.parametrize("rows", [1, 2])
def test_a_request_that_its_queue_has_dropped_has_not_run(
    rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    h = make_harness(
        policy=BatchPolicy(max_rows=rows),
        options=EngineOptions(time_limit=1.0),
        queue=batcher_for,
    )
    h.request()
    h.request()
    h.clock.advance(1.001)  # before the tick
    h.workers["op"].finish()
    h.clock.run()
    assert h.workers["op"].batches() == []
    h.clock.advance(1.0)
    assert deadline_messages(caplog) == [
        "op op: the request's deadline passed while it waited (data_id=1 log_id=0)"
    ]


def test_a_request_that_could_not_be_in_time_was_not_run(caplog: pytest.LogCaptureFixture) -> None:
    costs = BatchCosts()
    for _ in range(40):
        for rows in (1, 2, 4):
            costs.learn(rows, 0, 0.1 * rows)
    h = make_harness(
        policy=BatchPolicy(max_rows=4, learned=True),
        options=EngineOptions(time_limit=1.0),
        queue=lambda policy: LearnedBatcher(policy, costs),
    )
    first, late = h.request(), h.request()
    h.clock.advance(0.95)
    kept = h.request()
    h.workers["op"].finish()
    h.clock.run()
    assert h.answer(first).error is None
    assert [each.data_ids for each in h.workers["op"].batches()] == [[kept.data_id]]
    assert not h.answers[late.data_id]
    h.clock.advance(0.1)
    assert str(h.answer(late).error) == "the request's deadline passed"
    assert deadline_messages(caplog) == [
        "op op: the request's deadline passed while it waited; it was not run, since it could not"
        " have been answered in time (data_id=1 log_id=0)"
    ]


def busy_after(
    second: Batcher | FifoQueue, edges: dict[str, list[str]] | None = None
) -> EngineHarness:
    """An op whose batches cost 10 ms whatever they hold, before one that takes 0.2 s and runs; the
    queue in front of that one is empty. Requests come every half a second.
    """
    costs = BatchCosts()
    for _ in range(40):
        for rows in (1, 2, 4, 8):
            costs.learn(rows, 0, 1e-2 + 1e-5 * rows)
    first = LearnedBatcher(BatchPolicy(max_rows=8, window=1.0, learned=True), costs)
    queues = iter([first, second, *(FifoQueue(BatchPolicy()) for _ in range(2))])
    h = make_harness(edges or {"a": ["@"], "b": ["a"]}, queue=lambda _: next(queues))
    for _ in range(2):
        h.request()
        finish_first(h)
        h.workers["b"].batches()[0].ran = 0.2
        h.workers["b"].finish()
        h.clock.run()
        h.clock.advance(0.5)
    h.request()
    finish_first(h)
    h.clock.advance(0.5)
    assert len(h.workers["b"].batches()) == 1
    return h


def finish_first(h: EngineHarness) -> None:
    """The op that waits for nothing finishes its batch."""
    h.workers["a"].batches()[0].ran = 1e-2
    h.workers["a"].finish()
    h.clock.run()


def test_a_learned_op_does_not_hurry_while_the_one_after_it_has_work() -> None:
    h = busy_after(FifoQueue(BatchPolicy()))
    h.request()  # the other op will take it at once
    finish_first(h)
    h.clock.advance(0.5)
    third = h.request()  # the other op has one before it
    assert h.workers["a"].batches() == []
    h.clock.advance(0.1)
    fourth = h.request()
    assert h.workers["a"].batches() == []
    h.workers["b"].finish()  # and takes that
    h.clock.advance(0.2)
    assert [each.data_ids for each in h.workers["a"].batches()] == [[third.data_id, fourth.data_id]]
    finish_first(h)
    h.request()
    h.clock.advance(0.9)
    assert h.workers["a"].batches() == []
    h.clock.advance(0.1)
    assert len(h.workers["a"].batches()) == 1, "the end of its window"


def test_only_full_batches_of_the_op_after_it_let_an_op_wait() -> None:
    h = busy_after(Batcher(BatchPolicy(max_rows=2)))
    for _ in range(2):
        h.request()
        finish_first(h)
        h.clock.advance(0.5)
    h.request()
    assert h.workers["a"].batches() == []
    h = busy_after(Batcher(BatchPolicy(max_rows=2, capacity=1)))
    h.request()
    finish_first(h)
    assert h.engine.stages[1].batcher.full
    assert h.engine.stages[1].backlog == pytest.approx(0.2)


def test_the_work_of_an_op_is_divided_among_its_workers_and_none_if_one_is_idle() -> None:
    h = busy_after(FifoQueue(BatchPolicy()))
    for _ in range(2):
        h.request()
        h.clock.advance(1.0)
        finish_first(h)
    stage, workers = h.engine.stages[1], h.workers["b"]
    assert stage.backlog == pytest.approx(0.4)
    workers.workers = 2
    assert stage.backlog == 0.0
    workers.grown()
    assert (len(workers.batches()), stage.backlog) == (2, pytest.approx(0.1))


def test_an_op_before_several_waits_only_while_all_have_work() -> None:
    edges = {"a": ["@"], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
    h = busy_after(FifoQueue(BatchPolicy()), edges)
    h.request()
    finish_first(h)
    h.clock.advance(0.5)
    (graph,) = h.engine.graphs
    before, slow, other, last = graph.stages
    assert (slow.backlog > 0.1, graph.work_after(before)) == (True, other.backlog)
    assert other.backlog < 0.1
    assert (last.backlog, graph.work_after(last)) == (0.0, 0.0)
    h.request()
    assert len(h.workers["a"].batches()) == 1


def test_an_op_that_may_jump_over_the_one_after_it_does_not_wait_for_it() -> None:
    h = busy_after(FifoQueue(BatchPolicy()))
    h.request()
    finish_first(h)
    (graph,) = h.engine.graphs
    first, _ = graph.stages
    assert graph.work_after(first) == pytest.approx(0.2)
    graph.plan = replace(graph.plan, jump_to=((1,), ()))
    assert graph.work_after(first) == 0.0


def test_a_deadline_error_of_a_worker_gets_the_same_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    h = make_harness(options=EngineOptions(time_limit=1.0))
    h.submit(lambda _: None)
    h.clock.advance(1.001)  # before the tick
    late = DeadlineExceeded("the request's deadline passed before the op began")
    h.workers["op"].finish(outcomes=[Outcome(None, late)])
    h.clock.run()
    h.clock.advance(1.0)
    assert deadline_messages(caplog) == [
        "op op: the request's deadline passed before the op began (data_id=0 log_id=0)"
    ]


def test_a_deadline_set_by_the_client_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    h = make_harness()
    h.request(life=0.5)
    h.clock.advance(1.0)
    assert deadline_messages(caplog) == []


@pytest.mark.parametrize(("life", "by_client"), [(0.5, True), (60.0, False)])
def test_a_deadline_error_of_an_op_is_marked_if_the_client_set_the_deadline(
    life: float, by_client: bool
) -> None:
    h = make_harness(options=EngineOptions(time_limit=1.0))
    submission = h.request(life=life)
    late = DeadlineExceeded("DEADLINE_EXCEEDED: the other server says so first")
    h.workers["op"].finish(outcomes=[Outcome(None, late)])
    h.clock.run()
    error = h.answer(submission).error
    assert isinstance(error, DeadlineExceeded)
    assert error.by_client is by_client
    assert str(error) == str(late)


def test_a_request_past_its_deadline_on_arrival_is_refused() -> None:
    with pytest.raises(DeadlineExceeded):
        make_harness().request(life=0.0)


def test_cancelling_removes_a_queued_request_and_no_other() -> None:
    h = make_harness(policy=BatchPolicy(max_rows=8))
    h.request()
    cancelled, other = h.request(), h.request()
    h.engine.cancel(cancelled)
    h.engine.cancel(cancelled)
    h.workers["op"].finish()
    h.clock.run()
    assert [b.data_ids for b in h.workers["op"].batches()] == [[other.data_id]]
    assert h.answers[cancelled.data_id] == []
    assert h.engine.statistics().cancelled == 1


def test_a_running_request_that_is_cancelled_gets_no_reply_and_frees_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    h = make_harness(options=EngineOptions(max_requests=1))
    cancelled = h.request()
    h.engine.cancel(cancelled)
    again = h.request()
    h.workers["op"].finish()
    h.clock.run()
    h.workers["op"].finish()
    assert h.answers[cancelled.data_id] == []
    assert h.answer(again).error is None
    assert not caplog.records, "a thousand callers that leave write no thousand lines"


def test_a_call_is_abandoned_when_all_its_requests_are_cancelled() -> None:
    h = make_harness(policy=BatchPolicy(max_rows=2, window=1.0))
    left, right = h.request(), h.request()
    ((work, _),) = h.workers["op"].running
    h.engine.cancel(left)
    h.clock.run()
    assert h.workers["op"].abandoned == []
    h.engine.cancel(right)
    h.clock.run()
    assert h.workers["op"].abandoned == [work]
    assert h.engine.statistics().stages[0].idle == 0, "it keeps its slot until it is back"


def test_a_call_past_its_requests_deadlines_is_abandoned() -> None:
    h = make_harness()
    late = h.request(life=0.5)
    ((work, _),) = h.workers["op"].running
    h.clock.advance(0.6)
    assert isinstance(h.answer(late).error, DeadlineExceeded)
    assert h.workers["op"].abandoned == [work]


def test_a_call_with_batches_queued_behind_it_is_not_abandoned_for_a_cancelled_request() -> None:
    h = make_harness()
    h.engine.stages[0]._hand_over.learn(1e-6)
    submissions = [h.submit(lambda _: None) for _ in range(3)]
    h.clock.run()
    ((work, _),) = h.workers["op"].running
    assert work.crowded
    h.engine.cancel(submissions[0])
    h.clock.run()
    assert h.workers["op"].abandoned == []


def test_requests_cancelled_in_the_admission_queue_are_removed() -> None:
    h = make_harness(options=EngineOptions(max_running=1))
    h.request()
    for _ in range(50):
        h.engine.cancel(h.request())
    assert h.engine.statistics().waiting == 0
    assert not h.engine._waiting


def begin(h: EngineHarness, op: str = "op") -> None:
    """Lets ``process`` of the running calls begin now."""
    for batch in h.workers[op].batches():
        batch.started = h.clock.now()


def test_a_call_over_its_timeout_is_answered_and_keeps_its_worker() -> None:
    h = make_harness(work=WorkOptions(timeout=0.5))
    slow = h.request()
    begin(h)
    waiting = h.request()
    h.clock.advance(0.6)
    error = h.answer(slow).error
    assert isinstance(error, OpTimeout)
    assert "Failed to process(batch: [0]): exceeded retry count." in str(error)
    assert len(h.workers["op"].running) == 1, "the abandoned call still holds the only slot"
    h.workers["op"].finish()
    h.clock.run()
    assert "late op [0]" in h.recorded.lines
    assert [b.data_ids for b in h.workers["op"].batches()] == [[waiting.data_id]]


def test_only_process_counts_for_the_timeout() -> None:
    h = make_harness(work=WorkOptions(timeout=0.5))
    submission = h.request()
    h.clock.advance(3.0)  # a long preprocess
    assert h.answers[submission.data_id] == []
    begin(h)
    h.clock.advance(0.4)
    assert h.answers[submission.data_id] == []
    h.clock.advance(0.7)
    assert isinstance(h.answer(submission).error, OpTimeout)


def test_a_timed_out_call_is_retried_on_another_worker_with_fresh_inputs() -> None:
    h = make_harness(work=WorkOptions(timeout=0.5, retry=2), workers=2)
    submission = h.request(x=1)
    begin(h)
    (batch,) = h.workers["op"].batches()
    batch.samples[0].inputs["@DAGExecutor"]["x"] = "edited by the first attempt"
    h.clock.advance(0.6)
    first, second = h.workers["op"].batches()
    assert (first.attempt, second.attempt) == (1, 2)
    h.workers["op"].finish(1)
    assert h.answer(submission).value == {"x": 1}


def test_the_graph_is_retried_after_a_timeout_if_configured() -> None:
    h = make_harness(work=WorkOptions(timeout=0.5), attempts=2, workers=2)
    submission = h.request(x=1)
    begin(h)
    h.clock.advance(0.6)
    h.workers["op"].finish(1)
    assert h.answer(submission).value == {"x": 1}


def test_draining_refuses_new_requests_and_finishes_admitted_ones() -> None:
    h = make_harness(policy=BatchPolicy(max_rows=4, window=10.0))
    admitted = h.request()
    drained: list[bool] = []
    h.engine.drain(lambda: drained.append(True))
    with pytest.raises(ServiceClosed):
        h.request()
    assert h.recorded.lines == ["op [0] drain"], "nobody waits for company any more"
    assert drained == []
    h.workers["op"].finish()
    assert h.answer(admitted).error is None
    assert drained == [True]


def test_closing_answers_all_requests_in_flight_with_an_error() -> None:
    h = make_harness()
    submissions = [h.request(), h.request()]
    h.engine.close()
    errors = [h.answer(j).error for j in submissions]
    assert [str(each) for each in errors] == ["dag closed."] * 2
    assert all(type(each) is ServiceClosed and each.admitted for each in errors)
    h.workers["op"].finish()


def test_repeated_and_late_outcomes_are_ignored() -> None:
    h = make_harness()
    submission = h.request()
    ((work, _finished),) = h.workers["op"].running
    sample = work.current.samples[0]  # type: ignore[union-attr]
    h.workers["op"].finish()
    h.engine.settle(sample, Outcome(None, HookFailed("again")))
    assert h.answer(submission).error is None


def test_an_exception_in_a_reply_callback_is_logged_and_affects_no_other_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    h = make_harness()

    def broken(_: Outcome) -> None:
        raise RuntimeError("the transport broke")

    h.submit(broken)
    h.clock.run()
    fine = h.request()
    h.workers["op"].finish()
    h.clock.run()
    h.workers["op"].finish()
    assert h.answer(fine).error is None
    assert "could not be delivered" in caplog.text


EDGES = {"top": ["@"], "a": ["top"], "b": ["top"], "end": ["a", "b"]}


def test_a_request_ended_by_a_full_queue_is_not_put_into_further_queues() -> None:
    h = make_harness(EDGES, policy=BatchPolicy(capacity=1), workers=3)
    h.engine.graphs[0].plan = plan_of(EDGES, "end", first_arrival=True)
    h.engine.stages[1]._busy = 3  # no worker takes from a's queue
    submissions = [h.request() for _ in range(2)]
    h.workers["top"].finish()
    h.clock.run()
    h.workers["top"].finish()
    h.clock.run()
    assert isinstance(h.answer(submissions[1]).error, ServiceBusy)
    assert [b.data_ids for b in h.workers["b"].batches()] == [[0]]


def test_requests_that_expire_together_are_answered_once_even_if_a_reply_cancels_another() -> None:
    h = make_harness()
    outcomes: list[Outcome] = []
    submissions: list[Submission] = []
    submissions.append(h.submit(lambda o: h.engine.cancel(submissions[1]), 1.0))
    submissions.append(h.submit(outcomes.append, 1.0))
    h.clock.advance(2.0)
    assert outcomes == []
    s = h.engine.statistics()
    assert (s.admitted, s.replied, s.cancelled, s.inside) == (2, 1, 1, 0)


def test_the_drain_ends_only_after_the_last_reply() -> None:
    h = make_harness()
    order: list[str] = []
    h.submit(lambda o: order.append("answer"))
    h.clock.run()
    h.engine.drain(lambda: order.append("at rest"))
    h.workers["op"].finish()
    assert order == ["answer", "at rest"]


def test_large_replies_that_return_together_are_delivered_over_several_turns() -> None:
    h = make_harness()
    h.request()
    h.workers["op"].finish()  # so that the next requests are handed over together
    order: list[object] = []

    def write(outcome: Outcome) -> None:
        order.append(outcome.value)
        h.clock.spend(0.01)

    for number in range(3):
        h.submit(write, x=number)
    h.clock.run()
    ((work, _),) = h.workers["op"].running
    assert len(work.pending) == 2
    h.clock.soon(lambda: order.append("others have their turn"))
    h.workers["op"].finish()
    assert order == [{"x": 0}]
    h.clock.run()
    assert order == [{"x": 0}, "others have their turn", {"x": 1}, {"x": 2}]
    assert h.engine.statistics().inside == 0


def test_no_batch_is_handed_over_while_replies_wait_for_delivery() -> None:
    h = make_harness()
    h.request()
    h.workers["op"].finish()
    running: list[int] = []

    def write(outcome: Outcome) -> None:
        running.append(len(h.workers["op"].running))
        h.clock.spend(0.01)

    for _ in range(40):  # more than one hand-over carries
        h.submit(write)
    h.clock.run()
    h.workers["op"].finish()
    h.clock.run()
    assert running == [0] * 32
    h.workers["op"].finish()
    h.clock.run()
    assert running == [0] * 40


def test_batches_taken_back_are_not_dispatched_for_cancelled_or_expired_requests() -> None:
    h = make_harness(work=WorkOptions(timeout=0.5))
    h.engine.stages[0]._hand_over.learn(1e-6)
    submissions = [h.submit(lambda _: None) for _ in range(3)]
    h.clock.run()
    begin(h)
    h.clock.advance(0.6)
    h.engine.cancel(submissions[1])
    h.recorded.lines.clear()
    h.workers["op"].finish()
    h.clock.run()
    assert [line for line in h.recorded.lines if "late" not in line] == ["op [2] full"]


def test_a_call_that_begins_as_its_predecessor_is_abandoned_has_a_timeout() -> None:
    h = make_harness(work=WorkOptions(timeout=0.5))
    h.engine.stages[0]._hand_over.learn(1e-6)
    first = [h.request()]
    ((work, _),) = h.workers["op"].running
    begin(h)
    h.clock.advance(0.6)
    # The worker began a batch before the engine could take it back.
    late = h.request()
    h.workers["op"].finish()
    h.clock.run()
    ((work, _),) = h.workers["op"].running
    assert work.current is not None
    assert work.current.data_ids == [late.data_id]
    begin(h)
    h.clock.advance(1.1)
    assert isinstance(h.answer(late).error, OpTimeout)
    assert isinstance(h.answer(first[0]).error, OpTimeout)


def hand_over_several(h: EngineHarness, count: int) -> None:
    """Makes the next hand-over carry several batches, and submits ``count`` requests."""
    h.engine.stages[0]._hand_over.learn(1e-6)
    for _ in range(count):
        outcomes: list[Outcome] = []
        h.answers[h.submit(outcomes.append).data_id] = outcomes
    h.clock.run()


def test_a_slow_batch_delays_neither_finished_nor_queued_ones_of_its_hand_over() -> None:
    h = make_harness(workers=2)
    first = h.request()  # keeps one worker busy, so that the others are handed over together
    hand_over_several(h, 3)
    ((_, _), (work, _)) = h.workers["op"].running
    assert len(work.pending) == 2
    done = work.current
    assert done is not None
    work.add_result(done, [Outcome({})])
    work.begin_next()  # this one never ends
    h.clock.advance(0.1)
    assert h.answers[1][0].error is None, "what has been run is answered"
    h.workers["op"].finish()
    h.clock.run()
    assert h.answer(first).error is None
    assert [b.data_ids for b in h.workers["op"].batches()] == [[2], [3]], "who waits moves on"


def test_inputs_that_cannot_be_compared_run_alone() -> None:
    h = make_harness(policy=BatchPolicy(max_rows=4))

    def key_of(inputs: object) -> str:
        raise TypeError("unhashable")

    h.engine.stages[0]._key_of = key_of
    h.request()
    h.request()
    h.request()
    h.workers["op"].finish()
    h.clock.run()
    assert [b.data_ids for b in h.workers["op"].batches()] == [[1]]


def test_an_op_whose_workers_are_all_blocked_makes_the_engine_unready() -> None:
    h = make_harness(work=WorkOptions(timeout=0.5))
    h.request()
    begin(h)
    assert h.engine.why_stuck() is None
    h.clock.advance(0.6)
    assert h.engine.why_stuck() == "op 'op': no worker returns"
    h.workers["op"].finish()
    h.clock.run()
    assert h.engine.why_stuck() is None


def test_an_instrument_gets_every_event_of_a_request_and_its_batch_in_order() -> None:
    class AllEvents(Instrument):
        def __init__(self) -> None:
            self.events: list[tuple[str, object]] = []

        def admitted(self, request: RequestInfo, now: float) -> None:
            self.events.append(("admitted", request.graph.version))

        def queued(self, op: str, sample: Sample, now: float) -> None:
            self.events.append(("queued", op))

        def batch_closed(self, op: str, batch: Batch, now: float) -> None:
            self.events.append(("closed", batch.reason))

        def dispatched(self, op: str, batch: Batch, now: float) -> None:
            self.events.append(("dispatched", op))

        def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
            self.events.append(("returned", errors))

        def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
            self.events.append(("replied", now - request.admitted_at))

        def cancelled(self, request: RequestInfo, now: float) -> None:
            self.events.append(("cancelled", now - request.admitted_at))

        def refused(self, request: RequestInfo, error: RequestError, now: float) -> None:
            self.events.append(("refused", error.code))

    instrument = AllEvents()
    h = make_harness(options=EngineOptions(max_requests=1), instruments=[instrument])
    h.request()
    with pytest.raises(ServiceBusy):
        h.request()
    h.clock.advance(0.25)
    h.workers["op"].finish()
    h.clock.run()
    cancelled = h.request()
    h.clock.advance(0.5)
    h.engine.cancel(cancelled)
    assert instrument.events[:8] == [
        ("admitted", "1"),
        ("queued", "op"),
        ("closed", CloseReason.FULL),
        ("dispatched", "op"),
        ("refused", "busy"),
        ("returned", 0),
        ("replied", 0.25),
        ("admitted", "1"),
    ]
    assert instrument.events[-1] == ("cancelled", 0.5)
