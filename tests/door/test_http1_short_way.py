"""HTTP/1.1: a complete request, and an answer with nothing else to write, take a fast path.

The same reads are played to two connections in memory, one of them without the fast path. Output
and counters are equal.
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
from tests.door.applications import TEXT, EchoApplication

TURNS = 20
"""Turns of the loop after which all pending callbacks have run."""


class FakeTransport(asyncio.Transport):
    """Records what is written; the test controls when its client reads."""

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

    def client_continues(self) -> None:
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

    def _end(self, kind: str) -> None:
        if not self.ended:
            self.ended = kind
            asyncio.get_running_loop().call_soon(self.session.connection_lost, None)


class RecordingApplication:
    """An application that takes every body from the budget, and records its calls."""

    def __init__(self) -> None:
        self.echo_app = EchoApplication()
        self.calls: list[Any] = []

    def begin(self, exchange: Exchange) -> Receiver | None:
        self.calls.append(("begun", exchange.head.path, exchange.over_limit))
        if exchange.head.path == b"/odd":
            exchange.reply(200, ((b"x y", b""),), b"cannot be sent")
        receiver = self.echo_app.begin(exchange)
        return None if receiver is None else self

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        self.calls.append(("data", piece, ended))
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
            self.echo_app.data(exchange, piece, ended)

    def late(self, exchange: Exchange) -> None:
        raise AssertionError("nothing is late")


def request(path: str, body: bytes, *fields: bytes, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}".encode(), b"Host: x", *fields]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


HOLD = request("/hold", b"")
LARGE = request("/large/70000", b"")


@contextmanager
def without_fast_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Http1Connection, "whole", lambda _self, _data: None)
        patch.setattr(Http1Connection, "conclude", lambda *_: None)
        yield


async def play(steps: list[Any], secure: bool, other_call: bool) -> tuple[Any, ...]:
    """The observable state of a connection, after each step and at its end.

    Args:
        steps: reads, and events by name.
        secure: over TLS.
        other_call: whether another connection's request is open all the time.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        app = RecordingApplication()
        app.echo_app.loop = asyncio.get_running_loop()
        shared = DoorState(app, DoorLimits(busy_poll=0.0), ByteBudget(1 << 30))
        shared.sweeper.now = 0.0
        shared.date_line = b"date: a fixed one\r\n"
        wire = FakeTransport(ours, secure)
        session = wire.session = Http1Session(shared, wire, shared.sweeper.after(30))
        session._keep_alive = 60.0
        shared.connections.add(session)
        shared.calls = int(other_call)
        session.start(b"")
        seen: list[Any] = []
        unread: list[bytes] = []
        for step in steps:
            if step in ("let go", "let go and end", "let go and read"):
                app.echo_app.release_held()
            if step == "let go and read" and wire.reading and not wire.ended:
                session.data_received(HOLD)
            if step == "let go and end" and not (wire.ended or unread or session.eof):
                session.eof_received() or wire.close()
            if step == "client stops":
                wire.client_reads = False
            elif step == "client goes on":
                wire.client_continues()
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
            if shared.calls == other_call and not wire.ended:  # otherwise the time is checked
                seen.append(session.due)
        wire.abort()
        await asyncio.sleep(0)
        assert (shared.calls, shared.budget.used, shared.buffered) == (other_call, 0, 0)
        assert not shared.connections
        return seen, app.calls, shared.counters, app.echo_app.began._value, app.echo_app.gone._value


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
    """Reads, mostly of one request each, and events between them."""
    steps: list[Any] = []
    for step in draw(st.lists(st.one_of(requests, requests, requests, events), max_size=8)):
        kind = draw(st.sampled_from(["alone", "alone", "alone", "behind", "cut", "again"]))
        if isinstance(step, str) or kind == "alone":
            steps.append(step)
        elif kind == "behind" and steps and isinstance(steps[-1], bytes):
            steps[-1] += step
        elif kind == "cut":
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
def test_connections_with_and_without_the_fast_path_behave_alike(
    steps: list[Any], secure: bool, other_call: bool
) -> None:
    fast = asyncio.run(play(steps, secure, other_call))
    with without_fast_path():
        slow = asyncio.run(play(steps, secure, other_call))
    assert fast == slow
