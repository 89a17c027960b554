"""A gRPC server that answers every call with the same reply at minimal cost.

For measuring clients: HTTP/2 frames by hand, fixed header blocks, one write per turn of the loop.
Of the requests it reads only their ends. Source: RFC 9113 (frames), the gRPC HTTP/2 protocol.

    python -m benchmarks.servers.canned_grpc --core 0 --http-port 0 --grpc-port 9000
"""

from __future__ import annotations

import asyncio
import struct
from typing import cast

import uvloop

from benchmarks.client_calls import REPLY
from benchmarks.servers.options import server_options

PREFACE_BYTES = 24
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
WINDOW = 2**31 - 1
# :status 200 and content-type; then grpc-status 0. Nothing enters the client's table.
HEAD = b"\x88\x0f\x10\x10application/grpc"
TRAILERS = b"\x00\x0bgrpc-status\x010"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    head = struct.pack("!HBBBI", len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream)
    return head + payload


class CannedConnection(asyncio.Protocol):
    """Answers each stream once its request has ended."""

    def __init__(self, message: bytes) -> None:
        body = struct.pack("!BI", 0, len(message)) + message
        self._head = frame(HEADERS, END_HEADERS, 0, HEAD)[:5]
        self._data = HEAD + frame(DATA, 0, 0, body)[:5]
        self._trailers = body + frame(HEADERS, END_HEADERS | END_STREAM, 0, TRAILERS)[:5]
        self._buffer = b""
        self._greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the windows to the maximum, so that no updates are needed for two gigabytes."""
        self._transport = cast(asyncio.Transport, transport)
        settings = struct.pack("!HIHI", 0x3, 1000, 0x4, WINDOW)
        opened = struct.pack("!I", WINDOW - 65_535)
        self._transport.write(frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, opened))
        self._room = WINDOW

    def data_received(self, data: bytes) -> None:
        """Answer every request that ends in ``data``."""
        if self._buffer:
            data = self._buffer + data
        at, size = 0, len(data)
        if not self._greeted:
            if size < PREFACE_BYTES:
                self._buffer = data
                return
            at, self._greeted = PREFACE_BYTES, True
        out: list[bytes] = []
        while size - at >= 9:
            end = at + 9 + (data[at] << 16 | data[at + 1] << 8 | data[at + 2])
            if end > size:
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind == DATA:
                self._room -= end - at - 9
                if flags & END_STREAM:
                    stream = data[at + 5 : at + 9]
                    out += (self._head, stream, self._data, stream, self._trailers, stream)
                    out.append(TRAILERS)
            elif kind == SETTINGS and not flags & ACK:
                out.append(frame(SETTINGS, ACK, 0, b""))
            elif kind == PING and not flags & ACK:
                out.append(frame(PING, ACK, 0, data[at + 9 : end]))
            at = end
        self._buffer = data[at:]
        if self._room < WINDOW // 2:
            out.append(frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", WINDOW - self._room)))
            self._room = WINDOW
        if out:
            self._transport.write(b"".join(out))


async def main(port: int) -> None:
    """Serve until the process is ended."""
    message = REPLY.SerializeToString()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: CannedConnection(message), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(server_options().grpc_port))
