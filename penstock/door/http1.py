"""HTTP/1.1 on one connection of a door: requests of the core to the application, answers back.

One exchange at a time. The next request is begun when the last answer has been written, from the
flush and never inside a call of the application's; where no other request is open, the answer is
written without a flush. However much one read holds, a turn of the loop takes only so much of it as
a usual request or two cost; the rest waits for the next turns.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Final

from penstock.door.connection import HIGH_MARK, NEVER, PAUSE, Connection, wire
from penstock.door.exchange import (
    STOPPING,
    WRITABLE,
    DoorExchange,
    Peer,
)
from penstock.door.state import DoorState
from penstock.protocols.heads import HTTP_1_1, Headers, RequestHead
from penstock.protocols.http1 import Event, Http1Connection, Http1Data, Http1Failed, Http1Head
from penstock.protocols.http1.answer import CONTINUE

_LARGE: Final = 64 << 10
"""Bytes of a body from which on it is not copied behind its head."""

_REQUESTS_AT_ONCE: Final = 8
"""Most requests that are begun in one turn when each is answered at once; a read may have
thousands."""

_CHUNKS_AT_ONCE: Final = 128
"""Most chunks of a body in one turn; with one byte each, a read may have tens of thousands."""

_PROBE_AFTER: Final = 0.025
"""Seconds from the half-close to the question; a guess: most answers are out by then."""


class Http1Exchange(DoorExchange):
    """The one exchange of its connection that is in turn.

    Attributes:
        ended: the request has been received completely.
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
        if status >= 400:
            self.count_error(str(status))
        if trailers:
            self.start(status, (*headers, (b"connection", b"close")) if close else headers)
            self.send(body)
            self.finish(trailers)
            return
        session = self._session
        shared = self.shared
        session.core.date = shared.date_line
        answer = None
        if len(body) <= _LARGE and not (
            close or shared.draining or session.out or session.lagging or session.closing
        ):
            answer = session.core.conclude(status, headers, body)
        if answer is None:
            last = close or not self.ended or shared.draining
            if len(body) <= _LARGE:
                session.out.append(session.core.respond(status, headers, body, last))
            else:
                session.out += session.core.respond_apart(status, headers, body, last)
            session.answered = True
        else:
            session.conclude()
        # What close() does, without the call.
        self.over = True
        shared.calls -= 1
        if not (shared.calls or shared.rested):
            shared.rest()
        self.receiver = self.on_gone = self.on_writable = self.state = None
        if self.taken:
            self.release()
        tell = shared.instruments.exchange_ended
        if tell is not None:
            tell(self, status, monotonic())
        # At once only without company: clients that are answered one by one ask one by one again,
        # and the engine makes the most of those who come together.
        if answer is not None and not shared.calls:
            session.write_answer(answer)
        else:
            if answer is not None:
                session.out.append(answer)
            if not session.dirty:
                session.mark()

    def start(self, status: int, headers: Headers) -> None:
        """See ``Exchange``."""
        if not self.over:
            session = self._session
            if not self.ended or self.shared.draining:
                headers = (*headers, (b"connection", b"close"))
            self.started = True
            self.status = status
            session.core.date = self.shared.date_line
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
            session.write_blocked = True
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
            self.status = 0
            self.close()
            self._session.end_in_the_middle()

    def refuse(self, status: int, text: str) -> None:
        """See ``DoorExchange``."""
        self.leave(0 if self.started else status)
        if self.started:
            self._session.end_in_the_middle()
        else:
            self._session.refuse(status, text)

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
                self.body_deadline, shared.sweeper.after(shared.limits.body_timeout)
            )
            session.rearm()


def begin_exchange(
    session: Http1Session, head: RequestHead, ended: bool, whole: bytes | None
) -> Http1Exchange:
    """Create the exchange of a request whose head has arrived."""
    shared = session.shared
    exchange: Http1Exchange = Http1Exchange()
    exchange.shared = shared
    exchange._budget = shared.budget
    exchange.taken = exchange.to_come = 0
    exchange.head = head
    exchange.began = monotonic()
    exchange.status = 0
    exchange.over_limit = shared.calls > shared.most_calls
    exchange.body_deadline = exchange.deadline = inf
    exchange.receiver = exchange.on_gone = exchange.on_writable = exchange.state = None
    exchange.over = exchange.started = exchange.paused = False
    exchange._session = session
    exchange.ended = ended
    exchange.whole = whole
    return exchange


