"""The one timer of a door."""

from __future__ import annotations

import asyncio
from math import inf

from penstock.door.sweeper import Sweeper


class Member:
    def __init__(self, sweeper: Sweeper, due: float) -> None:
        self.due = due
        self.checks: list[float] = []
        self.checked = asyncio.Event()
        self._sweeper = sweeper
        sweeper.members.add(self)

    def on_due(self, now: float) -> None:
        self.checks.append(now)
        self.due = inf
        self.checked.set()


async def test_a_member_is_checked_when_it_is_due_and_not_before() -> None:
    sweeper = Sweeper(0.01)
    sweeper.start()
    soon = Member(sweeper, sweeper.after(0.05))
    never = Member(sweeper, inf)
    due = soon.due
    async with asyncio.timeout(5):
        await soon.checked.wait()
    sweeper.stop()
    assert len(soon.checks) == 1
    assert soon.checks[0] >= due
    assert never.checks == []


async def test_a_members_due_time_can_be_changed() -> None:
    sweeper = Sweeper(0.01)
    sweeper.start()
    later = Member(sweeper, sweeper.now)
    sooner = Member(sweeper, inf)
    later.due = inf
    sooner.due = sweeper.now
    async with asyncio.timeout(5):
        await sooner.checked.wait()
    sweeper.stop()
    assert later.checks == []


async def test_members_are_not_checked_right_after_the_loop_was_blocked() -> None:
    sweeper = Sweeper(0.01)
    sweeper.start()
    member = Member(sweeper, sweeper.after(0.02))
    sweeper.now -= 5.0  # as if the last tick was long ago
    handle = sweeper._timer
    assert handle is not None
    handle.cancel()
    sweeper._turn()
    assert member.checks == []
    async with asyncio.timeout(5):
        await member.checked.wait()
    sweeper.stop()


async def test_a_stopped_sweeper_does_not_check_members() -> None:
    sweeper = Sweeper(0.001)
    sweeper.start()
    sweeper.start()
    sweeper.stop()
    member = Member(sweeper, sweeper.now)
    other = Sweeper(0.02)
    other.start()
    other_member = Member(other, other.now)
    async with asyncio.timeout(5):
        await other_member.checked.wait()
    other.stop()
    assert member.checks == []
