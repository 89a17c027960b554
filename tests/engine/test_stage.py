"""An op whose workers die: who runs, with whom, and what becomes of the others."""

import pytest

from penstock.batching.batcher import BatchPolicy
from penstock.engine.engine import EngineOptions
from penstock.errors import InferenceFailed, KillsWorkers, OpTimeout
from penstock.executors.executor import Work
from penstock.executors.work import WorkOptions, broken
from penstock.request import Batch, Outcome
from tests.engine.test_engine import House, house

RERUN = WorkOptions(retry_on_crash=True)
FOUR = BatchPolicy(max_rows=4)


def running(h: House) -> list[list[int]]:
    """The batches that run."""
    return [batch.data_ids for batch in h.workers["op"].batches()]


def codes(h: House) -> dict[int, str | None]:
    """Who is answered, and how."""
    errors = {data_id: got[0].error for data_id, got in h.answers.items() if got}
    return {data_id: None if error is None else error.code for data_id, error in errors.items()}


def finish(h: House) -> None:
    h.workers["op"].finish()
    h.clock.run()


def die(h: House) -> None:
    h.workers["op"].die()
    h.clock.run()


def together(h: House, *feeds: str) -> list[int]:
    """Requests that stand in one batch, behind one that is finished then."""
    h.ask(x="first")
    ids = [h.ask(x=feed).data_id for feed in feeds]
    finish(h)
    assert running(h) == [ids]
    return ids


def test_without_a_retry_a_death_is_answered_at_once() -> None:
    h = house(policy=FOUR)
    a, b = together(h, "a", "b")
    die(h)
    assert (codes(h)[a], codes(h)[b]) == ("worker_died", "worker_died")
    stats = h.engine.stages[0].statistics()
    assert (stats.deaths, stats.suspects, stats.refused, stats.idle) == (1, 2, 0, 1)


def test_a_suspect_seen_again_runs_alone_and_is_cleared_when_it_comes_back() -> None:
    h = house(policy=FOUR)
    together(h, "a", "b")
    die(h)
    h.ask(x="other")
    ids = [h.ask(x=feed).data_id for feed in ("c", "a", "d")]
    finish(h)
    assert running(h) == [[ids[0], ids[2]]]
    finish(h)
    assert running(h) == [[ids[1]]]
    finish(h)
    assert codes(h)[ids[1]] is None
    together(h, "a", "c")


def test_a_suspect_shares_its_hand_over_with_nobody() -> None:
    h = house()
    h.ask(x="bad")
    die(h)
    for _ in range(3):  # quick enough for several batches in one hand-over
        h.ask(x="quick")
        finish(h)
    h.ask(x="first")
    for feed in ("a", "bad", "b", "c"):
        h.ask(x=feed)
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


def test_with_a_retry_the_neighbours_of_a_culprit_get_their_results() -> None:
    h = house(policy=FOUR, work=RERUN)
    a, bad, c = together(h, "a", "bad", "c")
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


def test_reruns_and_the_queue_take_turns() -> None:
    h = house(policy=BatchPolicy(max_rows=2), work=RERUN)
    a, b = together(h, "a", "b")
    c, d, e = [h.ask(x=feed).data_id for feed in "cde"]
    die(h)
    order = []
    while running(h):
        order += running(h)
        finish(h)
    assert order == [[a], [c, d], [b], [e]]


def test_a_rerun_that_is_given_up_is_tried_again_as_often_as_any_other() -> None:
    h = house(work=WorkOptions(retry_on_crash=True, timeout=1.0, retry=2), workers=2)
    bad = h.ask(x="a")
    die(h)
    (batch,) = h.workers["op"].batches()
    batch.started = h.clock.now()
    h.clock.advance(1.1)
    assert running(h) == [[bad.data_id], [bad.data_id]]
    assert codes(h) == {}
    h.workers["op"].die(1)
    h.clock.run()
    assert codes(h) == {bad.data_id: "kills_workers"}


def test_a_worker_that_we_ended_accuses_nobody() -> None:
    h = house(work=WorkOptions(retry_on_crash=True, timeout=1.0))
    slow = h.ask(x="a")
    (batch,) = h.workers["op"].batches()
    batch.started = h.clock.now()
    h.clock.advance(1.1)
    assert isinstance(h.answer(slow).error, OpTimeout)
    h.workers["op"].finish(outcomes=broken(batch))
    h.clock.run()
    assert h.engine.stages[0].statistics().suspects == 0
    together(h, "b")


