"""What becomes of the requests that a worker died with."""

import logging
import math
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from penstock.engine.digest import digest_of
from penstock.engine.quarantine import Quarantine, runs_alone
from penstock.errors import HookFailed, InferenceFailed
from penstock.ops.failures import worker_died
from penstock.request import Batch, CloseReason, Outcome, Sample


def sample(number: int, x: Any = None, arrived: float = 0.0, deadline: float = math.inf) -> Sample:
    made = Sample(number, {"op": {"x": number if x is None else x}}, deadline, op=0)
    made.arrived = arrived
    return made


def batch(*samples: Sample) -> Batch:
    return Batch(list(samples), CloseReason.FULL, 0.0)


def died(quarantine: Quarantine, lost: Batch, now: float = 1.0) -> dict[int, str]:
    """Who is answered, and with which error."""
    outcomes = [Outcome(None, worker_died("op", 0)) for _ in lost.samples]
    over, answers = quarantine.died(lost, outcomes, now)
    assert not quarantine.read(lambda: now)
    errors = [answer.error.code for answer in answers if answer.error is not None]
    return dict(zip([each.data_id for each in over], errors, strict=True))


def taken(quarantine: Quarantine, now: float = 1.0) -> list[list[int]]:
    """All that is to run alone."""
    found = []
    while (lone := quarantine.take(now)) is not None:
        found.append(lone.data_ids)
    return found


def test_before_the_first_death_it_need_not_be_asked() -> None:
    quarantine = Quarantine("op", rerun=False)
    assert not quarantine.wary
    died(quarantine, batch(sample(1)))
    assert quarantine.wary


def test_without_a_rerun_all_are_answered_and_all_are_suspects() -> None:
    quarantine = Quarantine("op", rerun=False)
    assert died(quarantine, batch(sample(1), sample(2))) == {1: "worker_died", 2: "worker_died"}
    assert taken(quarantine) == []
    again, other = sample(3, x=1), sample(4)
    quarantine.meet(again, 16, 2.0)
    quarantine.meet(other, 16, 2.0)
    assert (runs_alone(again), again.rows) == (True, 16)
    assert (runs_alone(other), other.rows) == (False, 1)


def test_a_suspect_that_comes_back_is_cleared() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1), sample(2)))
    again = sample(3, x=1)
    quarantine.meet(again, 1, 2.0)
    quarantine.came_back(batch(again), [Outcome({})], 2.5)
    assert len(quarantine.suspects) == 1
    later = sample(4, x=1)
    quarantine.meet(later, 1, 3.0)
    assert not runs_alone(later)


def test_nobody_is_cleared_by_a_call_that_nobody_waited_for() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1)))
    again = sample(3, x=1)
    quarantine.meet(again, 1, 2.0)
    again.gone = True
    quarantine.came_back(batch(again), [Outcome({})], 2.5)
    assert len(quarantine.suspects) == 1


def test_nobody_is_cleared_by_an_op_that_has_no_worker() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1)))
    again = sample(3, x=1)
    quarantine.meet(again, 1, 2.0)
    quarantine.came_back(batch(again), [Outcome(None, InferenceFailed("no worker"))], 2.5)
    assert len(quarantine.suspects) == 1
    quarantine.came_back(batch(again), [Outcome(None, HookFailed("it raised, so it ran"))], 2.5)
    assert len(quarantine.suspects) == 0


def test_a_suspect_that_kills_again_is_refused_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1), sample(2)))
    twins = [sample(3, x=1), sample(4, x=1)]
    for twin in twins:
        quarantine.meet(twin, 1, 2.0)
    with caplog.at_level(logging.ERROR):
        assert died(quarantine, batch(twins[0]), 3.0) == {3: "kills_workers"}
        assert died(quarantine, batch(twins[1]), 4.0) == {4: "kills_workers"}
    assert len(caplog.records) == 1
    assert "op op: two workers have died of one request (data_id=3" in caplog.text
    assert quarantine.meet(sample(5, x=1), 1, 600.0)
    assert quarantine.refused == 1
    assert not quarantine.meet(sample(6, x=1), 1, 604.0)


def test_two_deaths_in_company_convict_nobody() -> None:
    quarantine = Quarantine("op", rerun=False)
    for n in range(5):
        lost = batch(sample(1, x="common"), sample(2, x=n))
        assert set(died(quarantine, lost).values()) == {"worker_died"}


