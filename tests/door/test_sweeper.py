"""The one timer of a door."""

from __future__ import annotations

import asyncio
from math import inf

from penstock.door.sweeper import Wheel


class Member:
    def __init__(self, wheel: Wheel, due: float) -> None:
        self.due = due
        self.looks: list[float] = []
        self.looked = asyncio.Event()
        self._wheel = wheel
        wheel.members.add(self)

    def look(self, now: float) -> None:
        self.looks.append(now)
        self.due = inf
        self.looked.set()


async def test_a_member_is_looked_at_when_it_is_due_and_not_before() -> None:
    wheel = Wheel(0.01)
    wheel.start()
    soon = Member(wheel, wheel.after(0.05))
    never = Member(wheel, inf)
    due = soon.due
    async with asyncio.timeout(5):
        await soon.looked.wait()
    wheel.stop()
    assert len(soon.looks) == 1
    assert soon.looks[0] >= due
    assert never.looks == []


async def test_what_is_due_may_be_moved_either_way() -> None:
    wheel = Wheel(0.01)
    wheel.start()
    later = Member(wheel, wheel.now)
    sooner = Member(wheel, inf)
    later.due = inf
    sooner.due = wheel.now
    async with asyncio.timeout(5):
        await sooner.looked.wait()
    wheel.stop()
    assert later.looks == []


async def test_nobody_is_judged_right_after_the_loop_stood_still() -> None:
    wheel = Wheel(0.01)
    wheel.start()
    member = Member(wheel, wheel.after(0.02))
    wheel.now -= 5.0  # as it is when the last tick was long ago
    handle = wheel._timer
    assert handle is not None
    handle.cancel()
    wheel._turn()
    assert member.looks == []
    async with asyncio.timeout(5):
        await member.looked.wait()
    wheel.stop()


async def test_a_wheel_that_was_stopped_does_not_tick() -> None:
    wheel = Wheel(0.001)
    wheel.start()
    wheel.start()
    wheel.stop()
    member = Member(wheel, wheel.now)
    other = Wheel(0.02)
    other.start()
    witness = Member(other, other.now)
    async with asyncio.timeout(5):
        await witness.looked.wait()
    other.stop()
    assert member.looks == []
