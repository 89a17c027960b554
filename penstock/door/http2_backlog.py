"""What a connection has read and not yet looked at: a read may be too much for one turn.

It is counted by the budget, others have their turn between its parts, and nothing more is read
before all of it has been looked at: so there is never more than one read of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Final

from penstock.door.connection import BREATH
from penstock.protocols.http2 import Event
from penstock.protocols.http2.events import with_data_joined

if TYPE_CHECKING:
    from penstock.door.http2_session import Http2Session

SLICE: Final = 64
"""Frames after which we look at the time, and at what the peer is up to."""

_SHORT_SLICE: Final = 16
"""The same of a peer that makes a nuisance: a call that is given up, or refused, takes 25 µs, and
others may meet several of them."""

_TURN: Final = 0.002
"""Seconds that one read may take; then others have their turn. A client with a hundred calls at
once needs about so long, and each part of a read costs a write of its own."""

_MANY: Final = 32
"""Events from which on they are looked through for data in tiny pieces."""


class Behind:
    """The rest of one connection's last read."""

    __slots__ = ("_called", "_counted", "_session")

    def __init__(self, session: Http2Session) -> None:
        self._session = session
        self._counted = 0
        self._called = False

    def turn(self, events: list[Event]) -> Iterator[Event]:
        """These events and those behind them, until the turn is over.

        A peer that makes a nuisance has a turn of one slice, and short ones from then on.
        """
        session = self._session
        core = session.core
        until = monotonic() + _TURN
        while True:
            yield from events if len(events) <= _MANY else with_data_joined(events)
            if not core.behind or core.annoyed or session.closing or monotonic() >= until:
                return
            events = core.go_on(SLICE)

    def events(self) -> list[Event]:
        """What is to be looked at next."""
        core = self._session.core
        return core.go_on(_SHORT_SLICE if core.annoyed else SLICE)

    def wait(self) -> None:
        """Go on after the others' turn, or when the client reads again: this is called then, too.

        After a peer that makes a nuisance the others have a breath.
        """
        session = self._session
        self._count(session.core.behind)
        if not self._called and not session.lagging:
            self._called = True
            loop = asyncio.get_running_loop()
            if session.core.annoyed:
                loop.call_later(BREATH, self._go_on)
            else:
                loop.call_soon(self._go_on)
        session.pace()

    def drop(self) -> None:
        """The connection is over."""
        self._count(0)

    def _go_on(self) -> None:
        self._called = False
        session = self._session
        if session.lagging or session.closing:
            return
        session.data_received(b"")
        if not session.core.behind:
            self._count(0)
            session.pace()

    def _count(self, bytes: int) -> None:
        budget = self._session.shared.budget
        budget.release(self._counted)
        budget.add(bytes)
        self._counted = bytes
