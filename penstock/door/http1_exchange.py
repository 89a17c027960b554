"""A request of HTTP/1.1 and its answer."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from penstock.door.exchange import WRITABLE, DoorExchange, Peer
from penstock.protocols.heads import Headers, RequestHead

if TYPE_CHECKING:
    from penstock.door.http1_session import Http1Session

_LARGE: Final = 64 << 10
"""Bytes of a body from which on it is not copied behind its head."""


class Http1Exchange(DoorExchange):
    """The one exchange of its connection that is in turn.

    Attributes:
        ended: the request has come to its end.
    """

    __slots__ = ("_session", "ended")

    # Made by ``begin_exchange``: this happens for every request, and a function costs less.
    __init__ = object.__init__

    ended: bool
    _session: Http1Session

    @property
    def peer(self) -> Peer:
        """See ``Exchange``."""
        return self._session.peer

    def reply(
        self,
        status: int,
        headers: Headers,
        body: bytes = b"",
        trailers: Headers = (),
        close: bool = False,
    ) -> None:
        """See ``Exchange``."""
        if self.over:
            return
        if trailers:
            self.start(status, (*headers, (b"connection", b"close")) if close else headers)
            self.send(body)
            self.finish(trailers)
            return
        session = self._session
        shared = self.shared
        answer = None
        # At once only without company: clients that are answered one by one ask one by one again,
        # and the engine makes the most of those who come together.
        if (
            shared.calls == 1
            and len(body) <= _LARGE
            and not (close or shared.draining or session.out or session.lagging or session.closing)
        ):
            answer = session.core.conclude(status, headers, body)
        if answer is None:
            last = close or not self.ended or shared.draining
            if len(body) <= _LARGE:
                session.out.append(session.core.respond(status, headers, body, last))
            else:
                session.out += session.core.respond_apart(status, headers, body, last)
        # What close() does, without the call.
        self.over = True
        shared.calls -= 1
        if not (shared.calls or shared.rested):
            shared.rest()
        self.receiver = self.on_gone = self.on_writable = self.state = None
        if self.taken:
            self.release()
        if answer is None:
            session.answered = True
            if not session.dirty:
                session.mark()
        else:
            session.conclude(answer)

    def start(self, status: int, headers: Headers) -> None:
        """See ``Exchange``."""
        if not self.over:
            session = self._session
            if not self.ended or self.shared.draining:
                headers = (*headers, (b"connection", b"close"))
            self.started = True
            session.out.append(session.core.start(status, headers))
            session.mark()

    def send(self, piece: bytes) -> None:
        """See ``Exchange``."""
        if self.over:
            return
        session = self._session
        unsent = session.unsent()
        if unsent > self.shared.limits.max_unsent:
            self.shared.counters.overrun += 1
            self.leave()
            session.abort()
            return
        session.out.append(session.core.chunk(piece))
        if unsent + len(piece) > WRITABLE:
            session.crowd()
        session.mark()

    def finish(self, trailers: Headers = ()) -> None:
        """See ``Exchange``."""
        if not self.over:
            session = self._session
            session.out.append(session.core.finish(trailers))
            self.close()
            session.answered = True
            session.mark()

    def abort(self) -> None:
        """See ``Exchange``."""
        if not self.over:
            self.close()
            self._session.end_in_the_middle()

    @property
    def unsent(self) -> int:
        """See ``Exchange``."""
        return 0 if self.over else self._session.unsent()

    def pause(self) -> None:
        """See ``Exchange``."""
        self.paused = True
        if not self.over:
            self._session.rearm()

    def resume(self) -> None:
        """See ``Exchange``."""
        self.paused = False
        if not self.over:
            session = self._session
            shared = self.shared
            self.body_deadline = max(
                self.body_deadline, shared.wheel.after(shared.limits.body_timeout)
            )
            session.rearm()


def begin_exchange(
    session: Http1Session, head: RequestHead, ended: bool, whole: bytes | None
) -> Http1Exchange:
    """The exchange of a request whose head has come."""
    shared = session.shared
    exchange: Http1Exchange = Http1Exchange()
    exchange.shared = shared
    exchange._budget = shared.budget
    exchange.taken = exchange.to_come = 0
    exchange.head = head
    exchange.over_limit = shared.calls > shared.most_calls
    exchange.body_deadline = inf
    exchange.receiver = exchange.on_gone = exchange.on_writable = exchange.state = None
    exchange.over = exchange.started = exchange.paused = False
    exchange._session = session
    exchange.ended = ended
    exchange.whole = whole
    return exchange
