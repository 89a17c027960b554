"""Where one hop through the engine goes: steps of the interpreter by function, without a clock.

Each function's bytecodes are counted while requests run through chains of one and of three inline
ops; what the longer chain has more is the cost of an op. The counts are the same on every machine
and every day, unlike times.

    python -m benchmarks.hop_steps
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import ExitStack
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from benchmarks.hop import IN_FLIGHT, chain
from penstock.engine.submission import Submission
from penstock.request import Outcome

_SHORT, _LONG = 1, 3
_REQUESTS = 20 * IN_FLIGHT
LEAST = 4.0  # steps of a function that has a row of its own

_BUDGETS = (
    "penstock.engine.stage._TURN",
    "penstock.engine.settling._TURN",
    "penstock.executors.turn.TURN",
    "penstock.batching.dispatch.HAND_OVER_BUDGET",
)
"""Seconds after which somebody lets others have their turn: counting takes far longer than running,
and would make turns of what is none."""


class Steps(NamedTuple):
    """For one op of one request: calls of a function and the bytecodes run in it."""

    function: str
    calls: float
    bytecodes: float


def measure() -> list[Steps]:
    """The functions of a hop, the most expensive first."""
    short, long = (asyncio.run(_counted(length)) for length in (_SHORT, _LONG))
    hops = (_LONG - _SHORT) * _REQUESTS
    found = [
        Steps(
            name,
            (long[0][name] - short[0][name]) / hops,
            (long[1][name] - short[1][name]) / hops,
        )
        for name in long[1]
    ]
    return sorted(found, key=lambda each: -each.bytecodes)


async def _counted(length: int) -> tuple[Counter[str], Counter[str]]:
    calls: Counter[str] = Counter()
    bytecodes: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "opcode":
            bytecodes[frame.f_code.co_qualname] += 1
        return trace

    loop = asyncio.get_running_loop()
    (graph,) = chain(length, "inline", loop).graphs
    over = asyncio.Event()
    feed = {"x": "The quick brown fox jumps over the lazy dog."}
    asked = answered = 0  # asked, or about to be: several may be answered in one turn

    def ask() -> None:
        Submission(graph, dict(feed)).start(reply)

    def reply(_: Submission, outcome: Outcome) -> None:
        nonlocal asked, answered
        assert outcome.value == feed
        answered += 1
        if asked < _REQUESTS:
            asked += 1
            loop.call_soon(ask)
        elif answered == _REQUESTS:
            over.set()

    with ExitStack() as stack:
        for budget in _BUDGETS:
            stack.enter_context(patch(budget, 60.0))
        # To warm up, first untraced, then traced: Python 3.12 counts in full from then on.
        for tracer in (None, trace, trace):
            calls.clear()
            bytecodes.clear()
            over.clear()
            asked, answered = IN_FLIGHT, 0
            sys.settrace(tracer)
            for _ in range(IN_FLIGHT):
                ask()
            await over.wait()
            sys.settrace(None)
    return calls, bytecodes


def main() -> None:
    """Print the table."""
    steps = measure()
    table = Table("function", "calls", "bytecodes", title="one more inline op, per request")
    for each in steps:
        if each.bytecodes >= LEAST:
            table.add_row(each.function, f"{each.calls:.2f}", f"{each.bytecodes:.1f}")
    table.add_section()
    table.add_row("all", "", f"{sum(each.bytecodes for each in steps):.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
