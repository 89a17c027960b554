"""A worker is killed every two seconds while 64 callers ask."""

from pathlib import Path

import pytest

from tests.faults.storm import RECOVERY, TICK, Damage, storm


def damage(*counts: int, kill: int) -> Damage:
    """So many answers in each tick; somebody was killed at the beginning of one."""
    times = [(at + each / count) * TICK for at, count in enumerate(counts) for each in range(count)]
    return Damage(kills=[kill * TICK], times=sorted([*times, len(counts) * TICK]))


def test_a_kill_is_forgotten_when_as_much_is_answered_as_before_it() -> None:
    usual = [50] * 20
    (after,) = damage(*usual, 0, 20, 39, 45, 50, kill=20).recoveries()
    assert after == pytest.approx(3 * TICK)
    (never,) = damage(*usual, *[30] * 20, kill=20).recoveries()
    assert never == float("inf")
    (slow,) = damage(*[90] * 60, *[45] * 20, 0, 40, kill=80).recoveries()
    assert slow == pytest.approx(TICK)


@pytest.mark.faults
async def test_each_kill_costs_a_batch_at_most_and_is_forgotten_after_a_second(
    tmp_path: Path,
) -> None:
    done = await storm(tmp_path, seconds=7.5, batch_size=4)
    assert len(done.kills) == 3
    assert max(done.recoveries()) <= RECOVERY
