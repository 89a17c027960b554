"""Two connected cores, frames made by hand, and events as values that can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.protocols.heads import RequestHead, ResponseHead
from penstock.protocols.http2 import (
    PREFACE,
    ConnectionFailed,
    DataReceived,
    Event,
    GoawayReceived,
    HeadReceived,
    HeadTooLarge,
    Http2Connection,
    Http2Limits,
    PingAcknowledged,
    Role,
    Stream,
    StreamReset,
    TrailersReceived,
    encode_block,
)
from tests.kit import frames as f
from tests.kit.frames import data, frame, settings, window_update
from tests.kit.frames import reset as rst

GET = [
    (b":method", b"GET"),
    (b":scheme", b"http"),
    (b":path", b"/a?b=c"),
    (b":authority", b"host:80"),
]
POST = [(b":method", b"POST"), *GET[1:]]
GET_BLOCK, POST_BLOCK = encode_block(GET), encode_block(POST)
OK_BLOCK = encode_block([(b":status", b"200")])
TRAILER_BLOCK = encode_block([(b"grpc-status", b"0")])


def headers(stream: int, block: bytes = POST_BLOCK, *, end: bool = False) -> bytes:
    return f.headers(stream, block, end=end)


OPENING = PREFACE + settings() + f.settings_ack()


def server(limits: Http2Limits | None = None, *, opening: bytes = OPENING) -> Http2Connection:
    """A server after the exchange of settings, with no output left."""
    connection = Http2Connection(Role.SERVER, limits or Http2Limits())
    assert connection.receive(opening) == []
    connection.take_output()
    return connection


def client(limits: Http2Limits | None = None) -> Http2Connection:
    connection = Http2Connection(Role.CLIENT, limits or Http2Limits())
    assert connection.receive(settings() + f.settings_ack()) == []
    connection.take_output()
    return connection


def frames_of(output: bytes) -> list[tuple[int, int, int, bytes]]:
    """Type, flags, stream and payload of each frame."""
    found = []
    output = output.removeprefix(PREFACE)
    while output:
        length = int.from_bytes(output[:3], "big")
        stream = int.from_bytes(output[5:9], "big")
        found.append((output[3], output[4], stream, output[9 : 9 + length]))
        output = output[9 + length :]
    return found


def value_of(event: Event) -> tuple[Any, ...]:
    """An event as a value that can be compared."""
    match event:
        case HeadReceived():
            head = event.head
            line = getattr(head, "method", None) or head.status  # type: ignore[union-attr]
            return "head", event.stream.id, line, head.headers, event.ended
        case HeadTooLarge():
            return "too large", event.stream.id
        case DataReceived():
            return "data", event.stream.id, event.data, event.ended
        case TrailersReceived():
            return "trailers", event.stream.id, event.headers
        case StreamReset():
            return "reset", event.stream.id, event.code, event.by_peer
        case GoawayReceived():
            return "goaway", event.last_stream, event.code, event.debug
        case PingAcknowledged():
            return "ping", event.payload
        case ConnectionFailed():
            return "failed", event.code


def head_received(stream: Stream, head: RequestHead | ResponseHead, ended: bool) -> HeadReceived:
    """Make a HeadReceived."""
    event = HeadReceived()
    event.stream = stream
    event.head = head
    event.data = b""
    event.ended = ended
    return event


def data_received(stream: Stream, data: bytes, ended: bool) -> DataReceived:
    """Make a DataReceived."""
    event = DataReceived()
    event.stream = stream
    event.data = data
    event.counted = len(data)
    event.ended = ended
    return event


def apart(events: Iterable[Event]) -> Iterator[Event]:
    """The same events, with a separate event for a body that came with its head.

    Whether it did depends on how the bytes were split.
    """
    for event in events:
        if isinstance(event, HeadReceived) and event.data:
            assert event.ended
            yield head_received(event.stream, event.head, False)
            yield data_received(event.stream, event.data, True)
        else:
            yield event


def merged(events: list[Event]) -> list[tuple[Any, ...]]:
    """Values of events, with consecutive data of one stream joined."""
    values: list[tuple[Any, ...]] = []
    for event in apart(events):
        value = value_of(event)
        if values and value[0] == "data":
            last = values[-1]
            if last[:2] == value[:2] and not last[3]:
                values[-1] = ("data", value[1], last[2] + value[2], value[3])
                continue
        values.append(value)
    return values


def exchange(one: Http2Connection, other: Http2Connection) -> tuple[list[Event], list[Event]]:
    """Exchange bytes between two until neither has output; returns the events of each."""
    events: tuple[list[Event], list[Event]] = ([], [])
    while one.has_output or other.has_output:
        events[1].extend(other.receive(one.take_output()))
        events[0].extend(one.receive(other.take_output()))
    return events


def check(connection: Http2Connection) -> None:
    """Check the invariants of a connection."""
    streams = connection.streams.values()
    whole = connection._stream_window
    unconsumed = 0
    for stream in streams:
        assert not stream.closed
        assert stream.receive_window + stream.owed <= whole
        unconsumed += whole - stream.receive_window - stream.owed
        outbox = stream.outbox
        if outbox is not None:
            assert outbox.size or outbox.end or outbox.trailers
            assert outbox.size == sum(len(piece) for piece in outbox._pieces)
            assert stream.window <= 0 or connection._window <= 0 or not outbox.size
    assert connection.queued == sum(stream.queued for stream in streams)
    boxes = [stream.outbox for stream in streams if stream.outbox is not None]
    assert connection.buffered == sum(box.buffered for box in boxes)
    for box in boxes:
        assert box.buffered == sum(len(bytes(piece.obj)) for piece in box._pieces)
    if not connection.failed:
        assert (
            connection._receive_window + connection._owed + unconsumed
            == connection._announced_window
        )


__all__ = ["data", "frame", "rst", "settings", "window_update"]
