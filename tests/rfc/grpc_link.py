"""Either end of a gRPC connection, by hand: frames from ``wire``, read by hyperframe and hpack."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import hpack
from hyperframe import frame as frames

from tests.rfc import wire

PATIENCE = 5.0
"""Seconds within which everything that a case waits for has happened."""

NO_TIME = 0.2
"""Seconds in which what must not happen would have happened."""

Frame = TypeVar("Frame", bound=frames.Frame)


def message(data: bytes = b"abc", *, flag: int = 0) -> bytes:
    """A message with its prefix."""
    return struct.pack(">BI", flag, len(data)) + data


def call(path: bytes = b"/a.B/Echo", *more: wire.Field) -> tuple[wire.Field, ...]:
    """The head of a call, as the protocol's document lists it."""
    return (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"example.org"),
        (b"te", b"trailers"),  # codespell:ignore te
        (b"content-type", b"application/grpc"),
        *more,
    )


@dataclass
class Heard:
    """What has come on one stream."""

    heads: list[list[wire.Field]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    order: list[str] = field(default_factory=list)  # kinds of frames; END where END_STREAM stood
    reset: int | None = None

    @property
    def ended(self) -> bool:
        return self.reset is not None or "END" in self.order

    @property
    def status(self) -> int:
        """The ``grpc-status`` of the last head."""
        return int(self.fields[b"grpc-status"])

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The last head, or trailers."""
        return dict(self.heads[-1])

    @property
    def messages(self) -> list[bytes]:
        found, rest = [], bytes(self.data)
        while rest:
            flag, length = struct.unpack(">BI", rest[:5])
            assert flag == 0, "a compressed message"
            assert len(rest) >= 5 + length, "a message is cut off"
            found.append(rest[5 : 5 + length])
            rest = rest[5 + length :]
        return found


class Link:
    """One connection. ``serves``: we are the server's end of it."""

    def __init__(self, link: socket.socket, *, serves: bool = False) -> None:
        self.socket = link
        link.settimeout(PATIENCE)
        self.streams: dict[int, Heard] = {}
        self.others: list[Any] = []  # frames of the connection
        self.closed = False
        self._serves = serves
        self._unread = b""
        self._skip = len(wire.PREFACE) if serves else 0
        self._block = b""
        self._decoder = hpack.Decoder()

    def greet(self, *settings: tuple[int, int]) -> None:
        """Our half of the handshake, with windows that are never in the way."""
        preface = b"" if self._serves else wire.PREFACE
        large = (wire.INITIAL_WINDOW_SIZE, 1 << 24)
        self.send(preface, wire.settings(large, *settings), wire.settings_ack())
        self.send(wire.window_update(0, 1 << 24))

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def ask(
        self, stream: int, fields: Iterable[wire.Field] = (), body: bytes | None = None
    ) -> Heard:
        """A whole request and its answer."""
        body = message() if body is None else body
        head = wire.headers(stream, wire.block(fields or call()))
        self.send(head, wire.data(stream, body, end=True))
        return self.answer(stream)

    def answer(self, stream: int) -> Heard:
        """What has come on a stream, as soon as that has ended."""
        self.until(lambda: stream in self.streams and self.streams[stream].ended)
        return self.streams[stream]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, (self.streams, self.others)
            assert not self.closed, (self.streams, self.others)
            self.read()

    def reset(self, stream: int) -> int:
        """The code of a stream's RST_STREAM, as soon as it is there."""
        heard = self.streams.setdefault(stream, Heard())
        self.until(lambda: heard.reset is not None)
        assert heard.reset is not None
        return heard.reset

    def frame(self, kind: type[Frame]) -> Frame:
        """The first frame of this kind that is not about a stream."""
        self.until(lambda: any(isinstance(one, kind) for one in self.others))
        return next(one for one in self.others if isinstance(one, kind))

    def alive(self, payload: bytes = b"12345678") -> None:
        """A ping comes back: everything from before it has been read."""
        self.send(wire.ping(payload))
        self.until(lambda: any(payload == getattr(one, "opaque_data", b"") for one in self.others))

    def until_closed(self) -> None:
        while not self.closed:
            self.read()

    def read(self) -> None:
        """Read once."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self.closed = not data
        self._unread += data
        if self._skip and len(self._unread) >= self._skip:
            assert self._unread[: self._skip] == wire.PREFACE
            self._unread, self._skip = self._unread[self._skip :], 0
        while not self._skip and len(self._unread) >= 9:
            one, length = frames.Frame.parse_frame_header(memoryview(self._unread[:9]))
            if len(self._unread) < 9 + length:
                return
            one.parse_body(memoryview(self._unread[9 : 9 + length]))
            self._unread = self._unread[9 + length :]
            self._take(one)

    def _take(self, one: Any) -> None:
        if not one.stream_id or isinstance(one, frames.WindowUpdateFrame):
            self.others.append(one)
            return
        heard = self.streams.setdefault(one.stream_id, Heard())
        heard.order.append(type(one).__name__.removesuffix("Frame").upper())
        if isinstance(one, (frames.HeadersFrame, frames.ContinuationFrame)):
            self._block += one.data
            if "END_HEADERS" in one.flags:
                found = self._decoder.decode(self._block, raw=True)
                heard.heads.append([(bytes(name), bytes(value)) for name, value in found])
                self._block = b""
        elif isinstance(one, frames.DataFrame):
            heard.data += one.data
        elif isinstance(one, frames.RstStreamFrame):
            heard.reset = one.error_code
        if "END_STREAM" in one.flags:
            heard.order.append("END")


Play = Callable[[Any], None]


@dataclass(frozen=True)
class Case:
    """One sentence of a document. ``name`` begins with the document's heading and a colon."""

    name: str
    play: Play
    missing: str


class Sentences:
    """Collects the cases of a test module."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def add(self, name: str, *, missing: str = "") -> Callable[[Play], Play]:
        """Add the decorated function; ``missing`` says why the case cannot pass yet."""
        assert ": " in name, name

        def keep(play: Play) -> Play:
            self.cases.append(Case(name, play, missing))
            return play

        return keep
