"""Versions of a graph in one engine: made ready aside, swapped in, or left out without a trace."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from penstock import Op
from penstock.api.health import Health
from penstock.api.router import Router
from penstock.engine.graph import GraphState
from penstock.engine.submission import Submission
from penstock.errors import ServiceClosed, StartupError
from penstock.observe.metrics import exposition
from penstock.observe.reports import total
from penstock.protocols.heads import HTTP_1_1, RequestHead
from penstock.repository.lifecycle import State
from penstock.repository.next_state import gone_back
from penstock.repository.rollout import Limits, Plan, Step
from penstock.repository.served import Served, at_start
from penstock.request import Outcome
from penstock.service.blueprint import Blueprint, Deployment, deploy
from penstock.service.build import LoadedDeployment
from penstock.service.serving import Serving
from penstock.supervisor.messages import Abort
from penstock.tensor import Signature
from tests.api.recorded_exchange import RecordedExchange
from tests.observe.test_metrics import samples
from tests.service.in_process import blueprint_of, root

GATE = threading.Event()
OPENING = threading.Event()  # "slow" has begun to start


class Work(Op):
    """Answers with its version. The start of "slow" waits for the gate, as the calls of "held";
    "broken" cannot start."""

    def __init__(self, version: str) -> None:
        super().__init__(name="work", input_ops=[root()], concurrency=2)
        self.version = version

    def init_op(self) -> None:
        if self.version == "broken":
            raise ValueError("no such file")
        if self.version == "flaky" and not GATE.is_set():
            raise ValueError("no such file yet")
        if self.version == "slow":
            OPENING.set()
            GATE.wait(30)

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        if self.version == "held":
            GATE.wait(30)
        return feed_batch[0]

    def postprocess(self, input_dicts: Any, fetch: Any, data_id: int, log_id: int) -> Any:
        return {"version": np.array([self.version], object)}, None, ""


def made(description: Mapping[str, Any]) -> Blueprint:
    config = {"op": {"work": {"executor": description.get("executor", "thread")}}}
    return work(description["version"], config, description["name"])


def work(version: str, config: Mapping[str, Any], name: str = "a") -> Blueprint:
    size = 2 if version == "other" else 1
    signature = Signature(inputs={"x": ("FP32", [size])}, outputs={"version": ("BYTES", [1])})
    return replace(blueprint_of(Work(version), config, name=name), signature=signature)


@asynccontextmanager
async def serving(deployment: Deployment | None = None, **config: Any) -> AsyncIterator[Serving]:
    """An engine that serves version 1 of graph ``a``, or a deployment."""
    GATE.clear()
    OPENING.clear()
    health = Health()
    loaded = LoadedDeployment(deployment or deploy([work("1", config)], made))
    service = Serving(loaded, health)
    await service.start()
    await service.warm_up()
    health.set_ready()
    try:
        yield service
    finally:
        GATE.set()
        service.engine.close()
        await service.versions.close()
        for graph in service.engine.all_graphs:
            assert await graph.close(5.0)
        await service.close()


async def version_of_an_answer(service: Serving, asked: str | None = None, name: str = "a") -> Any:
    answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    graph = service.engine.choose(name, asked)
    assert graph is not None
    submission = Submission(graph, {"x": np.ones(1, "f4")}, context=answer)
    submission.start(lambda submission, outcome: submission.context.set_result(outcome))
    return ((await answer).value or {})["version"][0]


def about(version: str, **more: Any) -> dict[str, Any]:
    return {"name": "a", "version": version, **more}


def swap(service: Serving, version: str, **more: Any) -> Any:
    return service.versions.swap(about(version, **more))


def known(state: Served | None) -> Served:
    assert state is not None
    return state


async def test_a_version_is_swapped_in_and_the_old_one_ends() -> None:
    async with serving() as service:
        assert await version_of_an_answer(service) == "1"
        await swap(service, "2")
        assert await version_of_an_answer(service) == "2"
        while len(service.engine.graphs) > 1:
            await asyncio.sleep(0)
        (report,) = await service.engines.reports()
        (graph,) = report["graphs"]
        assert (graph["version"], graph["state"]) == ("2", "serving")
        assert [(each["name"], each["op"]) for each in graph["ops"]] == [("work@2", "work")]


async def test_one_version_at_a_time_is_made_ready_while_the_old_one_answers() -> None:
    async with serving() as service:
        slow = asyncio.create_task(swap(service, "slow"))
        await asyncio.sleep(0)
        second = asyncio.create_task(swap(service, "2"))
        assert await version_of_an_answer(service) == "1"
        assert not second.done()
        GATE.set()
        await slow
        assert await version_of_an_answer(service) == "slow"
        await second
        assert await version_of_an_answer(service) == "2"


async def test_several_versions_serve_and_requests_choose_by_version_label_or_weight() -> None:
    async with serving() as service:
        versions = service.versions
        await versions.change("a", lambda state: known(state).with_version(about("2")))
        assert [await version_of_an_answer(service, each) for each in (None, "1", "2")] == [
            "1",
            "1",
            "2",
        ]
        await versions.change("a", lambda state: known(state).with_label("canary", "2"))
        assert await version_of_an_answer(service, "canary") == "2"
        await versions.change("a", lambda state: known(state).with_weights({"1": 1, "2": 1}))
        assert {await version_of_an_answer(service) for _ in range(60)} == {"1", "2"}
        await versions.change(
            "a", lambda state: known(state).with_weights({}).with_default("2"), ended=True
        )
        assert await version_of_an_answer(service) == "2"
        await versions.change("a", lambda state: known(state).without_version("1"), ended=True)
        assert [each.key for each in service.engine.all_graphs] == [("a", "2")]
        assert service.versions.names() == ["a"]
        assert known(versions.served("a")).labels == {"canary": "2"}


async def test_a_change_that_makes_no_sense_changes_nothing() -> None:
    async with serving() as service:
        before = service.versions.served("a")
        for update, why in (
            (lambda state: state.with_label("canary", "2"), "a has no version '2'"),
            (lambda state: Served(name="b"), "a state of 'a' was wanted, and one of 'b' made"),
            (lambda state: state.with_version(at_start("a", "2")), "did not start with version 2"),
        ):
            with pytest.raises(StartupError, match=why):
                await service.versions.change("a", update)
        with pytest.raises(StartupError, match="there is no graph 'b'"):
            await service.versions.swap({"name": "b", "version": "1"})
        assert service.versions.served("a") is before


async def test_changes_of_one_name_at_the_same_time_lose_nothing() -> None:
    async with serving() as service:

        def add(version: str) -> Any:
            return service.versions.change(
                "a", lambda state: known(state).with_version(about(version))
            )

        await asyncio.gather(*map(add, ("2", "3", "4", "4")))
        assert {*known(service.versions.served("a")).versions} == {"1", "2", "3", "4"}
        assert await version_of_an_answer(service, "3") == "3"


async def test_a_version_comes_again_with_another_description_without_a_gap() -> None:
    async with serving() as service:
        await swap(service, "2", path="old")
        first = service.engine.choose("a")
        await service.versions.change(
            "a", lambda state: known(state).with_version(about("2", path="new"), again=True)
        )
        assert service.engine.choose("a", "2") is service.engine.choose("a") is not first
        assert await version_of_an_answer(service) == "2"
        while len(service.engine.graphs) > 1:
            await asyncio.sleep(0)
        (report,) = await service.engines.reports()
        assert [each["version"] for each in report["graphs"]] == ["2"]


async def test_a_name_loses_all_its_versions_and_gets_one_again() -> None:
    async with serving() as service:
        await service.versions.change(
            "a", lambda state: known(state).without_versions(), ended=True
        )
        assert service.engine.choose("a") is None
        assert service.engine.all_graphs == []
        assert service.engine.why_stuck() is None
        await swap(service, "2")
        assert await version_of_an_answer(service) == "2"


async def test_a_version_with_another_signature_is_refused_unless_its_description_allows_it() -> (
    None
):
    async with serving() as service:
        why = r"another signature than version 1: input 'x' is float32 \[2\], and was float32 \[1\]"
        with pytest.raises(StartupError, match=why):
            await swap(service, "other")
        assert [each.key for each in service.engine.all_graphs] == [("a", "1")]
        await swap(service, "other", signature="any")
        assert await version_of_an_answer(service) == "other"


@pytest.mark.parametrize(
    ("version", "more", "why"),
    [
        ("broken", {}, "init_op failed: ValueError: no such file"),
        ("1", {}, "version 1 of a is there already"),
        ("2", {"executor": "process"}, "has ops in processes, and the service started without"),
        ("2", {"path": object()}, "a version's description is plain data"),
    ],
)
async def test_a_version_that_cannot_be_made_ready_leaves_no_trace(
    version: str, more: dict[str, Any], why: str
) -> None:
    async with serving() as service:
        with pytest.raises(StartupError, match=why):
            await swap(service, version, **more)
        assert [each.key for each in service.engine.all_graphs] == [("a", "1")]
        await swap(service, "2")
        assert await version_of_an_answer(service) == "2"


async def test_an_abort_may_cross_the_report_of_this_engine_that_it_cannot_either() -> None:
    async with serving() as service:
        with pytest.raises(StartupError, match="no such file"):
            await swap(service, "broken")
        service.versions.obey(Abort(1))
        assert [each.key for each in service.engine.all_graphs] == [("a", "1")]


async def test_a_version_that_takes_too_long_is_given_up() -> None:
    async with serving(start_timeout=0.05) as service:
        with pytest.raises(StartupError, match=r"version slow was not ready within 0.05 s"):
            await swap(service, "slow")
        assert await version_of_an_answer(service) == "1"


async def test_what_is_not_tried_again_is_known_to_all_engines_and_is_no_swap(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as service:
        before = service.versions.swaps.report()
        caplog.clear()
        await service.versions.change(
            "a", lambda state: replace(known(state), barred={"abc": "it is broken"})
        )
        assert known(service.versions.served("a")).barred == {"abc": "it is broken"}
        assert service.versions.swaps.report() == before
        assert caplog.records == []
        assert await version_of_an_answer(service) == "1"
        await swap(service, "2")
        assert known(service.versions.served("a")).barred == {"abc": "it is broken"}


# What an engine cannot open that starts later.


def of_repository(*states: Served) -> Deployment:
    """A deployment without graphs of its own, as of an engine that starts with these states."""
    return deploy([], made, base=work("1", {}, "base")).with_states(states)


async def test_an_engine_that_starts_serves_what_it_can_open_and_tries_the_rest_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.service.versions.AGAIN", (0.001, 0.001))
    state = Served(name="a").with_version(about("2")).with_version(about("flaky"), default=True)
    other = Served(name="b").with_version({"name": "b", "version": "7"})
    async with serving(of_repository(state.with_label("best", "flaky"), other)) as service:
        why = "version flaky of a cannot be opened: "
        assert await version_of_an_answer(service, name="b") == "7"
        assert await version_of_an_answer(service, "2") == "2"
        assert service.engine.choose("a") is None
        assert service.engine.choose("a", "best") is None
        error = service.engine.no_graph("a", "")
        assert isinstance(error, ServiceClosed)
        assert "no such file yet; try again later" in str(error)
        assert why in str(service.engine.why_stuck())
        told = [each for each in caplog.records if "cannot be opened again" in each.getMessage()]
        GATE.set()
        while service.engine.choose("a") is None:
            await asyncio.sleep(0)
        assert service.engine.why_stuck() is None
        assert await version_of_an_answer(service) == "flaky"
        assert await version_of_an_answer(service, "best") == "flaky"
        assert len(told) == 1


async def test_another_version_takes_the_place_of_one_that_cannot_be_opened() -> None:
    state = Served(name="a").with_version(about("flaky"))
    async with serving(of_repository(state)) as service:
        assert "flaky" in str(service.engine.why_stuck())
        await swap(service, "3")
        assert service.engine.why_stuck() is None
        assert await version_of_an_answer(service) == "3"


# Without room for two.


async def test_an_old_version_that_cannot_be_opened_again_is_tried_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.service.versions.AGAIN", (0.001, 0.001))
    async with serving(swap="resource") as service:
        GATE.set()
        await swap(service, "flaky")
        GATE.clear()
        with pytest.raises(StartupError, match=r"cannot be served any more, either.*no such file"):
            await swap(service, "broken")
        assert service.engine.choose("a") is None
        assert "version flaky of a cannot be opened" in str(service.engine.why_stuck())
        GATE.set()
        while service.engine.choose("a") is None:
            await asyncio.sleep(0)
        assert await version_of_an_answer(service) == "flaky"
        assert service.engine.why_stuck() is None


async def test_the_old_version_ends_before_the_new_one_is_opened_and_requests_wait() -> None:
    async with serving(swap="resource") as service:
        old = service.engine.choose("a")
        assert old is not None
        change = asyncio.create_task(swap(service, "slow"))  # waits for the gate as it is opened
        while not OPENING.is_set():
            await asyncio.sleep(0)
        waiting = asyncio.create_task(version_of_an_answer(service))
        while not old.waiting:
            await asyncio.sleep(0)
        assert [each for each in threading.enumerate() if each.name.startswith("work|")] == []
        assert service.versions.gaps == {("a", "1"): State.REMOVED}
        GATE.set()
        await change
        assert service.versions.gaps == {}
        assert await waiting == "slow"
        assert [each.key for each in service.engine.all_graphs] == [("a", "slow")]


@pytest.mark.parametrize("version", ["broken", "other"])
async def test_the_old_version_is_opened_again_if_the_new_one_cannot_be(version: str) -> None:
    async with serving(swap="resource") as service:
        first = service.engine.choose("a")
        change = asyncio.create_task(swap(service, version))
        while first is not None and first.state is GraphState.SERVING:
            await asyncio.sleep(0)
        assert service.versions.gaps == {("a", "1"): State.DRAINING}
        waiting = asyncio.create_task(version_of_an_answer(service))
        with pytest.raises(StartupError, match="the version before serves again"):
            await change
        assert service.versions.gaps == {}
        assert await waiting == "1"
        (graph,) = service.engine.all_graphs
        assert graph.key == ("a", "1")
        assert graph is not first
        await swap(service, "2")
        assert await version_of_an_answer(service) == "2"


async def test_a_version_that_replaces_none_ends_none() -> None:
    async with serving(swap="resource") as service:
        first = service.engine.choose("a")
        await service.versions.change("a", lambda state: known(state).with_version(about("2")))
        assert service.engine.choose("a", "1") is first
        await service.versions.change("a", lambda state: known(state).with_default("2"))
        await service.versions.change("a", lambda state: known(state).without_version("1"))
        assert await version_of_an_answer(service) == "2"


async def test_a_description_may_say_how_it_is_swapped() -> None:
    async with serving() as service:
        with pytest.raises(StartupError, match="the version before serves again"):
            await swap(service, "broken", swap="resource")
    async with serving(swap="resource") as service:
        with pytest.raises(StartupError) as raised:
            await swap(service, "broken", swap="availability")
        assert "again" not in str(raised.value)


async def test_a_version_without_room_for_two_is_not_rolled_out() -> None:
    plan = Plan(steps=(Step(share=5, hold=1.0),), limits=Limits())

    def rolled_out(state: Served | None) -> Served:
        return known(state).with_rollout(about("2"), plan, 1)

    async with serving(swap="resource") as service:
        with pytest.raises(StartupError, match="it cannot be rolled out"):
            await service.versions.change("a", rolled_out)
        assert await version_of_an_answer(service) == "1"


def inputs(size: int) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [size], "data": [1] * size}
    return orjson.dumps({"inputs": [tensor]})


INFER = inputs(1)


def sent(router: Router, path: str, body: bytes | None = None) -> RecordedExchange:
    """A request to a router."""
    method = "GET" if body is None else "POST"
    head = RequestHead(
        method,
        path.encode(),
        ((b"content-type", b"application/json"),),
        version=HTTP_1_1,
        authority=b"a",
        content_length=len(body or b""),
    )
    exchange = RecordedExchange(head, whole=body or b"")
    router.begin(exchange)
    return exchange


async def answer(exchange: RecordedExchange) -> tuple[int, Any]:
    while not exchange.replies:
        await asyncio.sleep(0)
    return exchange.replies[0][0], orjson.loads(exchange.body)


async def test_callers_of_a_version_with_another_signature_before_and_after_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_go_on = asyncio.Event()

    async def slowly(threads: Any, decode: Any) -> Any:
        await may_go_on.wait()
        return decode()

    monkeypatch.setattr("penstock.api.decoding.run_aside", slowly)
    async with serving() as service:
        router = service.router()
        early = sent(router, "/v2/models/a/infer", INFER + b" " * 8192)  # decoded in a thread
        await asyncio.sleep(0)
        await swap(service, "other", signature="any")
        status, refused = await answer(sent(router, "/v2/models/a/infer", INFER))
        assert (status, "shape" in refused["error"]) == (400, True)
        status, after = await answer(sent(router, "/v2/models/a/infer", inputs(2)))
        assert (status, after["model_version"]) == (200, "other")
        may_go_on.set()
        status, before = await answer(early)
        assert (status, before["model_version"]) == (200, "1")
        while len(service.engine.graphs) > 1:
            await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["availability", "resource"])
async def test_what_served_serves_again_whatever_its_signature(kind: str) -> None:
    before = about("2")
    async with serving(swap=kind) as service:
        await swap(service, "2")
        await swap(service, "other", signature="any")
        with pytest.raises(StartupError, match="has another signature"):
            await swap(service, "3")
        await service.versions.change("a", lambda now: gone_back(before, "other", known(now)))
        assert await version_of_an_answer(service) == "2"
        assert [*known(service.versions.served("a")).versions] == ["2"]
        with pytest.raises(StartupError, match="has another signature"):
            await swap(service, "other")


async def test_an_engine_that_starts_serves_versions_of_several_signatures() -> None:
    state = Served(name="a").with_version(about("other", signature="any"))
    async with serving(of_repository(state.with_version(about("2")))) as service:
        for each in ("2", "other"):
            assert await version_of_an_answer(service, each) == each


async def test_versions_of_several_signatures_are_opened_again_if_a_new_one_cannot_be() -> None:
    def both_replaced(now: Served | None) -> Served:
        return Served(name="a").with_version(about("broken", swap="resource"))

    async with serving() as service:
        await service.versions.change("a", lambda now: known(now).with_version(about("2")))
        other = about("other", signature="any")
        await service.versions.change("a", lambda now: known(now).with_version(other, default=True))
        with pytest.raises(StartupError, match="the version before serves again"):
            await service.versions.change("a", both_replaced)
        for each in ("1", "2", "other"):
            assert await version_of_an_answer(service, each) == each


async def test_what_describes_a_model_has_the_signature_of_the_version_that_serves() -> None:
    async def described() -> tuple[Any, ...]:
        _, metadata = await answer(sent(router, "/v2/models/a"))
        _, document = await answer(sent(router, "/openapi.json"))
        bodies = [
            document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            for path in ("/v2/models/a/infer", "/a")
        ]
        return metadata["inputs"][0]["shape"], *map(str, bodies)

    async with serving() as service:
        router = service.router()
        before = await described()
        await swap(service, "other", signature="any")
        after = await described()
        assert (before[0], after[0]) == ([1], [2])
        assert before[1] != after[1]
        assert before[2] != after[2]


async def test_a_caller_that_names_a_version_gets_that_version_or_a_refusal() -> None:
    def send(path: str, body: bytes | None = None) -> RecordedExchange:
        return sent(router, f"/v2/models/a{path}", body)

    async with serving() as service:
        router = service.router()
        await swap(service, "held")
        running = send("/versions/held/infer", INFER)
        await swap(service, "3")
        assert (await answer(send("/infer", INFER)))[1]["model_version"] == "3"
        status, refused = await answer(send("/versions/held/infer", INFER))
        assert (status, refused["error"]) == (
            503,
            "graph a (version held) serves no more requests",
        )
        assert (await answer(send("/versions/held/ready")))[1] == {"name": "a", "ready": False}
        assert (await answer(send("/versions/3/ready")))[1] == {"name": "a", "ready": True}
        assert (await answer(send("")))[1]["versions"] == ["3"]
        GATE.set()
        assert (await answer(running))[1]["model_version"] == "held"
        assert (await answer(send("/versions/4/infer", INFER)))[0] == 404


async def test_swaps_have_the_times_of_their_steps_and_failures_the_reason() -> None:
    async with serving() as service:
        await swap(service, "2")
        with pytest.raises(StartupError, match="no such file"):
            await swap(service, "broken")
        while len(service.engine.graphs) > 1:
            await asyncio.sleep(0)
        await service.versions.change("a", lambda now: known(now).with_label("stable", "2"))
        await asyncio.sleep(0)
        report = service.reporter()
        done, failed, labelled = report["swaps"]
        assert (done["state"], done["versions"], done["ends"]) == ("done", ["2"], ["1"])
        assert [*done["steps"]] == [
            "opened", "probed", "started", "warmed up", "swapped", "drained", "ended",
        ]  # fmt: skip
        assert [*done["steps"].values()] == sorted(done["steps"].values())
        assert done["serves"] == "version 2 is the default of 2"
        assert (failed["state"], failed["versions"]) == ("failed", ["broken"])
        assert "no such file" in failed["why"]
        assert (labelled["state"], labelled["versions"], labelled["ends"]) == ("done", [], [])
        assert labelled["serves"].endswith("labels stable=2")
        assert report["loads"] == [{"name": "a", "outcomes": {"served": 1, "start": 1}}]
        (graph,) = report["graphs"]
        assert (graph["share"], graph["labels"]) == (1.0, ["stable"])


async def test_versions_have_their_shares_of_the_requests() -> None:
    async with serving() as service:
        await service.versions.change("a", lambda now: known(now).with_version(about("2")))
        await service.versions.change("a", lambda now: known(now).with_weights({"1": 3, "2": 1}))
        shares = {each["version"]: each["share"] for each in service.reporter()["graphs"]}
        assert shares == {"1": 0.75, "2": 0.25}


async def test_metrics_of_versions_that_are_gone_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # two hundred times are a minute
    async with serving() as service:

        async def change(version: str) -> None:
            await swap(service, version)
            assert await version_of_an_answer(service) == version
            while len(service.engine.graphs) > 1:
                await asyncio.sleep(0)

        async def scrape() -> dict[tuple[str, tuple[str, ...]], float]:
            return samples(exposition(total(await service.engines.reports()))[1])

        await change("v0")
        first = {*await scrape()}
        for number in range(1, 200):
            await change(f"v{number}")
        last = await scrape()
        renamed = {
            (name, tuple("v0" if x == "v199" else x for x in labels)) for name, labels in last
        }
        assert renamed == first
        assert last["penstock_version_loads_total", ("ok", "a")] == 200
        assert last["penstock_version_share", ("a", "v199")] == 1
