"""The one timer of a door."""

from __future__ import annotations

import asyncio
from math import inf

from penstock.door.state import Sweeper


class Member:
    def __init__(self, sweeper: Sweeper, due: float) -> None:
        self.due = due
        self.looks: list[float] = []
        self.looked = asyncio.Event()
        self._sweeper = sweeper
        sweeper.members.add(self)

    def on_due(self, now: float) -> None:
        self.looks.append(now)
        self.due = inf
        self.looked.set()


async def test_a_member_is_looked_at_when_it_is_due_and_not_before() -> None:
    sweeper = Sweeper(0.01)
    sweeper.start()
    soon = Member(sweeper, sweeper.after(0.05))
    never = Member(sweeper, inf)
    due = soon.due
    async with asyncio.timeout(5):
        await soon.looked.wait()
    sweeper.stop()
    assert len(soon.looks) == 1
    assert soon.looks[0] >= due
    assert never.looks == []


async def test_what_is_due_may_be_moved_either_way() -> None:
    sweeper = Sweeper(0.01)
    sweeper.start()
    later = Member(sweeper, sweeper.now)
    sooner = Member(sweeper, inf)
    later.due = inf
    sooner.due = sweeper.now
    async with asyncio.timeout(5):
        await sooner.looked.wait()
    sweeper.stop()
    assert later.looks == []


async def test_nobody_is_judged_right_after_the_loop_stood_still() -> None:
    sweeper = Sweeper(0.01)
    sweeper.start()
    member = Member(sweeper, sweeper.after(0.02))
    sweeper.now -= 5.0  # as it is when the last tick was long ago
    handle = sweeper._timer
    assert handle is not None
    handle.cancel()
    sweeper._turn()
    assert member.looks == []
    async with asyncio.timeout(5):
        await member.looked.wait()
    sweeper.stop()


async def test_a_sweeper_that_was_stopped_does_not_tick() -> None:
    sweeper = Sweeper(0.001)
    sweeper.start()
    sweeper.start()
    sweeper.stop()
    member = Member(sweeper, sweeper.now)
    other = Sweeper(0.02)
    other.start()
    witness = Member(other, other.now)
    async with asyncio.timeout(5):
        await witness.looked.wait()
    other.stop()
    assert member.looks == []
