"""Graphs are replaced on a real loop under load: each request is answered exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from penstock import Op
from penstock.engine.graph import GraphState, ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import ServiceClosed
from penstock.request import Outcome
from penstock.service.blueprint import Blueprint, deploy
from penstock.service.build import LoadedDeployment, LoadedGraph
from tests.service.in_process import blueprint_of, root


class Versioned(Op):
    def __init__(self, version: int) -> None:
        super().__init__(name="work", input_ops=[root()], concurrency=2, batch_size=4)
        self.version = version

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        return feed_batch[0]

    def postprocess(self, input_dicts: Any, fetch: Any, data_id: int, log_id: int) -> Any:
        return {"version": self.version}, None, ""


def version(number: int, name: str = "a") -> Blueprint:
    return replace(blueprint_of(Versioned(number), name=name), version=str(number))


async def test_every_request_is_answered_once_while_versions_are_replaced_under_load() -> None:
    loop = asyncio.get_running_loop()
    loaded = LoadedDeployment(deploy([version(0), version(7, "b")]))
    engine = loaded.engine(loop)
    answers: list[list[Outcome]] = []
    retired: asyncio.Queue[ServedGraph] = asyncio.Queue()

    def submit(name: str) -> None:
        graph = engine.graph(name)
        assert graph is not None
        outcomes: list[Outcome] = []
        answers.append(outcomes)
        Submission(graph, {"x": "1"}).start(lambda _, outcome: outcomes.append(outcome))

    async def load(until: asyncio.Event) -> None:
        while not until.is_set():
            for _ in range(8):
                submit("a")
            submit("b")
            await asyncio.sleep(0)

    stop_load = asyncio.Event()
    sending = asyncio.create_task(load(stop_load))
    for number in range(1, 6):
        await asyncio.sleep(0.01)
        new = LoadedGraph(version(number), loaded.deployment, lambda *_: nullcontext()).build(
            engine, loop
        )
        await new.start()
        (old,) = engine.replace(new, retired.put_nowait)
        async with asyncio.timeout(10):
            assert await retired.get() is old
        engine.remove(old)
        assert await old.close(5.0)
        assert old.state is GraphState.REMOVED
    stop_load.set()
    await sending
    async with asyncio.timeout(10):
        while engine.statistics().inside + engine.statistics().waiting:
            await asyncio.sleep(0.001)
    assert {len(outcomes) for outcomes in answers} == {1}
    versions = Counter(
        (outcome.value or {}).get("version") for (outcome,) in answers if outcome.error is None
    )
    assert set(versions) == {0, 1, 2, 3, 4, 5, 7}
    codes = {outcome.error.code for (outcome,) in answers if outcome.error is not None}
    assert codes <= {"busy"}
    assert [graph.name for graph in engine.graphs] == ["b", "a"]
    decoded = Submission(engine.graphs[0], {})
    engine.drain_graph(engine.graphs[0], lambda: None)
    refused: list[Outcome] = []
    decoded.start(lambda _, outcome: refused.append(outcome))
    assert isinstance(refused[0].error, ServiceClosed)
    for graph in engine.graphs:
        assert await graph.close(5.0)
