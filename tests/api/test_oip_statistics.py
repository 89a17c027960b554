"""The statistics of the Open Inference Protocol: of each version, of all engines, bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import orjson
import pytest

from penstock.api.health import Health
from penstock.api.oip import OpenInferenceApplication
from penstock.api.oip_statistics import ModelStatistics, summed
from penstock.api.router import Router
from penstock.batching.batcher import Batcher, BatchPolicy
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import InferenceFailed, RequestError
from penstock.executors.work import WorkOptions
from penstock.request import Outcome
from penstock.tensor import Signature
from penstock.testing import FakeExecutor, ManualClock
from tests.api.recorded_exchange import RecordedExchange, post
from tests.graph.test_dag import plan_of

SIGNATURE = Signature(inputs={"x": ("INT64", [-1])}, outputs={"y": ("INT64", [-1])})


class Site:
    """An engine with versions of model ``m``, which counts."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = Engine(self.clock)
        self.statistics = ModelStatistics(self.engine, clock=lambda: 1000.0)
        self.engine.instruments.install(self.statistics)
        self.workers: dict[str, FakeExecutor] = {}

    def add(
        self,
        version: str,
        *,
        default: bool = False,
        signature: Signature = SIGNATURE,
        batch: int = 1,
    ) -> ServedGraph:
        graph = ServedGraph(
            self.engine, plan_of({"op": ["@"]}, "op"), "m", version, declared=lambda: signature
        )
        worker = self.workers[version] = FakeExecutor(100)
        name, queue = f"m/op@{version}", Batcher(BatchPolicy(max_rows=batch))
        graph.add_op(name, queue=queue, executor=worker, options=WorkOptions())
        self.engine.add(graph, default=default)
        return graph

    def run(self, graph: ServedGraph) -> None:
        Submission(graph, {"x": 1}).start(lambda submission, outcome: None)
        self.clock.advance(0.0)
        self.workers[graph.version].finish()


def test_versions_that_are_gone_are_not_remembered() -> None:
    site = Site()
    old = site.add("0")
    for number in range(1, 200):
        new = site.add(str(number), default=True)
        for graph in (old, new):
            site.run(graph)
        site.engine.drain_graph(old, lambda: None)
        site.engine.remove(old)
        old = new
    assert site.statistics.of(old)["inference_count"] == 1
    assert len(site.statistics._totals) == len(site.statistics._graphs) == 2


def ran(signature: Signature, shapes: list[list[int]], error: RequestError | None = None) -> Any:
    """The statistics of a model after one batch of requests with these shapes."""
    site = Site()
    graph = site.add("1", signature=signature, batch=8)
    for shape in shapes:
        Submission(graph, {"x": np.zeros(shape, "i8")}).start(lambda submission, outcome: None)
    site.clock.advance(0.0)
    worker = site.workers["1"]
    if error is None:
        worker.finish()
    else:
        worker.finish(0, [Outcome(None, error)] * len(shapes))
    found = site.statistics.of(graph)
    sizes = {x["batch_size"]: x["compute_infer"]["count"] for x in found["batch_stats"]}
    success, fail = (found["inference_stats"][x]["count"] for x in ("success", "fail"))
    return (found["inference_count"], found["execution_count"], sizes, success, fail)


def signature_of(*shapes: list[int]) -> Signature:
    """Of one input and one output with these shapes."""
    given, taken = shapes
    return Signature(inputs={"x": ("INT64", given)}, outputs={"y": ("INT64", taken)})


def test_inferences_are_rows_and_executions_batches() -> None:
    batched = signature_of([-1, 3], [-1])
    assert ran(batched, [[5, 3]]) == (5, 1, {5: 1}, 1, 0)
    assert ran(batched, [[5, 3], [1, 3]]) == (6, 1, {6: 1}, 2, 0)


@pytest.mark.parametrize("shapes", [([4, 3], [-1]), ([-1, 3], [1]), ([-1, 3], [])])
def test_inferences_of_a_model_without_a_batch_axis_are_requests(
    shapes: tuple[list[int], list[int]],
) -> None:
    assert ran(signature_of(*shapes), [[4, 3]]) == (1, 1, {1: 1}, 1, 0)


def test_what_has_failed_is_no_inference_and_no_execution() -> None:
    error = InferenceFailed("it has failed")
    assert ran(signature_of([-1, 3], [-1]), [[5, 3]], error) == (0, 0, {}, 0, 1)


def row(version: str = "1", count: int = 1, **sizes: int) -> dict[str, Any]:
    duration = {"count": count, "ns": 10 * count}
    return {
        "name": "m", "version": version, "last_inference": 100 * count, "inference_count": count,
        "inference_stats": {"success": duration},
        "batch_stats": [
            {"batch_size": int(size[1:]), "compute_infer": {"count": x, "ns": x}}
            for size, x in sizes.items()
        ],
    }  # fmt: skip


def test_the_statistics_of_engines_are_added() -> None:
    first, second = summed([[row(_8=1), row("2")], [row(count=3, _1=5, _8=2)], []])
    assert first == row(count=3, _1=5, _8=3) | {
        "inference_count": 4,
        "inference_stats": {"success": {"count": 4, "ns": 40}},
    }
    assert second == row("2")


@pytest.mark.parametrize(
    ("path", "versions"),
    [
        ("/v2/models/stats", ["1", "2"]),
        ("/v2/models/m/stats", ["1", "2"]),
        ("/v2/models/m/versions/2/stats", ["2"]),
        ("/v2/models/m/versions/canary/stats", ["2"]),
        ("/v2/models/m/versions/3/stats", None),
        ("/v2/models/n/stats", None),
    ],
)
def test_a_route_has_the_versions_that_its_path_names(
    path: str, versions: list[str] | None
) -> None:
    site = Site()
    graphs = {version: site.add(version) for version in "12"}
    site.engine.route("m", default=graphs["1"], labels={"canary": graphs["2"]})
    service = OpenInferenceApplication(site.engine, Health())
    router = Router(service.routes(), max_message_bytes=1 << 20)

    async def get() -> RecordedExchange:
        exchange = RecordedExchange(post(path, method="GET"))
        receiver = router.begin(exchange)
        if receiver is not None:
            receiver.data(exchange, b"", True)
        await asyncio.sleep(0)
        return exchange

    ((status, _, body, _),) = asyncio.run(get()).replies
    if versions is None:
        assert status == 404
    else:
        found = orjson.loads(body)["model_stats"]
        assert [each["version"] for each in found] == versions
