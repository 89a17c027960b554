"""A protocol of one's own: each line is a request, its answer a line; over HTTP and over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from penstock.api.calls import Grpc, GrpcCall, Http, HttpCall
from penstock.engine.engine import Engine
from penstock.engine.submission import Submission
from penstock.request import Outcome


class Lines:
    """Submits lines to the graph that the path, or the first line, names."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> Iterator[Http | Grpc]:
        yield Http("POST", "/lines/{name}", stream=self._over_http, summary="Lines.")
        yield Grpc("/lines.Lines/Ask", stream=self._over_grpc)

    async def _over_http(self, call: HttpCall) -> None:
        call.start(200, ((b"content-type", b"text/plain"),))
        rest = b""
        while (piece := await call.read()) is not None:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                await call.write(await self._ask(call.values[0], line, call.timeout) + b"\n")

    async def _over_grpc(self, call: GrpcCall) -> None:
        name = await call.read() or b""
        while (line := await call.read()) is not None:
            await call.write(await self._ask(name.decode(), line, call.timeout))

    async def _ask(self, name: str, line: bytes, timeout: float | None) -> bytes:
        graph = self._engine.graph(name)
        if graph is None:
            return b"! unknown_service"
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        asked = Submission(graph, {"line": line.decode()}, timeout, context=answer)
        asked.start(lambda asked, outcome: asked.context.set_result(outcome))
        try:
            outcome = await answer
        except asyncio.CancelledError:  # the caller has gone
            asked.cancel()
            raise
        if outcome.error is not None:
            return b"! " + outcome.error.code.encode()
        return str((outcome.value or {})["line"]).encode()
