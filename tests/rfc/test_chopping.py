"""However the bytes are cut on their way, the same is told and the same is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.http2 import Http2Connection, Http2Limits, Role, events
from tests.protocols.http2.peers import apart
from tests.rfc import wire


def unary(encoder: hpack.Encoder) -> bytes:
    """Calls as a gRPC client makes them: the same head again and again, one message each."""
    head = [
        *wire.POST,
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"grpc-timeout", b"1S"),
    ]
    return b"".join(
        wire.headers(n, encoder.encode(head)) + wire.data(n, b"\0\0\0\0\x03abc", end=True)
        for n in range(1, 11, 2)
    )


def mixed(encoder: hpack.Encoder) -> bytes:
    """Every frame that a lawful peer sends."""
    first = encoder.encode(wire.POST)
    long = encoder.encode(
        [*wire.GET, (b"x-long", b"v" * 400), (b"cookie", b"a"), (b"cookie", b"b")]
    )
    return b"".join([
        wire.settings((4, 100_000), (5, 20_000), (0x99, 1)),
        wire.headers(1, first, pad=3, priority=wire.weight()),
        wire.ping(),
        wire.data(1, b"a" * 700, pad=20),
        wire.frame(wire.UNKNOWN, 0xFF, 1, b"x" * 30),
        wire.headers(3, long[:5], whole=False, end=True),
        wire.continuation(3, long[5:200], whole=False),
        wire.continuation(3, long[200:]),
        wire.window_update(0, 1000),
        wire.window_update(1, 1000),
        wire.priority(3),
        wire.data(1, b""),
        wire.headers(5, encoder.encode(wire.POST)),
        wire.reset(5, wire.CANCEL),
        wire.headers(1, encoder.encode([(b"x-t", b"1")]), end=True),
        wire.ping(b"theirs\0\0", ack=True),
        wire.settings_ack(),
        wire.goaway(0, 0, b"bye"),
        wire.headers(7, encoder.encode([*wire.POST, (b"content-length", b"4")])),
        wire.data(7, b"ab"),
        wire.data(7, b"cd", end=True),
    ])  # fmt: skip


def stream_errors(encoder: hpack.Encoder) -> bytes:
    return b"".join([
        wire.headers(1, encoder.encode([*wire.GET, (b"connection", b"close")]), end=True),
        wire.headers(3, encoder.encode(wire.POST)),
        wire.window_update(3, 0),
        wire.data(3, b"for nobody"),
        wire.headers(5, encoder.encode([*wire.POST, (b"content-length", b"2")])),
        wire.data(5, b"abc", end=True),
        wire.headers(7, encoder.encode(wire.GET), end=True),
        wire.data(7, b"after the end"),
        wire.headers(9, encoder.encode([*wire.GET, (b"x-long", b"v" * 9000)]), end=True),
        wire.headers(11, encoder.encode(wire.GET), end=True),
    ])  # fmt: skip


def fatal(piece: bytes) -> Callable[[hpack.Encoder], bytes]:
    def make(encoder: hpack.Encoder) -> bytes:
        start = wire.headers(1, encoder.encode(wire.POST)) + wire.data(1, b"abc")
        return start + piece + wire.ping() + wire.headers(3, encoder.encode(wire.GET), end=True)

    return make


def responses(encoder: hpack.Encoder) -> bytes:
    return b"".join([
        wire.headers(1, encoder.encode([(b":status", b"103")])),
        wire.headers(1, encoder.encode([*wire.OK, (b"content-type", b"application/grpc")])),
        wire.data(1, b"\0\0\0\0\x03abc", pad=4),
        wire.headers(3, encoder.encode([*wire.OK, (b"grpc-status", b"5")]), end=True),
        wire.headers(1, encoder.encode([(b"grpc-status", b"0")]), end=True),
        wire.headers(5, encoder.encode(wire.OK)),
        wire.data(5, b"part"),
        wire.reset(5, wire.INTERNAL_ERROR),
        wire.goaway(5, 0, b"bye"),
    ])  # fmt: skip


HELLO = wire.PREFACE + wire.settings() + wire.settings_ack()
SERVER: dict[str, Callable[[hpack.Encoder], bytes]] = {
    "unary calls": unary,
    "every frame": mixed,
    "stream errors": stream_errors,
    "data on stream 0": fatal(wire.data(0, b"x" * 50)),
    "wrong padding": fatal(wire.frame(wire.DATA, wire.PADDED, 1, b"\xff" + b"x" * 50)),
    "a frame that is too large": fatal(wire.frame(wire.DATA, 0, 1, bytes(16385))),
    "a long ping": fatal(wire.ping(bytes(20))),
    "a bad block": fatal(wire.headers(3, b"\x80" + bytes(60), end=True)),
    "a bad setting": fatal(wire.settings((4, 5), (4, 1 << 31))),
    "an interrupted block": fatal(wire.headers(3, bytes(30), whole=False) + wire.settings()),
}
RECORDED: dict[str, tuple[Role, bytes]] = {
    name: (Role.SERVER, HELLO + make(hpack.Encoder())) for name, make in SERVER.items()
}
RECORDED["not HTTP/2"] = (Role.SERVER, b"POST / HTTP/1.1\r\nhost: a\r\n\r\n" + HELLO)
RECORDED["responses"] = (
    Role.CLIENT,
    wire.settings() + wire.settings_ack() + responses(hpack.Encoder()),
)


def told(event: Any) -> list[Any]:
    if isinstance(event, events.HeadReceived):
        head = event.head
        return [event.stream.id, "head", repr(head), head.headers, event.ended]
    if isinstance(event, events.TrailersReceived):
        return [event.stream.id, "trailers", event.headers]
    if isinstance(event, events.StreamReset):
        return [event.stream.id, "reset", event.code, event.by_peer]
    if isinstance(event, events.GoawayReceived):
        return ["goaway", event.last_stream, event.code, event.debug]
    if isinstance(event, events.PingAcknowledged):
        return ["pong", event.payload]
    if isinstance(event, events.ConnectionFailed):
        return ["failed", event.code]
    raise AssertionError(event)


def played(role: Role, pieces: Iterable[bytes]) -> tuple[Any, ...]:
    """Everything that was told, with pieces of a body joined, and everything put out."""
    core = Http2Connection(role, Http2Limits())
    out = core.take_output()
    if role is Role.CLIENT:
        for _ in range(3):
            core.open(wire.block(wire.POST), end=False)
    story: list[list[Any]] = []
    bodies: dict[int, bytearray] = {}
    counted: dict[int, int] = {}
    for piece in pieces:
        for event in apart(core.receive(piece)):
            if isinstance(event, events.DataReceived):
                number = event.stream.id
                bodies.setdefault(number, bytearray()).extend(event.data)
                counted[number] = counted.get(number, 0) + event.counted
                if event.ended:
                    story.append([number, "ended"])
            else:
                story.append(told(event))
        out += core.take_output()
    return story, bodies, counted, out, len(core.streams)


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[left:right] for left, right in pairwise(marks)]


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 10, 17, 1000])
def test_equal_pieces_tell_the_same(name: str, size: int) -> None:
    role, data = RECORDED[name]
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert played(role, pieces) == played(role, [data])


@pytest.mark.parametrize("name", RECORDED)
@settings(max_examples=60, deadline=None)
@given(places=st.lists(st.integers(0, 1 << 20), max_size=40))
def test_any_pieces_tell_the_same(name: str, places: list[int]) -> None:
    role, data = RECORDED[name]
    assert played(role, cut(data, places)) == played(role, [data])


@pytest.mark.parametrize("name", ["every frame", "responses"])
def test_the_recorded_conversations_are_told_whole(name: str) -> None:
    role, data = RECORDED[name]
    story, bodies, _, _, _ = played(role, [data])
    kinds = {entry[0] if isinstance(entry[0], str) else entry[1] for entry in story}
    assert kinds >= {"head", "trailers", "reset", "goaway"}
    assert "failed" not in kinds
    assert bodies
