"""External workers for tests, on the test's own loop: the test decides about each frame."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from struct import pack, unpack
from typing import Any, Self

import ormsgpack

Bodies = dict[str, bytes]


class FakeWorker:
    """A hand-made worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.batches: list[Bodies] = []
        self._loop: asyncio.Task[None] | None = None

    @classmethod
    async def connected(cls, path: Path, *, ready: bool = True) -> Self:
        worker = cls(*await asyncio.open_unix_connection(path))
        if ready:
            await worker.send(b"\0\0\0\0")
        return worker

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self, value: Mapping[str, Any]) -> None:
        payload = ormsgpack.packb(value)
        await self.send(pack(">I", len(payload)) + payload)

    async def batch(self) -> Bodies:
        """The next batch."""
        async with asyncio.timeout(10.0):
            (length,) = unpack(">I", await self._reader.readexactly(4))
            bodies: Bodies = ormsgpack.unpackb(await self._reader.readexactly(length))
        self.batches.append(bodies)
        return bodies

    async def until_disconnected(self) -> None:
        """Waits until the service has disconnected."""
        async with asyncio.timeout(10.0):
            assert await self._reader.read() == b""

    def echo(self) -> Self:
        """Answers every batch from now on with its own bodies."""
        return self.serve(lambda batch: batch)

    def serve(self, answer: Callable[[Bodies], Mapping[str, Any]]) -> Self:
        async def forever() -> None:
            while True:
                await self.answer(answer(await self.batch()))

        self._loop = asyncio.create_task(forever())
        return self

    def disconnect(self) -> None:
        """Disconnects at once, without a turn of the loop."""
        self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        self._writer.close()


def numbers(batch: Bodies) -> list[int]:
    """The ``n`` of each request of a batch."""
    return [json.loads(body)["n"] for body in batch.values()]
