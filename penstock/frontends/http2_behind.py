"""What a connection has read and not yet looked at: a read may be too much for one turn.

It is counted by the budget, others have their turn between its parts, and nothing more is read
before all of it has been looked at: so there is never more than one read of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.frontends.door_connection import BREATH

if TYPE_CHECKING:
    from penstock.frontends.http2_session import Http2Session


class Behind:
    """The rest of one connection's last read."""

    __slots__ = ("_called", "_counted", "_session")

    def __init__(self, session: Http2Session) -> None:
        self._session = session
        self._counted = 0
        self._called = False

    def wait(self) -> None:
        """Go on after a breath, or when the client reads again: this is called then, too."""
        session = self._session
        self._count(session.core.behind)
        if not self._called and not session.lagging:
            self._called = True
            asyncio.get_running_loop().call_later(BREATH, self._go_on)
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
