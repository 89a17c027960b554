"""grpc.aio's server without one hole: a path that is not UTF-8 ended its accept loop for good.

One such call and the port is closed, with all calls on it. Here every method is registered with the
C core, which matches paths as bytes; a call to any other path is refused without a look at its
path. This reaches into private parts of grpc (1.85); where they are missing, the hole stays.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

_CAN_BE_MENDED = hasattr(cygrpc.AioServer, "_make_request_call_future")


class _Server(cygrpc.AioServer):  # type: ignore[misc]
    """The accept loop, with a door of its own for calls to unknown methods."""

    def _make_request_call_future(self, method: bytes | None) -> Any:
        if method is not None:
            return super()._make_request_call_future(method)
        return asyncio.get_running_loop().create_task(self._refuse_unknown())

    async def _refuse_unknown(self) -> None:
        loop = asyncio.get_running_loop()
        nothing = cygrpc._MethodResolver([], {})
        refusals = set()  # the loop itself holds tasks only weakly
        while True:
            call = await self._request_call()  # its error at shutdown is the accept loop's to take
            refusal = cygrpc._handle_rpc("", nothing, (), call, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(refusal, call, loop, ""))
            refusals.add(task)
            task.add_done_callback(refusals.discard)


def grpc_server(options: list[tuple[str, Any]]) -> grpc.aio.Server:
    """A server that is not started; its methods must be registered, not generic."""
    if not _CAN_BE_MENDED:
        return grpc.aio.server(options=options)
    # grpc.aio has no way to be given another class than its own.
    theirs = cygrpc.AioServer
    cygrpc.AioServer = _Server
    try:
        return grpc.aio.server(options=options)
    finally:
        cygrpc.AioServer = theirs
