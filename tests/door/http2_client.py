"""A client of HTTP/2 for tests: the library h2 on a blocking socket, one step at a time."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings

from tests.door.site import TIMEOUT


class Tolerant(h2.connection.H2Connection):
    """Keeps the connection open after GOAWAY, as open streams continue; the library does not."""

    def _receive_goaway_frame(self, frame: Any) -> Any:
        result = super()._receive_goaway_frame(frame)
        self.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        return result


@dataclass(slots=True)
class Answer:
    """The answer received on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    trailers: dict[str, str] | None = None
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.headers[":status"])


class Client:
    """One connection."""

    def __init__(self, link: socket.socket, *, window: int = 65_535) -> None:
        self.socket = link
        link.settimeout(TIMEOUT)
        config = h2.config.H2Configuration(header_encoding="utf-8")
        self.h2 = Tolerant(config)
        self.h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window,
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
            },
        )
        self.answers: dict[int, Answer] = {}
        self.goaways: list[tuple[int, int]] = []
        self.closed = False
        self.acknowledges = True
        self._next = 1
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        if data := self.h2.data_to_send():
            self.socket.sendall(data)

    def open(
        self, path: str, *fields: tuple[str, str], method: str = "POST", end: bool = False
    ) -> int:
        stream, self._next = self._next, self._next + 2
        head = [(":method", method), (":scheme", "http"), (":authority", "x"), (":path", path)]
        self.h2.send_headers(stream, [*head, *fields], end_stream=end)
        self.answers[stream] = Answer()
        self.flush()
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = True) -> None:
        """Send data; waits for the server's flow-control windows."""
        view = memoryview(data)
        while view:
            room = min(self.h2.local_flow_control_window(stream), 16_384)
            if not room:
                self.step()
                continue
            self.h2.send_data(stream, bytes(view[:room]))
            view = view[room:]
            self.flush()
        if end:
            self.h2.end_stream(stream)
            self.flush()

    def ask(self, path: str, body: bytes = b"") -> Answer:
        stream = self.open(path)
        self.send(stream, body)
        return self.wait(stream)

    def step(self) -> None:
        """Read once."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
            return
        for event in self.h2.receive_data(data):
            self._take(event)
        self.flush()

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            self.goaways.append((event.last_stream_id or 0, int(event.error_code or 0)))
            return
        answer = self.answers.get(getattr(event, "stream_id", None) or 0)
        if answer is None:
            return
        if isinstance(event, h2.events.ResponseReceived):
            answer.headers = dict(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            answer.body += event.data
            if self.acknowledges and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            answer.trailers = dict(event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            answer.ended = True
        elif isinstance(event, h2.events.StreamReset):
            answer.reset = int(event.error_code)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, self.answers
            assert not self.closed, self.answers
            self.step()

    def wait(self, stream: int) -> Answer:
        """Read until the stream has ended or was reset."""
        answer = self.answers[stream]
        self.until(lambda: answer.ended or answer.reset is not None)
        return answer

    def wait_closed(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not self.closed:
            assert time.monotonic() < deadline
            self.step()


@contextmanager
def connected_http2(
    port: int, *, window: int = 65_535, room: int | None = None
) -> Iterator[Client]:
    """A client; ``room`` is the size of its socket's receive buffer."""
    link = socket.socket()
    if room is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    with link:
        link.connect(("127.0.0.1", port))
        yield Client(link, window=window)
