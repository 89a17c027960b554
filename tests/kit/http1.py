"""HTTP/1.1 by hand over a socket, so that every byte can be wrong; every wait has a timeout."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

TIMEOUT = 5.0
"""The timeout of every answer in seconds; far above the usual times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key == name]
        return ", ".join(values) if values else None

    def json(self) -> Any:
        return json.loads(self.body)


class Closed(AssertionError):
    """The server closed before a complete answer."""


def connect(port: int, patience: float = TIMEOUT, room: int | None = None) -> socket.socket:
    """Connect to loopback; ``room`` is the size of the receive buffer."""
    link = socket.socket()
    if room is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    link.settimeout(patience)
    try:
        link.connect(("127.0.0.1", port))
    except OSError:
        link.close()
        raise
    # So that pieces are sent as they are written.
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


class Connection:
    """One connection, to a port on loopback or over a connected socket; ``connected`` opens it."""

    def __init__(self, to: int | socket.socket, patience: float = TIMEOUT) -> None:
        self.socket = connect(to, patience) if isinstance(to, int) else to
        self._deadline = time.monotonic() + patience
        self._data = b""

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def send_until_refused(self, piece: bytes, times: int) -> None:
        """Send repeatedly; stops when the server does not accept any more."""
        try:
            for _ in range(times):
                self.socket.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            return

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with a reset instead of a FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def reply(self, *, to_head: bool = False) -> Reply:
        """The next answer, interim ones included.

        Raises:
            Closed: the connection ended before it.
            TimeoutError: it did not arrive in time.
        """
        while b"\r\n\r\n" not in self._data:
            self._more()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        version, status, _ = line.split(" ", 2)
        assert version == "HTTP/1.1", line
        pairs = [field.split(": ", 1) for field in fields]
        headers = [(name.lower(), value) for name, value in pairs]
        lengths = [int(value) for name, value in headers if name == "content-length"]
        length = 0 if to_head or status.startswith("1") else lengths[0]
        assert to_head or status.startswith("1") or len(lengths) == 1, head
        while len(self._data) < length:
            self._more()
        body, self._data = self._data[:length], self._data[length:]
        return Reply(status=int(status), headers=headers, body=body)

    def is_closed(self) -> bool:
        """Whether the server closes the connection without sending anything; waits for it."""
        if self._data:
            return False
        try:
            self._more()
        except Closed:
            return True
        except TimeoutError:
            return False
        return False

    def _more(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no whole answer in time")
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed(f"closed with {self._data!r} unread")
        self._data += data


@contextmanager
def connected(port: int, patience: float = TIMEOUT) -> Iterator[Connection]:
    connection = Connection(port, patience)
    try:
        yield connection
    finally:
        connection.socket.close()


def request(
    body: bytes = b"",
    *fields: bytes,
    target: bytes = b"/uci/prediction",
    method: bytes = b"POST",
    version: bytes = b"HTTP/1.1",
    host: bytes = b"Host: localhost",
    length: bool = True,
) -> bytes:
    """A valid request, unless a part given here is invalid."""
    lines = [b" ".join((method, target, version)), host, *fields]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([line for line in lines if line]) + b"\r\n\r\n" + body


def pairs(**values: str) -> bytes:
    """The body of a request with these text values."""
    return json.dumps({"key": list(values), "value": list(values.values())}).encode()


def ask(port: int, body: bytes, *fields: bytes, **parts: Any) -> Reply:
    """One request on a connection of its own."""
    with connected(port) as connection:
        connection.send(request(body, *fields, **parts))
        return connection.reply()


def check_good(port: int) -> None:
    """Check that a good request is answered with its own values."""
    nonce = str(time.monotonic_ns())
    reply = ask(port, pairs(x=nonce))
    assert reply.status == 200, reply
    assert reply.json() == {
        "err_no": 0,
        "err_msg": "",
        "key": ["x"],
        "value": [nonce],
        "tensors": [],
    }
