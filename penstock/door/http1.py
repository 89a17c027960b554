"""A door's connection that speaks HTTP/1.1: passes requests to the application, and writes answers.

One exchange at a time. The next request is begun when the last answer has been written: by the
flush, never inside a call of the application. If no other request is open, an answer is written
without a flush. A turn of the loop handles a bounded part of what was read; the rest waits for the
next turns.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Sequence
from typing import Final

from penstock.door.connection import HIGH_MARK, NEVER, PAUSE, Connection, wire
from penstock.door.door_exchange import DoorExchange, guarded
from penstock.door.exchange import STOPPING, WRITABLE, Peer
from penstock.door.state import DoorState
from penstock.protocols.heads import HTTP_1_1, Headers, RequestHead
from penstock.protocols.http1 import Event, Http1Connection, Http1Data, Http1Failed, Http1Head
from penstock.protocols.http1.answer import CONTINUE

_LARGE: Final = 64 << 10
"""Bytes of a body above which it is written separately, instead of copied behind its head."""

_REQUESTS_PER_TURN: Final = 8
"""Maximum requests that are begun in one turn, if each is answered at once; a read may have
thousands."""

_CHUNKS_PER_TURN: Final = 128
"""Maximum chunks of a body in one turn; a read may have tens of thousands of one byte each."""

_PROBE_AFTER: Final = 0.025
"""Seconds from the half-close to the probe; most answers are sent by then."""


class Http1Exchange(DoorExchange):
    """The current exchange of an HTTP/1.1 connection.

    Attributes:
        ended: the request has been received completely.
    """

    __slots__ = ("_session", "ended")

    ended: bool
    _session: Http1Session

    @property
    def peer(self) -> Peer:
        return self._session.peer

    @property
    def is_secure(self) -> bool:
        return self._session.secure

    def reply(
        self,
        status: int,
        headers: Headers,
        body: bytes = b"",
        trailers: Headers = (),
        close: bool = False,
    ) -> None:
        if self.over:
            return
        if status >= 400:
            self.count_error(str(status))
        if trailers:
            self.start(status, (*headers, (b"connection", b"close")) if close else headers)
            self.send(body)
            self.finish(trailers)
            return
        if self.added:
            headers = (*headers, *self.added)
        session = self._session
        shared = self.shared
        session.core.date = shared.date_line
        answer = None
        close = close or shared.draining or session.expires <= shared.sweeper.now
        if len(body) <= _LARGE and not (close or session.out or session.lagging or session.closing):
            answer = session.core.conclude(status, headers, body)
        if answer is None:
            last = close or not self.ended
            if len(body) <= _LARGE:
                session.out.append(session.core.respond(status, headers, body, last))
            else:
                session.out += session.core.respond_apart(status, headers, body, last)
            session.answered = True
        else:
            session.conclude()
        self.status = status
        self.close()
        # Without a flush only if no other request is open: clients that get their answers together
        # also send their next requests together, and the engine can batch those.
        if answer is not None and not shared.calls:
            session.write_answer(answer)
        else:
            if answer is not None:
                session.out.append(answer)
            if not session.dirty:
                session.mark()

    def start(self, status: int, headers: Headers) -> None:
        if not self.over:
            session = self._session
            if self.added:
                headers = (*headers, *self.added)
            shared = self.shared
            last = shared.draining or session.expires <= shared.sweeper.now
            if last or not self.ended:
                headers = (*headers, (b"connection", b"close"))
            self.started = True
            self.status = status
            session.core.date = shared.date_line
            session.out.append(session.core.start(status, headers))
            session.mark()

    def send(self, piece: bytes) -> None:
        if self.over:
            return
        session = self._session
        unsent = session.unsent()
        if unsent > self.shared.limits.max_unsent:
            self.shared.counters.overrun += 1
            self.leave()
            session.abort()
            return
        chunk = session.core.chunk(piece)
        session.out.append(chunk)
        if unsent + len(chunk) > WRITABLE:
            session.write_blocked = True
        session.mark()

    def finish(self, trailers: Headers = ()) -> None:
        if not self.over:
            session = self._session
            session.out.append(session.core.finish(trailers))
            self.close()
            session.answered = True
            session.mark()

    def abort(self) -> None:
        if not self.over:
            self.status = 0
            self.close()
            self._session.close_incomplete()

    def refuse(self, status: int, text: str) -> None:
        self.leave(0 if self.started else status)
        if self.started:
            self._session.close_incomplete()
        else:
            self._session.refuse(status, text)

    @property
    def unsent(self) -> int:
        return 0 if self.over else self._session.unsent()

    def pause(self) -> None:
        self.paused = True
        if not self.over:
            self._session.rearm()

    def resume(self) -> None:
        super().resume()
        if not self.over:
            self._session.rearm()


class Http1Session(Connection):
    """A connection that speaks HTTP/1.1.

    Attributes:
        core: the protocol.
        expires: from then on, an answer that begins is the connection's last.
        out: pending output.
        answered: the current answer is complete, and the next request not yet begun.
        write_blocked: the application waits for ``on_writable``.
    """

    __slots__ = (
        "_exchange",
        "_in_head",
        "_keep_alive",
        "_resuming",
        "answered",
        "core",
        "expires",
        "out",
        "write_blocked",
    )

    def __init__(self, shared: DoorState, transport: asyncio.Transport, due: float) -> None:
        super().__init__(shared, transport)
        self.core = Http1Connection(shared.limits.http1, shared.lines, _CHUNKS_PER_TURN)
        self.out: list[bytes] = []
        self.answered = False
        self.due = due
        self._exchange: Http1Exchange | None = None
        self._in_head = True
        self._keep_alive = shared.keep_alive()
        self.expires = shared.expiry()
        self.write_blocked = False
        self._resuming = False  # ``_resume`` is scheduled

    # Input.

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        core = self.core
        body = core.whole(data) if self._reading else None
        if body is None:
            self._receive(core.receive(data))
            return
        try:
            # A shortcut of ``_take`` for a read with exactly one whole request, the usual case.
            # ``due`` stays: ``check`` sees that there is an exchange.
            self._begin(core.head, True, body)
        except Exception:  # noqa: BLE001 - only this connection fails
            self.broken()

    def _receive(self, events: Sequence[Event]) -> None:
        self.dirty = True
        try:
            self._take(events)
        except Exception:  # noqa: BLE001 - only this connection fails
            self.broken()
        self._flush_all()

    def _resume(self) -> None:
        """Process more of the buffered input."""
        self._resuming = False
        exchange = self._exchange
        if self.closing or self.lagging or exchange is None or exchange.paused:
            return
        self._receive(self.core.go_on())

    def eof_received(self) -> bool:
        """The client has closed its sending half; it may still wait for answers."""
        if self.closing:
            return False
        if self.out:
            self.flush()
        self.eof = True
        broken = self.core.eof()
        if self._exchange is None or broken:
            return False
        if self.shared.limits.half_close_probe:
            self._watch = asyncio.create_task(self._watch_half_closed())
        return True

    def _begin(self, head: RequestHead, ended: bool, whole: bytes | None) -> Http1Exchange:
        exchange: Http1Exchange = Http1Exchange()
        exchange._session = self
        exchange.ended = ended
        self._exchange = exchange
        exchange.begin(self.shared, head, whole)
        exchange.serve()
        return exchange

    def _take(self, events: Sequence[Event]) -> None:
        """Process events of one request; in one function, for speed."""
        for event in events:
            if type(event) is Http1Data:
                exchange = self._exchange
                if exchange is None or exchange.receiver is None:
                    continue
                if event.ended:
                    exchange.ended = True
                else:
                    exchange.arrived(len(event.data))
                exchange.deliver(event.data, event.ended)
            elif type(event) is Http1Head:
                # If the whole body arrived with the head, the connection can stay open even if the
                # application answers before it gets the body.
                last = events[-1]
                ended = not isinstance(last, Http1Failed) and last.ended
                exchange = self._begin(event.head, ended, b"" if event.ended else None)
                awaited = exchange.receiver is not None and not ended
                if awaited and (proceed := self.core.proceed()):
                    self.out.append(proceed)
            elif type(event) is Http1Failed:
                self._refuse_broken(event)
        if self.shared.leaving:
            self.refuse_partial()

    # Output.

    def conclude(self) -> None:
        """End the current exchange: its answer is encoded, and the next request may begin."""
        self._exchange = None
        self._in_head = False
        self.due = self.shared.sweeper.now + self._keep_alive

    def write_answer(self, answer: bytes) -> None:
        """Write an answer when there is no other output."""
        try:
            self.write(answer)
            if self.lagging or self.counted:
                self.count()
            if not self._reading:
                self.rearm()
        except Exception:  # noqa: BLE001 - only this connection fails
            self.broken()

    def flush(self) -> None:
        """Write, and begin the next request if the answer is complete and the client reads."""
        out = self.out
        if len(out) == 1 and self._exchange is None and not self.answered:
            self.dirty = False
            self.write_answer(out.pop())
        else:
            self._flush_all()

    def _flush_all(self) -> None:
        self.dirty = True
        core = self.core
        left = _REQUESTS_PER_TURN
        try:
            while self.answered and left and not self.closing and not self.lagging:
                left -= 1
                self.answered = False
                self.conclude()
                if not core.keep_alive:
                    core.next()  # drops further input
                    self._write()
                    self.end(linger=True)
                    break
                if events := core.next():
                    self._take(events)
                if len(self.out) > 1 and sum(map(len, self.out)) > HIGH_MARK:
                    # Small requests may have large answers: detect early that the client lags.
                    self._write()
            out = self.out
            if out and self.transport.is_closing():
                out.clear()  # the connection was lost in this turn
            elif out:
                self._write()
            if self._exchange is not None or not self._reading or not core.idle:
                self.rearm()
        except Exception:  # noqa: BLE001 - only this connection fails
            self.broken()
        self.dirty = False
        if not left and self.answered and not self.closing:
            self.mark()
        if self.write_blocked and not self.lagging:
            self.write_blocked = False
            if self._exchange is not None:
                self._exchange.check_writable()

    def _write(self) -> None:
        if self.out:
            self.write_joined(self.out)
            self.out.clear()
            if self.lagging or self.counted:
                self.count()

    def unsent(self) -> int:
        """Bytes that have not been sent, because the client does not read."""
        waiting = sum(map(len, self.out))
        return waiting + self.waiting() if self.lagging else waiting

    def wants_data(self) -> bool:
        exchange = self._exchange
        paused = exchange is not None and exchange.paused
        return not self.lagging and not paused and self.core.wants_data

    # Errors and shutdown.

    def rearm(self) -> None:
        """Set the time of the next check, and resume or pause reading."""
        if self.closing:
            return
        self.update_reading()
        exchange = self._exchange
        if exchange is not None:
            waits = not exchange.paused and exchange.receiver is not None
            self.due = exchange.body_deadline if waits and not exchange.ended else NEVER
            if self.lagging:
                self.due = min(self.due, self.shared.sweeper.after(self.shared.period))
            elif self.core.unread and not exchange.paused and not self._resuming:
                self._resuming = True
                asyncio.get_running_loop().call_later(PAUSE, self._resume)
        elif self.eof:
            self.end()
        elif not self._in_head and not self.core.idle:
            self._in_head = True
            self.due = self.shared.sweeper.after(self.shared.limits.header_timeout)

    def check(self, now: float) -> None:
        exchange = self._exchange
        if self.answered or self.core.unread or (exchange is None and self.waiting()):
            self.due = now + self.shared.period
        elif exchange is None and self._in_head:
            self.shared.counters.heads_late += 1
            if self.core.idle:
                self.end()
            else:
                self.refuse(408, "the head of the request took too long to arrive")
        elif exchange is None:
            self.shared.counters.idle += 1
            self.end()
        elif now >= exchange.body_deadline and not exchange.paused and not exchange.ended:
            exchange.end_late()
        else:
            self.rearm()

    def _refuse_broken(self, event: Http1Failed) -> None:
        self.shared.counters.count_malformed(event.status, event.abuse)
        exchange = self._exchange
        if exchange is not None:
            exchange.leave()
        if event.answered:
            self.close_incomplete()
        else:
            self.refuse(event.status, event.text)

    def refuse(self, status: int, text: str) -> None:
        """Answer the current request, if any, with an error, and close."""
        exchange, self._exchange = self._exchange, None
        date = self.core.date = self.shared.date_line
        if exchange is None:
            answer = wire(self.shared.failure(None, status, text), date)
        else:
            reply = self.shared.failure(exchange.head, status, text)
            answer = self.core.respond(reply.status, reply.headers, reply.body, close=True)
        self.out.append(answer)
        self._write()
        self.end(linger=True)

    def refuse_tls(self) -> None:
        """Refuse a TLS ClientHello: this listener has no TLS."""
        self.shared.counters.malformed += 1
        self.refuse(400, "this port does not speak TLS")

    def close_incomplete(self) -> None:
        """Close in the middle of an answer: the client sees that it is incomplete."""
        self._exchange = None
        self.answered = False
        self._write()
        self.end(linger=True)

    def gone(self) -> None:
        exchange = self._exchange
        self._exchange = None
        if exchange is not None and not exchange.over:
            self.shared.counters.gone += 1
            exchange.leave()

    def drain(self) -> None:
        """Do nothing: the next answer has ``connection: close``."""

    def end_idle(self) -> None:
        is_idle = self._exchange is None and not self._in_head and not self.out
        if is_idle and not self.closing and not self._has_input():
            self.end()

    def refuse_partial(self) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.awaits_body and not exchange.ended:
            exchange.refuse(503, STOPPING)

    def leave(self) -> None:
        if self._in_head or (self._exchange is None and self._has_input()):
            self.due = min(self.due, self.shared.last_head)
        elif self._exchange is None and not self.out:
            self.end()

    def _has_input(self) -> bool:
        """Whether the system has input that was not read yet."""
        link = self.transport.get_extra_info("socket")
        if link is None or link.fileno() < 0:  # it has been closed
            return False
        unread = select.poll()
        unread.register(link, select.POLLIN)
        return bool(unread.poll(0))

    async def _watch_half_closed(self) -> None:
        """Detect whether a client that has closed its sending half still waits for its answer.

        A client that has disconnected and one that only half-closed send the same FIN. They differ
        when something is written: the system of a disconnected client replies with a reset. So
        after a short delay an interim response is sent, which HTTP/1.1 clients ignore, and the
        socket is polled. HTTP/1.0 has no interim responses.
        Source: RFC 9110, sections 15.2 and 15.2.1.
        """
        await asyncio.sleep(_PROBE_AFTER)
        exchange = self._exchange
        answers = exchange is None or exchange.started or self.answered or self.out
        if not answers and self.core.head.version == HTTP_1_1:
            self.write(CONTINUE)
        elif exchange is not None and exchange.started and exchange.on_half_closed is not None:
            guarded(exchange.on_half_closed)
        await self.watch_for_reset()
