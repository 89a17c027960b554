"""What a hand-over to a worker process costs, in steps of the interpreter, without a clock.

A real worker process echoes hand-overs of 1, 8 and 32 batches of one sample, and on both sides the
bytecodes of our own functions are counted. What many hand-overs have more than few is what one
costs; the counts are the same on every machine and every day, unlike times.

    python -m benchmarks.process_steps
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import penstock
from benchmarks.hop import EchoOp
from penstock.executors.executor import Result, Work
from penstock.executors.process import ProcessExecutor
from penstock.executors.processes.child import Child
from penstock.executors.processes.control import Exited
from penstock.executors.processes.worker import SLAB_BYTES
from penstock.executors.work import BoundOp, WorkOptions
from penstock.request import REQUEST_OP_NAME, Batch, CloseReason, Sample

SIZES = (1, 8, 32)
SHOWN = 8  # the size whose functions are shown
LEAST = 8.0  # steps of a function that has a row of its own
_FEW, _MANY = 5, 25  # hand-overs
_OURS = str(Path(penstock.__file__).parent)
_FEED = {"x": "The quick brown fox jumps over the lazy dog."}


class Steps(NamedTuple):
    """By function, for one batch."""

    engine: dict[str, float]
    worker: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Spawned:
    pid: int
    pidfd: int
    socket: socket.socket


class _Spawner:
    """Starts one worker, whose counts it reads when that has ended."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._process: subprocess.Popen[bytes] | None = None

    async def spawn(self, op: str, index: int) -> _Spawned:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "benchmarks.process_steps", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE
            )
        return _Spawned(self._process.pid, os.pidfd_open(self._process.pid), ours)

    async def exited(self, pid: int) -> Exited:
        assert self._process is not None
        written, _ = await asyncio.to_thread(self._process.communicate)
        self.counts.update(json.loads(written or b"{}"))
        return Exited(pid, self._process.returncode, 0)


class _Trace:
    """Counts the bytecodes of our own functions between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        sys.settrace(self._enter)

    def stop(self) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        # What is generated, such as the constructors of records, has no file.
        if not code.co_filename.startswith((_OURS, "<string>")):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.counts[frame.f_code.co_qualname] += 1
        return self._step


def measure(size: int) -> Steps:
    """The steps for each batch, where so many are handed over together.

    Raises:
        RuntimeError: an answer is not the echo.
    """
    few, many = (asyncio.run(_counted(size, count)) for count in (_FEW, _MANY))
    batches = (_MANY - _FEW) * size
    return Steps(
        *(
            {name: (side[name] - before[name]) / batches for name in side}
            for before, side in zip(few, many, strict=True)
        )
    )


async def _counted(size: int, hand_overs: int) -> tuple[Counter[str], Counter[str]]:
    spawner, trace, loop = _Spawner(), _Trace(), asyncio.get_running_loop()
    executor = ProcessExecutor("echo", 1, spawner, loop)
    await executor.start()
    try:
        for _ in range(hand_overs):
            done: asyncio.Future[list[Result]] = loop.create_future()
            work = Work([_batch() for _ in range(size)])
            trace.start()
            executor.submit(work, partial(_tell, done))
            results = await done
            trace.stop()
            if [outcome.value for _, (outcome,) in results] != [_FEED] * size:
                raise RuntimeError("the worker does not echo")
    finally:
        trace.stop()
        await executor.close(30.0)
    return trace.counts, spawner.counts


def _tell(done: asyncio.Future[list[Result]], _work: Work, results: list[Result]) -> None:
    done.set_result(results)


def _batch() -> Batch:
    sample = Sample(1, {REQUEST_OP_NAME: dict(_FEED)}, time.monotonic() + 600.0)
    return Batch([sample], CloseReason.FULL, 0.0)


def serve(descriptor: int) -> None:
    """Be the worker at the other end of a socket, and write its counts when it is to end."""
    trace = _Trace()
    with socket.socket(fileno=descriptor) as channel:
        child = Child(channel, SLAB_BYTES)
        child.take_stderr()
        child.ready()
        trace.start()
        child.serve(BoundOp(EchoOp(name="echo"), None, WorkOptions()))
        trace.stop()
    sys.stdout.write(json.dumps(trace.counts))


def main() -> None:
    """Print both tables."""
    totals = Table("batches together", "engine", "worker", title="bytecodes for each batch")
    for size in SIZES:
        steps = measure(size)
        totals.add_row(str(size), *(f"{sum(side.values()):.0f}" for side in steps))
        if size == SHOWN:
            shown = steps
    console = Console()
    console.print(totals)
    for side, counts in shown._asdict().items():
        table = Table("function", "bytecodes", title=f"{side}, {SHOWN} batches together")
        for name, count in sorted(counts.items(), key=lambda each: -each[1]):
            if count >= LEAST:
                table.add_row(name, f"{count:.1f}")
        console.print(table)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(int(sys.argv[1]))
    else:
        main()
