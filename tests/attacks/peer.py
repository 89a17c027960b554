"""One hostile connection, and the frames that it sends. What it is told is counted by its kind."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from tests.hostile.grpc_raw import METHOD

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CODES = (
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
)
CALM = "GOAWAY ENHANCE_YOUR_CALM"
SEND_TIME = 1.0
"""Seconds that a write may take before the attacker finds that nobody reads it."""


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame, however wrong."""
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes((kind, flags))
        + struct.pack(">I", stream)
        + payload
    )


def settings(**values: int) -> bytes:
    """The payload; names ``s<number>``."""
    return b"".join(struct.pack(">HI", int(name[1:]), value) for name, value in values.items())


def head(*more: tuple[str, str], method: str = "POST", path: str = METHOD) -> bytes:
    """A header block that leaves no trace in the table: good at any place of a connection."""
    fields = [
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc" if path == METHOD else "application/json"),
        ("te", "trailers"),
        *more,
    ]
    return bytes(Encoder().encode([(*field, True) for field in fields], huffman=False))


ONE = (1).to_bytes(4, "big")
HEAD = head()


class Peer:
    """A connection that misbehaves.

    Attributes:
        heard: how often each kind of answer came.
        ended: the server closed its side, or cut it off.
        next: the next stream to open.
    """

    def __init__(
        self,
        port: int,
        *,
        http2: bool = False,
        room: int | None = None,
        announce: bytes = b"",
        first: bytes | None = None,
    ) -> None:
        self.socket = socket.socket()
        if room is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        self.socket.settimeout(5.0)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.heard: Counter[str] = Counter()
        self.ended = False
        self.next = 1
        self._http2 = http2
        self._data = b""
        self._decoder = Decoder()
        self._decoder.max_header_list_size = 1 << 20
        if http2:
            self.send(PREFACE + frame(SETTINGS, payload=announce) if first is None else first)

    @property
    def told_off(self) -> bool:
        """The server has said that this connection is over."""
        return self.ended or any(kind.startswith("GOAWAY") for kind in self.heard)

    def stream(self) -> int:
        """A number for a new stream."""
        self.next += 2
        return self.next - 2

    def send(self, data: bytes) -> bool:
        """False when the server takes no more."""
        self.socket.settimeout(SEND_TIME)
        try:
            self.socket.sendall(data)
        except OSError:  # closed, cut off, or nobody reads
            return False
        return True

    def listen(self, seconds: float = 0.0) -> None:
        """Read what is there; with ``seconds``, until the connection ends or so long."""
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
            self._hear(data)

    def _end(self, how: str) -> None:
        self.ended = True
        self.heard[how] += 1

    def _hear(self, data: bytes) -> None:
        self._data += data
        if not self._http2:
            while (at := self._data.find(b"HTTP/1.1 ")) >= 0 and len(self._data) >= at + 12:
                self.heard[self._data[at + 9 : at + 12].decode()] += 1
                self._data = self._data[at + 12 :]
            self._data = self._data[-12:]
            return
        at = 0
        while len(self._data) - at >= 9:
            size = int.from_bytes(self._data[at : at + 3], "big")
            if len(self._data) < at + 9 + size:
                break
            kind = self._data[at + 3]
            self._frame(kind, self._data[at + 9 : at + 9 + size])
            at += 9 + size
        self._data = self._data[at:]

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == GOAWAY:
            self.heard[f"GOAWAY {CODES[int.from_bytes(payload[4:8], 'big')]}"] += 1
        elif kind == RST_STREAM:
            self.heard[f"RST_STREAM {CODES[int.from_bytes(payload, 'big')]}"] += 1
        elif kind == HEADERS:
            try:
                fields = dict(self._decoder.decode(payload, raw=True))
            except HPACKError:
                self.heard["undecodable"] += 1
                return
            if b"grpc-status" in fields:
                self.heard[f"grpc-status {fields[b'grpc-status'].decode()}"] += 1
            elif fields.get(b":status", b"200") != b"200":
                self.heard[fields[b":status"].decode()] += 1

    def close(self) -> None:
        """Vanish."""
        self.socket.close()
