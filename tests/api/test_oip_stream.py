"""ModelStreamInfer: streaming and other models on one stream, under a virtual clock."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import numpy as np
import pytest

from penstock.api.health import Health
from penstock.api.oip import OpenInferenceApplication
from penstock.api.router import Router
from penstock.batching.batcher import Batcher, BatchPolicy
from penstock.door.budget import ByteBudget
from penstock.door.exchange import WRITABLE
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.errors import HttpError, InferenceFailed, RequestError
from penstock.executors.stream import MOST_PIECES, Stream
from penstock.executors.work import WorkOptions
from penstock.protocols import standard_messages as messages
from penstock.protocols.status import GrpcCode
from penstock.request import Feed, Outcome
from penstock.tensor import Signature
from penstock.testing import FakeExecutor, ManualClock
from tests.api.recorded_exchange import RecordedExchange, grpc_head
from tests.graph.test_dag import plan_of

REQUEST, _ = messages.inference_messages("ModelInfer")
_, RESPONSE = messages.inference_messages("ModelStreamInfer")
SIGNATURE = Signature(inputs={"x": ("INT64", [-1])}, outputs={"y": ("INT64", [-1])})


class Site:
    """The models ``pieces``, which streams, and ``whole``; and one stream of requests."""

    def __init__(
        self,
        *headers: tuple[bytes, bytes],
        method: str = "ModelStreamInfer",
        threads: Executor | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.engine = Engine(self.clock)
        self.workers: dict[str, FakeExecutor] = {}
        for name in ("pieces", "whole"):
            self.add_model(name)
        service = OpenInferenceApplication(self.engine, Health())
        router = self.router = Router(service.routes(), max_message_bytes=1 << 20, threads=threads)
        path = f"/{messages.INFERENCE}/{method}"
        self.budget = ByteBudget(1 << 20)
        self.exchange = RecordedExchange(grpc_head(path, *headers), self.budget)
        self.receiver = router.begin(self.exchange)
        self.read = 0

    def add_model(self, name: str) -> None:
        graph = ServedGraph(
            self.engine, plan_of({"op": ["@"]}, "op"), name, declared=lambda: SIGNATURE
        )
        worker = self.workers[name] = FakeExecutor(100)
        graph.add_op("op", queue=Batcher(BatchPolicy()), executor=worker, options=WorkOptions())
        graph.streams = graph.stages[0].streams = name == "pieces"
        self.engine.add(graph)

    async def ask(self, model: str, request_id: str, *, empty_final: bool = False) -> None:
        """Send a request, and wait until it runs, or is answered."""
        request = REQUEST(model_name=model, id=request_id)
        request.inputs.add(name="x", datatype="INT64", shape=[1]).contents.int64_contents.append(1)
        if empty_final:
            request.parameters["triton_enable_empty_final_response"].bool_param = True
        before = self.engine.statistics().admitted
        await self.send(request.SerializeToString())
        if model in self.workers:
            await self.until(lambda: self.engine.statistics().admitted > before)

    async def send(self, message: bytes, *, ended: bool = False) -> None:
        assert self.receiver is not None
        framed = struct.pack(">BI", 0, len(message)) + message if message else b""
        self.receiver.data(self.exchange, framed, ended)

    async def half_close(self) -> None:
        await self.send(b"", ended=True)
        await self.until(lambda: True)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            for _ in range(8):  # also for what must not happen
                await asyncio.sleep(0)
                self.clock.run()
            while not done():
                await asyncio.sleep(0)
                self.clock.run()

    def stream(self, index: int) -> Stream:
        """That of a request to ``pieces``, in order of arrival; its worker is this thread."""
        (sample,) = self.workers["pieces"].batches()[index].samples
        stream: Stream = sample.stream
        stream.notify = Stream.arrive
        return stream

    def end(self, index: int = 0, error: RequestError | None = None) -> None:
        value: Feed | None = {} if error is None else None
        self.workers["pieces"].finish(index, [Outcome(value, error)])
        self.clock.run()

    def answers(self) -> list[Any]:
        """The responses since the last call."""
        sent = [piece for what, piece in self.exchange.sent if what == "send"]
        new, self.read = sent[self.read :], len(sent)
        return [RESPONSE.FromString(each[5:]) for each in new]

    def shown(self) -> list[tuple[str, list[int], bool | None, str]]:
        """The same: id, values, ``triton_final_response``, error."""
        return [
            (
                each.infer_response.id,
                [
                    number
                    for output in each.infer_response.outputs
                    for number in output.contents.int64_contents
                ],
                each.infer_response.parameters["triton_final_response"].bool_param
                if "triton_final_response" in each.infer_response.parameters
                else None,
                each.error_message,
            )
            for each in self.answers()
        ]

    def status(self) -> int:
        return int(self.exchange.fields()[b"grpc-status"])


def piece(*numbers: int) -> Feed:
    return {"y": np.array(numbers, np.int64)}


async def test_each_piece_is_a_response_and_only_the_caller_that_asks_gets_an_empty_last_one() -> (
    None
):
    site = Site()
    await site.ask("pieces", "a")
    await site.ask("pieces", "b", empty_final=True)
    first, second = site.stream(0), site.stream(1)
    first.add(piece(1))
    second.add(piece(2, 3))
    first.add(piece(4))
    assert site.shown() == [
        ("a", [1], False, ""),
        ("b", [2, 3], False, ""),
        ("a", [4], False, ""),
    ]
    site.end()
    site.end()
    (last,) = site.answers()
    assert last.infer_response.id == "b"
    assert last.infer_response.model_name == "pieces"
    assert last.infer_response.model_version == "1"
    assert last.infer_response.parameters["triton_final_response"].bool_param
    assert not last.infer_response.outputs
    await site.half_close()
    assert site.status() == GrpcCode.OK


async def test_other_models_are_answered_in_order_and_not_held_up() -> None:
    site = Site()
    await site.ask("pieces", "p")
    for each in "abc":
        await site.ask("whole", each)
    site.stream(0).add(piece(1))
    whole = site.workers["whole"]
    whole.finish(1, [Outcome(piece(11))])  # that of b
    await site.until(lambda: True)
    assert site.shown() == [("p", [1], False, "")]
    whole.finish(0, [Outcome(piece(10))])
    await site.until(lambda: len(site.exchange.sent) == 4)
    assert site.shown() == [("a", [10], True, ""), ("b", [11], True, "")]
    site.stream(0).add(piece(2))
    whole.finish(0, [Outcome(piece(12))])
    await site.until(lambda: len(site.exchange.sent) == 6)
    assert site.shown() == [("p", [2], False, ""), ("c", [12], True, "")]


@pytest.mark.parametrize("pieces", [0, 2])
async def test_an_error_is_the_last_response_to_its_request_and_the_stream_goes_on(
    pieces: int,
) -> None:
    site = Site()
    await site.ask("pieces", "a", empty_final=True)
    for n in range(pieces):
        site.stream(0).add(piece(n))
    site.end(error=HttpError(418, "no more"))
    *before, (request_id, values, final, error) = site.shown()
    assert before == [("a", [n], False, "") for n in range(pieces)]
    assert (request_id, values, final) == ("a", [], True)
    assert "no more" in error
    await site.ask("pieces", "b")
    site.stream(0).add(piece(7))
    assert site.shown() == [("b", [7], False, "")]


async def test_a_request_that_is_refused_has_its_id_and_its_turn() -> None:
    site = Site()
    await site.ask("whole", "a")
    await site.ask("nope", "b")
    wrong = REQUEST(model_name="pieces", id="c")
    wrong.inputs.add(name="x", datatype="INT64", shape=[2]).contents.int64_contents.append(1)
    await site.send(wrong.SerializeToString())
    await site.until(lambda: True)
    assert site.shown() == []
    site.workers["whole"].finish(0, [Outcome(piece(10))])
    await site.until(lambda: len(site.exchange.sent) == 4)
    first, second, third = site.shown()
    assert first == ("a", [10], True, "")
    assert second[:3] == ("b", [], True)
    assert "there is no model 'nope'" in second[3]
    assert third[:3] == ("c", [], True)
    assert "needs 2 elements" in third[3]


async def test_the_first_error_ends_the_stream_if_the_caller_wants_that() -> None:
    site = Site((b"triton_grpc_error", b"true"))
    for each in "ab":
        await site.ask("pieces", each)
    await site.ask("whole", "c")
    good = site.stream(0)
    good.add(piece(1))
    site.end(1, InferenceFailed("no model"))
    assert site.status() == GrpcCode.INTERNAL
    assert site.shown() == [("a", [1], False, "")]
    assert not good.add(piece(2))
    await site.until(lambda: site.engine.statistics().inside == 0)
    assert site.answers() == []


async def test_an_error_in_its_turn_ends_the_stream_if_the_caller_wants_that() -> None:
    site = Site((b"triton_grpc_error", b"true"))
    await site.ask("whole", "a")
    await site.ask("nope", "b")
    await site.ask("nope", "c")
    assert not site.exchange.answered
    site.workers["whole"].finish(0, [Outcome(piece(10))])
    await site.until(lambda: site.exchange.ended)
    assert site.shown() == [("a", [10], True, "")]
    assert site.status() == GrpcCode.NOT_FOUND


async def test_a_caller_that_sends_no_more_gets_every_response() -> None:
    site = Site()
    await site.ask("pieces", "a", empty_final=True)
    await site.ask("whole", "b")
    await site.half_close()
    site.stream(0).add(piece(1))
    assert not site.exchange.ended
    site.workers["whole"].finish(0, [Outcome(piece(10))])
    await site.until(lambda: len(site.exchange.sent) == 3)
    assert not site.exchange.ended
    site.stream(0).add(piece(2))
    site.end()
    await site.until(lambda: site.exchange.ended)
    assert [each[0] for each in site.shown()] == ["a", "b", "a", "a"]
    assert site.status() == GrpcCode.OK


async def test_a_caller_that_leaves_cancels_every_request() -> None:
    site = Site()
    for each in "ab":
        await site.ask("pieces", each)
    await site.ask("whole", "c")
    streams = site.stream(0), site.stream(1)
    assert streams[0].add(piece(1))
    assert site.exchange.on_gone is not None
    site.exchange.on_gone()
    await site.until(lambda: site.engine.statistics().inside == 0)
    assert site.engine.statistics().cancelled == 3
    assert not any(each.add(piece(2)) for each in streams)
    assert site.exchange.taken < 64


async def test_a_reader_that_is_slow_stops_its_generators_until_it_has_read() -> None:
    site = Site()
    for each in "ab":
        await site.ask("pieces", each)
    site.exchange.waiting = WRITABLE + 1
    streams = site.stream(0), site.stream(1)
    for n in range(MOST_PIECES):
        for stream in streams:
            stream.add(piece(n))
    assert [each.is_full for each in streams] == [True, True]
    site.exchange.waiting = 0
    assert site.exchange.on_writable is not None
    site.exchange.on_writable()
    assert [each.is_full for each in streams] == [False, False]
    streams[0].add(piece(99))
    assert site.shown()[-1] == ("a", [99], False, "")


async def test_a_piece_without_its_output_ends_its_request_only() -> None:
    site = Site()
    for each in "ab":
        await site.ask("pieces", each)
    bad, good = site.stream(0), site.stream(1)
    assert not bad.add({"z": np.array([1])})
    assert good.add(piece(1))
    (request_id, _, final, error), second = site.shown()
    assert (request_id, final) == ("a", True)
    assert error
    assert second == ("b", [1], False, "")


async def test_a_further_request_waits_while_as_many_as_allowed_are_answered_in_pieces() -> None:
    site = Site()
    for n in range(64):
        await site.ask("pieces", str(n))
    request = REQUEST(model_name="pieces", id="64")
    request.inputs.add(name="x", datatype="INT64", shape=[1]).contents.int64_contents.append(1)
    await site.send(request.SerializeToString())
    await site.until(lambda: True)
    assert site.engine.statistics().inside == 64
    site.end()
    await site.until(lambda: site.engine.statistics().admitted == 65)


async def test_the_end_without_pieces_is_told_only_to_who_asks() -> None:
    site = Site()
    await site.ask("pieces", "a")
    await site.ask("pieces", "b", empty_final=True)
    site.end()
    site.end()
    assert site.shown() == [("b", [], True, "")]
    await site.half_close()
    assert site.status() == GrpcCode.OK


async def test_a_stream_ends_for_another_process_when_its_requests_are_answered() -> None:
    site = Site()
    await site.ask("pieces", "a", empty_final=True)
    site.router.end_streams(when_answered=True)
    await site.until(lambda: True)
    await site.ask("nope", "b")  # it is not read any more
    site.stream(0).add(piece(1))
    assert not site.exchange.ended
    site.end()
    await site.until(lambda: site.exchange.ended)
    assert [each[:3] for each in site.shown()] == [("a", [1], False), ("a", [], True)]
    assert site.status() == GrpcCode.UNAVAILABLE


async def test_a_stream_without_requests_ends_for_another_process_at_once() -> None:
    site = Site()
    site.router.end_streams(when_answered=True)
    await site.until(lambda: site.exchange.ended)
    assert site.status() == GrpcCode.UNAVAILABLE


async def test_pieces_that_are_kept_for_one_answer_count_in_the_budget_of_bytes() -> None:
    site = Site(method="ModelInfer")
    await site.ask("pieces", "a")
    stream = site.stream(0)
    before = site.exchange.taken
    assert stream.add({"y": np.zeros(100_000 // 8, np.int64)})
    assert site.exchange.taken - before >= 100_000
    assert not stream.add({"y": np.zeros(1 << 17, np.int64)})
    assert site.status() == GrpcCode.RESOURCE_EXHAUSTED
