"""One hostile connection, which counts the server's answers by their kind."""

from __future__ import annotations

import time
from collections import Counter

from penstock.protocols.http2.codes import ErrorCode
from tests.kit import frames as f
from tests.kit.http1 import connect
from tests.kit.http2 import METHOD, call

CALM = "GOAWAY ENHANCE_YOUR_CALM"
SEND_TIME = 1.0
"""Seconds after which a blocked write counts as refused by the server."""

HEAD = f.block(call(METHOD.encode()))
"""The header block of a call; it does not use the table, so that it is valid at any time."""


class Peer:
    """A hostile connection.

    Attributes:
        received: the number of answers of each kind.
        ended: the server closed or reset the connection.
        next: the id of the next stream.
    """

    def __init__(
        self,
        port: int,
        *,
        http2: bool = False,
        room: int | None = None,
        announce: tuple[tuple[int, int], ...] = (),
        first: bytes | None = None,
    ) -> None:
        self.socket = connect(port, room=room)
        self.received: Counter[str] = Counter()
        self.ended = False
        self.next = 1
        self._transcript = f.Transcript() if http2 else None
        self._data = b""
        if http2:
            self.send(f.PREFACE + f.settings(*announce) if first is None else first)

    @property
    def rejected(self) -> bool:
        """Whether the server has ended this connection."""
        return self.ended or any(kind.startswith("GOAWAY") for kind in self.received)

    def stream(self) -> int:
        """The id of a new stream."""
        self.next += 2
        return self.next - 2

    def send(self, data: bytes) -> bool:
        """Send; False when the server does not read any more."""
        self.socket.settimeout(SEND_TIME)
        try:
            self.socket.sendall(data)
        except OSError:  # closed, reset, or not read
            return False
        return True

    def listen(self, seconds: float = 0.0) -> None:
        """Read what has arrived; with ``seconds``, until the connection ends or for that long."""
        deadline = time.monotonic() + seconds
        while not self.ended:
            self.socket.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                data = self.socket.recv(1 << 18)
            except (BlockingIOError, TimeoutError):
                return
            except ConnectionError:
                self._end("cut off")
                return
            if not data:
                self._end("closed")
                return
            self._count(data)

    def _end(self, how: str) -> None:
        self.ended = True
        self.received[how] += 1

    def _count(self, data: bytes) -> None:
        if self._transcript is None:
            self._data += data
            while (at := self._data.find(b"HTTP/1.1 ")) >= 0 and len(self._data) >= at + 12:
                self.received[self._data[at + 9 : at + 12].decode()] += 1
                self._data = self._data[at + 12 :]
            self._data = self._data[-12:]
            return
        for one in self._transcript.feed(data):
            if one.kind in (f.GOAWAY, f.RST_STREAM):
                kind = "GOAWAY" if one.kind == f.GOAWAY else "RST_STREAM"
                self.received[f"{kind} {ErrorCode(one.code).name}"] += 1
        for _, head in self._transcript.heads:
            fields = dict(head)
            if b"grpc-status" in fields:
                self.received[f"grpc-status {fields[b'grpc-status'].decode()}"] += 1
            elif fields.get(b":status", b"200") != b"200":
                self.received[fields[b":status"].decode()] += 1
        # An attacker reads for a long time and keeps nothing.
        self._transcript.heads.clear()
        self._transcript.frames.clear()
        self._transcript.streams.clear()

    def close(self) -> None:
        """Close the connection at once."""
        self.socket.close()
