"""Penstock's door with an application that echoes: no routes, no graph, no engine."""

from __future__ import annotations

import asyncio
import gc
from typing import cast

import uvloop

from benchmarks.servers.options import server_options
from penstock.engine.budget import ByteBudget
from penstock.frontends.door import Door, DoorLimits
from penstock.frontends.exchange import Exchange, Receiver
from penstock.frontends.http2_session import Http2Exchange
from penstock.frontends.listeners import bind
from penstock.protocols.heads import HTTP_2
from penstock.protocols.http2 import encode_block

JSON = ((b"content-type", b"application/json"),)
HEAD = encode_block(((b":status", b"200"), (b"content-type", b"application/grpc")))
TRAILERS = encode_block(((b"grpc-status", b"0"),))


class Echo:
    """Gives bodies back: as JSON over HTTP/1.1, as a gRPC message over HTTP/2."""

    def begin(self, exchange: Exchange) -> Receiver | None:
        """A probe is answered at once."""
        if exchange.head.method != "POST":
            exchange.reply(200, JSON, b"{}")
            return None
        return self

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """Answer when the body is whole."""
        if exchange.state is not None:
            piece = exchange.state + piece
        if not ended:
            exchange.state = piece
        elif exchange.head.version == HTTP_2:
            # Not isinstance, which is slow for classes that have abstract parents.
            cast(Http2Exchange, exchange).reply_blocks(HEAD, piece, TRAILERS)
        else:
            exchange.reply(200, JSON, piece)

    def late(self, exchange: Exchange) -> None:
        """The door answers."""


async def main(http_port: int, grpc_port: int) -> None:
    """Serve until the process is ended."""
    door = Door(Echo(), DoorLimits(), ByteBudget(1 << 30))
    await door.listen(bind("127.0.0.1", http_port, "http_port"))
    await door.listen(bind("127.0.0.1", grpc_port, "grpc_port"))
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # as a service does
    await asyncio.Event().wait()


if __name__ == "__main__":
    options = server_options()
    uvloop.run(main(options.http_port, options.grpc_port))
