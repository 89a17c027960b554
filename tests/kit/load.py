"""Load over HTTP and gRPC from one event loop, recorded for the history checker."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple, Self

import grpc

from penstock.client import AsyncPipelineClient, CallFailed
from penstock.protocols.pb import Request, Response
from penstock.protocols.status import GrpcCode
from penstock.testing.history import ClientHistory
from tests.services.process import ServiceProcess

SERVICE = "faults"
"""The name of the service in tests with one only."""

TIMEOUT = 20.0
"""Seconds after which a client gives up; far above the duration of any of these tests."""

BUSY, TIMED_OUT = 3004, 6000
_STATUSES = {GrpcCode.UNAVAILABLE: 503, GrpcCode.DEADLINE_EXCEEDED: 504}
"""HTTP statuses of gRPC failures; that of others is 500."""

KINDS = ("http", "new", "grpc", "grpcio")
"""Kinds of clients: HTTP on kept connections, or a new one for each request; our gRPC client, and
grpcio."""

_METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"

Got = tuple[int, int | None, str, dict[str, str]]
"""Status, ``err_no``, text of the error, and pairs."""


class Answer(NamedTuple):
    """A client's answer: ``err_no`` is None when the call itself failed."""

    status: int
    err_no: int | None
    text: str
    value: dict[str, str]
    seconds: float

    @property
    def good(self) -> bool:
        return self.status == 200 and self.err_no == 0

    @property
    def refused(self) -> bool:
        return self.err_no == BUSY or self.status == 503

    @property
    def late(self) -> bool:
        return self.err_no == TIMED_OUT or self.status == 504


