"""The deadline wheel reports every item once, never early, and at most one tick late."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.deadlines import TICK, Deadlines, Due


def ignore_alarm() -> None:
    """For wheels whose earlier alarms do not matter."""


@given(
    deadlines=st.lists(st.floats(0.0, 100.0), max_size=40),
    removed=st.sets(st.integers(0, 39)),
    steps=st.lists(st.floats(0.001, 5.0), min_size=1, max_size=60),
)
def test_every_item_is_due_once_within_a_tick_after_its_deadline(
    deadlines: list[float], removed: set[int], steps: list[float]
) -> None:
    wheel: Deadlines[int] = Deadlines(ignore_alarm)
    dues: list[Due[int]] = []
    for item, deadline in enumerate(deadlines):
        dues.append(wheel.add(item, deadline))
    for item in removed:
        if item < len(deadlines):
            del dues[item][item]
    expected = {i: d for i, d in enumerate(deadlines) if i not in removed}
    assert len(wheel) == len(expected)
    now = 0.0
    for step in [*steps, 200.0]:
        now += step
        due = set(wheel.expire(now))
        for item in due:
            assert now >= expected.pop(item), "nothing is reported early"
        for deadline in expected.values():
            assert now < deadline + TICK * 1.001, "nothing is reported more than a tick late"
    assert not expected
    assert len(wheel) == 0


@given(deadlines=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=20))
def test_the_alarm_is_raised_when_the_next_due_time_becomes_earlier(deadlines: list[float]) -> None:
    alarms: list[float | None] = []
    wheel: Deadlines[int] = Deadlines(lambda: alarms.append(wheel.next_due()))
    earliest = None
    for item, deadline in enumerate(deadlines):
        alarms.clear()
        wheel.add(item, deadline)
        due = wheel.next_due()
        assert due is not None
        assert alarms == ([due] if earliest is None or due < earliest else [])
        earliest = due
    assert min(deadlines) <= earliest <= min(deadlines) + TICK * 1.001  # type: ignore[operator]
    assert wheel.expire(earliest)  # type: ignore[arg-type]


def test_an_empty_wheel_has_no_due_time_and_keeps_no_buckets() -> None:
    wheel: Deadlines[int] = Deadlines(ignore_alarm)
    for item in range(1000):
        del wheel.add(item, float(item))[item]
    assert wheel.next_due() is None
    assert not wheel._buckets
    assert not wheel._ticks


def test_an_item_may_be_removed_after_it_was_reported() -> None:
    wheel: Deadlines[int] = Deadlines(ignore_alarm)
    due = wheel.add(1, 5.0)
    assert due is wheel.add(2, 5.0)
    assert wheel.expire(6.0) == [1, 2]
    del due[1]
    assert len(wheel) == 0
    assert wheel.next_due() is None
