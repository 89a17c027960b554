"""Either end of an HTTP/2 connection over a socket, step by step, every byte by hand."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tests.kit import frames as f
from tests.kit.frames import Frame, StreamContent, Transcript, message
from tests.kit.http1 import TIMEOUT
from tests.kit.pipeline import decode, encode

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
GRPC: f.Field = (b"content-type", b"application/grpc")


def call(path: bytes = b"/a.B/Echo", *more: f.Field) -> tuple[f.Field, ...]:
    """The head of a gRPC call, as the protocol's document lists it."""
    te = (b"te", b"trailers")  # codespell:ignore te
    return (*f.changed(f.POST, b":path", path), te, GRPC, *more)


class Link:
    """One connection."""

    def __init__(self, link: socket.socket, *, serves: bool = False) -> None:
        """``serves``: whether this is the server's end."""
        self.socket = link
        link.settimeout(TIMEOUT)
        self.transcript = Transcript(client=serves)
        self.closed = False
        self._serves = serves
        self._next = 1

    @property
    def streams(self) -> dict[int, StreamContent]:
        return self.transcript.streams

    @property
    def rejected(self) -> bool:
        """Whether the peer has ended the connection because of an error of this end."""
        return self.closed or any(
            one.kind == f.GOAWAY and one.code for one in self.transcript.frames
        )

    def greet(self, *settings: tuple[int, int]) -> None:
        """This end's half of the handshake, with large flow-control windows."""
        preface = b"" if self._serves else f.PREFACE
        large = (f.INITIAL_WINDOW_SIZE, 1 << 24)
        self.send(preface, f.settings(large, *settings), f.settings_ack())
        self.send(f.window_update(0, 1 << 24))

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def open(self, fields: Iterable[f.Field] = (), *, end: bool = False) -> int:
        """Begin a request on the next stream."""
        stream, self._next = self._next, self._next + 2
        self.send(f.headers(stream, f.block(fields or call()), end=end))
        return stream

    def ask(
        self, stream: int, fields: Iterable[f.Field] = (), body: bytes | None = None
    ) -> StreamContent:
        """Send a complete request; returns its answer."""
        body = message() if body is None else body
        self.send(f.headers(stream, f.block(fields or call())), f.body(stream, body))
        return self.answer(stream)

    def predict(
        self, request: bytes, *more: f.Field, path: bytes = METHOD.encode()
    ) -> StreamContent:
        """Make a complete call, by default of the pipeline service; returns its answer."""
        stream = self.open(call(path, *more))
        self.send(f.body(stream, message(request)))
        return self.answer(stream)

    def answer(self, stream: int) -> StreamContent:
        """The frames received on a stream, when it has ended."""
        self.until(lambda: self.transcript.of_stream(stream).ended)
        return self.transcript.of_stream(stream)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, self.streams
            assert not self.closed, self.streams
            self.read()

    def reset(self, stream: int) -> int:
        """The code of a stream's RST_STREAM, when it has arrived."""
        self.until(lambda: self.transcript.of_stream(stream).code is not None)
        code = self.transcript.of_stream(stream).code
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

    def read(self) -> None:
        """Read once."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        self.closed = not data
        self.transcript.feed(data)


@contextmanager
def linked(port: int) -> Iterator[Link]:
    """A client's end that has sent its preface."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(connection)
        link.greet()
        yield link


def check_good(port: int) -> None:
    """Check that a good call on a new connection is answered with its own values."""
    nonce = str(time.monotonic_ns())
    with linked(port) as link:
        content = link.predict(encode({"key": ["x"], "value": [nonce]}))
    assert content.status == 0, content
    assert decode(content.messages[0])["value"] == [nonce]
