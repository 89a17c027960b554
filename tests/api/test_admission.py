"""Callers are admitted once for each request of any protocol, before its body is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from penstock.api.application import Route
from penstock.api.baidu_std import BaiduStd
from penstock.api.errors import failed, refusal
from penstock.api.grpc import Grpc
from penstock.api.health import Health
from penstock.api.http import Http
from penstock.api.oip import OpenInferenceApplication
from penstock.api.router import Router
from penstock.batching.batcher import Batcher, BatchPolicy
from penstock.door.exchange import Exchange
from penstock.door.limits import DoorLimits
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.errors import RequestError
from penstock.executors.work import WorkOptions
from penstock.instrument import Instrument, RequestInfo
from penstock.protocols import standard_messages as messages
from penstock.protocols.status import STATUS, CustomExceptionCode, GrpcCode, Status
from penstock.tensor import Signature, TensorSpec
from penstock.testing.clock import ManualClock
from penstock.testing.executor import FakeExecutor
from tests.api.recorded_exchange import RecordedExchange, grpc_head
from tests.graph.test_dag import plan_of
from tests.kit import baidu_std, http1
from tests.kit.frames import message
from tests.kit.http2 import call, linked
from tests.services.door import Site

SIZE = 1 << 20


class Unknown(RequestError):
    code = "unknown_caller"


class Doorkeeper:
    """Admits everybody as ``caller``; nobody while that is None."""

    def __init__(self) -> None:
        self.caller: str | None = None
        self.asked: list[str] = []

    def admit(self, route: Route, exchange: Exchange) -> str:
        self.asked.append(route.pattern if isinstance(route, Http) else route.path)
        if self.caller is None:
            raise Unknown("say who you are")
        return self.caller


@dataclass
class Door:
    doorkeeper: Doorkeeper
    site: Site


def tell(call: Any, body: bytes) -> None:
    text = b"%d for %b" % (len(body), call.caller.encode())
    call.reply(200, (), text) if hasattr(call.route, "pattern") else call.reply(text)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    unauthenticated = Status(CustomExceptionCode.CLIENT_ERROR, 401, GrpcCode.UNAUTHENTICATED)
    monkeypatch.setitem(STATUS, Unknown, unauthenticated)
    doorkeeper = Doorkeeper()
    router = Router(
        [
            Http("POST", "/tell", tell, failed=failed, refusal=refusal),
            Grpc("/a.B/Tell", tell),
            BaiduStd("a.B", "Tell", tell),
        ],
        max_message_bytes=SIZE,
        admission=doorkeeper,
    )
    site = Site(asyncio.new_event_loop, DoorLimits(max_calls=1), application=router)
    yield Door(doorkeeper, site)
    site.close()


def by_http(port: int, body: bytes | None) -> tuple[int, str]:
    with http1.connected(port) as connection:
        if body is None:
            connection.send(b"POST /tell HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % SIZE)
        else:
            connection.send(http1.request(body, target=b"/tell"))
        reply = connection.reply()
    return reply.status, reply.body.decode()


def by_grpc(port: int, body: bytes | None) -> tuple[int, str]:
    with linked(port) as link:
        if body is None:
            answer = link.answer(link.open(call(b"/a.B/Tell")))
        else:
            answer = link.predict(body, path=b"/a.B/Tell")
    text = answer.messages[0] if answer.messages else answer.fields[b"grpc-message"]
    return int(answer.fields[b"grpc-status"]), text.decode()


def by_baidu_std(port: int, body: bytes | None) -> tuple[int, str]:
    meta = baidu_std.request_meta("a.B", "Tell")
    with baidu_std.connected(port) as connection:
        size = None if body is not None else len(meta) + SIZE
        connection.send(baidu_std.frame(meta, body or b"", body=size))
        answer = connection.read()
    return answer.code, (answer.payload.decode() or answer.text)


By = Callable[[int, bytes | None], tuple[int, str]]
OWN = '{"error":"unknown_caller","message":"say who you are"}'
PROTOCOLS = [
    (by_http, 200, 401, OWN, 503, "/tell"),
    (by_grpc, 0, 16, "say who you are", 8, "/a.B/Tell"),
    (by_baidu_std, 0, 1004, "say who you are", 2004, "/a.B/Tell"),
]
NAMES = ["HTTP", "gRPC", "baidu_std"]


@pytest.mark.parametrize(("by", "good", "code", "text", "busy", "path"), PROTOCOLS, ids=NAMES)
def test_a_caller_is_refused_before_its_body_is_sent_and_the_call_of_another_names_it(
    door: Door, by: By, good: int, code: int, text: str, busy: int, path: str
) -> None:
    assert by(door.site.port, None) == (code, text)
    assert door.site.statistics().callers_refused == 1
    assert by(door.site.port, b"abc") == (code, text)
    door.doorkeeper.caller = "ann"
    assert by(door.site.port, b"abc") == (good, "3 for ann")
    assert door.doorkeeper.asked == [path] * 3
    assert door.site.statistics().callers_refused == 2
    assert sum(door.site.statistics().caller_refusals.values()) == 2


@pytest.mark.parametrize(("by", "good", "code", "text", "busy", "path"), PROTOCOLS, ids=NAMES)
def test_nobody_is_asked_about_a_request_beyond_the_limit(
    door: Door, by: By, good: int, code: int, text: str, busy: int, path: str
) -> None:
    door.doorkeeper.caller = "ann"
    with http1.connected(door.site.port) as other:
        other.send(b"POST /tell HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        door.site.until(lambda seen: seen.calls == 1)
        assert by(door.site.port, b"abc")[0] == busy
    assert door.doorkeeper.asked == ["/tell"]
    seen = door.site.statistics()
    assert (seen.calls_refused, seen.callers_refused) == (1, 0)


def test_a_fault_of_the_admission_admits_nobody(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def admit(route: Route, exchange: Exchange) -> None:
        raise LookupError("no table of keys")

    monkeypatch.setattr(door.doorkeeper, "admit", admit)
    assert by_http(door.site.port, b"abc")[0] == 500
    assert "no table of keys" in caplog.text


class Witness(Instrument):
    def __init__(self) -> None:
        self.callers: list[Any] = []
        self.admits = asyncio.Event()

    def admitted(self, request: RequestInfo, now: float) -> None:
        self.callers.append(request.caller)
        self.admits.set()


async def test_each_request_of_a_stream_has_the_caller_of_the_stream() -> None:
    engine, witness, doorkeeper = Engine(ManualClock()), Witness(), Doorkeeper()
    spec = TensorSpec(name="x", alias="x", dtype=np.dtype("float32"), shape=(None,))
    signature = Signature(inputs=(spec,), outputs=(spec,))
    graph = ServedGraph(engine, plan_of({"op": ["@"]}, "op"), "model", declared=lambda: signature)
    queue, worker = Batcher(BatchPolicy()), FakeExecutor(1)
    graph.add_op("op", queue=queue, executor=worker, options=WorkOptions())
    engine.add(graph)
    engine.instruments.install(witness)
    service = OpenInferenceApplication(engine, Health())
    router = Router(service.routes(), max_message_bytes=SIZE, admission=doorkeeper)
    request_class, _ = messages.inference_messages("ModelInfer")
    request = request_class(model_name="model")
    request.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.5)
    doorkeeper.caller = "ann"
    exchange = RecordedExchange(grpc_head(f"/{messages.INFERENCE}/ModelStreamInfer"))
    receiver = router.begin(exchange)
    assert receiver is not None
    receiver.data(exchange, message(request.SerializeToString()), False)
    async with asyncio.timeout(5):
        await witness.admits.wait()
    assert witness.callers == ["ann"]
    assert exchange.on_gone is not None
    exchange.on_gone()  # ends the stream's task
