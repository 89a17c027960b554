"""A worker elsewhere and the external store: what goes there, and what a worker may not name."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from penstock.errors import ServiceClosed, ValueLost, WorkerDied
from penstock.executors.elsewhere.opening import Opening
from penstock.executors.external_store.engine import EngineStore
from penstock.executors.external_store.worker import WorkerStore
from penstock.executors.transport.frames import Kind, header
from penstock.executors.transport.values import Stored, encode
from penstock.executors.work import BoundOp
from penstock.executors.workers.child import Child
from penstock.request import REQUEST_OP_NAME, Batch, CloseReason, Outcome, Sample
from tests.executors.elsewhere.workers import Hosts, serve
from tests.executors.external_store.fake import OPTIONS, FakeStore
from tests.executors.external_store.test_engine import Request
from tests.executors.harness import EngineHarness, ExecutorHarness

pytestmark = pytest.mark.real


class Site:
    """One op with a store in memory, and requests for it."""

    def __init__(self, body: Any = None) -> None:
        self.store = FakeStore()
        self.hosts = Hosts(body or self._serve)

    def _serve(self, child: Child, bound: BoundOp, opening: Opening) -> None:
        child.use_store(WorkerStore(OPTIONS, "op", self.store.opened))
        serve(child, bound, opening)

    async def start(self) -> ExecutorHarness:
        executor = self.hosts.executor()
        executor._store = EngineStore(OPTIONS, "op", self.store.opened)
        await executor.start()
        return ExecutorHarness(executor)


def batch_of(*requests: Request, x: Any = 1, **feed: Any) -> Batch:
    feeds = [{REQUEST_OP_NAME: {"n": n, "x": x, **feed}} for n, _ in enumerate(requests)]
    samples = [
        Sample(n, each, 1e9, flight=request)
        for n, (each, request) in enumerate(zip(feeds, requests, strict=True))
    ]
    return Batch(samples, CloseReason.FULL, 0.0)


async def test_a_large_output_is_stored_fetched_and_deleted_at_the_end_of_its_request() -> None:
    site, request = Site(), Request(0)
    harness = await site.start()
    ((_, (first,)),) = await harness.run(batch_of(request, x=np.ones(500)))
    assert first.value is not None
    stored = first.value["x"]
    assert type(stored) is Stored
    assert [*site.store.kept] == [stored.key]
    ((_, (second,)),) = await harness.run(batch_of(Request(), x=stored))
    assert second.value is not None
    np.testing.assert_array_equal(second.value["x"], np.full(500, 4.0))
    (ending,) = request.endings
    ending()
    assert await harness.executor.close(5.0)
    assert site.store.kept == {}


async def test_a_value_that_is_gone_costs_its_own_request() -> None:
    site, first = Site(), Request(0)
    harness = await site.start()
    ((_, (outcome,)),) = await harness.run(batch_of(first, x=np.ones(500)))
    assert outcome.value is not None
    site.store.kept.clear()
    batch = batch_of(Request(), Request())
    batch.samples[0].inputs = {REQUEST_OP_NAME: {"n": 0, "x": outcome.value["x"]}}
    ((_, (lost, fine)),) = await harness.run(batch)
    assert type(lost.error) is ValueLost
    assert fine.value == {"n": 1, "x": 2}
    ((_, (alone,)),) = await harness.run(batch_of(Request(), x=outcome.value["x"]))
    assert type(alone.error) is ValueLost
    assert await harness.executor.close(5.0)


async def test_the_keys_of_a_worker_that_dies_are_deleted() -> None:
    site, request = Site(), Request(0)
    harness = await site.start()
    ((_, (outcome,)),) = await harness.run(batch_of(request, do="die"))
    assert type(outcome.error) is WorkerDied
    assert len(request.endings) == 1
    assert await harness.executor.close(5.0)


async def test_what_was_stored_of_an_output_that_cannot_be_sent_is_deleted() -> None:
    site, request = Site(), Request(0)
    harness = await site.start()
    ((_, (outcome,)),) = await harness.run(batch_of(request, do="odd", x=np.ones(500)))
    assert outcome.error is not None
    assert len(site.store.kept) == 1
    (ending,) = request.endings
    ending()
    assert await harness.executor.close(5.0)
    assert site.store.kept == {}


@pytest.mark.parametrize("size", [100, 500])
async def test_a_worker_does_not_hold_the_samples_of_a_batch_that_has_ended(size: int) -> None:
    site = Site()
    harness = await site.start()
    ((_, (outcome,)),) = await harness.run(batch_of(Request(0), x=np.ones(size)))
    assert outcome.error is None
    assert len(site.store.kept) == (size == 500)
    (worker,) = harness.executor._alive  # type: ignore[attr-defined]
    assert worker._issued == {}
    assert await harness.executor.close(5.0)


async def test_a_value_that_is_stored_while_the_service_ends_is_deleted() -> None:
    site = Site()
    executor = site.hosts.executor()
    executor._store = EngineStore(OPTIONS, "op", site.store.opened)
    harness = EngineHarness("elsewhere", None, executor=executor)
    harness.graph.kept_away = frozenset({0})
    await harness.graph.start()
    asked = asyncio.ensure_future(harness.request(do="wait", x=np.ones(500)))
    await asyncio.to_thread(site.hosts.entered.wait, 30.0)
    harness.engine.close()
    assert type((await asked).error) is ServiceClosed
    closing = asyncio.ensure_future(executor.close(30.0))
    site.hosts.gate.set()
    assert await closing
    assert "put" in site.store.calls
    assert site.store.kept == {}


async def test_a_worker_cannot_name_a_key_that_it_was_not_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def answer(child: Child, bound: BoundOp, opening: Opening) -> None:
        child.ready({"model": None})
        child._link.recv(1 << 16)
        other = Stored("penstock:svc:0:op:other", 0, b"", 5000)
        pieces = encode([0.0, 0.1, 0.0, 0.0, {"x": other}, None, False])
        child._link.sendall(b"".join([header(Kind.DONE, 1, sum(map(len, pieces))), *pieces]))
        child._link.recv(1 << 16)

    site = Site(answer)
    harness = await site.start()
    results: list[tuple[Batch, list[Outcome]]] = await harness.run(batch_of(Request(0)))
    assert results[0][1][0].error is not None
    assert "names a value that it was not asked to store" in caplog.text
    assert site.hosts.started[0].was_killed
    assert await harness.executor.close(5.0)