class Connection:
    """One connection over HTTP/1.1, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.reusable = True

    @classmethod
    async def open(cls, port: int) -> Connection:
        async with asyncio.timeout(TIMEOUT):
            return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def exchange(self, data: bytes) -> tuple[int, bytes]:
        """Send a request; its answer's status and body."""
        self.send(data)
        async with asyncio.timeout(TIMEOUT):
            return await self.answer()

    async def answer(self) -> tuple[int, bytes]:
        """The next answer's status and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        line, *fields = head[:-4].split(b"\r\n")
        headers = dict(field.lower().split(b": ", 1) for field in fields)
        self.reusable = headers.get(b"connection") != b"close"
        body = await self.reader.readexactly(int(headers[b"content-length"]))
        return int(line.split()[1]), body

    def reset(self) -> None:
        """Reset the connection, without an orderly close."""
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


class Clients:
    """Many clients of one service.

    Attributes:
        history: their requests and answers.
        answers: all answers to ``send_request``, in the order in which they came.
        sent: the number of requests that ``send_request`` has sent.
    """

    def __init__(self, server: ServiceProcess) -> None:
        self.history = ClientHistory()
        self.answers: list[Answer] = []
        self.sent = 0
        self._server = server
        self._grpc: AsyncPipelineClient | None = None
        self._grpcio: grpc.aio.Channel | None = None
        self._free: deque[Connection] = deque()
        self._made: list[Connection] = []
        self._numbers = itertools.count(1)

    async def connect(self) -> Connection:
        """A new connection; ``close`` closes it at the latest."""
        self._made.append(await Connection.open(self._server.http_port))
        return self._made[-1]

    async def send_request(
        self,
        *,
        service: str = SERVICE,
        kind: str = "http",
        limit: float | None = None,
        **pairs: str,
    ) -> Answer:
        """Send one request; its number is the log id and the nonce ``n``. Failures are returned.

        Args:
            service: the service's name; its answer contains it.
            kind: of the client, one of ``KINDS``.
            limit: the request's timeout in seconds, sent with it.
            **pairs: more names and texts; ``n`` for another nonce than the number.
        """
        number = next(self._numbers)
        pairs = {"n": str(number), **pairs}
        now = time.monotonic()
        deadline = None if limit is None else now + limit
        self.history.invoke(number, (service, pairs["n"]), now, deadline, service)
        self.sent += 1
        call = self._over_http if kind in ("http", "new") else self._over_grpc
        try:
            async with asyncio.timeout(TIMEOUT):
                status, err_no, text, value = await call(number, service, limit, pairs, kind)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.history.info(number, repr(error), time.monotonic())
            self.answers.append(Answer(0, None, repr(error), {}, time.monotonic() - now))
            return self.answers[-1]
        answer = Answer(status, err_no, text, value, time.monotonic() - now)
        self.answers.append(answer)
        now = time.monotonic()
        if answer.good:
            self.history.ok(number, (value.get("service"), value.get("n")), now)
        elif answer.refused:
            self.history.refused(number, err_no or status, now)
        else:
            self.history.failed(number, err_no or status, now)
        return answer

    async def _over_http(
        self, number: int, service: str, limit: float | None, pairs: dict[str, str], kind: str
    ) -> Got:
        connection = await self._free_connection(kind)
        connection.send(message(number, pairs, service, limit))
        status, body = await connection.answer()
        if connection.reusable and kind == "http":
            self._free.append(connection)
        else:
            connection.close()
        reply: dict[str, Any] = json.loads(body)
        value = dict(zip(reply.get("key", []), reply.get("value", []), strict=True))
        return status, reply.get("err_no"), reply.get("err_msg", ""), value

    async def _free_connection(self, kind: str) -> Connection:
        while self._free and kind == "http":
            connection = self._free.pop()
            if not connection.reader.at_eof():  # else the service has closed it meanwhile
                return connection
        return await self.connect()

    async def _over_grpc(
        self, number: int, service: str, limit: float | None, pairs: dict[str, str], kind: str
    ) -> Got:
        try:
            if kind == "grpc":
                client = await self._our_client()
                reply = await client.predict(pairs, log_id=number, name=service, timeout=limit)
            else:
                request = Request(key=pairs, value=pairs.values(), name=service, logid=number)
                reply = await self._grpcio_call()(request, timeout=limit)
        except CallFailed as error:
            return _STATUSES.get(error.status, 500), None, str(error), {}
        except grpc.aio.AioRpcError as error:
            code = GrpcCode(error.code().value[0])
            return _STATUSES.get(code, 500), None, error.details() or "", {}
        return 200, reply.err_no, reply.err_msg, dict(zip(reply.key, reply.value, strict=True))

    async def _our_client(self) -> AsyncPipelineClient:
        if self._grpc is None:
            self._grpc = AsyncPipelineClient()
            await self._grpc.connect([self._server.rpc_endpoint])
        return self._grpc

    def _grpcio_call(self) -> Any:
        if self._grpcio is None:
            options = [("grpc.enable_http_proxy", 0)]
            self._grpcio = grpc.aio.insecure_channel(self._server.rpc_endpoint, options=options)
        return self._grpcio.unary_unary(
            _METHOD,
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )

    async def offer(self, services: Sequence[str], rate: float, enough: asyncio.Event) -> None:
        """Send ``rate`` requests a second with each kind of client, each to a random service,
        whatever their answers, until ``enough`` is set; then wait for the answers.
        """
        loop, chosen = asyncio.get_running_loop(), Random(1)
        calls: set[asyncio.Task[Answer]] = set()
        due = loop.time()
        while not enough.is_set():
            for kind in KINDS:
                request = self.send_request(service=chosen.choice(services), kind=kind)
                calls.add(asyncio.create_task(request))
            due += 1 / rate
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await enough.wait()
        await asyncio.gather(*calls)

    def begin(self, pairs: dict[str, str]) -> tuple[int, bytes]:
        """A request that the test sends itself: its number, recorded as invoked, and its bytes."""
        number = next(self._numbers)
        self.history.invoke(number, (SERVICE, str(number)), time.monotonic())
        return number, message(number, {"n": str(number), **pairs})

    def disconnected(self, number: int) -> None:
        """Record that a request's client disconnected."""
        self.history.info(number, "left", time.monotonic())

    async def close(self) -> None:
        """End every connection."""
        if self._grpc is not None:
            await self._grpc.close()
        if self._grpcio is not None:
            await self._grpcio.close(None)
        for connection in self._made:
            connection.close()
        # Connections that the service has reset raise here.
        endings = [connection.writer.wait_closed() for connection in self._made]
        await asyncio.gather(*endings, return_exceptions=True)


def message(
    number: int, pairs: dict[str, str], service: str = SERVICE, limit: float | None = None
) -> bytes:
    """The bytes of one request over HTTP."""
    document = {"key": list(pairs), "value": list(pairs.values()), "logid": number}
    body = json.dumps(document).encode()
    line = b"POST /%s/prediction HTTP/1.1" % service.encode()
    lines = [line, b"Host: localhost", b"Content-Length: %d" % len(body)]
    if limit is not None:
        lines.append(b"Penstock-Timeout: %.6f" % limit)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Noise:
    """The largest wake-up delay of this process on a shared machine: ``worst`` seconds.

    Limits of times add twice that, because the service is woken as late as this process.
    """

    def __init__(self) -> None:
        self.worst = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._measure())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    def allows(self, seconds: float, limit: float) -> bool:
        """Whether a time is within a limit plus the noise."""
        return seconds < limit + 2 * self.worst

    async def _measure(self) -> None:
        pause = 0.005
        while True:
            before = time.monotonic()
            await asyncio.sleep(pause)
            self.worst = max(self.worst, time.monotonic() - before - pause)


def percentile(values: list[float], percent: float) -> float:
    """The value that this percentage of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
