"""The state shared by a door's connections: busy polling."""

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
    """A clock moved by the test; counts calls of ``sched_yield``."""

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
    """The state of a door after many frequent requests, the last one just answered."""
    application: Any = None
    state = DoorState(application, DoorLimits(busy_poll=limit), ByteBudget(1 << 20))
    for _ in range(50):
        time.now += SHORT
        state.start_polling()
        await asyncio.sleep(0)
    time.turns = 0
    return state


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 66.0), (0.5, 72.0), (1.0, 78.0)])
async def test_a_connection_is_kept_longer_than_by_a_client_with_the_same_limit(
    chance: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    application: Any = None
    state = DoorState(application, DoorLimits(keep_alive=60.0), ByteBudget(1 << 20))
    monkeypatch.setattr(door_state, "random", lambda: chance)
    # The sweeper's time, from which it counts, may be one tick old.
    assert state.keep_alive() == pytest.approx(seconds + state.sweeper.tick)


async def turns(loops: int = 5) -> None:
    for _ in range(loops):
        await asyncio.sleep(0)


async def test_the_loop_polls_after_the_last_answer_up_to_the_limit(time: Time) -> None:
    await busy(time)
    await turns()
    polled = time.turns
    assert polled >= 4
    time.now += LIMIT
    await turns()
    assert time.turns == polled


async def test_the_loop_does_not_poll_while_a_request_is_open(time: Time) -> None:
    state = await busy(time)
    state.calls += 1
    await turns()
    assert time.turns == 0


async def test_the_loop_of_a_draining_door_does_not_poll(time: Time) -> None:
    state = await busy(time)
    state.draining = True
    await turns()
    assert time.turns == 0
