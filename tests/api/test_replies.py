"""Large replies are written in threads, where there are any."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from penstock import Op, RequestOp, ResponseOp
from penstock.api.replies import Writers
from penstock.ops.ends import Ends
from penstock.request import Outcome

LARGE = Outcome({"y": np.arange(5000.0)})


def response_op() -> ResponseOp:
    return ResponseOp(input_ops=[Op("work", input_ops=[RequestOp()])])


class Full(Executor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("can't start new thread")


async def test_where_no_thread_can_be_started_it_is_written_here() -> None:
    pack = Ends(RequestOp(), response_op()).pack
    reply: Any = await Writers(Full()).write(pack, LARGE, 1, 7, False)
    assert (reply.err_no, reply.key) == (0, ["y"])


async def test_who_leaves_before_the_turn_of_his_reply_has_none_made() -> None:
    made: list[int] = []
    go_on = threading.Event()

    class Counted(Ends):
        def pack(self, *arguments: Any) -> Any:
            made.append(threading.get_ident())
            go_on.wait(20)
            return super().pack(*arguments)

    with ThreadPoolExecutor(1) as threads:
        writers, pack = Writers(threads), Counted(RequestOp(), response_op()).pack
        first, second, third = (writers.write(pack, LARGE, n, 7, False) for n in range(3))
        second.cancel()
        await asyncio.sleep(0)  # a turn of the loop, in which the thread's queue hears of it
        go_on.set()
        await first
        await third
    assert len(made) == 2


def test_tensors_alone_do_not_take_long() -> None:
    response = response_op()
    both = Ends(RequestOp(), response)
    assert both.takes_long(LARGE.value)
    assert not both.takes_long({"y": np.arange(50.0)})
    response.set_pack_format(isTensor=True)
    assert not both.takes_long(LARGE.value)
