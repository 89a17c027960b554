"""What the connections of a door share: the loop's look at what comes next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.door import state as door_state
from penstock.door.budget import ByteBudget
from penstock.door.limits import DoorLimits
from penstock.door.state import DoorState

LIMIT = 0.001
SHORT = LIMIT / 4


class Time:
    """Stands while nobody moves it on; counts how often the processor was offered to others."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.turns = 0

    def monotonic(self) -> float:
        return self.now

    def sched_yield(self) -> None:
        self.turns += 1


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(door_state, "monotonic", time.monotonic)
    monkeypatch.setattr(door_state.os, "sched_yield", time.sched_yield)
    return time


async def busy(time: Time, limit: float = LIMIT) -> DoorState:
    """A door that was asked again and again for a while, and has just answered."""
    application: Any = None
    state = DoorState(application, DoorLimits(busy_poll=limit), ByteBudget(1 << 20))
    for _ in range(50):
        time.now += SHORT
        state.start_polling()
        await asyncio.sleep(0)
    time.turns = 0
    return state


async def turns(loops: int = 5) -> None:
    for _ in range(loops):
        await asyncio.sleep(0)


async def test_the_loop_looks_on_after_the_last_answer_and_then_sleeps(time: Time) -> None:
    await busy(time)
    await turns()
    looked = time.turns
    assert looked >= 4
    time.now += LIMIT
    await turns()
    assert time.turns == looked


async def test_the_loop_does_not_look_while_a_request_is_open(time: Time) -> None:
    state = await busy(time)
    state.calls += 1
    await turns()
    assert time.turns == 0


async def test_the_loop_of_a_door_that_is_drained_sleeps_at_once(time: Time) -> None:
    state = await busy(time)
    state.draining = True
    await turns()
    assert time.turns == 0
