"""One op: a real executor on a running loop, alone or under an engine with a recorder."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.batching.batcher import BatchPolicy
from penstock.batching.queues import batcher_for
from penstock.engine.clock import LoopClock
from penstock.engine.engine import Engine, EngineOptions
from penstock.engine.graph import ServedGraph
from penstock.engine.submission import Submission
from penstock.executors.executor import Executor, Result, Work
from penstock.executors.local import CoroutineExecutor, InlineExecutor, ThreadExecutor
from penstock.executors.work import BoundOp, WorkOptions
from penstock.instrument import Instruments
from penstock.ops.op import Op
from penstock.request import REQUEST_OP_NAME, Batch, CloseReason, Outcome, Sample
from penstock.testing.history import ClientHistory, Limits, Recorder, check
from tests.graph.test_dag import plan_of

KINDS = ("inline", "thread", "coroutine")

Body = Callable[[dict[str, Any]], Any]


class BodyOp(Op):
    """An op whose ``process`` is ``body(feed)``."""

    def __init__(self, body: Body) -> None:
        super().__init__(name="op")
        self.body = body

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        return self.body(feed_batch[0])


class AsyncBodyOp(BodyOp):
    """The same as a coroutine; ``body`` may be a coroutine function too."""

    async def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        given = self.body(feed_batch[0])
        return await given if inspect.isawaitable(given) else given


def body_op(kind: str, body: Body) -> Op:
    return AsyncBodyOp(body) if kind == "coroutine" else BodyOp(body)


def executor_of(
    kind: str, op: Op, workers: int = 1, options: WorkOptions | None = None
) -> Executor:
    options = options or WorkOptions()
    loop = asyncio.get_running_loop()
    if kind == "inline":
        return InlineExecutor(BoundOp(op, None, options))
    if kind == "coroutine":
        return CoroutineExecutor(
            [BoundOp(op, None, options, index) for index in range(workers)], loop
        )
    return ThreadExecutor([BoundOp(op, None, options, n) for n in range(workers)], loop)


def batch_of(*numbers: int, **feed: Any) -> Batch:
    """A batch of samples with these data ids; each sample's feed has its id as ``n``."""
    samples = [
        Sample(number, {REQUEST_OP_NAME: {"n": number, **feed}}, math.inf) for number in numbers
    ]
    return Batch(samples, CloseReason.FULL, 0.0)


class ExecutorHarness:
    """Submits a Work to an executor and waits for its report."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.reports: list[tuple[Work, list[Result]]] = []
        self._waiting: dict[Work, asyncio.Future[list[Result]]] = {}

    def submit(self, batches: Sequence[Batch]) -> Work:
        work = Work(list(batches))
        self._waiting[work] = asyncio.get_running_loop().create_future()
        self.executor.submit(work, self._finished)
        return work

    async def results(self, work: Work) -> list[Result]:
        async with asyncio.timeout(10.0):
            return await self._waiting[work]

    async def run(self, *batches: Batch) -> list[Result]:
        work = self.submit(batches)
        results = await self.results(work)
        # A worker whose turn is over reports early; the engine hands over the rest again.
        return [*results, *await self.run(*left)] if (left := work.take_back()) else results

    def _finished(self, work: Work, results: list[Result]) -> None:
        self.reports.append((work, results))
        if not self._waiting[work].done():
            self._waiting[work].set_result(results)


class SignallingRecorder(Recorder):
    """A Recorder with an event that is set when a worker returns something."""

    def __init__(self) -> None:
        super().__init__()
        self.something_returned = asyncio.Event()

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        super().returned(op, batch, errors, now)
        self.something_returned.set()

    def late(self, op: str, batch: Batch, now: float) -> None:
        super().late(op, batch, now)
        self.something_returned.set()


class EngineHarness:
    """An engine with one op on the running loop; records the histories of clients and engine."""

    def __init__(
        self,
        kind: str,
        op: Op | None,
        *,
        workers: int = 1,
        options: WorkOptions | None = None,
        policy: BatchPolicy | None = None,
        max_requests: int = 100_000,
        executor: Executor | None = None,
    ) -> None:
        self.options = options or WorkOptions()
        if executor is None:
            assert op is not None
            executor = executor_of(kind, op, workers, self.options)
        self.executor = executor
        self.recorder = SignallingRecorder()
        self.history = ClientHistory()
        self.engine = Engine(
            LoopClock(asyncio.get_running_loop()),
            EngineOptions(max_requests=max_requests),
            Instruments([self.recorder]),
        )
        self.graph = ServedGraph(self.engine, plan_of({"op": ["@"]}, "op"))
        self.stage = self.graph.add_op(
            "op",
            queue=batcher_for(policy or BatchPolicy()),
            executor=self.executor,
            options=self.options,
        )
        self.engine.add(self.graph)
        self._asked = 0

    async def request(self, life: float = 30.0, **feed: Any) -> Outcome:
        """Sends one request; its ``n`` is the nonce that a correct reply carries."""
        number = self._asked
        self._asked += 1
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        now = time.monotonic()
        self.history.invoke(number, number, now, now + life)
        submission = Submission(self.graph, {"n": number, **feed}, life)
        self.engine.submit(submission, lambda _, outcome: answer.set_result(outcome))
        outcome = await answer
        now = time.monotonic()
        if outcome.error is None:
            assert outcome.value is not None
            self.history.ok(number, outcome.value["n"], now)
        else:
            self.history.failed(number, outcome.error.code, now)
        return outcome

    async def at_rest(self) -> None:
        """Waits until every worker is idle."""
        async with asyncio.timeout(10.0):
            while self.stage.statistics().idle < self.executor.workers:
                self.recorder.something_returned.clear()
                await self.recorder.something_returned.wait()

    def verdict(self) -> list[str]:
        """The violations in the recorded histories."""
        # The number of concurrent batches is not checked: a Work that is taken back whole ends
        # without an event.
        limits = Limits(dispatches={"op": self.options.retry}, grace=0.5)
        return check(self.history.events, self.recorder.events, limits)

    async def close(self) -> None:
        self.engine.close()
        await self.executor.close(5.0)
