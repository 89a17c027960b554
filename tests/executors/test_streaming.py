"""Ops whose ``process`` yields, in a whole graph in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock import Caller, FunctionOp, Op, RequestOp, ResponseOp, op
from penstock.engine.submission import Submission
from penstock.errors import ConfigError
from penstock.executors.stream import MOST_PIECES
from penstock.request import Feed, Outcome
from tests.ops.test_short import response_op_of
from tests.service.in_process import InProcessService, blueprint_of, service_of


class Collector(Submission):
    """A caller that keeps the pieces, and how the answer has ended."""

    __slots__ = ("end", "got", "together")

    got: list[Feed]
    together: list[int]
    end: asyncio.Future[Outcome]

    def piece(self, piece: Feed) -> bool:
        self.got.append(piece)
        return True

    def pieces(self, pieces: list[Feed]) -> bool:
        self.together.append(len(pieces))
        return super().pieces(pieces)

    def whole(self, outcome: Outcome) -> Outcome:
        return outcome


def ask(service: InProcessService, feed: Feed) -> Collector:
    one = Collector(service.engine.graphs[0], feed)
    one.got, one.together, one.end = [], [], asyncio.get_running_loop().create_future()
    one.start(lambda each, outcome: each.end.set_result(outcome))
    return one


def whole(last: Op) -> Op | ResponseOp:
    """The graph that ends in an op; those of functions have no RequestOp yet."""
    return response_op_of(last) if isinstance(last, FunctionOp) else last


async def pieces_of(last: Op, feed: Feed | None = None) -> tuple[list[Feed], Outcome]:
    """The pieces of an answer, and its end."""
    async with service_of(whole(last)) as service:
        one = ask(service, feed or {"n": 3})
        outcome = await asyncio.wait_for(one.end, 30)
        return one.got, outcome


COUNTED = [{"n": 0}, {"n": 1}, {"n": 2}]


def function() -> Op:
    @op()
    def count(request: Any) -> Iterator[Feed]:
        for n in range(request["n"]):
            yield {"n": n}

    return count


def coroutine() -> Op:
    @op()
    async def count(request: Any) -> AsyncIterator[Feed]:
        for n in range(request["n"]):
            await asyncio.sleep(0)
            yield {"n": n}

    return count


def served_class() -> Op:
    @op(workers=2)
    class Count:
        def load(self) -> None:
            self.first = 0

        def predict(self, request: Any) -> Iterator[Feed]:
            for n in range(self.first, request["n"]):
                yield {"n": n}

    return Count


def served_class_on_loop() -> Op:
    @op()
    class Count:
        async def predict(self, request: Any) -> AsyncIterator[Feed]:
            for n in range(request["n"]):
                yield {"n": n}

    return Count


class CountOp(Op):
    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        for n in range(feed_batch[0]["n"]):
            yield {"n": n}


class CountOnLoopOp(Op):
    async def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        for n in range(feed_batch[0]["n"]):
            yield {"n": n}, 0, ""


KINDS: dict[str, Callable[[], Op]] = {
    "function": function,
    "coroutine": coroutine,
    "class": served_class,
    "class on loop": served_class_on_loop,
    "Op": lambda: CountOp("count", input_ops=[RequestOp()]),
    "Op on loop": lambda: CountOnLoopOp("count", input_ops=[RequestOp()]),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_an_op_that_yields_answers_in_pieces(kind: str) -> None:
    got, end = await pieces_of(KINDS[kind]())
    assert got == COUNTED
    assert end.error is None


async def test_pieces_that_a_coroutine_makes_in_one_turn_are_passed_on_together() -> None:
    @op()
    async def count(request: Any) -> AsyncIterator[Feed]:
        for n in range(request["n"]):
            yield {"n": n}

    async with service_of(whole(count)) as service:
        one = ask(service, {"n": MOST_PIECES + 2})
        await asyncio.wait_for(one.end, 30)
        assert one.together == [MOST_PIECES, 2]
        assert [each["n"] for each in one.got] == [*range(MOST_PIECES + 2)]


async def test_process_of_the_oldest_generation_may_yield() -> None:
    old: Any = type("Old", (Op,), {"process": lambda self, feeds: (yield feeds[0])})
    got, end = await pieces_of(old("old", input_ops=[RequestOp()]))
    assert got == [{"n": 3}]
    assert end.error is None


async def test_the_last_op_of_a_graph_yields_for_the_results_of_the_ops_before_it() -> None:
    @op()
    def double(request: Any) -> Feed:
        return {"n": request["n"] * 2}

    @op(double)
    def count(doubled: Any) -> Iterator[Feed]:
        for n in range(doubled["n"]):
            yield {"n": n}

    got, end = await pieces_of(count, {"n": 2})
    assert got == [{"n": n} for n in range(4)]
    assert end.error is None


class EachPieceOp(CountOp):
    """``postprocess`` makes the pieces."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (given,) = input_dicts.values()
        return {"n": given["n"]}, given.get("skip", False), None, ""

    def postprocess(
        self, input_data: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        if fetch_data["n"] == 2:
            return {}, 51, "two is enough"
        return {"text": str(fetch_data["n"])}, None, ""


async def test_postprocess_makes_each_piece_and_may_end_the_answer() -> None:
    got, end = await pieces_of(EachPieceOp("each", input_ops=[RequestOp()]), {"n": 9})
    assert got == [{"text": "0"}, {"text": "1"}]
    assert "two is enough" in str(end.error)


@pytest.mark.parametrize("on_loop", [False, True])
async def test_a_request_that_skips_process_has_one_piece(on_loop: bool) -> None:
    class OnLoop(EachPieceOp):
        process = CountOnLoopOp.process

    kind = OnLoop if on_loop else EachPieceOp
    got, end = await pieces_of(kind("each", input_ops=[RequestOp()]), {"n": 9, "skip": True})
    assert got == [{"text": "9"}]
    assert end.error is None


async def test_a_mini_batch_is_refused_by_an_op_that_yields() -> None:
    class Parts(CountOp):
        def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
            return [{"n": 1}, {"n": 2}]

    got, end = await pieces_of(Parts("parts", input_ops=[RequestOp()]))
    assert not got
    assert "op 'parts': preprocess gave a list, but process yields" in str(end.error)


async def test_a_function_may_end_its_answer_with_a_product_error() -> None:
    @op()
    def count(request: Any) -> Any:
        yield {"n": 0}
        yield {}, 51, "no cat"
        yield {"n": 1}

    got, end = await pieces_of(count)
    assert got == [{"n": 0}]
    assert "no cat" in str(end.error)


async def test_a_value_that_is_no_dict_ends_the_answer_with_what_to_yield() -> None:
    @op()
    def count(request: Any) -> Any:
        yield {"n": 0}
        yield "text"

    got, end = await pieces_of(count)
    assert got == [{"n": 0}]
    assert "count must yield dicts, got str" in str(end.error)


async def test_a_function_that_returns_a_generator_is_told_to_yield() -> None:
    @op()
    def count(request: Any) -> Any:
        return (dict[str, int]() for _ in range(3))

    got, end = await pieces_of(count)
    assert not got
    assert "got generator: for an answer in pieces define the function with yield" in str(end.error)


async def test_a_function_that_yields_may_ask_who_calls() -> None:
    @op()
    def who(request: Any, caller: Caller | None) -> Iterator[Feed]:
        yield {"caller": caller}

    got, _ = await pieces_of(who)
    assert got == [{"caller": None}]


async def test_an_op_that_jumps_over_the_last_one_gives_the_only_piece() -> None:
    class Known(Op):
        def check_jumping(self, input_data: Any) -> bool:
            (found,) = input_data.values()
            return bool(found.dictdata["known"])

    first = Known("known", input_ops=[RequestOp()])
    last = CountOp("count", input_ops=[first])
    first.set_jump_to_ops([last])
    got, end = await pieces_of(last, {"n": 2, "known": True})
    assert got == [{"n": 2, "known": True}]
    assert end.error is None
    got, end = await pieces_of(last, {"n": 2, "known": False})
    assert got == [{"n": 0}, {"n": 1}]
    assert end.error is None


@pytest.mark.parametrize("kind", ["function", "Op"])
async def test_a_cancelled_request_closes_its_generator(kind: str) -> None:
    made, may_go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def endless() -> Iterator[Feed]:
        try:
            while True:
                yield {"n": 0}
                made.set()
                may_go_on.wait()
        finally:
            closed.set()

    class Endless(Op):
        def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
            yield from endless()

    def count(request: Any) -> Any:
        yield from endless()

    last = op()(count) if kind == "function" else Endless("endless", input_ops=[RequestOp()])
    async with service_of(whole(last)) as service:
        one = ask(service, {"n": 1})
        assert await asyncio.to_thread(made.wait, 30)
        one.cancel()
        may_go_on.set()
        assert await asyncio.to_thread(closed.wait, 30)


# What is refused at the start


def test_an_op_that_yields_must_be_the_last_one() -> None:
    first = CountOp("first", input_ops=[RequestOp()])
    second = Op("second", input_ops=[first])
    with pytest.raises(ConfigError, match=r"op 'first': process is a generator.*only the last op"):
        blueprint_of(second)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 4}, "op 'count': process is a generator.*: batch_size must be 1"),
        ({"executor": "inline"}, "op 'count': process is a generator.*'inline' they cannot"),
    ],
)
def test_an_op_that_yields_answers_one_request_at_a_time_in_a_worker(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        blueprint_of(CountOp("count", input_ops=[RequestOp()]), {"op": {"count": options}})


def test_an_op_that_yields_may_have_arrays_as_pieces() -> None:
    class Rows(Op):
        def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
            yield from ({"row": row} for row in np.eye(2))

    async def run() -> list[Feed]:
        got, _ = await pieces_of(Rows("rows", input_ops=[RequestOp()]), {"x": 1})
        return got

    assert [each["row"].tolist() for each in asyncio.run(run())] == [[1.0, 0.0], [0.0, 1.0]]
