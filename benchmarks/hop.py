"""What one hop through the engine costs: microseconds per request and op, without doors and codecs.

Chains of one to three echo ops are loaded in a closed loop inside one process on one core. The
slope over the length of the chain is the cost of one hop (queue, batch, hand-over, hooks, outcome);
what is left for a chain of none is admission and reply. CPU time of the whole process is counted,
so that a thread worker's share is in it.

    python -m benchmarks.hop --seconds 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

from penstock.batching.batcher import BatchPolicy, batcher_for
from penstock.engine.clock import LoopClock
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.engine.submission import Submission
from penstock.executors.inline import InlineExecutor
from penstock.executors.thread import ThreadExecutor
from penstock.executors.work import BoundOp, WorkOptions
from penstock.graph.dag import OpSpec, compile_graph
from penstock.ops.ends import Ends, RequestOp, ResponseOp
from penstock.ops.op import Op
from penstock.request import Outcome

GOAL_US, ALARM_US = 8.0, 15.0
"""Python on the loop per request and op: the budget of the hot path, and when to worry."""
IN_FLIGHT = 32
LENGTHS = (1, 2, 3)
EXECUTORS = ("inline", "thread")


class EchoOp(Op):
    """Its result is its input."""

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> dict[str, Any]:
        return feed_batch[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class HopCost:
    """Medians over the rounds, in microseconds of CPU time of the whole process.

    Attributes:
        executor: where the ops ran.
        chains_us: per request, for chains of one, two and three ops.
        hop_us: per further op.
        ends_us: what a chain of no op would cost: admission and reply.
    """

    executor: str
    chains_us: list[float]
    hop_us: float
    ends_us: float


def chain(length: int, executor: str, loop: asyncio.AbstractEventLoop) -> Engine:
    """An engine with that many echo ops, one after the other."""
    request = OpSpec(key=0, name="@DAGExecutor", is_request=True)
    specs = [OpSpec(key=i, name=f"op{i}", inputs=(i - 1,)) for i in range(1, length + 1)]
    plan = compile_graph([request, *specs], length)
    engine = Engine(LoopClock(loop))
    ends = Ends(RequestOp(), ResponseOp(input_ops=[EchoOp("echo")]))
    graph = ServedGraph(engine, plan, "echo", ends=ends)
    for name in plan.names:
        options = WorkOptions()
        bound = BoundOp(EchoOp(name), None, options)
        worker = InlineExecutor(bound) if executor == "inline" else ThreadExecutor([bound], loop)
        graph.add_op(name, queue=batcher_for(BatchPolicy()), executor=worker, options=options)
    engine.add(graph)
    return engine


async def cpu_us_per_request(length: int, executor: str, seconds: float) -> float:
    """Load one chain for that long.

    Raises:
        RuntimeError: an answer is an error or not the echo.
    """
    loop = asyncio.get_running_loop()
    engine = chain(length, executor, loop)
    (graph,) = engine.graphs
    answered = 0
    wrong: list[Outcome] = []
    stop = asyncio.Event()
    feed = {"x": "The quick brown fox jumps over the lazy dog."}

    def ask() -> None:
        Submission(graph, dict(feed)).start(reply)

    def reply(_: Submission, outcome: Outcome) -> None:
        nonlocal answered
        answered += 1
        if outcome.value != feed:
            wrong.append(outcome)
            stop.set()
        if not stop.is_set():
            loop.call_soon(ask)  # as from a connection; asking here would never let the loop turn

    for _ in range(IN_FLIGHT):
        ask()
    await asyncio.sleep(seconds * 0.2)  # warm-up, not a wait for anything
    loop.call_later(seconds, stop.set)
    before, began = answered, time.process_time()
    await stop.wait()
    spent, count = time.process_time() - began, answered - before
    at_rest = asyncio.Event()
    engine.drain(at_rest.set)
    await asyncio.wait_for(at_rest.wait(), 10)
    for stage in engine.stages:
        await stage.executor.close(1.0)
    if wrong or not count:
        raise RuntimeError(f"the chain does not echo: {wrong[:1]}")
    return spent / count * 1e6


def measure(seconds: float, rounds: int) -> list[HopCost]:
    """Every executor and length in turn, ``rounds`` times."""
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for executor in EXECUTORS:
            for length in LENGTHS:
                cost = uvloop.run(cpu_us_per_request(length, executor, seconds))
                found.setdefault((executor, length), []).append(cost)
    costs = []
    for executor in EXECUTORS:
        chains = [statistics.median(found[executor, length]) for length in LENGTHS]
        costs.append(cost_of(executor, chains))
    return costs


def cost_of(executor: str, chains_us: list[float]) -> HopCost:
    """Fit a line through the costs of chains of one, two and three ops."""
    line = statistics.linear_regression(LENGTHS, chains_us)
    return HopCost(
        executor=executor, chains_us=chains_us, hop_us=line.slope, ends_us=line.intercept
    )


def main() -> int:
    """Print one line for each executor, or one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hop")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, help="run on this core only")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    core = options.core if options.core is not None else min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    costs = measure(options.seconds, options.rounds)
    if options.json:
        print(json.dumps([asdict(cost) for cost in costs]))
        return 0
    for cost in costs:
        lengths = ", ".join(f"{n}: {us:.1f}" for n, us in zip(LENGTHS, cost.chains_us, strict=True))
        print(
            f"{cost.executor}: {cost.hop_us:.1f} us a hop (goal {GOAL_US:g}, alarm {ALARM_US:g}),"
            f" {cost.ends_us:.1f} us for admission and reply; by length of chain {lengths}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
