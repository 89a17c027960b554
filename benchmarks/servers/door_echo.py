"""Penstock's door with an application that echoes: no routes, no graph, no engine."""

from __future__ import annotations

import asyncio
import gc

import uvloop

from benchmarks.servers.options import server_options
from penstock.door.budget import ByteBudget
from penstock.door.door import Door, DoorLimits
from penstock.door.exchange import Exchange, Receiver
from penstock.door.listeners import bind

JSON = ((b"content-type", b"application/json"),)
HEAD = ((b"content-type", b"application/grpc"),)
TRAILERS = ((b"grpc-status", b"0"),)


class EchoHttp:
    """Gives JSON back over HTTP/1.1."""

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
        if ended:
            exchange.reply(200, JSON, piece)
        else:
            exchange.state = piece

    def late(self, exchange: Exchange) -> None:
        """The door answers."""


class EchoGrpc:
    """Gives messages back over HTTP/2."""

    def begin(self, exchange: Exchange) -> Receiver | None:
        """A message that came with its head is answered at once, as our service of gRPC does it."""
        if exchange.whole is None:
            return self
        exchange.reply(200, HEAD, exchange.whole, TRAILERS)
        return None

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """Answer when the message is whole."""
        if exchange.state is not None:
            piece = exchange.state + piece
        if ended:
            exchange.reply(200, HEAD, piece, TRAILERS)
        else:
            exchange.state = piece

    def late(self, exchange: Exchange) -> None:
        """The door answers."""


async def main(http_port: int, grpc_port: int) -> None:
    """Serve until the process is ended."""
    http = Door(EchoHttp(), DoorLimits(), ByteBudget(1 << 30))
    await http.listen(bind("127.0.0.1", http_port, "http_port"))
    grpc = Door(EchoGrpc(), DoorLimits(), ByteBudget(1 << 30))
    await grpc.listen(bind("127.0.0.1", grpc_port, "grpc_port"))
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # as a service does
    await asyncio.Event().wait()


if __name__ == "__main__":
    options = server_options()
    uvloop.run(main(options.http_port, options.grpc_port))
