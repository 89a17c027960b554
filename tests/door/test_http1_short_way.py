"""HTTP/1.1: a whole request, and an answer that is all there is to write, take a short way.

The same reads are played to two connections that exist in memory only; one of them is kept from the
short ways. Nobody can tell them apart: not by what is written, nor by what is counted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.door.budget import ByteBudget
from penstock.door.connection import HIGH_MARK
from penstock.door.exchange import Exchange, Receiver
from penstock.door.http1 import Http1Session
from penstock.door.limits import DoorLimits
from penstock.door.state import DoorState
from penstock.protocols.http1 import Http1Connection
from tests.door.applications import TEXT, Parrot

TURNS = 20
"""Of the loop: in so many everything has happened that is to happen."""


class Wire(asyncio.Transport):
    """Keeps what is written; a client reads it when the test says so."""

    def __init__(self, link: socket.socket, secure: bool) -> None:
        super().__init__({"socket": link, "ssl_object": object() if secure else None})
        self.sent = bytearray()
        self.kept = 0
        self.client_reads = True
        self.reading = True
        self.ended = ""
        self.session: Any = None

    def write(self, data: Any) -> None:
        assert not self.ended
        self.sent += data
        if not self.client_reads:
            before, self.kept = self.kept, self.kept + len(data)
            if before <= HIGH_MARK < self.kept:
                self.session.pause_writing()

    def client_goes_on(self) -> None:
        self.client_reads = True
        kept, self.kept = self.kept, 0
        if kept > HIGH_MARK and not self.ended:
            self.session.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.kept

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return bool(self.ended)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.sent += b"<eof>"

    def close(self) -> None:
        self._end("closed")

    def abort(self) -> None:
        self._end("aborted")

    def _end(self, how: str) -> None:
        if not self.ended:
            self.ended = how
            asyncio.get_running_loop().call_soon(self.session.connection_lost, None)


class Watched:
    """A parrot that takes every body from the budget, and writes down what was done."""

    def __init__(self) -> None:
        self.parrot = Parrot()
        self.heard: list[Any] = []

    def begin(self, exchange: Exchange) -> Receiver | None:
        self.heard.append(("begun", exchange.head.path, exchange.over_limit))
        if exchange.head.path == b"/odd":
            exchange.reply(200, ((b"x y", b""),), b"cannot be sent")
        receiver = self.parrot.begin(exchange)
        return None if receiver is None else self

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        self.heard.append(("data", piece, ended))
        exchange.take(len(piece))
        path = exchange.head.path
        if path == b"/stopped":
            exchange.pause()
        if path == b"/last":
            exchange.reply(200, TEXT, b"bye", close=True)
        elif path == b"/none":
            exchange.reply(204, TEXT, b"")
        elif path == b"/twice":
            exchange.reply(200, TEXT, b"once")
            exchange.reply(200, TEXT, b"twice")
        elif path == b"/then/raises":
            exchange.reply(200, TEXT, b"answered")
            raise ValueError(path)
        else:
            self.parrot.data(exchange, piece, ended)

    def late(self, exchange: Exchange) -> None:
        raise AssertionError("nothing is late")


def request(path: str, body: bytes, *fields: bytes, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}".encode(), b"Host: x", *fields]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


HOLD = request("/hold", b"")
LARGE = request("/large/70000", b"")


@contextmanager
def only_the_long_way() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Http1Connection, "whole", lambda _self, _data: None)
        patch.setattr(Http1Connection, "conclude", lambda *_: None)
        yield


async def played(steps: list[Any], secure: bool, company: bool) -> tuple[Any, ...]:
    """What can be seen of a connection, after each step and at its end.

    Args:
        steps: reads, and events by name.
        secure: over TLS.
        company: another connection's request is open all the while.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        app = Watched()
        app.parrot.loop = asyncio.get_running_loop()
        shared = DoorState(app, DoorLimits(busy_poll=0.0), ByteBudget(1 << 30))
        shared.sweeper.now = 0.0
        shared.date_line = b"date: a fixed one\r\n"
        wire = Wire(ours, secure)
        session = wire.session = Http1Session(shared, wire, shared.sweeper.after(30))
        session._keep_alive = 60.0
        shared.connections.add(session)
        shared.calls = int(company)
        session.start(b"")
        seen: list[Any] = []
        unread: list[bytes] = []
        for step in steps:
            if step in ("let go", "let go and end", "let go and read"):
                app.parrot.let_go()
            if step == "let go and read" and wire.reading and not wire.ended:
                session.data_received(HOLD)
            if step == "let go and end" and not (wire.ended or unread or session.eof):
                session.eof_received() or wire.close()
            if step == "client stops":
                wire.client_reads = False
            elif step == "client goes on":
                wire.client_goes_on()
            elif step == "drain":
                shared.draining = True
            elif isinstance(step, bytes):
                unread.append(step)
            for _ in range(TURNS):
                if unread and wire.reading and not wire.ended:
                    session.data_received(unread.pop(0))
                await asyncio.sleep(0)
            if step == "end" and not wire.ended and not unread:
                if not session.eof and not session.eof_received():
                    wire.close()
                await asyncio.sleep(0)
            seen.append((bytes(wire.sent), wire.ended, wire.reading, session.lagging, shared.calls))
            seen.append((session.written, session.unsent(), session.counted, shared.budget.used))
            seen.append((session.closing, session.dirty, shared.buffered, shared.polling_wanted))
            if shared.calls == company and not wire.ended:  # else a look would tell
                seen.append(session.due)
        wire.abort()
        await asyncio.sleep(0)
        assert (shared.calls, shared.budget.used, shared.buffered) == (company, 0, 0)
        assert not shared.connections
        return seen, app.heard, shared.counters, app.parrot.began._value, app.parrot.gone._value