def test_with_a_rerun_each_is_run_once_more_alone_in_order() -> None:
    quarantine = Quarantine("op", rerun=True)
    assert died(quarantine, batch(sample(1), sample(2), sample(3))) == {}
    assert len(quarantine) == 3
    assert taken(quarantine) == [[1], [2], [3]]


def test_who_dies_again_in_its_rerun_is_answered_and_refused() -> None:
    quarantine = Quarantine("op", rerun=True)
    died(quarantine, batch(sample(1)))
    lone = quarantine.take(2.0)
    assert lone is not None
    assert died(quarantine, lone, 2.0) == {1: "kills_workers"}
    assert len(quarantine) == 0
    assert quarantine.meet(sample(2, x=1), 1, 3.0)


def test_who_cannot_be_remembered_is_still_run_at_most_twice() -> None:
    quarantine = Quarantine("op", rerun=True)
    died(quarantine, batch(sample(1, x=object())))
    lone = quarantine.take(2.0)
    assert lone is not None
    assert died(quarantine, lone, 2.0) == {1: "kills_workers"}
    assert len(quarantine.suspects) == 0


def test_who_is_gone_or_too_late_is_not_run_again_but_remembered() -> None:
    quarantine = Quarantine("op", rerun=True)
    gone, leaves, late = sample(1), sample(2), sample(3, deadline=5.0)
    gone.gone = True
    assert died(quarantine, batch(gone, leaves, late)) == {1: "worker_died"}
    leaves.gone = True
    assert taken(quarantine, 5.0) == []
    assert len(quarantine.suspects) == 3


def test_a_batch_that_had_been_given_up_is_not_run_again() -> None:
    quarantine = Quarantine("op", rerun=True)
    lost = batch(sample(1))
    lost.settled = True
    assert died(quarantine, lost) == {1: "worker_died"}
    assert len(quarantine.suspects) == 1


def test_who_waited_while_a_worker_died_is_judged_before_it_runs() -> None:
    quarantine = Quarantine("op", rerun=False)
    waiting = batch(sample(1, x="bad"), sample(2), sample(3, x="good"))
    died(quarantine, batch(sample(8, x="bad"), sample(9, x="worse")))
    left, culprits = quarantine.screen(waiting, 2.0)
    assert left is waiting
    assert (left.data_ids, left.rows, culprits) == ([2, 3], 2, [])
    lone = quarantine.take(2.0)
    assert lone is not None
    assert (lone.data_ids, lone.reason) == ([1], CloseReason.ALONE)
    died(quarantine, lone, 3.0)
    left, culprits = quarantine.screen(batch(sample(4, x="bad"), sample(5, x="worse")), 4.0)
    assert [each.data_id for each in culprits] == [4]
    assert (left, taken(quarantine)) == (None, [[5]])
    left, culprits = quarantine.screen(batch(sample(6, x="bad")), 4.0)
    assert left is None
    assert quarantine.refused == 2


def test_a_lone_suspect_that_waited_runs_as_it_is_and_under_suspicion() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1)))
    lone = batch(sample(2, x=1))
    left, culprits = quarantine.screen(lone, 2.0)
    assert (left, culprits) == (lone, [])
    assert died(quarantine, lone, 3.0) == {2: "kills_workers"}


def test_who_arrived_after_the_last_death_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1)), 1.0)

    def looked(inputs: object) -> None:
        raise AssertionError("looked at")

    monkeypatch.setattr("penstock.engine.suspects.outline_of", looked)
    late = batch(sample(2, arrived=1.5))
    assert quarantine.screen(late, 2.0) == (late, [])


def test_a_work_holds_one_suspect_or_several_others_and_the_suspect_is_next() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1)))
    queue = [batch(sample(n, x=x)) for n, x in ((2, "a"), (3, "b"), (4, 1), (5, "c"))]
    again = [batch(sample(6, x="d"))]

    def fill() -> list[int]:
        batches, wait, culprits = quarantine.fill(
            8,
            lambda: 2.0,
            lambda now: again.pop(0) if again else None,
            lambda: queue.pop(0) if queue else 7.5,
        )
        assert (wait, culprits) == (None if queue or batches[0].data_ids == [4] else 7.5, [])
        return [number for each in batches for number in each.data_ids]

    assert fill() == [6, 2, 3]
    assert fill() == [4]
    assert fill() == [5]


