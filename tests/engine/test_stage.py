"""An op whose workers die: which batches run, and the outcomes of their neighbours."""

import pytest

from penstock.batching.batcher import BatchPolicy
from penstock.engine.engine import EngineOptions
from penstock.errors import InferenceFailed, KillsWorkers, OpTimeout
from penstock.executors.executor import Work
from penstock.executors.work import WorkOptions, broken
from penstock.request import Batch, Outcome
from tests.engine.test_engine import EngineHarness, make_harness

RERUN = WorkOptions(retry_on_crash=True)
FOUR = BatchPolicy(max_rows=4)


def running(h: EngineHarness) -> list[list[int]]:
    """The running batches."""
    return [batch.data_ids for batch in h.workers["op"].batches()]


def codes(h: EngineHarness) -> dict[int, str | None]:
    """The answered requests with their error codes."""
    errors = {data_id: outcomes[0].error for data_id, outcomes in h.answers.items() if outcomes}
    return {data_id: None if error is None else error.code for data_id, error in errors.items()}


def finish(h: EngineHarness) -> None:
    h.workers["op"].finish()
    h.clock.run()


def die(h: EngineHarness) -> None:
    h.workers["op"].die()
    h.clock.run()


def in_one_batch(h: EngineHarness, *feeds: str) -> list[int]:
    """Submits requests that run in one batch, after a first one that is finished."""
    h.request(x="first")
    ids = [h.request(x=feed).data_id for feed in feeds]
    finish(h)
    assert running(h) == [ids]
    return ids


def test_without_a_rerun_a_worker_s_death_is_replied_at_once() -> None:
    h = make_harness(policy=FOUR)
    a, b = in_one_batch(h, "a", "b")
    die(h)
    assert (codes(h)[a], codes(h)[b]) == ("worker_died", "worker_died")
    stats = h.engine.stages[0].statistics()
    assert (stats.deaths, stats.suspects, stats.refused, stats.idle) == (1, 2, 0, 1)


def test_a_suspect_runs_alone_and_is_cleared_when_it_succeeds() -> None:
    h = make_harness(policy=FOUR)
    in_one_batch(h, "a", "b")
    die(h)
    h.request(x="other")
    ids = [h.request(x=feed).data_id for feed in ("c", "a", "d")]
    finish(h)
    assert running(h) == [[ids[0], ids[2]]]
    finish(h)
    assert running(h) == [[ids[1]]]
    finish(h)
    assert codes(h)[ids[1]] is None
    in_one_batch(h, "a", "c")


def test_a_suspect_is_handed_over_alone() -> None:
    h = make_harness()
    h.request(x="bad")
    die(h)
    for _ in range(3):  # short enough for several batches in one hand-over
        h.request(x="quick")
        finish(h)
    h.request(x="first")
    for feed in ("a", "bad", "b", "c"):
        h.request(x=feed)
    handed = []
    for _ in range(4):
        finish(h)
        handed += [
            [
                s.inputs["@DAGExecutor"]["x"]
                for batch in (work.current, *work.pending)
                if batch
                for s in batch.samples
            ]
            for work, _ in h.workers["op"].running
        ]
    assert handed == [["a"], ["bad"], ["b", "c"]]


def test_with_a_rerun_the_neighbours_of_a_culprit_get_their_results() -> None:
    h = make_harness(policy=FOUR, work=RERUN)
    a, bad, c = in_one_batch(h, "a", "bad", "c")
    die(h)
    assert running(h) == [[a]]
    finish(h)
    assert running(h) == [[bad]]
    die(h)
    assert running(h) == [[c]]
    finish(h)
    assert (codes(h)[a], codes(h)[bad], codes(h)[c]) == (None, "kills_workers", None)
    stats = h.engine.stages[0].statistics()
    assert (stats.deaths, stats.suspects, stats.idle) == (2, 1, 1)


def test_reruns_and_queued_batches_alternate() -> None:
    h = make_harness(policy=BatchPolicy(max_rows=2), work=RERUN)
    a, b = in_one_batch(h, "a", "b")
    c, d, e = [h.request(x=feed).data_id for feed in "cde"]
    die(h)
    order = []
    while running(h):
        order += running(h)
        finish(h)
    assert order == [[a], [c, d], [b], [e]]


def test_a_rerun_that_times_out_has_the_usual_number_of_attempts() -> None:
    h = make_harness(work=WorkOptions(retry_on_crash=True, timeout=1.0, retry=2), workers=2)
    bad = h.request(x="a")
    die(h)
    (batch,) = h.workers["op"].batches()
    batch.started = h.clock.now()
    h.clock.advance(1.1)
    assert running(h) == [[bad.data_id], [bad.data_id]]
    assert codes(h) == {}
    h.workers["op"].die(1)
    h.clock.run()
    assert codes(h) == {bad.data_id: "kills_workers"}


