"""A client of HTTP/1.1 that has closed its half of the connection: is it still there?

Of a client that has left altogether we see the same end of input as of one that only has nothing
more to send; the difference shows when something is written: then its system answers with a reset.
So after a short while it is sent an interim response, which every client of HTTP/1.1 must be able
to pass over, and the socket is watched. Source: RFC 9110, section 15.2.
"""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.door.http1_session import Http1Session

_PATIENCE: Final = 0.025
"""Seconds from the half-close to the question; a guess: most answers are out by then."""


class Question:
    """Asks one client, and ends its connection when it has left."""

    __slots__ = ("_asked", "_descriptor", "_loop", "_session", "_timer")

    def __init__(self, session: Http1Session) -> None:
        self._session = session
        self._descriptor: int = session.transport.get_extra_info("socket").fileno()
        self._loop = asyncio.get_running_loop()
        self._asked = False
        self._timer = self._loop.call_later(_PATIENCE, self._look)

    def cancel(self) -> None:
        """The connection is no more."""
        self._timer.cancel()

    def _look(self) -> None:
        session = self._session
        if session.closing or session.transport.is_closing():
            return
        if not self._asked:
            self._asked = True
            session.ask_whether_it_listens()
            wait = _PATIENCE / 4
        else:
            poll = select.poll()
            poll.register(self._descriptor, 0)
            if poll.poll(0):  # POLLERR or POLLHUP, which need not be asked for
                session.abort()
                return
            wait = min(1.0, session.shared.period)
        self._timer = self._loop.call_later(wait, self._look)
