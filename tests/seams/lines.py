"""A custom protocol: each line is a request, and its reply a line; over HTTP and over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from penstock.api.grpc import Grpc, GrpcCall
from penstock.api.http import Http, HttpCall
from penstock.engine.engine import Engine
from penstock.engine.submission import Submission
from penstock.request import Outcome


class Lines:
    """Submits lines to the graph that is named by the path or by the first line."""

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
                await call.write(await self._submit(call.values[0], line, call.timeout) + b"\n")

    async def _over_grpc(self, call: GrpcCall) -> None:
        name = await call.read() or b""
        while (line := await call.read()) is not None:
            await call.write(await self._submit(name.decode(), line, call.timeout))

    async def _submit(self, name: str, line: bytes, timeout: float | None) -> bytes:
        graph = self._engine.graph(name)
        if graph is None:
            return b"! unknown_service"
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        submission = Submission(graph, {"line": line.decode()}, timeout, context=answer)
        submission.start(lambda submission, outcome: submission.context.set_result(outcome))
        try:
            outcome = await answer
        except asyncio.CancelledError:  # the client has disconnected
            submission.cancel()
            raise
        if outcome.error is not None:
            return b"! " + outcome.error.code.encode()
        return str((outcome.value or {})["line"]).encode()
