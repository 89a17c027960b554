"""Calls that run a graph: small and large replies, and errors."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock import Op, RequestOp, ResponseOp
from penstock.api.graph_call import GraphCall, is_large, items
from penstock.door.budget import ByteBudget, Reservation
from penstock.errors import RequestError, ServiceBusy, WrongType
from penstock.ops.ends import Ends
from penstock.protocols import paddle, paddle_message
from penstock.protocols.status import reply_metadata
from penstock.request import Outcome
from tests.service.in_process import service_of

LARGE = Outcome({"y": np.arange(5000.0)})


class OddSize:
    """Its size is no number, as that of a torch tensor or a picture."""

    size = (640, 480)


class OwnDict(dict[str, Any]):
    """A user's own dict class, which is faulty."""

    def values(self) -> Any:
        raise ValueError("no values today")


class Replying(GraphCall):
    """Replies with the thread that has encoded the result, or raises what the result holds."""

    __slots__ = ("over_event", "replies")

    as_text = True

    def encode(self, value: Any) -> int:
        if "raised" in value:
            raise value["raised"]
        return threading.get_ident()

    def send(self, reply: int) -> None:
        self.replies.append(reply)
        self.over_event.set()

    def fail(self, error: RequestError) -> None:
        self.replies.append(error)
        self.over_event.set()


def returning(value: Any) -> Op:
    class Returning(Op):
        def postprocess(self, input_dicts: Any, fetch: Any, data_id: int, log_id: int) -> Any:
            return value, None, ""

    return Returning("giving", input_ops=[RequestOp()])


async def reply_to(
    value: Any, budget: int = 1 << 20, *, cancel: bool = False, others: int = 0
) -> Any:
    """The one reply or error of a call with this result; None once it is cancelled.

    ``others``: bytes of other calls.
    """
    async with service_of(returning(value)) as service:
        [graph] = service.engine.graphs
        exchange = SimpleNamespace(on_gone=None)
        bytes_in_flight = ByteBudget(budget)
        bytes_in_flight.reserve(others)
        held = Reservation(bytes_in_flight)
        exchange.limit, exchange.take = held.limit, held.take
        call = Replying(graph, {"x": "1"})
        call.replies, call.over_event = [], asyncio.Event()
        call.run(SimpleNamespace(exchange=exchange, shared=SimpleNamespace(threads=None)))
        if cancel:
            exchange.on_gone()
            await asyncio.sleep(0)
            assert not call.replies
            return None
        async with asyncio.timeout(5):
            await call.over_event.wait()
        [reply] = call.replies
        return reply


@pytest.mark.parametrize(
    ("value", "aside"),
    [
        ({"y": np.arange(50.0)}, False),
        (LARGE.value, True),
        ({"y": [1.0] * 5000}, True),
        ({}, False),
        (OwnDict(y="1"), False),
    ],
)
async def test_a_large_result_is_encoded_in_a_thread(value: Any, aside: bool) -> None:
    assert (await reply_to(value) != threading.get_ident()) == aside


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("raised", "error", "text"),
    [
        (TypeError("no text"), WrongType, "op 'giving': the answer cannot be encoded: no text"),
        (ServiceBusy("full"), ServiceBusy, "full"),
        (KeyError("ours"), RequestError, "internal error"),
    ],
)
async def test_a_result_that_cannot_be_encoded_is_an_error(
    raised: Exception, error: type[RequestError], text: str, large: bool
) -> None:
    more = LARGE.value or {} if large else {}
    reply = await reply_to({"raised": raised, **more})
    assert (type(reply), str(reply)) == (error, text)


async def test_a_large_result_beyond_the_budget_is_refused() -> None:
    assert isinstance(await reply_to(LARGE.value, budget=90_000), ServiceBusy)


@pytest.mark.parametrize(("budget", "others"), [(90_000, 0), (120_000, 50_000)])
async def test_clients_are_not_told_to_repeat_a_call_whose_result_has_no_room(
    budget: int, others: int
) -> None:
    error = await reply_to(LARGE.value, budget, others=others)
    assert isinstance(error, ServiceBusy)
    assert (error.has_begun, error.retry_after, reply_metadata(error)) == (True, None, ())


async def test_a_large_list_counts_in_the_budget() -> None:
    assert isinstance(await reply_to({"y": [1.0] * 5000}, budget=90_000), ServiceBusy)
    assert isinstance(await reply_to({"y": [1.0] * 5000}), int)


def test_items_are_counted_in_lists_of_lists_and_in_one_without_an_end() -> None:
    assert items([[[1, 2], (3,), {"a": [4, 5]}], np.arange(5), "text", 7], 100) == 9
    assert items([[0] * 1000, [0] * 1000], 100) == 1000
    endless: list[object] = []
    endless.append(endless)
    assert items([endless], 1000) == 64


async def test_values_beside_a_large_array_need_no_size() -> None:
    assert isinstance(await reply_to({"z": OddSize(), **(LARGE.value or {})}), int)


async def test_a_cancelled_call_gets_no_reply() -> None:
    assert await reply_to({"y": "1"}, cancel=True) is None


def response_op() -> ResponseOp:
    return ResponseOp(input_ops=[Op("work", input_ops=[RequestOp()])])


def test_the_size_of_a_reply_is_estimated_before_it_is_written() -> None:
    response = response_op()
    ends = Ends(RequestOp(), response)
    for array in (np.arange(5000.0) - 7, np.arange(5000, dtype=np.int8), np.arange(5000) > 7):
        value = {"y": array}
        size = len(paddle_message.encode(paddle.pack(value, typed=False, keep_text=True)))
        assert size / 2 < ends.reply_size(value, False) < 4 * size
        assert ends.reply_size(value, True) > ends.reply_size(value, False)
    response.set_pack_format(isTensor=True)
    assert ends.reply_size(LARGE.value or {}, False) == 40_000


@pytest.mark.parametrize(
    ("value", "as_text", "as_bytes"),
    [
        ({"y": np.arange(5000.0)}, True, False),
        ({"y": "x" * 300_000}, True, True),
        ({"y": np.arange(50.0), "z": "x" * 1000}, False, False),
        ({"y": np.zeros(20_000), "z": np.zeros(20_000)}, True, True),
        ({"y": [1.0] * 5000, "z": None}, True, True),
        ({"y": [1.0] * 4000, "z": ("a", {"b": 1})}, False, False),
        ({"y": [[1.0] * 70] * 70}, True, True),
        ({"y": [{"z": [1.0] * 5000}]}, True, True),
    ],
)
def test_long_texts_and_many_numbers_or_bytes_of_arrays_are_large(
    value: Any, as_text: bool, as_bytes: bool
) -> None:
    assert is_large(value, as_text=True) == as_text
    assert is_large(value, as_text=False) == as_bytes