def test_a_worker_killed_by_the_engine_makes_no_suspects() -> None:
    h = make_harness(work=WorkOptions(retry_on_crash=True, timeout=1.0))
    slow = h.request(x="a")
    (batch,) = h.workers["op"].batches()
    batch.started = h.clock.now()
    h.clock.advance(1.1)
    assert isinstance(h.answer(slow).error, OpTimeout)
    h.workers["op"].finish(outcomes=broken(batch))
    h.clock.run()
    assert h.engine.stages[0].statistics().suspects == 0
    in_one_batch(h, "b")


def test_a_batch_lost_after_its_timeout_makes_a_suspect_and_no_second_reply() -> None:
    h = make_harness(work=WorkOptions(timeout=1.0))
    slow = h.request(x="a")
    (batch,) = h.workers["op"].batches()
    batch.started = h.clock.now()
    h.clock.advance(1.1)
    die(h)
    assert isinstance(h.answer(slow).error, OpTimeout)
    assert h.engine.stages[0].statistics().suspects == 1


def test_a_drain_waits_for_reruns() -> None:
    h = make_harness(policy=FOUR, work=RERUN)
    in_one_batch(h, "a", "b")
    drained: list[bool] = []
    h.engine.drain(lambda: drained.append(True))
    die(h)
    finish(h)
    assert not drained
    finish(h)
    assert drained == [True]


def test_an_op_without_workers_answers_samples_waiting_for_a_rerun() -> None:
    h = make_harness(policy=FOUR, work=RERUN)
    a, b = in_one_batch(h, "a", "b")
    die(h)
    gone = InferenceFailed("no worker")
    for _ in range(2):
        h.workers["op"].finish(outcomes=[Outcome(None, gone)])
        h.clock.run()
    assert (codes(h)[a], codes(h)[b]) == ("inference", "inference")


def test_refused_suspects_and_other_requests_are_all_answered() -> None:
    h = make_harness(policy=BatchPolicy(max_rows=2), options=EngineOptions(max_requests=64))
    h.request(x="bad")
    die(h)
    h.request(x="bad")
    bad = [h.request(x="bad") for _ in range(3)]
    good = [h.request(x=f"good {n}") for n in range(3)]
    die(h)
    assert [codes(h)[each.data_id] for each in bad] == ["kills_workers"] * 3
    while running(h):
        finish(h)
    assert [codes(h)[each.data_id] for each in good] == [None] * 3
    h.engine.stages[0].batcher.check_invariants()


def test_a_banned_request_is_answered_after_submit_has_returned() -> None:
    h = make_harness()
    for _ in range(2):
        h.request(x="bad")
        die(h)
    known: list[int] = []
    replies: list[list[int]] = []
    submission = h.submit(lambda outcome: replies.append(list(known)), x="bad")
    known.append(submission.data_id)
    h.clock.run()
    assert replies == [known]


def test_a_banned_request_cancelled_before_its_reply_gets_none() -> None:
    h = make_harness()
    for _ in range(2):
        h.request(x="bad")
        die(h)
    outcomes: list[Outcome] = []
    h.engine.cancel(h.submit(outcomes.append, x="bad"))
    h.clock.run()
    assert outcomes == []


def test_a_worker_that_begins_another_batch_during_the_timeout_is_not_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = make_harness(work=WorkOptions(timeout=1.0))
    slow = h.request(x="a")
    (batch,) = h.workers["op"].batches()
    batch.started = h.clock.now()
    other = Batch(batch.samples, batch.reason, batch.closed)

    def begin_other(work: Work) -> list[Batch]:
        work.current = other  # which becomes visible only as the rest is taken back
        return []

    monkeypatch.setattr(h.workers["op"], "take_back", begin_other)
    h.clock.advance(1.1)
    assert codes(h) == {slow.data_id: "op_timeout"}
    assert h.workers["op"].abandoned == []


def test_lost_batches_do_not_change_the_estimated_duration() -> None:
    h = make_harness()
    for _ in range(40):
        h.request(x="slow")
        h.workers["op"].batches()[0].ran = 0.3
        finish(h)
    for n in range(40):
        h.request(x=f"bad {n}")
        die(h)
    h.clock.advance(60.0)
    h.request(x="first")
    for n in range(4):
        h.request(x=f"next {n}")
    finish(h)
    ((work, _),) = h.workers["op"].running
    assert len(work.pending) == 0, "a slow batch shares its hand-over with nobody"


def test_a_banned_request_succeeds_again_after_its_ban() -> None:
    h = make_harness()
    for _ in range(2):
        h.request(x="probe")
        die(h)
        h.clock.advance(1.0)
    assert isinstance(h.answer(h.request(x="probe")).error, KillsWorkers)
    h.clock.advance(10.0)
    probe = h.request(x="probe")
    finish(h)
    assert h.answer(probe).error is None
    assert h.engine.stages[0].statistics().suspects == 0
