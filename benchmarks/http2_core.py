"""What the HTTP/2 core costs for each request: microseconds for taking one in and answering it.

A thousand unary gRPC requests (HEADERS of a warm connection, 60 bytes of DATA that end it)
come in reads of 32 and are answered with one message and trailers, all in memory. Beside it stand
two floors with fixed answers, header blocks looked up by their bytes, no limits, no states and no
flow control: one gives plain tuples, the other the stream and the two events of the real interface.

    python -m benchmarks.http2_core --rounds 60
"""

from __future__ import annotations

import argparse
import statistics
import time
from struct import Struct
from typing import Any

from hpack import Encoder

from penstock.protocols.http2 import (
    PREFACE,
    DataReceived,
    HeadReceived,
    Http2Connection,
    Role,
    Stream,
    encode_block,
)
from penstock.protocols.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    frame,
)

REQUESTS = 1000
PER_READ = 32
BODY = b"\0" + (55).to_bytes(4, "big") + b"x" * 55
FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "127.0.0.1:8000"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-python/1.80.0 grpc-c/53.0.0 (linux; chttp2)"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
    ("grpc-timeout", "10S"),
]
HEAD_BLOCK = encode_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILER_BLOCK = encode_block([(b"grpc-status", b"0")])

_head = Struct(">IBI")


class Floor:
    """The least that takes such requests in and answers them."""

    def __init__(self, memo: dict[bytes, Any]) -> None:
        self.memo = memo
        self.heads: dict[int, Any] = {}
        self.out: list[bytes] = []
        size = len(HEAD_BLOCK)
        self.head = (size << 8 | HEADERS).to_bytes(4, "big") + bytes((END_HEADERS,))
        self.middle = HEAD_BLOCK + (len(BODY) << 8).to_bytes(4, "big") + b"\0"
        tail = (len(TRAILER_BLOCK) << 8 | HEADERS).to_bytes(4, "big")
        self.tail = tail + bytes((END_HEADERS | END_STREAM,))
        form = f">5sI{len(self.middle)}sI{len(BODY)}s5sI{len(TRAILER_BLOCK)}s"
        self.pack = Struct(form).pack

    def receive(self, data: bytes) -> list[tuple[int, Any, bytes]]:
        """Whole requests: stream, head, body."""
        requests = []
        at = 0
        heads = self.heads
        while at < len(data):
            word, _, stream = _head.unpack_from(data, at)
            end = at + 9 + (word >> 8)
            if word & 0xFF == HEADERS:
                heads[stream] = self.memo[data[at + 9 : end]]
            else:
                requests.append((stream, heads.pop(stream), data[at + 9 : end]))
            at = end
        return requests

    def reply(self, stream: int, body: bytes) -> None:
        """One message and trailers."""
        self.out.append(
            self.pack(
                self.head, stream, self.middle, stream, body, self.tail, stream, TRAILER_BLOCK
            )
        )

    def take_output(self) -> bytes:
        """What is to be written."""
        data = b"".join(self.out)
        self.out.clear()
        return data


def request(stream: int, block: bytes) -> bytes:
    """One unary call."""
    head = frame(HEADERS, END_HEADERS, stream, block)
    return head + frame(DATA, END_STREAM, stream, BODY)


def reads(first: int, block: bytes) -> list[bytes]:
    """A thousand requests from this stream on, as they are read from the socket."""
    all_of_them = [request(first + 2 * n, block) for n in range(REQUESTS)]
    return [b"".join(all_of_them[n : n + PER_READ]) for n in range(0, REQUESTS, PER_READ)]


class EventFloor(Floor):
    """The same with the objects that the interface asks for."""

    def events(self, data: bytes) -> list[HeadReceived | DataReceived]:
        """A stream for each head, an event for each frame."""
        events: list[HeadReceived | DataReceived] = []
        at = 0
        streams = self.heads
        while at < len(data):
            word, flags, id = _head.unpack_from(data, at)
            end = at + 9 + (word >> 8)
            if word & 0xFF == HEADERS:
                streams[id] = stream = Stream()
                stream.id = id
                head = HeadReceived()
                head.stream = stream
                head.head = self.memo[data[at + 9 : end]]
                head.ended = flags & END_STREAM != 0
                events.append(head)
            else:
                piece = DataReceived()
                piece.stream = streams.pop(id)
                piece.data = data[at + 9 : end]
                piece.counted = word >> 8
                piece.ended = flags & END_STREAM != 0
                events.append(piece)
            at = end
        return events


class Measured:
    """A warm connection of either kind, and the identifiers of the streams to come."""

    def __init__(self) -> None:
        encoder = Encoder()
        first, self.block = encoder.encode(FIELDS), encoder.encode(FIELDS)
        self.connection = Http2Connection(Role.SERVER)
        self.connection.receive(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
        for event in self.connection.receive(request(1, first) + request(3, self.block)):
            if isinstance(event, DataReceived):
                self.connection.reply(event.stream, HEAD_BLOCK, BODY, TRAILER_BLOCK)
        self.next = 5
        self.floor = Floor({self.block: FIELDS})
        self.event_floor = EventFloor({self.block: FIELDS})
        self.connection.take_output()

    def core_us(self) -> float:
        """One round through the core."""
        pieces = reads(self.next, self.block)
        self.next += 2 * REQUESTS
        connection = self.connection
        written = 0
        # The peer reads along; outside of the time, as it happens once in thousands of requests.
        connection.receive(frame(8, 0, 0, (REQUESTS * len(BODY)).to_bytes(4, "big")))
        start = time.perf_counter()
        for piece in pieces:
            for event in connection.receive(piece):
                if type(event) is HeadReceived:
                    event.stream.context = event.head
                elif type(event) is DataReceived:
                    connection.reply(event.stream, HEAD_BLOCK, event.data, TRAILER_BLOCK)
            written += len(connection.take_output())
        spent = time.perf_counter() - start
        connection.refill()
        assert not connection.streams
        assert written >= REQUESTS * (len(BODY) + 27)
        return spent * 1e6 / REQUESTS

    def floor_us(self) -> float:
        """One round through the floor."""
        pieces = reads(1, self.block)
        floor = self.floor
        start = time.perf_counter()
        for piece in pieces:
            for stream, _, body in floor.receive(piece):
                floor.reply(stream, body)
            floor.take_output()
        return (time.perf_counter() - start) * 1e6 / REQUESTS

    def event_floor_us(self) -> float:
        """One round through the floor with events."""
        pieces = reads(1, self.block)
        floor = self.event_floor
        start = time.perf_counter()
        for piece in pieces:
            for event in floor.events(piece):
                if type(event) is HeadReceived:
                    event.stream.context = event.head
                elif type(event) is DataReceived:
                    floor.reply(event.stream.id, event.data)
            floor.take_output()
        return (time.perf_counter() - start) * 1e6 / REQUESTS


def main() -> None:
    """Measure in turns and print the medians and the best rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    measured = Measured()
    core, events, floor = [], [], []
    for _ in range(rounds):
        core.append(measured.core_us())
        events.append(measured.event_floor_us())
        floor.append(measured.floor_us())
    for name, times in (("core", core), ("floor with events", events), ("bare floor", floor)):
        best = min(times)
        print(f"{name:18} median {statistics.median(times):6.2f} us   best {best:6.2f} us")
    print(f"core / floor with events, best rounds: {min(core) / min(events):.2f}")


if __name__ == "__main__":
    main()
