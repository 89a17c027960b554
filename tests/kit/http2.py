"""Either end of an HTTP/2 connection over a socket, step by step, every byte by hand."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tests.kit import frames as f
from tests.kit.frames import Frame, StreamContent, Transcript, message
from tests.kit.http1 import TIMEOUT, connect
from tests.kit.pipeline import decode, encode

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
GRPC: f.Field = (b"content-type", b"application/grpc")


def call(path: bytes = b"/a.B/Echo", *more: f.Field) -> tuple[f.Field, ...]:
    """The head of a gRPC call, as the protocol's document lists it."""
    te = (b"te", b"trailers")  # codespell:ignore te
    return (*f.changed(f.POST, b":path", path), te, GRPC, *more)


class Link:
    """One connection.

    Attributes:
        acknowledges: whether received data opens the windows again, and pings are answered.
        closed: the peer has closed it.
    """

    def __init__(self, link: socket.socket, *, serves: bool = False) -> None:
        """``serves``: whether this is the server's end."""
        self.socket = link
        link.settimeout(TIMEOUT)
        self.transcript = Transcript(client=serves)
        self.acknowledges = False
        self.closed = False
        self._serves = serves
        self._next = 1
        self._window = 1 << 24
        self._received: Counter[int] = Counter()  # and not acknowledged, by stream; 0 is all
        self._written: Counter[int] = Counter()

    @property
    def streams(self) -> dict[int, StreamContent]:
        return self.transcript.streams

    @property
    def goaways(self) -> list[tuple[int, int]]:
        """The last stream and the code of each received GOAWAY."""
        return [(one.last_stream, one.code) for one in self.sent(f.GOAWAY)]

    @property
    def rejected(self) -> bool:
        """Whether the peer has ended the connection because of an error of this end."""
        return self.closed or any(code for _, code in self.goaways)

    def greet(self, *settings: tuple[int, int], window: int = 1 << 24) -> None:
        """This end's half of the handshake, with these flow-control windows."""
        self._window = window
        preface = b"" if self._serves else f.PREFACE
        self.send(preface, f.settings((f.INITIAL_WINDOW_SIZE, window), *settings))
        self.send(f.settings_ack())
        if window > 65_535:
            self.send(f.window_update(0, window - 65_535))

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def open(self, request: str | Iterable[f.Field] = (), *more: f.Field, end: bool = False) -> int:
        """Begin a request on the next stream: a POST to a path, or its fields."""
        if isinstance(request, str):
            request = f.changed(f.POST, b":path", request.encode())
        stream, self._next = self._next, self._next + 2
        self.send(f.headers(stream, f.block([*(request or call()), *more]), end=end))
        return stream

    def ask(self, path: str, body: bytes = b"") -> StreamContent:
        """Make a complete request: head, body and end one by one. Returns its answer."""
        stream = self.open(path)
        self.upload(stream, body)
        return self.answer(stream)

    def upload(self, stream: int, body: bytes, *, end: bool = True) -> None:
        """Send a body, or a part of it, within the peer's flow-control windows."""
        while body:
            self.until(lambda: self.room(stream) > 0)
            size = min(self.room(stream), 16_384)
            self.send_data(stream, body[:size])
            body = body[size:]
        if end:
            self.send_data(stream, end=True)

    def send_data(self, stream: int, data: bytes = b"", *, end: bool = False) -> None:
        """Send one frame, which counts in ``room``."""
        self._written.update({0: len(data), stream: len(data)})
        self.send(f.data(stream, data, end=end))

    def room(self, stream: int) -> int:
        """Bytes that the peer's flow-control windows admit."""
        first = 65_535
        for one in self.sent(f.SETTINGS):
            first = one.values.get(f.INITIAL_WINDOW_SIZE, first)
        windows = Counter({0: 65_535, stream: first})
        for one in self.sent(f.WINDOW_UPDATE):
            windows[one.stream] += one.increment
        return min(windows[at] - self._written[at] for at in (0, stream))

    def acknowledge(self, stream: int, count: int) -> None:
        """Open the windows again after so many bytes."""
        self._received.subtract({0: count, stream: count})
        self.send(f.window_update(0, count), f.window_update(stream, count))

    def predict(
        self, request: bytes, *more: f.Field, path: bytes = METHOD.encode()
    ) -> StreamContent:
        """Make a complete call, by default of the pipeline service; returns its answer."""
        stream = self.open(call(path, *more))
        self.send(f.body(stream, message(request)))
        return self.answer(stream)

    def answer(self, stream: int) -> StreamContent:
        """The frames received on a stream, when it has ended."""
        content = self.content(stream)
        self.until(lambda: content.ended)
        return content

    def content(self, stream: int) -> StreamContent:
        """The frames received on a stream so far."""
        return self.transcript.of_stream(stream)

    def until(self, condition: Callable[[], bool]) -> None:
        """Read until it is so, or for ``TIMEOUT`` after the last byte of an answer's data."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, self.seen()
            assert not self.closed, self.seen()
            if self.read():
                deadline = time.monotonic() + TIMEOUT

    def reset(self, stream: int) -> int:
        """The code of a stream's RST_STREAM, when it has arrived."""
        content = self.content(stream)
        self.until(lambda: content.reset is not None)
        code = content.reset
        assert code is not None
        return code

    def sent(self, kind: int) -> list[Frame]:
        """The received frames of one kind."""
        return [one for one in self.transcript.frames if one.kind == kind]

    def frame(self, kind: int) -> Frame:
        """The first frame of this kind."""
        self.until(lambda: bool(self.sent(kind)))
        return self.sent(kind)[0]

    def alive(self, payload: bytes = b"12345678") -> None:
        """Wait for a ping's acknowledgement: everything sent before it has been read."""
        self.send(f.ping(payload))
        self.until(lambda: any(one.payload == payload for one in self.sent(f.PING)))

    def until_closed(self) -> None:
        while not self.closed:
            self.read()

    def seen(self) -> str:
        """What has been received, for a failed test."""
        last = [f"{one.kind} on {one.stream}" for one in self.transcript.frames[-20:]]
        return f"{len(self.transcript.frames)} frames, the last of them {last}"

    def read(self) -> bool:
        """Read once. Returns whether there was data of an answer."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self.closed, any_data = not data, False
        for one in self.transcript.feed(data):
            if one.kind == f.DATA:
                any_data = True
                self._received.update({0: len(one.payload), one.stream: len(one.payload)})
                assert max(self._received[0], self._received[one.stream]) <= self._window
                if self.acknowledges and one.payload:
                    self.acknowledge(one.stream, len(one.payload))
            elif one.kind == f.PING and self.acknowledges and not one.ack:
                self.send(f.ping(one.payload, ack=True))
        return any_data


def client_of(link: socket.socket, *, window: int = 65_535) -> Link:
    """A client's end that has sent its preface, and acknowledges."""
    client = Link(link)
    client.acknowledges = True
    client.greet(window=window)
    return client


@contextmanager
def linked(port: int, *, window: int = 65_535, room: int | None = None) -> Iterator[Link]:
    """A connected client; ``room``: the size of its socket's receive buffer."""
    with connect(port, room=room) as connection:
        yield client_of(connection, window=window)


def check_good(port: int) -> None:
    """Check that a good call on a new connection is answered with its own values."""
    nonce = str(time.monotonic_ns())
    with linked(port) as link:
        content = link.predict(encode({"key": ["x"], "value": [nonce]}))
    assert content.status == 0, content
    assert decode(content.messages[0])["value"] == [nonce]
