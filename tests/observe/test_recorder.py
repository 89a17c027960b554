"""Timelines: what a recorder keeps of requests, and that parts have no gaps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import NoneType, SimpleNamespace
from typing import Any

import pytest

from penstock import Done, Op, op
from penstock.caller import Caller
from penstock.errors import ServiceClosed
from penstock.observe.chrome import trace
from penstock.observe.counters import Counters
from penstock.observe.recorder import FAILED, KEPT, LISTED, SLOWEST, Recorder
from penstock.observe.request_log import facts_of
from penstock.observe.timeline import Timeline
from penstock.request import Batch, CloseReason, Sample
from tests.service.in_process import InProcessService, root, service_of


class First(Op):
    def preprocess(self, input_dicts: Any, data_id: int, log_id: int) -> Any:
        time.sleep(0.004)
        return super().preprocess(input_dicts, data_id, log_id)

    def process(self, feed_batch: Any, typical_logid: int) -> Any:
        time.sleep(0.01)
        if feed_batch[0]["x"] == "fail":
            raise ValueError("told to")
        return {"y": ["1"] * len(feed_batch)}


class Slow(First):
    """So slow that a hundredth of its time is more than an interruption of this process."""

    def process(self, feed_batch: Any, typical_logid: int) -> Any:
        time.sleep(0.3)
        return super().process(feed_batch, typical_logid)


def recorder(service: InProcessService) -> Recorder:
    made = Recorder(3)
    service.engine.instruments.install(made)
    return made


async def test_a_requests_parts_follow_each_other_through_its_ops() -> None:
    first = Slow("first", input_ops=[root()])
    async with service_of(Op("second", input_ops=[first])) as service:
        kept = recorder(service)
        await service.call(x="1", log_id=7)
        (timeline,) = kept.latest()
    assert (timeline.engine, timeline.log_id, timeline.error) == (3, 7, None)
    assert [step.op for step in timeline.steps] == ["first", "second"]
    parts = [("unpack", timeline.began, timeline.admitted)]
    for step in timeline.steps:
        parts += step.stages(timeline.replied)
    parts.append(("pack", timeline.replied, timeline.ended))
    assert all(begin <= end for _, begin, end in parts)
    # Time in no part is the loop's work between two ops.
    assert timeline.seconds - sum(end - begin for _, begin, end in parts) < 0.01 * timeline.seconds
    took = {(each[0], n > 6): each[2] - each[1] for n, each in enumerate(parts)}
    assert took["preprocess", False] > 0.004
    assert took["process", False] > 0.3
    assert Timeline.of(timeline.plain()) == timeline


async def test_timelines_have_the_requests_of_a_batch_and_errors() -> None:
    config = {"op": {"first": {"batch_size": 2, "auto_batching_timeout": 1000}}}
    async with service_of(First("first", input_ops=[root()]), config) as service:
        kept = recorder(service)
        await asyncio.gather(service.call(x="1"), service.call(x="2"))
        one, other = kept.latest()
        assert one.steps[0].batch == other.steps[0].batch
        assert one.steps[0].mates == [one.data_id, other.data_id]
        assert one.steps[0].batch is not None
        assert (one.steps[0].batch.reason, one.steps[0].batch.rows) == ("full", 2)
        await asyncio.gather(service.call(x="fail"), service.call(x="fail"))
        failed = kept.latest()[-1]
        assert failed.error == "hook_failed"
        assert failed.raised is not None
        assert (failed.raised.op, failed.raised.kind) == ("first", "ValueError")


async def test_the_timeline_of_a_timed_out_request_has_the_unfinished_step() -> None:
    config = {"op": {"first": {"timeout": 5}}}
    released = threading.Event()

    class Held(First):
        def process(self, feed_batch: Any, typical_logid: int) -> Any:
            released.wait(30)
            return super().process(feed_batch, typical_logid)

    async with service_of(Held("first", input_ops=[root()]), config) as service:
        kept = recorder(service)
        try:
            await service.call(x="1")
        finally:
            released.set()
        (timeline,) = kept.latest()
        assert timeline.error == "op_timeout"
        (step,) = timeline.steps
        assert step.batch is not None
        assert step.batch.given_up
        assert [part for part, _, _ in step.stages(timeline.replied)] == ["queue", "run"]


async def test_only_the_latest_and_the_slowest_timelines_are_kept() -> None:
    async with service_of(Op("op", input_ops=[root()])) as service:
        kept = recorder(service)
        for _ in range(KEPT + 10):
            await service.call(x="1")
        assert len(kept.latest()) == KEPT
        slowest = kept.slowest()
        assert len(slowest) == SLOWEST
        seconds = [each.seconds for each in slowest]
        assert seconds == sorted(seconds, reverse=True)


async def test_listed_requests_are_found_after_newer_ones_have_replaced_them() -> None:
    async with service_of(Op("op", input_ops=[root()])) as service:
        kept = recorder(service)
        await service.call(x="1", log_id=123456789)
        (listed,) = kept.latest()
        kept.hold(32, failed=64)
        kept._slowest.clear()  # among a few requests it is one of the slowest
        for _ in range(KEPT):
            await service.call(x="1")
        assert listed not in kept.latest()
        assert kept.find(str(listed.data_id)) == kept.find("123456789") == listed
        for _ in range(LISTED // 32):
            kept.hold(32, failed=64)  # the same again, which need no room
        assert kept.find("123456789") == listed
        while kept.find("123456789") is not None:
            assert len(kept._listed) <= LISTED
            for _ in range(32):
                await service.call(x="1")
            kept.hold(32, failed=64)


class Graph:
    key, label = ("g", "1"), "g"


def test_a_step_has_the_padding_of_its_batch() -> None:
    kept = Recorder()
    request = SimpleNamespace(
        data_id=1, log_id=0, call=None, caller=None, admitted_at=1.0, samples=[],
        graph=Graph(), steps=None, copied=False,
    )  # fmt: skip
    sample = Sample(1, {}, 9.0, flight=request)
    sample.arrived = 1.0
    batch = Batch([sample], CloseReason.FULL, 2.0)
    batch.elements, batch.filled_in = 30, 4
    kept.admitted(request, 1.0)  # type: ignore[arg-type]
    kept.returned("op", batch, 0, 3.0)
    kept.replied(request, None, 3.0)  # type: ignore[arg-type]
    (timeline,) = kept.latest()
    found = timeline.steps[0].batch
    assert found is not None
    assert (found.elements, found.filled_in) == (30, 4)
    assert Timeline.of(timeline.plain()) == timeline


async def test_some_failed_requests_of_each_error_are_kept_with_their_text() -> None:
    config = {"op": {"first": {"timeout": 500}}}
    async with service_of(First("first", input_ops=[root()]), config) as service:
        kept = recorder(service)
        await service.call(x="fail", log_id=77)
        engine = service.engine
        engine.drain(lambda: None)
        for _ in range(FAILED + 5):
            with pytest.raises(ServiceClosed):
                await service.call(x="1")
        failed = kept.failed()
        assert [each.error for each in failed] == ["closed"] * FAILED + ["hook_failed"]
        assert "told to" in failed[-1].text
        found = kept.find("77")
        assert found is not None
        assert found.data_id == failed[-1].data_id
        assert kept.find(str(found.data_id)) == found
        assert kept.find("78") is None
        assert kept.find("0" * 32) is None


async def test_a_trace_has_requests_with_steps_and_workers_with_batches() -> None:
    read = root()
    left, right = First("left", input_ops=[read]), First("right", input_ops=[read])
    async with service_of(Op("join", input_ops=[left, right])) as service:
        kept = recorder(service)
        await service.call(x="1")
        timelines = kept.latest()
    made = trace(timelines)
    events = made["traceEvents"]
    names = {each["args"]["name"] for each in events if each["ph"] == "M"}
    assert {"requests", "left (engine 3)", "right (engine 3)", "join (engine 3)"} <= names
    slices = [each for each in events if each["ph"] == "X"]
    assert sum(each["name"] == "batch of 1" for each in slices) == 3
    assert {each["id"] for each in events if each["ph"] == "s"} == {1, 2, 3}
    assert_nested_or_disjoint(slices)


def assert_nested_or_disjoint(slices: list[Any]) -> None:
    """Checks that a viewer can draw the slices of each lane."""
    for one in slices:
        for other in slices:
            if (one["pid"], one["tid"]) == (other["pid"], other["tid"]):
                # In one lane, slices are nested or disjoint.
                begin, end = one["ts"], one["ts"] + one["dur"]
                start, stop = other["ts"], other["ts"] + other["dur"]
                disjoint = end <= start + 1e-3 or stop <= begin + 1e-3
                nested = (begin <= start + 1e-3 and stop <= end + 1e-3) or (
                    start <= begin + 1e-3 and end <= stop + 1e-3
                )
                assert disjoint or nested, (one, other)


async def test_a_trace_has_requests_with_seats_beside_each_other() -> None:
    @op(root(), seats=4)
    class Pairs:
        """Ends its requests when two have joined."""

        joined = 0

        def join(self, request: Any) -> int:
            self.joined += 1
            return self.joined

        def step(self, running: list[int]) -> list[Any]:
            return [Done({"x": str(each)}) if self.joined == 2 else None for each in running]

    async with service_of(Pairs) as service:
        kept = recorder(service)
        await asyncio.gather(service.call(x="1"), service.call(x="2"))
        events = trace(kept.latest())["traceEvents"]
    lanes = {each["tid"] for each in events if each["name"] == "batch of 1"}
    names = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert {names[each] for each in lanes} == {"worker 0, lane 1", "worker 0, lane 2"}
    assert {each["tid"] for each in events if each["ph"] == "f"} == lanes
    assert_nested_or_disjoint([each for each in events if each["ph"] == "X"])


async def test_the_facts_of_a_request_have_its_ids_ops_and_times() -> None:
    async with service_of(Slow("first", input_ops=[root()])) as service:
        kept = recorder(service)
        await service.call(x="1", log_id=9)
        facts = facts_of(kept.latest()[0])
    assert (facts["log_id"], facts["outcome"]) == (9, "ok")
    (op,) = facts["ops"]
    assert (op["op"], op["batch"], op["attempt"]) == ("first", 1, 1)
    assert op["process_ms"] == pytest.approx(310, abs=200)
    parts = [value for key, value in op.items() if key.endswith("_ms")]
    total = facts["unpack_ms"] + sum(parts) + facts["pack_ms"]
    assert total == pytest.approx(facts["ms"], rel=0.01)


def leaves(kept: Any) -> Iterator[Any]:
    """The elements of nested containers."""
    if isinstance(kept, list | tuple | deque):
        for each in kept:
            yield from leaves(each)
    else:
        yield kept


async def test_only_numbers_and_texts_of_a_request_are_kept() -> None:
    async with service_of(First("first", input_ops=[root()])) as service:
        kept = recorder(service)
        await asyncio.gather(service.call(x="1"), service.call(x="fail"))
        held = [*leaves([kept._latest, kept._slowest, *kept._failed.values()])]
    assert {type(each) for each in held} == {str, int, float, bool, NoneType}


async def test_a_listener_that_raised_is_removed_and_others_are_still_called() -> None:
    called: list[str] = []

    def raises(timeline: Timeline) -> None:
        called.append("raises")
        raise RuntimeError("cannot listen")

    async with service_of(First("first", input_ops=[root()])) as service:
        kept = recorder(service)
        forget = kept.listen(raises)
        kept.listen(lambda timeline: called.append("other"))
        for _ in range(2):
            await service.call(x="1")
        forget()
    assert called == ["raises", "other", "other"]


def test_requests_of_known_callers_are_counted_also_those_refused_before_their_body() -> None:
    counters = Counters()
    kept = Recorder(0, counters)
    ann = Caller(name="ann", how="jwt")

    def exchange(caller: Caller | None, refused: str = "") -> Any:
        return SimpleNamespace(
            head=SimpleNamespace(fields={}),
            began=1.0,
            over=False,
            record=None,
            caller=caller,
            refused=refused,
        )

    def request(on: Any, data_id: int) -> Any:
        graph = SimpleNamespace(label="a", key=("a", "1"))
        call = SimpleNamespace(exchange=on, label="POST /a", is_grpc=False)
        return SimpleNamespace(
            data_id=data_id, log_id=0, graph=graph, call=call, samples=[], steps=None,
            admitted_at=1.0, copied=False,
        )  # fmt: skip

    kept.replied(request(exchange(ann), 1), None, 2.0)
    kept.replied(request(exchange(ann), 2), ServiceClosed(), 2.0)
    kept.cancelled(request(exchange(ann), 4), 2.0)
    kept.refused(request(exchange(ann), -1), ServiceClosed(), 2.0)
    kept.replied(request(exchange(None), 3), None, 2.0)
    kept.exchange_ended(exchange(ann, "quota"), 429, 2.0)
    kept.exchange_ended(exchange(ann), 404, 2.0)  # it reached no graph, and nobody refused it
    kept.exchange_ended(exchange(None, "unauthorized"), 401, 2.0)
    (counts,) = counters.callers.plain()
    refused = {"closed": 1, "quota": 1}
    assert counts == {
        "name": "jwt:ann",
        "requests": 5,
        "failed": 1,
        "cancelled": 1,
        "refused": refused,
    }


def test_requests_refused_at_the_same_time_are_all_kept() -> None:
    kept = Recorder()
    for _ in range(3):
        exchange = SimpleNamespace(
            head=SimpleNamespace(fields={}),
            began=1.0,
            over=False,
            record=None,
            caller=None,
            refused="",
        )
        call = SimpleNamespace(exchange=exchange, label="POST /a", is_grpc=False)
        request = SimpleNamespace(
            data_id=-1,
            log_id=0,
            graph=SimpleNamespace(label="a"),
            call=call,
            samples=[],
            steps=None,
            copied=False,
        )
        kept.refused(request, ServiceClosed(), 1.5)
        kept.exchange_ended(exchange, 503, 2.0)
    assert len(kept._latest) == len(kept._slowest) == 3
