"""Large replies are written in threads, if there are any."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from penstock import Op, RequestOp, ResponseOp
from penstock.api.replies import run_aside
from penstock.ops.ends import Ends
from penstock.protocols import paddle, paddle_message
from penstock.request import Outcome

LARGE = Outcome({"y": np.arange(5000.0)})


def response_op() -> ResponseOp:
    return ResponseOp(input_ops=[Op("work", input_ops=[RequestOp()])])


class Full(Executor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("can't start new thread")


async def test_a_reply_is_written_on_the_loop_if_no_thread_can_be_started() -> None:
    pack = Ends(RequestOp(), response_op()).pack
    reply: Any = await run_aside(Full(), pack, LARGE, 1, 7, False)
    assert (reply.err_no, reply.key) == (0, ["y"])


async def test_the_reply_of_a_cancelled_request_in_the_queue_is_not_made() -> None:
    packed: list[int] = []
    gate = threading.Event()

    class Counted(Ends):
        def pack(self, *arguments: Any) -> Any:
            packed.append(threading.get_ident())
            gate.wait(20)
            return super().pack(*arguments)

    with ThreadPoolExecutor(1) as threads:
        pack = Counted(RequestOp(), response_op()).pack
        first, second, third = (run_aside(threads, pack, LARGE, n, 7, False) for n in range(3))
        second.cancel()
        await asyncio.sleep(0)  # a turn of the loop, which removes it from the thread's queue
        gate.set()
        await first
        await third
    assert len(packed) == 2


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


def test_large_arrays_and_long_texts_count_as_slow_to_write() -> None:
    assert paddle.takes_long(LARGE.value)
    assert paddle.takes_long({"y": "x" * 300_000})
    assert not paddle.takes_long({"y": np.arange(50.0), "z": "x" * 1000})
