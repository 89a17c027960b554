"""The peer of a connection under test, the verdict that the connection's output shows, and tables
of rules.

Input is made by hand (``tests.kit.frames``) or by the package hpack; output is decoded by the kit.
The core encodes and decodes no bytes here, and only this module calls its methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import hpack
import pytest

from penstock.protocols.http2 import Http2Connection, Http2Limits, Role, events
from tests.kit import frames as f
from tests.protocols.http2.peers import apart

NEW_STREAM = 2**30 + 1  # odd, and above those that cases use
OK = f.block(f.OK)


@dataclass(frozen=True)
class Verdict:
    """The core's reaction to its input: no error, a stream error, or a connection error."""

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
    """The peer of one core; the handshake is done unless ``greet`` is false."""

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
        self.events: list[Any] = []
        max_frame = dict(settings).get(f.MAX_FRAME_SIZE, 1 << 14)
        self.transcript = f.Transcript(client=role is Role.CLIENT, max_frame=max_frame)
        if greet:
            self.greet(*settings)

    def greet(self, *pairs: tuple[int, int]) -> None:
        """Sends this end's connection preface, and the acknowledgement of the other's settings."""
        preface = f.PREFACE if self.role is Role.SERVER else b""
        self.send(preface, f.settings(*pairs), f.settings_ack())

    # In

    def send(self, *pieces: bytes) -> list[Any]:
        """Passes bytes to the core; returns the resulting events."""
        made = list(apart(self.core.receive(b"".join(pieces))))
        for event in made:
            if isinstance(event, events.HeadTooLarge):  # the core's caller must answer it
                self.core.reply(event.stream, f.block([(b":status", b"431")]), b"")
                self.core.reset(event.stream, f.NO_ERROR)
        self.events += made
        self.flush()
        return made

    def encoded(self, fields: Iterable[f.Field]) -> bytes:
        """A block encoded with this end's encoder and its table."""
        return self.encoder.encode(list(fields))

    # Out

    @property
    def out(self) -> list[f.Frame]:
        """The frames that the core has sent."""
        return self.transcript.frames

    @property
    def heads(self) -> list[tuple[int, list[f.Field]]]:
        return self.transcript.heads

    def flush(self) -> list[f.Frame]:
        """Reads the core's pending output."""
        made = self.transcript.feed(self.core.take_output())
        assert not self.transcript.cut_off, "a frame is cut off"
        return made

    def sent(self, kind: int, stream: int | None = None) -> list[f.Frame]:
        """The frames of one kind that the core has sent."""
        return [one for one in self.out if one.kind == kind and stream in (None, one.stream)]

    def body(self, stream: int = 1) -> bytes:
        return b"".join(one.payload for one in self.sent(f.DATA, stream))

    def events_of(self, kind: type, stream: int | None = None) -> list[Any]:
        """The events of one kind."""
        events_of_kind = [event for event in self.events if isinstance(event, kind)]
        return [event for event in events_of_kind if stream is None or event.stream.id == stream]

    def head(self, stream: int = 1) -> Any:
        (event,) = self.events_of(events.HeadReceived, stream)
        return event.head

    def stream(self, stream: int = 1) -> Any:
        """The core's stream object."""
        return self.events_of(events.HeadReceived, stream)[0].stream

    def received(self, stream: int = 1) -> bytes:
        return b"".join(event.data for event in self.events_of(events.DataReceived, stream))

    def trailers(self) -> tuple[f.Field, ...]:
        (event,) = self.events_of(events.TrailersReceived)
        headers: tuple[f.Field, ...] = event.headers
        return headers

    def open(self, fields: Iterable[f.Field] = f.GET, *, end: bool = True) -> Any:
        """Lets a client core open a request."""
        stream = self.core.open(f.block(fields), end=end)
        self.flush()
        return stream

    # Verdict

    def verdict(self) -> Verdict:
        for one in self.sent(f.GOAWAY):
            if one.code:
                return conn(one.code)
        resets = self.sent(f.RST_STREAM)
        assert len(resets) <= 1, resets
        return strm(resets[0].code, resets[0].stream) if resets else FINE

    def judge(self, *allowed: Verdict, alive: bool = True) -> None:
        """Asserts that the verdict is one of these, and that the events agree with the output."""
        verdict = self.verdict()
        details = f"got {verdict}, want {' or '.join(map(str, allowed))}; events {self.events[-5:]}"
        assert verdict in allowed, details
        failed = self.events_of(events.ConnectionFailed)
        if verdict.code is not None and verdict.stream is None:
            assert [event.code for event in failed] == [verdict.code], details
            assert self.out[-1].kind == f.GOAWAY
            # A failed connection accepts and sends nothing more.
            assert self.core.receive(f.ping()) == []
            assert self.core.take_output() == b""
            return
        assert not failed, details
        known = {event.stream.id for event in self.events_of(events.HeadReceived)}
        ours = [event for event in self.events_of(events.StreamReset) if not event.by_peer]
        if verdict.stream in known:
            assert [(event.stream.id, event.code) for event in ours] == [
                (verdict.stream, verdict.code)
            ]
        if alive:
            self.alive()

    def alive(self) -> None:
        """Asserts that the connection is open: a ping is answered, a new stream works, the HPACK
        tables agree."""
        payload = b"alive\0\0\0"
        self.send(f.ping(payload))
        assert [one for one in self.sent(f.PING) if one.ack][-1].payload == payload
        fields = [(b"x-alive", b"yes")]
        if self.role is Role.SERVER:
            for stream in (NEW_STREAM, NEW_STREAM + 2):
                self.send(f.headers(stream, self.encoded([*f.GET, *fields]), end=True))
                assert self.head(stream).fields[b"x-alive"] == b"yes"
        else:
            stream = self.open().id
            self.send(f.headers(stream, self.encoded([*f.OK, *fields]), end=True))
            assert self.head(stream).fields[b"x-alive"] == b"yes"