class Http1Session(Connection):
    """A connection that speaks HTTP/1.1.

    Attributes:
        core: the protocol.
        out: what is to be written.
        answered: the answer in turn is complete, and the next request not yet begun.
        write_blocked: the application is to be told when there is room again.
    """

    __slots__ = (
        "_exchange",
        "_goes_on",
        "_in_head",
        "_keep_alive",
        "_probe",
        "answered",
        "core",
        "out",
        "write_blocked",
    )

    def __init__(self, shared: DoorState, transport: asyncio.Transport, due: float) -> None:
        super().__init__(shared, transport)
        self.core = Http1Connection(shared.limits.http1, shared.lines, _CHUNKS_AT_ONCE)
        self.out: list[bytes] = []
        self.answered = False
        self.due = due
        self._exchange: Http1Exchange | None = None
        self._in_head = True
        self._keep_alive = shared.keep_alive()
        self.write_blocked = False
        self._goes_on = False  # in a later turn
        self._probe: asyncio.Task[None] | None = None

    # Input.

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        if self.closing:
            return
        core = self.core
        body = core.whole(data) if self._reading else None
        if body is None:
            self._receive(core.receive(data))
            return
        try:
            # What _take does, for what nearly always comes. ``due`` stays: ``check`` knows that
            # there is an exchange.
            shared = self.shared
            shared.counters.requests += 1
            shared.calls += 1
            exchange = self._exchange = begin_exchange(self, core.head, True, body)
            try:
                receiver = shared.application.begin(exchange)
                if receiver is not None and not exchange.over:
                    exchange.receiver = receiver
                    receiver.data(exchange, body, True)
            except Exception:  # noqa: BLE001 - this request fails by it, and no other
                exchange.fail()
        except Exception:  # noqa: BLE001 - nothing but this connection ends by it
            self.broken()

    def _receive(self, events: Sequence[Event]) -> None:
        self.dirty = True
        try:
            self._take(events)
        except Exception:  # noqa: BLE001 - nothing but this connection ends by it
            self.broken()
        self._flush_all()

    def _go_on(self) -> None:
        """Process more of the buffered input."""
        self._goes_on = False
        exchange = self._exchange
        if self.closing or self.lagging or exchange is None or exchange.paused:
            return
        self._receive(self.core.go_on())

    def eof_received(self) -> bool:
        """The client has closed its sending half; it may still wait for answers."""
        if self.closing:
            return False
        if self.out:  # an answer that waits for the end of the turn
            self.flush()
        self.eof = True
        broken = self.core.eof()
        if self._exchange is None or broken:
            return False
        if self.shared.limits.half_close_probe:
            self._probe = asyncio.create_task(self._watch_half_closed())
        return True

    def _take(self, events: Sequence[Event]) -> None:
        """Pass on what the core says, which is about one request; all in one frame, for speed."""
        shared = self.shared
        for event in events:
            if type(event) is Http1Data:
                exchange = self._exchange
                if exchange is None or exchange.receiver is None:
                    continue
                if event.ended:
                    exchange.ended = True
                else:
                    exchange.arrived(len(event.data))
                try:
                    exchange.receiver.data(exchange, event.data, event.ended)
                except Exception:  # noqa: BLE001 - this request fails by it, and no other
                    exchange.fail()
            elif type(event) is Http1Head:
                shared.counters.requests += 1
                shared.calls += 1
                # After a body that has come with the head, an answer to the head alone is no end.
                last = events[-1]
                ended = not isinstance(last, Http1Failed) and last.ended
                exchange = self._exchange = begin_exchange(self, event.head, ended, None)
                if not ended:
                    exchange.body_deadline = shared.sweeper.now + shared.body_time
                try:
                    receiver = shared.application.begin(exchange)
                    if receiver is None or exchange.over:
                        continue
                    exchange.receiver = receiver
                    exchange.body_deadline = min(exchange.body_deadline, exchange.deadline)
                    if event.ended:
                        receiver.data(exchange, b"", True)
                    elif not exchange.ended and (proceed := self.core.proceed()):
                        self.out.append(proceed)
                except Exception:  # noqa: BLE001 - this request fails by it, and no other
                    exchange.fail()
            elif type(event) is Http1Failed:
                self._refuse_broken(event)
        if shared.leaving:
            self.refuse_partial()

    # Output.

    def conclude(self) -> None:
        """The core has made the answer in turn and is ready for the next request."""
        self._exchange = None
        self._in_head = False
        self.due = self.shared.sweeper.now + self._keep_alive

    def write_answer(self, answer: bytes) -> None:
        """Write an answer that is all there is to write."""
        transport = self.transport
        try:
            if self.secure:
                self.write(answer)
            elif not transport.is_closing():
                # What write() does, without the call.
                size = self.piece = len(answer)
                self.written += size
                transport.write(answer)
            if self.lagging or self.counted:
                self.count()
            if not self._reading:
                self.rearm()
        except Exception:  # noqa: BLE001 - nothing but this connection ends by it
            self.broken()

    def flush(self) -> None:
        """Write, and begin the next request when an answer is complete and its client reads."""
        out = self.out
        if len(out) == 1 and self._exchange is None and not self.answered:
            self.dirty = False
            self.write_answer(out.pop())
        else:
            self._flush_all()

    def _flush_all(self) -> None:
        self.dirty = True
        core = self.core
        left = _REQUESTS_AT_ONCE
        try:
            while self.answered and left and not self.closing and not self.lagging:
                left -= 1
                self._exchange = None
                self.answered = False
                if not core.keep_alive:
                    core.next()  # drops what has come behind the request
                    self._write()
                    self.end(linger=True)
                    break
                self._in_head = False
                self.due = self.shared.sweeper.now + self._keep_alive
                if events := core.next():
                    self._take(events)
                if len(self.out) > 1 and sum(map(len, self.out)) > HIGH_MARK:
                    # Small requests may have large answers: see in time that nobody reads them.
                    self._write()
            out = self.out
            if out and self.transport.is_closing():
                out.clear()  # the connection was lost in this turn
            elif out:
                self._write()
            if self._exchange is not None or not self._reading or not core.idle:
                self.rearm()
        except Exception:  # noqa: BLE001 - nothing but this connection ends by it
            self.broken()
        self.dirty = False
        if not left and self.answered and not self.closing:
            self.mark()
        if self.write_blocked and not self.lagging:
            self.write_blocked = False
            if self._exchange is not None:
                self._exchange.check_writable()

    def _write(self) -> None:
        if self.out:  # an answer that waits for the end of the turn
            self.write_joined(self.out)
            self.out.clear()
            if self.lagging or self.counted:
                self.count()

    def unsent(self) -> int:
        """Bytes that wait for the client to read."""
        waiting = sum(map(len, self.out))
        return waiting + self.waiting() if self.lagging else waiting

    def wants_data(self) -> bool:
        """See ``Connection``."""
        exchange = self._exchange
        paused = exchange is not None and exchange.paused
        return not self.lagging and not paused and self.core.wants_data

    # Errors and shutdown.

    def rearm(self) -> None:
        """Set the next check, and whether to read meanwhile."""
        if self.closing:
            return
        self.pace()
        exchange = self._exchange
        if exchange is not None:
            waits = not exchange.paused and exchange.receiver is not None
            self.due = exchange.body_deadline if waits and not exchange.ended else NEVER
            if self.lagging:
                self.due = min(self.due, self.shared.sweeper.after(self.shared.period))
            elif self.core.unread and not exchange.paused and not self._goes_on:
                self._goes_on = True
                asyncio.get_running_loop().call_later(PAUSE, self._go_on)
        elif self.eof:
            self.end()
        elif not self._in_head and not self.core.idle:
            self._in_head = True
            self.due = self.shared.sweeper.after(self.shared.limits.header_timeout)

    def check(self, now: float) -> None:
        """See ``Connection``."""
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
            self.end_in_the_middle()
        else:
            self.refuse(event.status, event.text)

    def refuse(self, status: int, text: str) -> None:
        """Answer the request in turn, or outside of any, and close."""
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
        """The input is a TLS ClientHello, but this listener has no TLS."""
        self.shared.counters.malformed += 1
        self.refuse(400, "this port does not speak TLS")

    def end_in_the_middle(self) -> None:
        """Close without the rest of an answer: the client sees that it is incomplete."""
        self._exchange = None
        self.answered = False
        self._write()
        self.end(linger=True)

    def gone(self) -> None:
        """See ``Connection``."""
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None
        exchange = self._exchange
        self._exchange = None
        if exchange is not None and not exchange.over:
            self.shared.counters.gone += 1
            exchange.leave()

    def drain(self) -> None:
        """Every answer says that it is the last; nothing else to do."""

    def refuse_partial(self) -> None:
        """See ``Connection``."""
        exchange = self._exchange
        if exchange is not None and exchange.awaits_body and not exchange.ended:
            exchange.refuse(503, STOPPING)

    def leave(self) -> None:
        """See ``Connection``."""
        if self._in_head:
            self.due = min(self.due, self.shared.last_head)
        elif self._exchange is None and not self.out:
            self.end()

    async def _watch_half_closed(self) -> None:
        """Find out whether a client that has closed its half of the connection is still there.

        Of a client that has left altogether we see the same end of input as of one that only has
        nothing more to send; the difference shows when something is written: then its system
        answers with a reset. So after a short while it is sent an interim response, which every
        client of HTTP/1.1 passes over, and the socket is watched. One of HTTP/1.0 knows none.
        Source: RFC 9110, sections 15.2 and 15.2.1.
        """
        watched = select.poll()
        watched.register(self.transport.get_extra_info("socket"), 0)
        await asyncio.sleep(_PROBE_AFTER)
        exchange = self._exchange
        answers = exchange is None or exchange.started or self.answered or self.out
        if not answers and self.core.head.version == HTTP_1_1:
            self.write(CONTINUE)
        pause = _PROBE_AFTER / 4
        while True:
            await asyncio.sleep(pause)
            if self.closing or self.transport.is_closing():
                return
            if watched.poll(0):  # POLLERR or POLLHUP, which need not be asked for
                self.abort()
                return
            pause = min(1.0, self.shared.period)
