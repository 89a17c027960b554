"""Requests of other Penstocks with values in an external store, under a virtual clock."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from penstock.api.application import Applications
from penstock.api.health import Health
from penstock.api.oip import OpenInferenceApplication
from penstock.api.router import Router
from penstock.api.stored_infer import StoredInfer, StoredInferApplication
from penstock.batching.batcher import Batcher, BatchPolicy
from penstock.door.budget import ByteBudget
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.errors import HttpError, PermissionDenied, RequestError
from penstock.executors.external_store.server import ServerStore
from penstock.executors.external_store.store import StoreFailed
from penstock.executors.work import WorkOptions
from penstock.protocols import oip_message
from penstock.protocols.oip import InferRequest, OutTensor
from penstock.protocols.standard_messages import INFERENCE
from penstock.protocols.status import GrpcCode
from penstock.protocols.stored_infer import (
    METHOD,
    Place,
    StoredResponse,
    decode_response,
    encode_request,
)
from penstock.request import Outcome
from penstock.tensor import Signature
from penstock.testing import FakeExecutor, ManualClock
from tests.api.recorded_exchange import RecordedExchange, grpc_head
from tests.executors.external_store.fake import OPTIONS, FakeStore
from tests.graph.test_dag import plan_of

SECRET = b"0123456789abcdef"
SIGNATURE = Signature(inputs={"x": ("FP32", [-1])}, outputs={"x": ("FP32", [-1])})
VALUE = np.arange(1000, dtype=np.float32)
PLACE = Place("key", 2, VALUE.nbytes)
MOST = 1 << 20


class Site:
    """A service with one model, and a request to it."""

    def __init__(self, folder: Path) -> None:
        (folder / "secret").write_bytes(SECRET)
        self.kept = FakeStore()
        self.kept.put("key", "2.0", VALUE.data.cast("B"), 60.0)
        options = replace(OPTIONS, secret=str(folder / "secret"))
        self.clock = ManualClock()
        self.store = ServerStore(options, lambda _: self.kept, self.clock.now)
        self.engine = Engine(self.clock)
        graph = ServedGraph(
            self.engine, plan_of({"op": ["@"]}, "op"), "m", declared=lambda: SIGNATURE
        )
        self.worker = FakeExecutor()
        graph.add_op(
            "op", queue=Batcher(BatchPolicy()), executor=self.worker, options=WorkOptions()
        )
        self.engine.add(graph)
        self.applications = Applications(self.engine)
        oip = OpenInferenceApplication(self.engine, Health())
        service = StoredInferApplication(
            self.engine, self.store, oip.decode_message, oip.infer_call, self.applications
        )
        self.router = Router(service.routes(), max_message_bytes=MOST)
        self.exchange = RecordedExchange(grpc_head(METHOD), ByteBudget(4 * MOST))

    async def ask(self, *, secret: bytes = SECRET, place: Place = PLACE, answer: str = "") -> None:
        """Send a request."""
        tensors = [OutTensor("x", "FP32", np.zeros(place.nbytes // 4, np.float32))]
        message = oip_message.encode_request_apart("7", "m", tensors, [])
        data = encode_request(secret, message, [place], answer, 1000)
        receiver = self.router.begin(self.exchange)
        assert receiver is not None
        receiver.data(self.exchange, struct.pack(">BI", 0, len(data)) + data, True)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not done():
                await asyncio.sleep(0.001)
                self.clock.run()

    async def runs(self) -> None:
        await self.until(lambda: bool(self.worker.running))

    async def answer(self) -> StoredResponse:
        await self.until(lambda: self.exchange.ended)
        return decode_response(self.exchange.body[5:])

    def finish(self, outcome: Outcome | None = None) -> None:
        self.worker.finish(0, None if outcome is None else [outcome])
        self.clock.run()

    @property
    def status(self) -> int:
        return int(self.exchange.fields()[b"grpc-status"])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    found.store.threads.shutdown()


async def test_a_value_is_fetched_and_the_output_stored(site: Site) -> None:
    await site.ask(answer="answer")
    await site.runs()
    (sample,) = site.worker.batches()[0].samples
    (feed,) = sample.inputs.values()
    assert (feed["x"] == VALUE).all()
    site.finish()
    found = await site.answer()
    assert found.raws == [Place("answer", 0, VALUE.nbytes)]
    assert oip_message.decode_response_apart(found.message) == [("x", "FP32", (1000,))]
    assert site.kept.kept["answer"] == {"0.0": VALUE.tobytes()}
    assert site.kept.seconds["answer"] > 30.0


async def test_without_a_key_outputs_are_in_the_answer(site: Site) -> None:
    await site.ask()
    await site.runs()
    site.finish()
    found = await site.answer()
    assert [bytes(each) for each in found.raws] == [VALUE.tobytes()]
    assert [*site.kept.kept] == ["key"]


async def test_another_secret_is_refused_before_the_store_is_asked(site: Site) -> None:
    site.kept.calls.clear()
    await site.ask(secret=b"another secret of")
    assert "shared_secret" in (await site.answer()).refusal
    assert site.kept.calls == []
    assert site.engine.statistics().admitted == 0


async def test_the_mark_of_a_large_message_is_not_computed_on_the_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    is_marked = site.store.is_marked

    def noted(request: Any) -> bool:
        threads.append(threading.get_ident())
        return is_marked(request)

    monkeypatch.setattr(site.store, "is_marked", noted)
    data = encode_request(b"another secret of", bytes(MOST // 2), [], "", 1000)
    receiver = site.router.begin(site.exchange)
    assert receiver is not None
    receiver.data(site.exchange, struct.pack(">BI", 0, len(data)) + data, True)
    assert "shared_secret" in (await site.answer()).refusal
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_store_that_fails_is_a_refusal(site: Site) -> None:
    site.kept.fails = StoreFailed("cannot be reached")
    await site.ask()
    assert (await site.answer()).refusal == "its external store cannot be reached"
    assert site.engine.statistics().admitted == 0


async def test_stored_values_count_like_those_of_a_message(site: Site) -> None:
    site.kept.calls.clear()
    await site.ask(place=PLACE._replace(nbytes=MOST + 4))
    await site.until(lambda: site.exchange.ended)
    assert site.status == GrpcCode.RESOURCE_EXHAUSTED
    assert site.kept.calls == []


async def test_a_caller_needs_what_it_needs_for_the_usual_method(site: Site) -> None:
    asked = []

    def readmit(route: Any, exchange: Any) -> None:
        asked.append(route.path)
        raise PermissionDenied("no")

    site.applications.readmit = readmit
    site.kept.calls.clear()
    await site.ask()
    assert asked == [f"/{INFERENCE}/ModelInfer"]
    assert site.status == GrpcCode.PERMISSION_DENIED
    assert site.kept.calls == []


@pytest.mark.parametrize("error", [HttpError(501, "later"), HttpError(403, "no")])
async def test_an_error_of_an_op_does_not_look_like_a_refusal(
    site: Site, error: RequestError
) -> None:
    await site.ask()
    await site.runs()
    site.finish(Outcome(None, error))
    await site.until(lambda: site.exchange.ended)
    assert site.status == GrpcCode.INTERNAL


async def test_what_is_stored_for_a_caller_that_has_gone_is_deleted(site: Site) -> None:
    entered, gate = threading.Event(), threading.Event()
    put = site.kept.put

    def slow(*arguments: Any) -> None:
        entered.set()
        gate.wait(30)
        put(*arguments)

    site.kept.put = slow  # type: ignore[method-assign]
    await site.ask(answer="answer")
    await site.runs()
    site.finish()
    await site.until(entered.is_set)
    on_gone = site.exchange.on_gone
    assert on_gone is not None
    site.exchange.over = True
    on_gone()
    gate.set()
    await site.until(lambda: "delete" in site.kept.calls)
    assert [*site.kept.kept] == ["key"]


class Kept:
    """A store that notes whether it is asked to keep something."""

    asked = False

    def keep(self, key: str, values: Any, *_: object) -> Any:
        self.asked = True
        return values


@pytest.mark.parametrize(
    ("value", "least", "stored"),
    [
        (np.zeros(2000), 1 << 20, False),
        (np.zeros(2000), 1 << 13, True),
        ([1.0] * 2000, 1 << 13, True),
        ([np.zeros(1 << 17)], 1 << 20, True),
        (1.0, 1 << 10, False),
        (1.0, 1, True),
        (["a" * 2000], 1 << 10, False),
        ("a" * 2000, 1 << 10, False),
    ],
    ids=["small", "large", "list", "list of arrays", "number", "any size", "texts", "text"],
)
def test_an_answer_that_may_go_to_the_store_is_never_encoded_on_the_loop(
    value: object, least: int, stored: bool
) -> None:
    call = StoredInfer.__new__(StoredInfer)
    store = Kept()
    call.key, call.least, call.store = "k", least, cast("ServerStore", store)
    call.graph = cast(
        "ServedGraph", SimpleNamespace(streams=False, signature=None, name="m", version="1")
    )
    call.request, call.typed, call.deadline = InferRequest(), None, 1.0
    is_large = call.is_large({"y": value})
    call.encode({"y": value})
    assert store.asked == stored
    assert is_large >= store.asked
