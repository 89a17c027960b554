"""The floor of the door: throwaway protocol classes that echo, with nothing that a server needs.

HTTP/2: fixed header blocks, requests' blocks looked up in a dict and never decoded, no flow control
beyond one large window, no limits, one write a read. HTTP/1.1: httptools and a fixed head.
"""

from __future__ import annotations

import asyncio
import struct
from typing import cast

import httptools
import uvloop

from benchmarks.servers.options import server_options
from penstock.protocols.http2 import encode_block

PREFACE = 24
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
HEAD = encode_block(((b":status", b"200"), (b"content-type", b"application/grpc")))
TRAILERS = encode_block(((b"grpc-status", b"0"),))
frame_head = struct.Struct("!HBBBI").pack


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame."""
    size = len(payload)
    return frame_head(size >> 8, size & 0xFF, kind, flags, stream) + payload


OPENING = (
    frame(SETTINGS, 0, 0, struct.pack("!HIHI", 3, 128, 4, 1 << 24))
    + frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", (1 << 31) - 1 - 65_535))
    + frame(SETTINGS, ACK, 0, b"")
)


class Http2Floor(asyncio.Protocol):
    """Answers each stream's data by itself."""

    known: dict[bytes, bool] = {}  # noqa: RUF012 - shared on purpose

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(OPENING)
        self.buffer = b""
        self.greeted = False

    def data_received(self, data: bytes) -> None:
        """Answer every complete message of this read by one write."""
        if self.buffer:
            data = self.buffer + data
        at, size = 0, len(data)
        if not self.greeted:
            if size < PREFACE:
                self.buffer = data
                return
            self.greeted = True
            at = PREFACE
        out = []
        known = self.known
        while size - at >= 9:
            end = at + 9 + (data[at] << 16 | data[at + 1] << 8 | data[at + 2])
            if end > size:
                break
            kind = data[at + 3]
            if kind == HEADERS:
                block = data[at + 9 : end]
                if block not in known:
                    known[block] = True
            elif kind == DATA:
                stream = int.from_bytes(data[at + 5 : at + 9], "big")
                body = data[at + 9 : end]
                out.append(frame(HEADERS, END_HEADERS, stream, HEAD))
                out.append(frame(DATA, 0, stream, body))
                out.append(frame(HEADERS, END_HEADERS | END_STREAM, stream, TRAILERS))
            elif kind == PING and not data[at + 4]:
                out.append(frame(PING, ACK, 0, data[at + 9 : end]))
            at = end
        self.buffer = data[at:]
        if out:
            self.transport.write(b"".join(out))


class Http1Floor(asyncio.Protocol):
    """Answers each body by itself."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make a parser."""
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Called by the parser, as all of these."""
        self.url = url

    def on_body(self, body: bytes) -> None:
        """Keep it."""
        self.body += body

    def on_message_complete(self) -> None:
        """Answer."""
        body, self.body = self.body, b""
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )


async def main(http_port: int, grpc_port: int) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    await loop.create_server(Http1Floor, "127.0.0.1", http_port)
    server = await loop.create_server(Http2Floor, "127.0.0.1", grpc_port)
    await server.serve_forever()


if __name__ == "__main__":
    options = server_options()
    uvloop.run(main(options.http_port, options.grpc_port))
