"""A failed connection is aborted, even if this raises further errors."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from penstock.door.budget import ByteBudget
from penstock.door.exchange import Exchange
from penstock.door.http1 import Http1Session
from penstock.door.limits import DoorLimits
from penstock.door.state import DoorState


class Application:
    def begin(self, exchange: Exchange) -> None:
        raise AssertionError("nothing is asked")


class Broken(asyncio.Transport):
    """Raises errors from all queries."""

    aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        raise OSError(f"no {name}")

    def get_write_buffer_size(self) -> int:
        raise OSError("no buffer")

    def abort(self) -> None:
        self.aborted = True


async def test_a_second_error_during_an_abort_does_not_reach_the_timer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = DoorState(Application(), DoorLimits(), ByteBudget(1 << 20))
    transport = Broken()
    session = Http1Session(shared, transport, due=0.0)
    with caplog.at_level(logging.ERROR):
        session.on_due(1.0)
    assert transport.aborted
    assert session.closing
    assert shared.counters.errors == 1
    assert len(caplog.records) == 1
