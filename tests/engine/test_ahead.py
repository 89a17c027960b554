"""What a busy worker is given to go on with."""

import pytest

from penstock.batching.batcher import BatchPolicy
from penstock.engine.patience import ONE_PATIENCE
from penstock.errors import KillsWorkers
from penstock.executors.work import WorkOptions
from tests.engine.test_engine import House, house

SLOW = 0.01
"""Seconds of a batch; those of cheap ones travel together instead."""


def started(h: House, **more: int) -> House:
    """Its one worker has run one batch, so that it is known how long they take."""
    h.ask(x="first")
    h.workers["op"].batches()[0].ran = SLOW
    h.workers["op"].finish()
    h.clock.run()
    return h


def ahead(h: House) -> list[list[int]]:
    """The batches that stand ahead and have not begun."""
    return [batch.data_ids for work in h.workers["op"].behind for batch in work.pending]


def running(h: House) -> list[list[int]]:
    return [batch.data_ids for batch in h.workers["op"].batches()]


def finish(h: House, index: int = 0) -> None:
    h.workers["op"].batches()[index].ran = SLOW
    h.workers["op"].finish(index)
    h.clock.run()


def stand(h: House, number: int) -> list[int]:
    return [h.ask(x=n).data_id for n in range(number)]


def test_a_busy_worker_is_given_as_many_batches_as_it_may_have_and_runs_all_in_order() -> None:
    h = started(house(ahead=2))
    ids = stand(h, 4)
    assert running(h) == [ids[:1]]
    assert ahead(h) == [ids[1:2], ids[2:3]]
    assert h.engine.stages[0].statistics().waiting == 1
    for n in range(4):
        assert running(h) == [ids[n : n + 1]]
        finish(h)
    assert [len(h.answers[each]) for each in ids] == [1, 1, 1, 1]
    stats = h.engine.stages[0].statistics()
    assert (stats.idle, stats.batches, stats.samples) == (1, 5, 5)


def test_only_what_is_full_goes_ahead_and_the_rest_waits_for_company() -> None:
    h = started(house(policy=BatchPolicy(max_rows=2), ahead=1))
    first, *rest = stand(h, 2)
    assert (running(h), ahead(h)) == ([[first]], [])
    rest += stand(h, 1)
    assert ahead(h) == [rest]
    finish(h)
    assert running(h) == [rest]


def test_without_room_nothing_is_given_ahead() -> None:
    h = started(house(ahead=0))
    stand(h, 3)
    assert ahead(h) == []
    assert h.engine.stages[0].statistics().waiting == 2


def test_batches_that_are_cheap_travel_together_and_not_ahead() -> None:
    h = house(ahead=1)
    h.ask(x="first")
    h.workers["op"].finish()  # in no time at all
    h.clock.run()
    ids = stand(h, 4)
    assert ahead(h) == []
    h.workers["op"].finish()
    h.clock.run()
    (work,) = [work for work, _ in h.workers["op"].running]
    assert work.crowded
    assert [batch.data_ids for batch in work.pending] == [ids[2:3], ids[3:]]


def test_an_idle_worker_with_nothing_to_do_takes_over_what_stands_ahead_at_another() -> None:
    h = started(house(workers=2, ahead=1))
    a, b, c = stand(h, 3)
    assert (running(h), ahead(h)) == ([[a], [b]], [[c]])  # behind the first
    finish(h, 1)
    assert (running(h), ahead(h)) == ([[a], [c]], [])
    finish(h, 1)
    finish(h)
    assert [len(h.answers[each]) for each in (a, b, c)] == [1, 1, 1]
    h.clock.run()
    assert h.engine.stages[0].statistics().idle == 1  # the other is told that its next is gone


def test_what_stands_ahead_of_a_slow_call_goes_to_another_when_its_own_time_is_up() -> None:
    h = started(house(workers=2, ahead=1))
    stand(h, 4)
    h.clock.advance(0.5 * ONE_PATIENCE)
    finish(h)
    finish(h, 1)
    slow, _ = running(h)
    behind, next_one, last = ([each] for each in stand(h, 3))
    assert ahead(h) == [behind, next_one]
    h.clock.advance(0.6 * ONE_PATIENCE)  # once the first ones were due, and not these
    h.clock.run()
    h.clock.advance(0.5 * ONE_PATIENCE)
    h.clock.run()
    finish(h, 1)
    # Nothing more is given to the other one, so that it is idle soon.
    assert (running(h), ahead(h)) == ([slow, next_one], [behind])
    finish(h, 1)
    assert (running(h), ahead(h)) == ([slow, behind], [last])


