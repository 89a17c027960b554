"""Runs the steps of a load, in this process or in several, and reads the service's status."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, Final, cast

import uvloop

from penstock.bench.generator import Arrived, Attempt, Ended, Failure, Generator, Sender
from penstock.bench.grpc import GrpcSender
from penstock.bench.http import HttpSender
from penstock.bench.results import Measured, OpTimes, StepResult, ops_between, result_of
from penstock.bench.schedule import Load, Step
from penstock.bench.target import BadTarget, Target
from penstock.observe.status import NoStatus

Tick = Callable[[int, float], bool]
"""Called about ten times a second with the step's index and its elapsed seconds; returning true
ends the run early."""

_POLL: Final = 0.1
_HEAD_START: Final = 0.1
"""Seconds before a step in which all processes are notified."""


def run(
    target: Target,
    load: Load,
    *,
    on_tick: Tick = lambda number, seconds: False,
    on_result: Callable[[StepResult], object] = lambda result: None,
) -> list[StepResult]:
    """Run the load on the target; return the results of the steps, in order.

    The run ends early if ``on_tick`` returns true, and after a step without good answers. With
    several processes the caller's main module must be importable, as for ``multiprocessing``.

    Raises:
        BadTarget: the first request, sent alone, has no good answer.
        OSError: a file of certificates cannot be read.
    """
    failure = uvloop.run(_ask_once(target, load))
    if failure is not None:
        raise BadTarget(f"{target.url}: {failure.kind}: {failure.text}".rstrip(": "))
    results: list[StepResult] = []
    with _measuring(target, load) as measure:
        for number, step in enumerate(load.steps):
            begin = time.monotonic() + _HEAD_START
            first = begin + load.warm_up
            status = _ServerStatus(target, load, first, first + load.duration)
            parts = measure(step, begin, partial(_tick, on_tick, number, begin))
            ops, note = status.between()
            result = result_of(step, parts, ops, note, in_pieces=target.in_pieces)
            if result.requests:
                results.append(result)
                on_result(result)
            if result.interrupted or not result.good:
                break
    return results


def _tick(on_tick: Tick, number: int, begin: float) -> bool:
    return on_tick(number, time.monotonic() - begin)


def _connect(target: Target, load: Load, ended: Ended, arrived: Arrived) -> Sender:
    if target.calls is None:
        return HttpSender(target, load.timeout, ended, arrived)
    return GrpcSender(target, load.timeout, load.connections, ended)


async def _ask_once(target: Target, load: Load) -> Failure | None:
    ends: asyncio.Queue[Failure | None] = asyncio.Queue()
    sender = _connect(
        target, load, lambda attempt, failure: ends.put_nowait(failure), lambda *_: None
    )
    try:
        sender.send(Attempt(0.0, 0.0))
        return await ends.get()
    finally:
        await sender.close()


def _measure(
    target: Target, load: Load, step: Step, begin: float, stopped: Callable[[], bool]
) -> Measured:
    async def measure() -> Measured:
        return await Generator(step, load, begin, stopped).run(partial(_connect, target, load))

    return uvloop.run(measure())


_Measure = Callable[[Step, float, Callable[[], bool]], list[Measured]]


@contextmanager
def _measuring(target: Target, load: Load) -> Iterator[_Measure]:
    """Yield the function that measures a step, in this process or in several."""
    if load.processes == 1:
        yield lambda *step: [_measure(target, load, *step)]
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pipes: list[Connection[Any, Any]] = []
    processes = []
    try:
        for _ in range(load.processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, stop, target, load), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _received(pipe)  # the process has started
        yield partial(_measure_in_all, pipes, stop)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join()


def _measure_in_all(
    pipes: list[Connection[Any, Any]],
    stop: Event,
    step: Step,
    begin: float,
    stopped: Callable[[], bool],
) -> list[Measured]:
    busy = pipes[: step.concurrency]
    for number, pipe in enumerate(busy):
        pipe.send((step.part(number, len(busy)), begin))
    found = []
    while busy:
        for ready in connection.wait(busy, _POLL):
            pipe = cast("Connection[Any, Any]", ready)
            found.append(_received(pipe))
            busy.remove(pipe)
        if stopped():
            stop.set()
    return found


def _received(pipe: Connection[Any, Any]) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise BadTarget("a client process has died") from None


def _work(pipe: Connection[Any, Any], stop: Event, target: Target, load: Load) -> None:
    """Main function of a client process: measures its part of steps until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process handles it and sets the event
    pipe.send(None)
    with suppress(EOFError):
        while True:
            step, begin = pipe.recv()
            pipe.send(_measure(target, load, step, begin, stop.is_set))


class _ServerStatus:
    """Requests the server's status at the begin and end of the measured time, in a thread.

    Args:
        target: the service.
        load: the load.
        first: when the measured time begins.
        end: when it ends, if nothing ends it earlier.
    """

    def __init__(self, target: Target, load: Load, first: float, end: float) -> None:
        self._ask_status = target.status
        self._shared = None if target.calls is None else load.connections * load.processes
        self._times = (first, end)
        self._over = threading.Event()
        self._reports: list[dict[str, Any]] = []
        self._problem = ""
        self._thread = threading.Thread(target=self._ask, name="penstock-bench-status", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            for when in self._times:
                self._over.wait(max(0.0, when - time.monotonic()))
                self._reports.append(self._ask_status())
        except NoStatus as error:
            self._problem = str(error)

    def between(self) -> tuple[tuple[OpTimes, ...], str]:
        """Return the op times, and why there are none. Call it after the step."""
        self._over.set()
        self._thread.join()
        if self._problem:
            return (), self._problem
        try:
            engines = self._reports[1]["engines"]
            note = ""
            if self._shared is not None and engines > self._shared:
                note = f"{engines} engines share fewer gRPC connections: raise --connections"
            return ops_between(*self._reports), note
        except (KeyError, TypeError, AttributeError):  # /status is another application's
            return (), "the server has no readable status"
