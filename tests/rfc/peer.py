"""The other end of a connection under test, and the verdict that its bytes show.

What goes in is made by hand (``wire``) or by the package hpack;
what comes out is read by hyperframe and hpack. Nothing of the core makes or reads bytes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import hpack
from hyperframe import frame as frames

from penstock.protocols.http2 import Http2Connection, Http2Limits, Role, events
from tests.protocols.http2.peers import apart
from tests.rfc import wire

KNOWN_FLAGS = {
    "DATA": 0x09,
    "HEADERS": 0x2D,
    "PRIORITY": 0,
    "RST_STREAM": 0,
    "SETTINGS": 0x01,
    "PUSH_PROMISE": 0x0C,
    "PING": 0x01,
    "GOAWAY": 0,
    "WINDOWUPDATE": 0,
    "CONTINUATION": 0x04,
}
NEW_STREAM = 2**30 + 1  # odd, above what a case uses


@dataclass(frozen=True)
class Verdict:
    """What the core made of its input: nothing bad, a stream's error, or the connection's."""

    code: int | None = None
    stream: int | None = None

    def __str__(self) -> str:
        if self.code is None:
            return "fine"
        where = "connection" if self.stream is None else f"stream {self.stream}"
        return f"{where} error {self.code}"


FINE = Verdict()


def conn(code: int) -> Verdict:
    return Verdict(code)


def strm(code: int, stream: int = 1) -> Verdict:
    return Verdict(code, stream)


class Peer:
    """Speaks to one core; the handshake is done unless ``greet`` is false."""

    def __init__(
        self,
        role: Role = Role.SERVER,
        limits: Http2Limits | None = None,
        *,
        greet: bool = True,
        settings: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.role = role
        self.core = Http2Connection(role, limits or Http2Limits())
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.events: list[Any] = []
        self.out: list[frames.Frame] = []
        self.raw = bytearray()
        self.max_frame = dict(settings).get(wire.MAX_FRAME_SIZE, 1 << 14)
        self._unread = b""
        self._block: bytes | None = None
        self._block_of = 0
        self.heads: list[tuple[int, list[tuple[bytes, bytes]]]] = []
        if greet:
            self.greet(*settings)

    def greet(self, *pairs: tuple[int, int]) -> None:
        """The connection preface of this end, and the acknowledgement of the other's."""
        preface = wire.PREFACE if self.role is Role.SERVER else b""
        self.send(preface, wire.settings(*pairs), wire.settings_ack())

    # In

    def send(self, *pieces: bytes) -> list[Any]:
        """Hand bytes to the core; gives the events they made."""
        made = list(apart(self.core.receive(b"".join(pieces))))
        self.events += made
        self.flush()
        return made

    def request(
        self,
        stream: int = 1,
        fields: Iterable[wire.Field] = wire.GET,
        *more: wire.Field,
        end: bool = True,
        **options: Any,
    ) -> bytes:
        """A HEADERS frame whose block needs no table."""
        return wire.headers(stream, wire.block([*fields, *more]), end=end, **options)

    def encoded(self, fields: Iterable[wire.Field]) -> bytes:
        """A block of this end's encoder, with its table."""
        return self.encoder.encode(list(fields))

    # Out

    def flush(self) -> list[frames.Frame]:
        """Read what the core wants written now."""
        data = self.core.take_output()
        self.raw += data
        made = []
        self._unread += data
        if self.role is Role.CLIENT and self._unread[:4] == b"PRI ":
            assert self._unread[:24] == wire.PREFACE
            self._unread = self._unread[24:]
        while self._unread:
            assert len(self._unread) >= 9, "a frame is cut off"
            head, body = self._unread[:9], self._unread[9:]
            one, length = frames.Frame.parse_frame_header(memoryview(head))
            assert len(body) >= length, "a frame is cut off"
            one.parse_body(memoryview(body[:length]))
            self._check(one, head, length)
            self._unread = body[length:]
            made.append(one)
        self.out += made
        return made

    def _check(self, one: frames.Frame, head: bytes, length: int) -> None:
        """Rules for every frame that an endpoint sends (RFC 9113, 4.1, 4.2, 4.3)."""
        name = type(one).__name__.removesuffix("Frame").upper()
        name = {"RSTSTREAM": "RST_STREAM", "PUSHPROMISE": "PUSH_PROMISE"}.get(name, name)
        assert head[4] & ~KNOWN_FLAGS[name] == 0, f"{name} with undefined flags"
        assert head[5] & 0x80 == 0, f"{name} with the reserved bit"
        assert length <= self.max_frame, f"{name} of {length} bytes"
        if self._block is not None:
            assert name == "CONTINUATION", f"{name} inside a field block"
            assert one.stream_id == self._block_of
        else:
            assert name != "CONTINUATION", "CONTINUATION without a field block"
        if name in ("HEADERS", "CONTINUATION"):
            self._block = (self._block or b"") + one.data
            self._block_of = one.stream_id
            if "END_HEADERS" in one.flags:
                found = self.decoder.decode(self._block, raw=True)
                self.heads.append((one.stream_id, [(bytes(k), bytes(v)) for k, v in found]))
                self._block = None

    def sent(self, kind: type[frames.Frame], stream: int | None = None) -> list[Any]:
        """Frames of one kind that the core has put out."""
        return [
            one
            for one in self.out
            if isinstance(one, kind) and (stream is None or one.stream_id == stream)
        ]

    def body(self, stream: int) -> bytes:
        return b"".join(one.data for one in self.sent(frames.DataFrame, stream))

    def seen(self, kind: type, stream: int | None = None) -> list[Any]:
        """Events of one kind."""
        return [
            event
            for event in self.events
            if isinstance(event, kind) and (stream is None or event.stream.id == stream)
        ]

    def head(self, stream: int = 1) -> Any:
        (event,) = self.seen(events.HeadReceived, stream)
        return event.head

    def stream(self, stream: int = 1) -> Any:
        """The core's stream, as the driver got it."""
        return self.seen(events.HeadReceived, stream)[0].stream

    def received(self, stream: int = 1) -> bytes:
        return b"".join(event.data for event in self.seen(events.DataReceived, stream))

    def open(self, fields: Iterable[wire.Field] = wire.GET, *, end: bool = True) -> Any:
        """Let a core that is a client ask something."""
        stream = self.core.open(wire.block(fields), end=end)
        self.flush()
        return stream

    # Verdict

    def verdict(self) -> Verdict:
        for one in self.sent(frames.GoAwayFrame):
            if one.error_code:
                return conn(one.error_code)
        resets = self.sent(frames.RstStreamFrame)
        assert len(resets) <= 1, resets
        for one in resets:
            return strm(one.error_code, one.stream_id)
        return FINE

    def judge(self, *allowed: Verdict, alive: bool = True) -> None:
        """The verdict is one of these; what the driver was told agrees with the bytes."""
        got = self.verdict()
        story = f"got {got}, want {' or '.join(map(str, allowed))}; events {self.events[-5:]}"
        assert got in allowed, story
        failed = self.seen(events.ConnectionFailed)
        if got.code is not None and got.stream is None:
            assert [event.code for event in failed] == [got.code], story
            assert isinstance(self.out[-1], frames.GoAwayFrame)
            self.silent()
            return
        assert not failed, story
        known = {event.stream.id for event in self.seen(events.HeadReceived)}
        ours = [event for event in self.seen(events.StreamReset) if not event.by_peer]
        if got.stream in known:
            assert [(event.stream.id, event.code) for event in ours] == [(got.stream, got.code)]
        if alive:
            self.alive()

    def silent(self) -> None:
        """A failed connection takes nothing and says nothing any more."""
        assert self.core.receive(wire.ping()) == []
        assert self.core.take_output() == b""

    def alive(self) -> None:
        """The connection goes on: a ping is answered, a new stream works, both tables agree."""
        payload = b"alive\0\0\0"
        self.send(wire.ping(payload))
        answers = [one for one in self.sent(frames.PingFrame) if "ACK" in one.flags]
        assert answers[-1].opaque_data == payload
        fields = [(b"x-alive", b"yes")]
        if self.role is Role.SERVER:
            for stream in (NEW_STREAM, NEW_STREAM + 2):
                asked = [*wire.GET, *fields]
                self.send(wire.headers(stream, self.encoded(asked), end=True))
                assert self.head(stream).fields[b"x-alive"] == b"yes"
        else:
            stream = self.open().id
            answer = self.encoded([*wire.OK, *fields])
            self.send(wire.headers(stream, answer, end=True))
            assert self.head(stream).fields[b"x-alive"] == b"yes"