@pytest.mark.parametrize("busy", [False, True])
def test_when_a_worker_is_given_up_the_others_are_given_batches_ahead_as_before(busy: bool) -> None:
    h = started(house(workers=2, ahead=1))
    ids = stand(h, 2) if busy else []
    h.workers["op"].workers = 1
    if busy:  # the Work of the other has not come to a worker, and does so now
        finish(h)
    ids += stand(h, 4)
    for n in range(int(busy), len(ids) - 1):
        assert (running(h), ahead(h)) == ([ids[n : n + 1]], [ids[n + 1 : n + 2]])
        finish(h)
    finish(h)
    assert all(len(h.answers[each]) == 1 for each in ids)
    stats = h.engine.stages[0].statistics()
    assert (stats.idle, stats.workers) == (1, 1)


def test_a_worker_that_comes_after_all_is_given_what_waits() -> None:
    h = started(house(workers=2))
    h.workers["op"].workers = 1
    first, second = stand(h, 2)
    assert running(h) == [[first]]
    h.workers["op"].workers = 2
    h.workers["op"].grown()
    h.clock.run()
    assert running(h) == [[first], [second]]


def test_who_leaves_while_he_stands_ahead_is_not_run() -> None:
    h = started(house(ahead=1))
    first = h.ask(x=1)
    second = h.ask(x=2)
    assert ahead(h) == [[second.data_id]]
    h.engine.cancel(second)
    h.clock.run()
    assert ahead(h) == []
    finish(h)
    assert len(h.answers[first.data_id]) == 1
    assert running(h) == []


def test_a_death_gives_back_what_stood_ahead_and_accuses_the_running_batch_alone() -> None:
    h = started(house(ahead=1))
    a, b = stand(h, 2)
    h.workers["op"].die()
    h.clock.run()
    assert h.answers[a][0].error is not None
    assert running(h) == [[b]]
    assert h.engine.stages[0].statistics().idle == 0
    finish(h)
    assert h.answers[b][0].error is None


def test_nothing_goes_ahead_while_somebody_is_suspected() -> None:
    h = started(house(ahead=1))
    stand(h, 1)
    h.workers["op"].die()
    h.clock.run()
    ids = [h.ask(x=n).data_id for n in (7, 8)]
    assert (running(h), ahead(h)) == ([ids[:1]], [])


def test_what_stands_ahead_at_another_is_taken_back_when_somebody_is_suspected() -> None:
    h = started(house(workers=2, ahead=1))
    a, b = stand(h, 2)
    c = h.ask(x=1).data_id  # the like of the second, behind the first
    d = h.ask(x=9).data_id
    e = h.ask(x=10).data_id
    assert ahead(h) == [[c], [d]]
    h.workers["op"].die(1)
    h.clock.run()
    assert h.answers[b][0].error is not None
    assert (running(h), ahead(h)) == ([[a], [d]], [])
    finish(h, 1)
    assert running(h) == [[a], [c]]
    h.workers["op"].die(1)
    h.clock.run()
    assert type(h.answers[c][0].error) is KillsWorkers  # it ran alone, as a suspect
    assert (h.answers[a], h.answers[e]) == ([], [])


@pytest.mark.parametrize("given_up", [False, True])
def test_what_stands_ahead_does_not_hide_that_every_worker_is_lost(given_up: bool) -> None:
    h = started(house(ahead=1, work=WorkOptions(timeout=0.1)))
    stand(h, 2)
    (batch,) = h.workers["op"].batches()
    assert len(ahead(h)) == 1
    batch.started = h.clock.now()
    if given_up:
        h.clock.advance(0.11)
        h.clock.run()
    assert h.engine.stages[0].lost is given_up


def test_a_call_that_once_stood_ahead_can_be_lost_as_any_other() -> None:
    h = started(house(ahead=1, work=WorkOptions(timeout=0.1)))
    stand(h, 2)
    finish(h)
    (batch,) = h.workers["op"].batches()
    batch.started = h.clock.now()
    assert not h.engine.stages[0].lost
    h.clock.advance(0.11)
    h.clock.run()
    assert h.engine.stages[0].lost
