"""HTTP/2, both roles: any bytes; frames in any order, with any calls of the driver in between; and
repeated equal requests, until one of them differs a little.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from hyperframe import frame as frames

from penstock.protocols.http2 import (
    Http2Connection,
    Http2Limits,
    Role,
    StreamLimit,
    encode_block,
    events,
)
from tests.fuzz.choices import Choices, pieces
from tests.kit import frames as wire
from tests.protocols.http2.peers import apart

LIMITS = (
    Http2Limits(),
    Http2Limits(max_streams=3, header_table_size=200, stream_window=1000, connection_window=70_000),
)
HELLO = wire.settings() + wire.settings_ack()
HEAD = encode_block(wire.OK)
TRAILER = encode_block([(b"grpc-status", b"0")])
REQUEST_HEAD = encode_block(wire.POST)
BLOCKS = (
    wire.block(wire.GET),
    wire.block(wire.POST),
    wire.block([*wire.POST, (b"content-length", b"5")]),
    wire.block(wire.OK),
    wire.block([(b":status", b"103")]),
    wire.block([*wire.OK, (b"content-length", b"3")]),
    wire.block([(b"x-t", b"1")]),
    wire.block([(b"Bad", b"1")]),
    b"",
    b"\xbe",
    b"\x82\x86\x84\x41\x01a\xbe",
    wire.block(wire.GET) + wire.literal(b"x-a", b"1", kind=0x40),
    wire.block(wire.GET) + wire.literal(b"x-b", b"v" * 900, kind=0x40) * 3,
    b"\x20" + wire.block(wire.GET),
    b"\x3f\xe1\x1f" + wire.block(wire.GET),
    wire.block(wire.GET) + wire.literal(b"x", b"v" * 9000),
)
STREAMS = (1, 3, 5, 7, 9, 11, 0, 2, 101, 2**31 - 1)
NUMBERS = (0, 1, 5, 16384, 65535, 100_000, 2**31 - 1, 2**31, 2**32 - 1)


class Driver:
    """Drives one connection, and checks the order and content of its events."""

    def __init__(self, role: Role, limits: Http2Limits) -> None:
        self.role = role
        self.limits = limits
        self.core = Http2Connection(role, limits)
        self.signature: set[Hashable] = set()
        self.trace: list[Any] = []
        self.bodies: dict[int, bytearray] = {}
        self.streams: list[Any] = []
        self.states: dict[int, str] = {}  # by stream: "body", "ended" or "reset", from its events
        self.failed = False
        self.fed = 0
        self.output = 0
        self.requested_out = 0  # by the driver's calls
        self.uncounted: list[tuple[Any, int]] = []
        self.unread = b""
        self.skip = 24 if role is Role.CLIENT else 0
        self.block_of = 0
        self.credited = 0

    def feed(self, data: bytes) -> None:
        received = self.core.receive(data)
        self.fed += len(data)
        assert not (self.failed and received), "an event after the connection failed"
        for event in apart(received):
            assert not self.failed, "an event after the connection failed"
            self.handle(event)
        if self.role is Role.SERVER:  # a client has as many as it opened
            assert len(self.core.streams) <= self.limits.max_streams
        assert self.core.queued == sum(stream.queued for stream in self.core.streams.values())

    def feed_and_take(self, data: bytes) -> bytes:
        self.feed(data)
        return self.take()

    def handle(self, event: Any) -> None:
        kind = type(event).__name__
        text = getattr(event, "text", "")
        self.signature.add((kind, text, getattr(event, "ended", None)))
        if isinstance(event, events.ConnectionFailed):
            self.failed = True
            self.trace.append((kind, event.code))
            return
        stream = getattr(event, "stream", None)
        if stream is None:
            self.trace.append((kind,))
            return
        number = stream.id
        before = self.states.get(number, "new" if self.role is Role.SERVER else "asked")
        if isinstance(event, events.HeadReceived):
            assert before in ("new", "asked"), f"a head on a stream that is {before}"
            self.streams.append(stream)
            self.states[number] = "ended" if event.ended else "body"
            self.trace.append((kind, number, event.head.headers, event.ended))
        elif isinstance(event, events.HeadTooLarge):
            assert before == "new", f"a head on a stream that is {before}"
            self.streams.append(stream)
            self.states[number] = "body"  # it does not contain whether the stream ended with it
            self.trace.append((kind, number, event.fields))
        elif isinstance(event, events.DataReceived):
            assert before == "body", f"data on a stream that is {before}"
            self.bodies.setdefault(number, bytearray()).extend(event.data)
            self.uncounted.append((stream, event.counted))
            if event.ended:
                self.states[number] = "ended"
                self.trace.append((kind, number))
        elif isinstance(event, events.TrailersReceived):
            assert before == "body", f"trailers on a stream that is {before}"
            self.states[number] = "ended"
            self.trace.append((kind, number, event.headers))
        elif isinstance(event, events.StreamReset):
            assert before != "reset", "a stream that is reset twice"
            self.states[number] = "reset"
            self.trace.append((kind, number, event.code, event.by_peer))

    def take(self) -> bytes:
        """Take the output, which must be whole valid frames within a limit for the input."""
        data = self.core.take_output()
        self.output += len(data)
        assert self.output <= 4096 + 20 * self.fed + 2 * self.requested_out, "too much is put out"
        self.unread += data
        left, self.unread = self.unread[self.skip :], b""
        self.skip = 0
        while left:
            one, length = frames.Frame.parse_frame_header(memoryview(left[:9]))
            assert not isinstance(one, frames.ExtensionFrame)
            assert len(left) >= 9 + length, "a frame is cut off"
            one.parse_body(memoryview(left[9 : 9 + length]))
            left = left[9 + length :]
            continues = isinstance(one, frames.ContinuationFrame)
            assert continues == bool(self.block_of), "a block is interrupted"
            if isinstance(one, (frames.HeadersFrame, frames.ContinuationFrame)):
                assert self.block_of in (0, one.stream_id)
                self.block_of = 0 if "END_HEADERS" in one.flags else one.stream_id
            if isinstance(one, frames.WindowUpdateFrame) and not one.stream_id:
                self.credited += one.window_increment
            if isinstance(one, frames.GoAwayFrame) and one.error_code:
                assert self.failed
                assert not left, "something behind the last GOAWAY"
        room = max(self.limits.connection_window, 65535) - 65535
        assert self.credited <= room + self.fed, "more room is given back than was used"
        return data


def run(data: bytes) -> Hashable:
    choices = Choices(data)
    options = choices.octet()
    role = Role.SERVER if options & 1 else Role.CLIENT
    limits = LIMITS[options >> 1 & 1]
    if options & 4:
        return of_raw(role, limits, bool(options & 8), choices)
    return of_frames(role, limits, choices)


def of_raw(role: Role, limits: Http2Limits, with_preface: bool, choices: Choices) -> Hashable:
    """Any bytes, in one read and in pieces: the events must be equal."""
    pattern = choices.octet()
    stream = choices.rest()
    if with_preface:
        stream = (wire.PREFACE if role is Role.SERVER else b"") + HELLO + stream
    traces = []
    for cut in ([stream], pieces(stream, pattern)):
        driver = Driver(role, limits)
        if role is Role.CLIENT:
            for _ in range(3):
                driver.requested_out += 2 * len(REQUEST_HEAD) + 20
                driver.core.open(REQUEST_HEAD, end=False)
        out = [driver.feed_and_take(piece) for piece in cut]
        traces.append((driver.trace, driver.bodies, b"".join(out) + driver.take()))
    assert traces[0] == traces[1], "it depends on how the bytes are cut"
    return frozenset(driver.signature)


def of_frames(role: Role, limits: Http2Limits, choices: Choices) -> Hashable:
    """Frames with a valid header and any payload, and calls of the driver between them."""
    driver = Driver(role, limits)
    driver.feed((wire.PREFACE if role is Role.SERVER else b"") + HELLO)
    buffered = b""
    while choices:
        step = choices.octet()
        if step < 0xA0:
            buffered += frame_of(step, choices)
            if step & 1:
                continue  # several in one read
        if buffered:
            driver.feed(buffered)
            buffered = b""
        if step >= 0xA0:
            act(driver, step, choices)
        if step & 2:
            driver.take()
    driver.feed(buffered)
    driver.take()
    finish(driver)
    return frozenset(driver.signature)


def frame_of(step: int, choices: Choices) -> bytes:
    stream = choices.of(STREAMS)
    flags = choices.octet()
    kind = step >> 2
    if kind < 10:
        return wire.headers(stream, choices.of(BLOCKS), end=bool(flags & 1), whole=flags & 6 != 6)
    if kind < 18:
        pad = None if flags & 8 else flags >> 4
        content = b"d" * min(NUMBERS[choices.octet() % 4], 16384 - 256)
        return wire.data(stream, content, end=bool(flags & 1), pad=pad)
    if kind < 20:
        return wire.continuation(stream, choices.of(BLOCKS), whole=bool(flags & 1))
    if kind < 23:
        return wire.window_update(stream, choices.of(NUMBERS) & 2**32 - 1)
    if kind < 25:
        return wire.reset(stream, choices.of(NUMBERS))
    if kind < 28:
        return wire.settings((flags % 8, choices.of(NUMBERS)))
    if kind < 30:
        return wire.ping(ack=bool(flags & 1))
    if kind < 31:
        return wire.goaway(stream, choices.of(NUMBERS))
    if kind < 32:
        return wire.settings_ack()
    if kind < 33:
        return wire.priority(stream, flags & 7)
    return wire.frame(choices.octet() % 12, flags, stream, choices.some(choices.octet()))


def act(driver: Driver, step: int, choices: Choices) -> None:
    core = driver.core
    kind = step >> 2 & 15
    if kind == 0:
        core.refill()
        return
    if kind == 1 and not driver.failed:
        driver.requested_out += 40
        core.go_away(final=bool(step & 1))
        return
    if kind in (2, 3) and driver.role is Role.CLIENT:
        try:
            stream = core.open(REQUEST_HEAD, end=bool(step & 1))
        except StreamLimit:
            return
        driver.requested_out += 2 * len(REQUEST_HEAD)
        driver.streams.append(stream)
        return
    if kind == 4:
        driver.requested_out += 20
        core.ping(b"12345678")
        return
    if kind in (5, 6):
        now, driver.uncounted = driver.uncounted, []
        for stream, count in now:
            core.consumed(stream, count)
        return
    if not driver.streams:
        return
    stream = choices.of(driver.streams)
    size = NUMBERS[choices.octet() % 6]
    driver.requested_out += size + 400
    if kind < 10:
        core.reply(stream, HEAD, bytes(size), TRAILER if step & 1 else None)
    elif kind == 10:
        core.send_head(stream, HEAD, end=bool(step & 1))
    elif kind < 13:
        core.send_data(stream, bytes(size), end=bool(step & 1))
    elif kind == 13:
        core.send_trailers(stream, TRAILER)
    else:
        core.reset(stream, wire.CANCEL)


def finish(driver: Driver) -> None:
    """With all streams reset and the output taken, no stream and no output may remain."""
    core = driver.core
    for stream in list(core.streams.values()):
        core.reset(stream, wire.CANCEL)
    driver.requested_out += 20 * len(driver.streams) + 10_000
    driver.take()
    assert core.queued == 0
    assert not core.streams
    assert core.take_output() == b""


def _structured(role: int, *steps: bytes) -> bytes:
    return bytes([role]) + b"".join(steps)


SEEDS = [
    _structured(1, bytes([0, 0, 5, 0]) * 1, bytes([0xBC, 0, 1])),
    _structured(1, bytes([0, 0, 4, 1, 40, 0, 9, 2, 0xC0, 0, 2, 0xB4])),
    _structured(0, bytes([0xA8, 0, 0, 4, 3, 40, 0, 9, 2, 0xB4, 0, 0, 5, 6])),
    _structured(3, bytes([0, 0, 4, 2, 0, 1, 4, 11, 72, 0, 0, 80, 6, 1])),
    b"\x05\x00" + wire.PREFACE + HELLO + wire.headers(1, BLOCKS[0], end=True),
    b"\x0d\x11" + wire.headers(1, BLOCKS[2]) + wire.data(1, b"abcde", end=True),
    b"\x0d\x22" + wire.headers(1, BLOCKS[11][:9], whole=False) + wire.continuation(1, b"\x84"),
    b"\x0d\x33" + wire.settings((4, 100)) + wire.ping() + wire.window_update(0, 5) + wire.reset(1),
    b"\x0c\x44" + wire.headers(1, BLOCKS[5]) + wire.data(1, b"abc", pad=3, end=True),
    b"\x0c\x55" + wire.headers(1, BLOCKS[4]) + wire.headers(1, BLOCKS[3], end=True),
    b"\x0c\x66" + wire.goaway(3, 1, b"x") + wire.push_promise(1, 2, BLOCKS[0]),
]
WORDS = [
    wire.PREFACE,
    *BLOCKS[:12],
    wire.settings(),
    wire.settings_ack(),
    wire.ping(),
    wire.data(1, b"x", end=True),
    wire.data(1, b"", pad=4),
    wire.reset(1),
    wire.window_update(1, 1),
    b"\x00\x00\x00\x01",
    b"\x80\x00\x00\x00",
]