# Steps of a rule, besides bytes, which are sent. A step that returns False fails.

Step = Callable[[Peer], object]
CHECKS: set[int] = set()
"""Steps that only check; without them, a rule consists of the bytes that it sends."""


def check(step: Step) -> Step:
    CHECKS.add(id(step))
    return step


def reply(body: bytes = b"", stream: int = 1, trailers: Iterable[f.Field] | None = None) -> Step:
    """Lets a server core reply."""

    def step(peer: Peer) -> None:
        block = None if trailers is None else f.block(trailers)
        peer.core.reply(peer.stream(stream), OK, body, block)
        peer.flush()

    return step


def reset(stream: int = 1, code: int = f.CANCEL) -> Step:
    """Lets the core reset a stream, and clears the recorded output."""

    def step(peer: Peer) -> None:
        peer.core.reset(peer.stream(stream), code)
        peer.flush()
        forget(peer)

    return step


def open_request(fields: Iterable[f.Field] = f.GET, *, end: bool = True) -> Step:
    """Lets a client core open a request."""
    return lambda peer: peer.open(fields, end=end)


def forget(peer: Peer) -> None:
    """Clears the recorded output and events, which are not judged."""
    peer.out.clear()
    peer.events = [one for one in peer.events if isinstance(one, events.HeadReceived)]


def events_are(*kinds: type) -> Step:
    """Exactly these kinds of events came since the last ``forget``, besides heads of requests."""
    return check(
        lambda peer: (
            tuple(type(one) for one in peer.events if not isinstance(one, events.HeadReceived))
            == kinds
        )
    )


def received(data: bytes, stream: int = 1) -> Step:
    """This part of a body has been received."""
    return check(lambda peer: peer.received(stream) == data)


def trailers(*fields: f.Field) -> Step:
    """These trailers have been received."""
    return check(lambda peer: peer.trailers() == fields)


def body(want: bytes | int, stream: int = 1) -> Step:
    """This body, or this number of bytes, has been sent."""
    if isinstance(want, int):
        return lambda peer: len(peer.body(stream)) == want
    return lambda peer: peer.body(stream) == want


def ended(stream: int = 1) -> Step:
    """The end of a stream has been sent."""
    return lambda peer: "END" in peer.transcript.of_stream(stream).order


def unknown(stream: int = 1) -> Step:
    """No head was reported for this stream."""
    return check(lambda peer: peer.events_of(events.HeadReceived, stream) == [])


def has(stream: int, name: bytes, value: bytes) -> Step:
    """A received head has this field."""
    return check(lambda peer: peer.head(stream).fields[name] == value)


def open_streams(count: int) -> Step:
    """This number of streams is open."""
    return check(lambda peer: len(peer.core.streams) == count)


@dataclass(frozen=True)
class Case:
    """One sentence of an RFC. ``name`` begins with the section's number."""

    name: str
    allowed: tuple[Verdict, ...]
    steps: tuple[bytes | Step, ...]
    role: Role
    options: dict[str, Any]
    alive: bool

    def sent(self) -> bytes | None:
        """The bytes that a server is sent, if the rule consists of them."""
        sent = [step for step in self.steps if id(step) not in CHECKS]
        if self.role is Role.CLIENT or self.options or not all(type(s) is bytes for s in sent):
            return None
        return b"".join(sent)

    def run(self) -> None:
        peer = Peer(self.role, **self.options)
        for number, step in enumerate(self.steps, 1):
            result = peer.send(step) if isinstance(step, bytes) else step(peer)
            assert result is not False, f"step {number}; {peer.events[-5:]}, {peer.out[-5:]}"
        peer.judge(*self.allowed, alive=self.alive)


class Table:
    """Collects the cases of a test module."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def rule(
        self,
        name: str,
        *steps: bytes | Step | Verdict,
        client: bool = False,
        alive: bool = True,
        **options: Any,
    ) -> None:
        """Adds a rule: what is sent, done and checked in order, and the allowed verdicts."""
        allowed = tuple(step for step in steps if isinstance(step, Verdict))
        played = tuple(step for step in steps if not isinstance(step, Verdict))
        role = Role.CLIENT if client else Role.SERVER
        self.cases.append(Case(name, allowed or (FINE,), played, role, options, alive))

    def rules(self, *rows: tuple[Any, ...], **options: Any) -> None:
        """Adds several rules with the same options."""
        for row in rows:
            self.rule(*row, **options)

    def play(self, name: str, *allowed: Verdict, **options: Any) -> Callable[[Step], Step]:
        """Adds a rule whose steps are a function."""

        def register(step: Step) -> Step:
            self.rule(name, step, *allowed, **options)
            return step

        return register

    def tested(self) -> Any:
        """The test function of the cases added so far."""

        def test_rule(case: Case) -> None:
            case.run()

        by_name = pytest.mark.parametrize("case", self.cases, ids=lambda case: case.name)
        return by_name(test_rule)
