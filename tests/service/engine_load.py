"""Requests at a fixed rate from several kinds of clients, recorded in a history.

Each request goes to a random service, whose reply has the service's name as ``by``."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import grpc
import httpx

from penstock.client import AsyncPipelineClient
from penstock.protocols.pb import Request, Response
from penstock.testing.history import ClientHistory, check
from tests.services.process import ServiceProcess

INFERENCE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
TIMEOUT = 30.0

Send = Callable[[str, str], Awaitable[dict[str, str]]]
"""Sends a nonce to a service; returns the reply's pairs, or raises."""


class Refused(Exception):
    """A reply that is an error."""


class Load:
    """The calls of all clients, and their outcomes.

    Attributes:
        engines: number of replies of each engine process.
        broken: errors of calls without a reply, by kind of client.
        sent: number of requests sent.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self.history = ClientHistory()
        self._services = services
        self._random = Random(1)
        self.engines: Counter[str] = Counter()
        self.ids: list[int] = []
        self.broken: list[str] = []
        self.sent = 0
        self._numbers = itertools.count(1)

    async def send_one(self, kind: str, send: Send) -> None:
        """Sends one request and records its outcome."""
        number = next(self._numbers)
        nonce = str(number)
        self.sent += 1
        service = self._random.choice(self._services)
        self.history.invoke(number, (service, nonce), time.monotonic(), graph=service)
        try:
            async with asyncio.timeout(TIMEOUT):
                answer = await send(service, nonce)
        except Refused as error:
            self.history.failed(number, str(error), time.monotonic())
            self.broken.append(f"{kind}: {error}")
        except Exception as error:
            self.history.info(number, repr(error), time.monotonic())
            self.broken.append(f"{kind}: {error!r}")
        else:
            self.history.ok(number, (answer["by"], answer["n"]), time.monotonic())
            self.engines[answer["pid"]] += 1
            self.ids.append(int(answer["id"]))

    def verdict(self) -> list[str]:
        """The violations in the recorded history."""
        violations = check(self.history.events)
        if len(set(self.ids)) != len(self.ids):
            violations.append("a data id was given twice")
        return violations

    async def offer(self, kinds: dict[str, Send], rate: float, enough: asyncio.Event) -> None:
        """Sends ``rate`` requests a second with each kind of client, whatever their outcome, until
        ``enough`` is set."""
        loop = asyncio.get_running_loop()
        calls: set[asyncio.Task[None]] = set()
        due = loop.time()
        while not enough.is_set():
            for kind, send in kinds.items():
                call = asyncio.create_task(self.send_one(kind, send))
                calls.add(call)
                call.add_done_callback(calls.discard)
            due += 1 / rate
            try:
                async with asyncio.timeout_at(due):
                    await enough.wait()
            except TimeoutError:
                continue
        if calls:
            await asyncio.wait(calls)


@asynccontextmanager
async def clients(server: ServiceProcess) -> AsyncIterator[dict[str, Send]]:
    """Our client, grpcio, HTTP over kept-alive connections, and HTTP over a new connection per
    request."""
    async with AsyncExitStack() as stack:
        kept = await stack.enter_async_context(httpx.AsyncClient(timeout=TIMEOUT, trust_env=False))
        ours = await stack.enter_async_context(AsyncPipelineClient())
        await ours.connect([server.rpc_endpoint])
        options = [("grpc.enable_http_proxy", 0)]
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(server.rpc_endpoint, options=options)
        )
        call = channel.unary_unary(
            INFERENCE,
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )

        async def post(client: httpx.AsyncClient, service: str, nonce: str) -> dict[str, str]:
            url = f"{server.http_url}/{service}/prediction"
            return pairs_of_json(await client.post(url, json={"key": ["n"], "value": [nonce]}))

        async def over_kept(service: str, nonce: str) -> dict[str, str]:
            return await post(kept, service, nonce)

        async def over_new(service: str, nonce: str) -> dict[str, str]:
            # Without loading certificates, which would take 30 ms of CPU for each client.
            more = {"trust_env": False, "verify": False}
            async with httpx.AsyncClient(timeout=TIMEOUT, **more) as client:
                return await post(client, service, nonce)

        async def over_ours(service: str, nonce: str) -> dict[str, str]:
            return pairs_of(await ours.predict({"n": nonce}, name=service))

        async def over_grpcio(service: str, nonce: str) -> dict[str, str]:
            request = Request(key=["n"], value=[nonce], name=service)
            return pairs_of(await call(request, timeout=TIMEOUT))

        yield {"kept": over_kept, "new": over_new, "ours": over_ours, "grpcio": over_grpcio}


def pairs_of_json(answer: httpx.Response) -> dict[str, str]:
    """The pairs of a successful HTTP reply."""
    reply = answer.json()
    if answer.status_code != 200 or reply["err_no"]:
        raise Refused(f"{answer.status_code} {answer.text[:200]}")
    return dict(zip(reply["key"], reply["value"], strict=True))


def pairs_of(reply: Response) -> dict[str, str]:
    """The pairs of a successful gRPC reply."""
    if reply.err_no:
        raise Refused(f"{reply.err_no} {reply.err_msg}")
    return dict(zip(reply.key, reply.value, strict=True))
