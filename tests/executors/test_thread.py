"""Threads: copies of the op per worker, calls that never return, and closing."""

import asyncio
import os
import threading
import time
from typing import Any

import pytest

from penstock.executors.executor import Result, Work
from penstock.executors.local import ThreadExecutor
from penstock.executors.work import BoundOp, WorkOptions
from penstock.ops.op import Op
from tests.executors.harness import BodyOp, ExecutorHarness, batch_of, executor_of


class Remembering(Op):
    """Passes a value from ``preprocess`` to ``postprocess`` in an attribute, as deployed ops do."""

    def __init__(self, meet: threading.Barrier) -> None:
        super().__init__(name="op")
        self.meet = meet

    def init_op(self) -> None:
        self.loaded = object()

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (feed,) = input_dicts.values()
        self.kept = feed["n"]
        return feed

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        self.meet.wait(10.0)  # every worker is between its own two hooks now
        return feed_batch[0]

    def postprocess(
        self, input_data: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        return {"n": fetch_data["n"], "kept": self.kept, "loaded": self.loaded}


async def test_attributes_set_by_a_worker_are_its_own_and_those_of_init_op_are_shared() -> None:
    op = Remembering(threading.Barrier(3))
    op.init_op()
    harness = ExecutorHarness(executor_of("thread", op, workers=3))
    works = [harness.submit([batch_of(n)]) for n in range(3)]
    for work in works:
        ((_, (outcome,)),) = await harness.results(work)
        value = outcome.value
        assert value is not None
        assert value["kept"] == value["n"]
        assert value["loaded"] is op.loaded
    assert not hasattr(op, "kept")
    assert await harness.executor.close(5.0)


async def test_closing_with_a_hanging_call_is_bounded_and_names_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate, entered = threading.Event(), threading.Event()

    def hangs(feed: dict[str, Any]) -> dict[str, Any]:
        names.append(threading.current_thread().name)
        entered.set()
        gate.wait(30.0)
        return feed

    names: list[str] = []
    harness = ExecutorHarness(executor_of("thread", BodyOp(hangs), workers=3))
    work = harness.submit([batch_of(1)])
    await asyncio.to_thread(entered.wait, 10.0)
    began = time.monotonic()
    assert await harness.executor.close(0.2) is False
    assert time.monotonic() - began < 2.0
    (record,) = caplog.records
    named = [name for name in ("op|0", "op|1", "op|2") if name in record.getMessage()]
    assert named == names, record.getMessage()
    gate.set()
    await harness.results(work)


async def test_worker_threads_are_daemons_that_do_not_block_the_process_s_exit() -> None:
    executor = executor_of("thread", BodyOp(lambda feed: feed))
    assert isinstance(executor, ThreadExecutor)
    assert all(thread.daemon for thread in executor._threads)
    assert await executor.close(5.0)


def test_results_after_the_loop_s_end_are_dropped_and_the_thread_ends() -> None:
    gate, entered = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def hangs(feed: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        gate.wait(30.0)
        return feed

    async def leave_it_hanging() -> None:
        loop = asyncio.get_running_loop()
        executor = ThreadExecutor([BoundOp(BodyOp(hangs), None, WorkOptions())], loop)
        threads.extend(executor._threads)
        executor.submit(Work([batch_of(1), batch_of(2)]), lambda *_: pytest.fail("reported"))
        await asyncio.to_thread(entered.wait, 10.0)
        assert await executor.close(0.0) is False

    asyncio.run(leave_it_hanging())
    gate.set()
    threads[0].join(10.0)
    assert not threads[0].is_alive()


async def test_a_worker_that_finishes_continuously_does_not_starve_the_loop() -> None:
    executor = executor_of("thread", BodyOp(lambda feed: feed))
    assert isinstance(executor, ThreadExecutor)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    turns = reports = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not ended.is_set():
            loop.call_soon(turn)

    def finished(work: Work, results: list[Result]) -> None:
        nonlocal reports
        reports += 1
        if reports == 20:
            ended.set()
            return
        executor.submit(Work([batch_of(reports)]), finished)
        until = time.monotonic() + 10.0
        while not executor._done and time.monotonic() < until:
            os.sched_yield()  # as long as the delivery of a large reply may take

    loop.call_soon(turn)
    executor.submit(Work([batch_of(0)]), finished)
    await asyncio.wait_for(ended.wait(), 30.0)
    assert turns >= reports
    assert await executor.close(5.0)
