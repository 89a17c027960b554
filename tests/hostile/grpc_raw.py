"""gRPC by hand: raw message bytes through grpc, and raw frames through h2 and a socket."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import h2.config
import h2.connection
import h2.events
import h2.exceptions

from tests.kit.http1 import PATIENCE
from tests.kit.pipeline import decode, encode

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"


@dataclass(kw_only=True)
class Answer:
    """What came back for one call: ``status`` is grpc's number, None where the stream broke."""

    status: int | None = None
    text: str = ""
    messages: list[bytes] = field(default_factory=list)
    reset: bool = False
    closed: bool = False


def ask(channel: grpc.Channel, message: bytes, timeout: float = PATIENCE) -> Answer:
    """One call with these bytes as its message."""
    call = channel.unary_unary(METHOD)
    try:
        return Answer(status=0, messages=[call(message, timeout=timeout)])
    except grpc.RpcError as error:
        return Answer(status=error.code().value[0], text=error.details() or "")


def check_good(port: int) -> None:
    """A good call on a connection of its own is answered, with what it sent."""
    nonce = str(time.monotonic_ns())
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = ask(channel, encode({"key": ["x"], "value": [nonce]}))
    assert answer.status == 0, answer
    assert decode(answer.messages[0])["value"] == [nonce]


class Connection:
    """One HTTP/2 connection whose every header and byte can be wrong; made by ``connected``."""

    def __init__(self, port: int, patience: float = PATIENCE) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=patience)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._deadline = time.monotonic() + patience
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        # h2 takes any GOAWAY for the end, but open streams go on behind one that is no error.
        machine = self._h2.state_machine
        still = (None, h2.connection.ConnectionState.CLIENT_OPEN)
        goaway = (still[1], h2.connection.ConnectionInputs.RECV_GOAWAY)
        machine._transitions = {**machine._transitions, goaway: still}
        self._h2.initiate_connection()
        self._flush()

    def _flush(self) -> None:
        self.socket.sendall(self._h2.data_to_send())

    def open(
        self,
        *more: tuple[bytes, bytes],
        without: bytes = b"",
        ends: bool = False,
        **changed: bytes,
    ) -> int:
        """Open a call; ``changed`` are pseudo-headers without their colon."""
        usual = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", METHOD.encode()),
            (b":authority", b"x"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
        headers = [
            (name, changed.get(name.decode().lstrip(":").replace("-", "_"), value))
            for name, value in usual
            if name != without
        ]
        stream: int = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream, [*headers, *more], end_stream=ends)
        self._flush()
        return stream

    def send(self, stream: int, data: bytes, *, ends: bool) -> None:
        """Data as it stands."""
        self._h2.send_data(stream, data, end_stream=ends)
        self._flush()

    def message(self, stream: int, message: bytes, *, flag: int = 0, ends: bool = True) -> None:
        """One message with its prefix."""
        prefix = bytes([flag]) + struct.pack(">I", len(message))
        self.send(stream, prefix + message, ends=ends)

    def raw(self, data: bytes) -> None:
        """Bytes past h2."""
        self.socket.sendall(data)

    def answer(self) -> Answer:
        """What comes until the call, or the connection, has ended.

        Raises:
            TimeoutError: neither happened.
        """
        answer = Answer()
        data = b""
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no end of the call in time: {answer}")
            self.socket.settimeout(left)
            try:
                received = self.socket.recv(1 << 16)
                events = self._h2.receive_data(received)
                self._flush()
            except (ConnectionError, h2.exceptions.ProtocolError):
                received = b""
            if not received:
                answer.closed = True
                return answer
            for event in events:
                if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                    _read_headers(answer, event.headers)
                elif isinstance(event, h2.events.DataReceived):
                    data += event.data or b""
                elif isinstance(event, h2.events.StreamReset):
                    answer.reset = True
                    return answer
                elif isinstance(event, h2.events.ConnectionTerminated) and event.error_code:
                    answer.closed = True
                    return answer
                if isinstance(event, h2.events.StreamEnded):
                    answer.messages = list(_messages(data))
                    return answer


def _read_headers(answer: Answer, headers: list[tuple[bytes, bytes]]) -> None:
    for name, value in headers:
        if name == b"grpc-status":
            answer.status = int(value)
        elif name == b"grpc-message":
            answer.text = value.decode()


def _messages(data: bytes) -> Iterator[bytes]:
    while data:
        (size,) = struct.unpack(">I", data[1:5])
        yield data[5 : 5 + size]
        data = data[5 + size :]


@contextmanager
def connected(port: int, patience: float = PATIENCE) -> Iterator[Connection]:
    connection = Connection(port, patience)
    try:
        yield connection
    finally:
        connection.socket.close()
