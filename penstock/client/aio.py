"""The asyncio client of a pipeline service."""

from __future__ import annotations

import asyncio
import itertools
import os
from types import TracebackType
from typing import Any, Self

from penstock.client.address import KnownAddress
from penstock.client.channel import AsyncChannel
from penstock.client.deadlines import deadline_after
from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import CallFailed, NotConnected
from penstock.client.packing import encode_request, pack_request
from penstock.client.replies import decode_reply
from penstock.client.tls import Tls
from penstock.protocols import pb


class AsyncPipelineClient:
    """The twin of ``PipelineClient`` for one event loop.

        async with AsyncPipelineClient() as client:
            await client.connect(["127.0.0.1:9993"])
            response = await client.predict({"x": array})

    Cancelling a task that awaits ``predict`` cancels the call on the server too. Use it only on the
    event loop that ran ``connect``.
    """

    def __init__(self, *, tls: Tls | None = None) -> None:
        self._tls = tls
        self._connection: _Connection | None = None

    async def connect(self, endpoints: list[str]) -> None:
        """Say where to call, as in ``PipelineClient.connect``, and tie the client to this loop."""
        former, self._connection = self._connection, _Connection(endpoints, self._tls)
        if former is not None:
            await former.close()

    async def predict(
        self,
        feed_dict: dict[str, Any],
        fetch: list[str] | None = None,
        *,
        pack_tensor_format: bool = False,
        use_tensor_bytes: bool = False,
        profile: bool = False,
        log_id: int | None = None,
        timeout: float | None = None,
        name: str = "",
        method: str = "",
    ) -> pb.Response:
        """Make one call; arguments, result and errors as in ``PipelineClient.predict``."""
        deadline = deadline_after(timeout)
        connection = self._usable()
        message = pack_request(
            feed_dict,
            fetch,
            own_address=connection.own_address,
            pack_tensor_format=pack_tensor_format,
            use_tensor_bytes=use_tensor_bytes,
            profile=profile,
            log_id=log_id,
            name=name,
            method=method,
        )
        return decode_reply(await connection.call(encode_request(message), deadline))

    async def close(self) -> None:
        """Disconnect; calls under way end with ``CallFailed``. Closing twice is allowed."""
        former, self._connection = self._connection, None
        if former is not None:
            await former.close()

    def _usable(self) -> _Connection:
        connection = self._connection
        if connection is None:
            raise NotConnected("call connect() first")
        if not connection.is_ours():
            raise NotConnected("connected in another process or on another event loop")
        return connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        connection = self._connection
        if connection is None:
            return "<AsyncPipelineClient not connected>"
        return f"<AsyncPipelineClient {', '.join(map(str, connection.endpoints))}>"


class _Connection:
    """What ``connect`` made; never changed afterwards."""

    def __init__(self, endpoints: object, tls: Tls | None) -> None:
        self.endpoints = parse_endpoints(endpoints)
        self.own_address = KnownAddress()
        self._process = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._channels = [AsyncChannel(endpoint, tls) for endpoint in self.endpoints]
        self._turns = itertools.count()

    def is_ours(self) -> bool:
        return self._process == os.getpid() and self._loop is asyncio.get_running_loop()

    async def call(self, request: bytes, deadline: float | None) -> bytes:
        """Try one endpoint after the other while certainly none has seen the request."""
        channels = self._channels
        count = len(channels)
        first = next(self._turns)
        for turn in range(first, first + count - 1):
            try:
                return await channels[turn % count].call(request, deadline=deadline)
            except CallFailed as error:
                if error.sent:
                    raise
        return await channels[(first + count - 1) % count].call(request, deadline=deadline)

    async def close(self) -> None:
        if self.is_ours():
            for channel in self._channels:
                await channel.close()