def test_a_batch_that_died_after_it_was_given_up_is_remembered_and_not_answered_again() -> None:
    h = house(work=WorkOptions(timeout=1.0))
    slow = h.ask(x="a")
    (batch,) = h.workers["op"].batches()
    batch.started = h.clock.now()
    h.clock.advance(1.1)
    die(h)
    assert isinstance(h.answer(slow).error, OpTimeout)
    assert h.engine.stages[0].statistics().suspects == 1


def test_a_drain_waits_for_those_that_are_run_again() -> None:
    h = house(policy=FOUR, work=RERUN)
    together(h, "a", "b")
    rested: list[bool] = []
    h.engine.drain(lambda: rested.append(True))
    die(h)
    finish(h)
    assert not rested
    finish(h)
    assert rested == [True]


def test_an_op_without_workers_answers_those_that_would_be_run_again() -> None:
    h = house(policy=FOUR, work=RERUN)
    a, b = together(h, "a", "b")
    die(h)
    gone = InferenceFailed("no worker")
    for _ in range(2):
        h.workers["op"].finish(outcomes=[Outcome(None, gone)])
        h.clock.run()
    assert (codes(h)[a], codes(h)[b]) == ("inference", "inference")


def test_an_answer_to_a_culprit_may_do_anything() -> None:
    h = house(policy=BatchPolicy(max_rows=2), options=EngineOptions(max_requests=64))
    h.ask(x="bad")
    die(h)
    h.ask(x="bad")
    bad = [h.ask(x="bad") for _ in range(3)]
    good = [h.ask(x=f"good {n}") for n in range(3)]
    die(h)
    assert [codes(h)[each.data_id] for each in bad] == ["kills_workers"] * 3
    while running(h):
        finish(h)
    assert [codes(h)[each.data_id] for each in good] == [None] * 3
    h.engine.stages[0].batcher.check_invariants()


def test_a_culprit_is_answered_after_it_knows_its_own_request() -> None:
    h = house()
    for _ in range(2):
        h.ask(x="bad")
        die(h)
    known: list[int] = []
    told: list[list[int]] = []
    asked = h.submit(lambda outcome: told.append(list(known)), x="bad")
    known.append(asked.data_id)
    h.clock.run()
    assert told == [known]


def test_a_culprit_that_leaves_before_it_is_answered_is_not() -> None:
    h = house()
    for _ in range(2):
        h.ask(x="bad")
        die(h)
    told: list[Outcome] = []
    h.engine.cancel(h.submit(told.append, x="bad"))
    h.clock.run()
    assert told == []


def test_a_worker_that_goes_on_as_its_call_is_given_up_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = house(work=WorkOptions(timeout=1.0))
    slow = h.ask(x="a")
    (batch,) = h.workers["op"].batches()
    batch.started = h.clock.now()
    other = Batch(batch.samples, batch.reason, batch.closed)

    def goes_on(work: Work) -> list[Batch]:
        work.current = other  # which is seen only as the rest is taken back
        return []

    monkeypatch.setattr(h.workers["op"], "take_back", goes_on)
    h.clock.advance(1.1)
    assert codes(h) == {slow.data_id: "op_timeout"}
    assert h.workers["op"].abandoned == []


def test_lost_batches_teach_nothing_of_how_long_others_take() -> None:
    h = house()
    for _ in range(40):
        h.ask(x="slow")
        h.workers["op"].batches()[0].ran = 0.3
        finish(h)
    for n in range(40):
        h.ask(x=f"bad {n}")
        die(h)
    h.clock.advance(60.0)
    h.ask(x="first")
    for n in range(4):
        h.ask(x=f"next {n}")
    finish(h)
    ((work, _),) = h.workers["op"].running
    assert len(work.pending) == 0, "a slow batch shares its hand-over with nobody"


def test_a_probe_is_served_again_soon_after_its_card_is_back() -> None:
    h = house()
    for _ in range(2):
        h.ask(x="probe")
        die(h)
        h.clock.advance(1.0)
    assert isinstance(h.answer(h.ask(x="probe")).error, KillsWorkers)
    h.clock.advance(10.0)
    probe = h.ask(x="probe")
    finish(h)
    assert h.answer(probe).error is None
    assert h.engine.stages[0].statistics().suspects == 0
