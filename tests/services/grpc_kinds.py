"""gRPC calls of every kind, with raw bytes as messages, so that no peer needs generated code.

A call's metadata determines its behaviour:

    lead-*    is returned as leading metadata       hold-ms        wait this long first
    trail-*   is returned as trailing metadata      fail           then fail with this code,
                                                    fail-text-bin  saying this

    Unary         the message is returned
    ClientStream  all messages, joined
    ServerStream  "count size": so many messages, "0", "1" ... filled up with dots to the size
    Bidi          each message is returned at once
    Counted       "what n": answers as soon as n calls were "held" or "cancelled", with their number
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.router import Router
from penstock.door.budget import ByteBudget
from penstock.door.door import Door, DoorLimits
from penstock.door.listeners import bind
from penstock.protocols import grpc
from penstock.protocols.status import GrpcCode

SERVICE = "peers.Kinds"
MOST = 256 << 20
OPTIONS = ("lead-", "trail-", "hold-ms", "fail")


class Handlers:
    """The methods. Calls without such metadata are answered at once, without task or coroutine."""

    def __init__(self) -> None:
        self._counts = {b"held": 0, b"cancelled": 0}
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def unary(self, call: GrpcCall, message: bytes) -> None:
        if not any(name.startswith(OPTIONS) for name, _ in grpc.decode_metadata(call.metadata)):
            call.reply(message)
            return
        task = asyncio.get_running_loop().create_task(self._answer_in_task(call, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        call.exchange.on_gone = task.cancel

    async def _answer_in_task(self, call: GrpcCall, message: bytes) -> None:
        try:
            async with asyncio.timeout(call.timeout):
                await self._end(call, message)
        except TimeoutError:
            call.fail(GrpcCode.DEADLINE_EXCEEDED, "the caller's deadline passed")

    async def client_stream(self, call: GrpcCall) -> None:
        pieces = []
        while (message := await call.read()) is not None:
            pieces.append(message)
        await self._end(call, b"".join(pieces))

    async def server_stream(self, call: GrpcCall) -> None:
        message = await call.read()
        assert message is not None
        count, size = map(int, message.split())
        for number in range(count):
            await call.write((b"%d" % number).ljust(size, b"."))
        await self._end(call, None)

    async def bidi(self, call: GrpcCall) -> None:
        while (message := await call.read()) is not None:
            await call.write(message)
        await self._end(call, None)

    async def counted(self, call: GrpcCall) -> None:
        message = await call.read()
        assert message is not None
        counter, least = message.split()
        async with self._changed:
            await self._changed.wait_for(lambda: self._counts[counter] >= int(least))
        await call.write(b"%d" % self._counts[counter])

    async def _end(self, call: GrpcCall, message: bytes | None) -> None:
        """Do what the metadata requests, then end the call; with ``message`` if it succeeds."""
        received = grpc.decode_metadata(call.metadata)
        fields = dict(received)
        lead, trail = (
            grpc.encode_metadata(pair for pair in received if pair[0].startswith(prefix))
            for prefix in ("lead-", "trail-")
        )
        if lead:
            call.start(lead)
        if "hold-ms" in fields:
            await self._hold(int(fields["hold-ms"]) / 1000)
        code, text = GrpcCode(int(fields.get("fail", 0))), fields.get("fail-text-bin", b"").decode()
        if code is not GrpcCode.OK:
            call.fail(code, text, trail)
        elif message is not None:
            call.reply(message, trail)
        else:
            call.finish(trail)

    async def _hold(self, seconds: float) -> None:
        await self._count(b"held")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await self._count(b"cancelled")
            raise

    async def _count(self, counter: bytes) -> None:
        async with self._changed:
            self._counts[counter] += 1
            self._changed.notify_all()


async def serve(port: int) -> None:
    """Serve on a port of loopback until the process is ended."""
    handlers = Handlers()
    methods = [
        Grpc(f"/{SERVICE}/Unary", unary=handlers.unary),
        Grpc(f"/{SERVICE}/ClientStream", stream=handlers.client_stream),
        Grpc(f"/{SERVICE}/ServerStream", stream=handlers.server_stream),
        Grpc(f"/{SERVICE}/Bidi", stream=handlers.bidi),
        Grpc(f"/{SERVICE}/Counted", stream=handlers.counted),
    ]
    service = Router(methods, max_message_bytes=MOST)
    door = Door(service, DoorLimits(max_unsent=MOST), ByteBudget(4 * MOST))
    await door.listen(bind("127.0.0.1", port, "port"))
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