def test_a_suspect_that_finds_the_work_taken_is_the_next_before_all_others() -> None:
    quarantine = Quarantine("op", rerun=True)
    died(quarantine, batch(sample(1), sample(2)))
    again = [batch(sample(3)), quarantine.take(2.0), None]
    batches, _, _ = quarantine.fill(8, lambda: 2.0, lambda now: again.pop(0), lambda: None)
    assert [each.data_ids for each in batches] == [[3]]
    assert taken(quarantine) == [[1], [2]]


def test_a_suspect_fills_a_batch_only_in_the_queue() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1)))
    again = sample(2, x=1, arrived=5.0)
    quarantine.meet(again, 16, 5.0)
    queued = Batch([again], CloseReason.FULL, 5.0, rows=again.rows)
    assert queued.rows == 16
    left, _ = quarantine.screen(queued, 6.0)
    assert left is queued
    assert left.rows == 1


def slowly(step: float) -> Callable[[], float]:
    """A clock in whose seconds to look at a batch takes that long."""
    return count(2.0, step).__next__


def test_many_culprits_are_met_in_several_turns() -> None:
    quarantine = Quarantine("op", rerun=False)
    quarantine.suspects.convict(died_of("bad"), 1.0)
    queue = [batch(sample(n, x="bad")) for n in range(5)]
    batches, wait, refused = quarantine.fill(
        8, slowly(0.0006), lambda now: None, lambda: queue.pop(0)
    )
    assert (batches, wait, len(refused), len(queue)) == ([], pytest.approx(2.0012), 2, 3)


def test_what_was_found_in_a_turn_is_run_before_more_is_looked_at() -> None:
    quarantine = Quarantine("op", rerun=False)
    quarantine.suspects.convict(died_of("bad"), 1.0)
    queue = [batch(sample(n)) for n in range(5)]
    batches, wait, refused = quarantine.fill(
        8, slowly(0.0006), lambda now: None, lambda: queue.pop(0)
    )
    assert ([each.data_ids for each in batches], wait, refused) == ([[0], [1]], None, [])


def died_of(x: Any) -> bytes:
    digest = digest_of(sample(0, x=x).inputs)
    assert digest is not None
    return digest


def test_who_has_no_digest_is_answered_like_the_others() -> None:
    quarantine = Quarantine("op", rerun=False)
    odd = np.zeros(1, [(f"field{n}", "i4") for n in range(300)])
    lost = batch(sample(1), sample(2, x=odd), sample(3, x=10**5000))
    assert set(died(quarantine, lost).values()) == {"worker_died"}
    assert len(quarantine.suspects) == 2
    assert not quarantine.meet(sample(4, x=odd), 16, 2.0)


def dead(quarantine: Quarantine, *samples: Sample) -> Batch:
    """A batch that has died, of which nobody has been read."""
    lost = batch(*samples)
    quarantine.died(lost, [Outcome(None, worker_died("op", 0)) for _ in samples], 1.0)
    return lost


def test_a_batch_that_died_is_read_in_several_turns() -> None:
    quarantine = Quarantine("op", rerun=False)
    dead(quarantine, *map(sample, range(5)))
    clock = slowly(0.0006)
    remembered = []
    while quarantine.read(clock):
        remembered.append(len(quarantine.suspects))
    assert remembered == [2, 4]
    assert len(quarantine.suspects) == 5
    assert not quarantine.read(clock)


def test_who_is_back_before_it_was_read_is_cleared() -> None:
    quarantine = Quarantine("op", rerun=True)
    dead(quarantine, sample(1), sample(2))
    lone = quarantine.take(1.0)
    assert lone is not None
    quarantine.came_back(lone, [Outcome({})], 2.0)
    assert not quarantine.read(lambda: 3.0)
    assert len(quarantine.suspects) == 1


def test_who_kills_again_before_it_was_read_is_a_culprit() -> None:
    quarantine = Quarantine("op", rerun=True)
    dead(quarantine, sample(1), sample(2))
    lone = quarantine.take(1.0)
    assert lone is not None
    dead(quarantine, *lone.samples)
    assert not quarantine.read(lambda: 3.0)
    assert quarantine.meet(sample(3, x=1), 16, 4.0)
    assert not quarantine.meet(sample(4, x=2), 16, 4.0)