PATHS = (
    *("/echo", "/later", "/hold", "/large/70000", "/large/40000", "/last", "/none", "/twice"),
    *("/stream/3", "/flood/9", "/duplex", "/trailers", "/lazy", "/stopped"),
    *("/refuse", "/raise", "/raise/body", "/begun", "/broken", "/then/raises", "/odd"),
)
fields = st.sampled_from([(), (), (), (b"Connection: close",), (b"Expect: 100-continue",)])
requests = st.builds(
    lambda path, body, fields, version: request(path, body, *fields, version=version),
    st.sampled_from(PATHS),
    st.sampled_from([b"", b"abc", b"abc", b"z" * 5000]),
    fields,
    st.sampled_from(["1.1", "1.1", "1.1", "1.0"]),
)
events = st.sampled_from(
    [
        *("let go", "let go", "let go and read", "let go and end"),
        *("client stops", "client goes on", "drain", "end"),
    ]
)


@st.composite
def plays(draw: st.DrawFn) -> list[Any]:
    """Reads that hold one request as a rule, and what happens between them."""
    steps: list[Any] = []
    for step in draw(st.lists(st.one_of(requests, requests, requests, events), max_size=8)):
        how = draw(st.sampled_from(["alone", "alone", "alone", "behind", "cut", "again"]))
        if isinstance(step, str) or how == "alone":
            steps.append(step)
        elif how == "behind" and steps and isinstance(steps[-1], bytes):
            steps[-1] += step
        elif how == "cut":
            at = draw(st.integers(1, len(step) - 1))
            steps += [step[:at], step[at:]]
        else:
            steps += [step, step]
    return steps


@settings(deadline=None, max_examples=400)
@given(plays(), st.booleans(), st.booleans())
@example(["client stops", LARGE + HOLD, "let go", "client goes on"], False, False)
@example([HOLD + HOLD, "end", "let go", "let go"], False, False)
@example([HOLD, "let go and end"], False, True)
@example([HOLD, "let go and read", "let go"], False, True)
def test_the_short_way_and_the_long_one_cannot_be_told_apart(
    steps: list[Any], secure: bool, company: bool
) -> None:
    short = asyncio.run(played(steps, secure, company))
    with only_the_long_way():
        long = asyncio.run(played(steps, secure, company))
    assert short == long