Play = Callable[[Peer], object]


@dataclass(frozen=True)
class Case:
    """One sentence of an RFC. ``name`` begins with the section's number."""

    name: str
    allowed: tuple[Verdict, ...]
    play: Play
    role: Role = Role.SERVER
    options: dict[str, Any] = field(default_factory=dict)
    alive: bool = True

    def run(self) -> None:
        peer = Peer(self.role, **self.options)
        self.play(peer)
        peer.judge(*self.allowed, alive=self.alive)


class Table:
    """Collects the cases of a test module."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def add(
        self,
        name: str,
        *allowed: Verdict,
        play: Play | None = None,
        client: bool = False,
        alive: bool = True,
        **options: Any,
    ) -> Callable[[Play], Play]:
        """Add a case: with ``play`` at once, else as the decorator of its function."""
        assert all(case.name != name for case in self.cases), name
        role = Role.CLIENT if client else Role.SERVER

        def keep(play: Play) -> Play:
            self.cases.append(Case(name, allowed or (FINE,), play, role, options, alive))
            return play

        if play is not None:
            keep(play)
        return keep

    def each(self, *rows: tuple[Any, ...], **options: Any) -> None:
        """Add many: name, play, allowed verdicts."""
        for name, play, *allowed in rows:
            self.add(name, *allowed, play=play, **options)
