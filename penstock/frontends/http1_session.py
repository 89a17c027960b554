"""HTTP/1.1 on one connection of a door: requests of the core to the application, answers back.

One exchange at a time. The next request is begun when the last answer has been written, from the
flush and never inside a call of the application's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.frontends.door_connection import HIGH_MARK, NEVER, Connection, wire
from penstock.frontends.door_exchange import guarded, log_fault
from penstock.frontends.door_state import DoorState
from penstock.frontends.half_closed import Question
from penstock.frontends.http import failure
from penstock.frontends.http1_exchange import Http1Exchange
from penstock.protocols.http1 import Event, Http1Connection, Http1Data, Http1Failed, Http1Head
from penstock.protocols.http1.reply import CONTINUE

_JOIN_LIMIT: Final = 16 << 10
"""Bytes of pieces that are joined to be written at once; larger ones are handed on one by one."""


class Http1Session(Connection):
    """A connection that speaks HTTP/1.1.

    Attributes:
        core: the protocol.
        out: what is to be written.
        answered: the answer in turn is complete, and the next request not yet begun.
    """

    __slots__ = (
        "_crowded",
        "_exchange",
        "_in_head",
        "_patience",
        "_question",
        "answered",
        "core",
        "out",
    )

    def __init__(self, shared: DoorState, transport: asyncio.Transport, due: float) -> None:
        super().__init__(shared, transport)
        self.core = Http1Connection(shared.limits.http1, shared.http1_heads)
        self.out: list[bytes] = []
        self.answered = False
        self.due = due
        self._exchange: Http1Exchange | None = None
        self._in_head = True
        self._patience = shared.keep_alive()
        self._crowded = False
        self._question: Question | None = None

    # Input.

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        if self.closing:
            return
        self.dirty = True
        try:
            self._take(self.core.receive(data))
        except Exception:  # noqa: BLE001 - nothing but this connection ends by it
            self.broken()
        self.flush()

    def eof_received(self) -> bool:
        """The client sends no more; but it may still want the answer to what it sent."""
        if self.closing:
            return False
        self.eof = True
        broken = self.core.eof()
        if self._exchange is None or broken:
            return False
        self._question = Question(self)
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
                    exchange.whole = True
                else:
                    exchange.late_at += len(event.data) / shared.limits.body_pace
                try:
                    exchange.receiver.data(exchange, event.data, event.ended)
                except Exception:  # noqa: BLE001 - this request fails by it, and no other
                    self._fail(exchange)
            elif type(event) is Http1Head:
                shared.counters.requests += 1
                shared.calls += 1
                self._in_head = False
                exchange = self._exchange = Http1Exchange(self, event.head)
                last = events[-1]
                if not isinstance(last, Http1Failed) and last.ended:
                    # The body has come with the head, so that an answer to the head alone does not
                    # end the connection.
                    exchange.whole = True
                else:
                    exchange.late_at = shared.wheel.now + shared.body_time
                try:
                    receiver = shared.application.begin(exchange)
                    if receiver is None or exchange.over:
                        continue
                    exchange.receiver = receiver
                    if event.ended:
                        receiver.data(exchange, b"", True)
                    elif not exchange.whole and (proceed := self.core.proceed()):
                        self.out.append(proceed)
                except Exception:  # noqa: BLE001 - this request fails by it, and no other
                    self._fail(exchange)
            elif type(event) is Http1Failed:
                self._refuse_broken(event)

    # Output.

    def flush(self) -> None:
        """Write, and begin the next request when an answer is complete and its client reads."""
        self.dirty = True
        core = self.core
        try:
            while self.answered and not self.closing and not self.lagging:
                self._exchange = None
                self.answered = False
                if not core.keep_alive:
                    self._write()
                    self.end(linger=True)
                    break
                self._in_head = False
                self.due = self.shared.wheel.now + self._patience
                if events := core.next():
                    self._take(events)
                if len(self.out) > 1 and sum(map(len, self.out)) > HIGH_MARK:
                    # Small requests may have large answers: see in time that nobody reads them.
                    self._write()
            out = self.out
            if out and self.transport.is_closing():
                out.clear()  # the client has gone in this very turn, before we were told
            elif len(out) == 1 and not self.secure:
                # What _write does, for what is nearly always there.
                self.written += len(out[0])
                self.transport.write(out.pop())
                if self.lagging or self.counted:
                    self.count()
            elif out:
                self._write()
            if self._exchange is not None or not self._reading or not core.idle:
                self.rearm()
        except Exception:  # noqa: BLE001 - nothing but this connection ends by it
            self.broken()
        self.dirty = False
        if self._crowded and not self.lagging:
            self._tell_of_room()

    def _write(self) -> None:
        out = self.out
        if len(out) == 1:
            self.write(out[0])
        elif not out:
            return
        elif sum(map(len, out)) <= _JOIN_LIMIT:
            self.write(b"".join(out))
        else:
            for piece in out:
                self.write(piece)
        out.clear()
        if self.lagging or self.counted:
            self.count()

    def _tell_of_room(self) -> None:
        self._crowded = False
        if self._exchange is not None:
            self._exchange.check_room()

    def crowd(self) -> None:
        """Tell the application when there is room again."""
        self._crowded = True

    def unsent(self) -> int:
        """Bytes that wait for the client to read."""
        waiting = sum(map(len, self.out))
        return waiting + self.waiting() if self.lagging else waiting

    def wants_data(self) -> bool:
        """See ``Connection``."""
        exchange = self._exchange
        paused = exchange is not None and exchange.paused
        return not self.lagging and not paused and self.core.wants_data

    # What goes wrong, and the end.

    def rearm(self) -> None:
        """Say when to be looked at next, and whether to read meanwhile."""
        if self.closing:
            return
        self.pace()
        exchange = self._exchange
        if exchange is not None:
            waits = not exchange.paused and exchange.receiver is not None
            self.due = exchange.late_at if waits and not exchange.whole else NEVER
            if self.lagging:
                self.due = min(self.due, self.shared.wheel.after(self.shared.period))
        elif self.eof:
            self.end()
        elif not self._in_head and not self.core.idle:
            self._in_head = True
            self.due = self.shared.wheel.after(self.shared.limits.header_timeout)

    def check(self, now: float) -> None:
        """See ``Connection``."""
        exchange = self._exchange
        if self.answered or (exchange is None and self.waiting()):
            self.due = now + self.shared.period
        elif exchange is None and self._in_head:
            self.shared.counters.heads_late += 1
            if self.core.idle:
                self.end()
            else:
                self._refuse(408, "the head of the request took too long to arrive")
        elif exchange is None:
            self.shared.counters.idle += 1
            self.end()
        elif now >= exchange.late_at and not exchange.paused and not exchange.whole:
            self._late(exchange)
        else:
            self.rearm()

    def _late(self, exchange: Http1Exchange) -> None:
        self.shared.counters.bodies_late += 1
        receiver = exchange.receiver
        if receiver is not None:
            guarded(receiver.late, exchange)
        if exchange.over:
            return
        exchange.leave()
        if exchange.started:
            self.end_in_the_middle()
        else:
            self._refuse(408, "the request took too long to arrive")

    def _fail(self, exchange: Http1Exchange) -> None:
        """The exception that is being handled ends this exchange."""
        log_fault()
        self.shared.counters.errors += 1
        if exchange.over:
            return
        exchange.leave()
        if exchange.started:
            self.end_in_the_middle()
            return
        reply = failure(500, "internal error")
        self.out.append(self.core.respond(reply.status, reply.headers, reply.body, close=True))
        self.answered = True
        self.mark()

    def _refuse_broken(self, event: Http1Failed) -> None:
        self.shared.counters.malformed += 1
        exchange = self._exchange
        if exchange is not None:
            exchange.leave()
        if event.answered:
            self.end_in_the_middle()
        else:
            self._refuse(event.status, event.text)

    def _refuse(self, status: int, text: str) -> None:
        """Answer outside of any exchange, and close."""
        self._exchange = None
        self.out.append(wire(failure(status, text)))
        self._write()
        self.end(linger=True)

    def refuse_tls(self) -> None:
        """What came is a TLS greeting, and this listener has none."""
        self.shared.counters.malformed += 1
        self._refuse(400, "this port does not speak TLS")

    def end_in_the_middle(self) -> None:
        """Close without the rest of an answer: the client sees that it is not whole."""
        self._exchange = None
        self.answered = False
        self._write()
        self.end(linger=True)

    def gone(self) -> None:
        """See ``Connection``."""
        if self._question is not None:
            self._question.cancel()
        exchange = self._exchange
        self._exchange = None
        if exchange is not None and not exchange.over:
            self.shared.counters.gone += 1
            exchange.leave()

    def drain(self) -> None:
        """Every answer says that it is the last; nothing else to do."""

    def leave(self) -> None:
        """See ``Connection``."""
        if self._exchange is None and not self.out:
            self.end(linger=not self.core.idle)

    # Whether a client that has closed its half still listens.

    def ask_whether_it_listens(self) -> None:
        """Write what a client that listens passes over; one that has left answers by a reset."""
        exchange = self._exchange
        if exchange is None or exchange.started or self.out or exchange.head.version == "1.0":
            return
        self.write(CONTINUE)
