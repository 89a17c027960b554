"""baidu_std by hand over a socket: messages written and read byte by byte, from the description of
the protocol. It shares no code with the tested package, and every wait has a timeout.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

TIMEOUT = 5.0
"""The timeout of every answer in seconds; far above the usual times."""

GENERAL = "baidu.paddle_serving.predictor.general_model.GeneralModelService"


def number(value: int) -> bytes:
    """A varint."""
    value %= 2**64
    octets = b""
    while value > 0x7F:
        octets += bytes([value % 128 + 128])
        value //= 128
    return octets + bytes([value])


def field(tag: int, value: int | str | bytes | None) -> bytes:
    """A field of a protobuf message; nothing for None."""
    if value is None:
        return b""
    if isinstance(value, int):
        return number(tag * 8) + number(value)
    octets = value.encode() if isinstance(value, str) else value
    return number(tag * 8 + 2) + number(len(octets)) + octets


def frame(meta: bytes, payload: bytes = b"", *, body: int | None = None) -> bytes:
    """A message; ``body``: a size in the header other than the actual one."""
    size = len(meta) + len(payload) if body is None else body
    return b"PRPC" + struct.pack(">II", size, len(meta)) + meta + payload


def request_meta(
    service: str | None = GENERAL,
    method: str | None = "inference",
    *,
    id: int | None = 1,
    compress: int | None = None,
    attachment: int | None = None,
    log_id: int | None = None,
    timeout_ms: int | None = None,
    more: bytes = b"",
) -> bytes:
    """The meta of a request; fields that are None are left out."""
    call = field(1, service) + field(2, method) + field(3, log_id) + field(8, timeout_ms)
    return field(1, call) + field(3, compress) + field(4, id) + field(5, attachment) + more


def request(payload: bytes = b"", **parts: int | str | bytes | None) -> bytes:
    """A request; keywords are those of ``request_meta``."""
    return frame(request_meta(**parts), payload)  # type: ignore[arg-type]


def answer(
    id: int, payload: bytes = b"", code: int = 0, text: str = "", more: bytes = b""
) -> bytes:
    """An answer as a server sends it."""
    result = field(1, code) + (field(2, text) if text else b"")
    return frame(field(2, result) + field(4, id) + more, payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message as received.

    ``call`` has the fields of the request's meta by their numbers, ``result`` those of an answer's.
    """

    id: int
    payload: bytes
    call: dict[int, int | bytes] | None
    result: dict[int, int | bytes] | None
    fields: dict[int, int | bytes]

    @property
    def code(self) -> int:
        assert self.result is not None, "not an answer"
        code = self.result.get(1, 0)
        assert isinstance(code, int)
        return code

    @property
    def text(self) -> str:
        assert self.result is not None, "not an answer"
        text = self.result.get(2, b"")
        assert isinstance(text, bytes)
        return text.decode()


def fields(data: bytes) -> dict[int, int | bytes]:
    """The fields of a protobuf message by their numbers, each at most once."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        value: int | bytes
        value, at = _number(data, at)
        if tag % 8 == 2:
            size = value
            assert at + size <= len(data), "the message is cut off"
            value, at = data[at : at + size], at + size
        else:
            assert tag % 8 == 0, f"a field of the type {tag % 8}"
        assert tag // 8 not in found
        found[tag // 8] = value
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        octet = data[at]
        at += 1
        value += octet % 128 << shift
        shift += 7
        if octet < 128:
            return value, at


def parse(head: bytes, rest: bytes) -> Message:
    """A message from its header and the bytes after it."""
    _, meta_bytes = struct.unpack(">II", head[4:])
    found = fields(rest[:meta_bytes])
    call, result, id = found.get(1), found.get(2), found.get(4, 0)
    assert isinstance(id, int)
    return Message(
        id=id,
        payload=rest[meta_bytes:],
        call=fields(call) if isinstance(call, bytes) else None,
        result=fields(result) if isinstance(result, bytes) else None,
        fields=found,
    )


class Closed(AssertionError):
    """The other side closed where a message was expected."""


class Connection:
    """One end of a connection, from ``connected`` or for an accepted socket."""

    def __init__(self, link: socket.socket, patience: float = TIMEOUT) -> None:
        self.socket = link
        link.settimeout(patience)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._patience = patience
        self._data = b""

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def read(self) -> Message:
        """The next message.

        Raises:
            Closed: the connection ended before it.
            TimeoutError: it did not arrive in time.
        """
        head = self._take(12)
        assert head[:4] == b"PRPC", head
        (size,) = struct.unpack(">I", head[4:8])
        return parse(head, self._take(size))

    def ask(self, data: bytes) -> Message:
        """Send data and read one message."""
        self.send(data)
        return self.read()

    def ends(self) -> bool:
        """Whether the other side closes without sending another byte."""
        try:
            return not self._data and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _take(self, size: int) -> bytes:
        deadline = time.monotonic() + self._patience
        while len(self._data) < size:
            if time.monotonic() > deadline:
                raise TimeoutError
            try:
                more = self.socket.recv(1 << 20)
            except ConnectionResetError as error:
                raise Closed from error
            if not more:
                raise Closed
            self._data += more
        taken, self._data = self._data[:size], self._data[size:]
        return taken


@contextmanager
def connected(port: int, patience: float = TIMEOUT, *, room: int = 0) -> Iterator[Connection]:
    """A client's end; ``room``: size of the socket's receive buffer."""
    with socket.socket() as link:
        if room:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        link.connect(("127.0.0.1", port))
        yield Connection(link, patience)
