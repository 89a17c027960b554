"""Replies are made in threads, if there are any."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from penstock import RequestOp
from penstock.api.threads import run_aside
from penstock.ops.ends import Ends
from tests.api.test_graph_call import LARGE, response_op


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
