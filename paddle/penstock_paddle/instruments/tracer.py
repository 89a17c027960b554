"""The tracer: a periodic report of each op and the graph, in the original's format.

Each engine counts; the first one writes the sum over all of them. ``in`` is the time that a worker
waited for a batch, ``out`` the time that its results took to return to the engine. Source:
docs/tracing.md.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

from penstock.engine.engine import Engine
from penstock.errors import RequestError
from penstock.graph.dag import REQUEST
from penstock.instrument import Instrument, RequestInfo, ServiceInfo
from penstock.request import REQUEST_OP_NAME, Batch

TRACER: Final = "pipeline.tracer"
"""The logger of the reports."""

STAGES: Final = ("in", "prep", "midp", "postp", "out")
QUANTILES: Final = (50, 60, 70, 80, 90, 95, 99)

Taken: TypeAlias = dict[str, Any]
"""One engine's figures as plain values: ``ops``, each with the number of its batches and the
seconds of each stage; the ``seconds`` of each request; the ids of those that ``failed``."""

Channel: TypeAlias = tuple[list[str], str, int, int]
"""A queue: source ops, reading op, length, and capacity."""

_log = logging.getLogger(TRACER)


class Tracer(Instrument):
    """One engine's figures since the last report; the first engine's writes the reports."""

    def __init__(self) -> None:
        self._started = 0.0
        self._service: ServiceInfo
        self._task: asyncio.Task[None] | None = None
        self._free: dict[tuple[str, int], float] = {}  # when each worker's last results arrived
        self._ops: dict[str, list[float]] = {}
        self._seconds = array("d")
        self._failed: list[int] = []

    def engine_started(self, service: ServiceInfo, now: float) -> None:
        """See Instrument."""
        self._started, self._service = now, service
        if service.is_first:
            self._task = asyncio.get_running_loop().create_task(self._write(service))

    async def engine_ended(self) -> None:
        """See Instrument."""
        if self._task is not None:
            self._task.cancel()

    def answer(self) -> list[Any]:
        """This engine's figures since the last report, and its queue lengths."""
        return [self.take(), [each.waiting for each in self._service.engine.statistics().stages]]

    async def _write(self, service: ServiceInfo) -> None:
        """Write reports until cancelled; without a file, skip empty ones."""
        config = service.config
        seconds, most = config.dag.tracer.interval_s, config.dag.channel_size or 0
        while True:
            await asyncio.sleep(seconds)
            answers = await service.ask(self)
            windows = [window for window, _ in answers]
            own_file = not _log.propagate
            if is_empty(windows) and not own_file:
                continue
            waiting = [sum(each) for each in zip(*(found for _, found in answers), strict=False)]
            channels = _channels(service.engine, waiting, most)
            for line in report(windows, channels, config.worker_num or 1, seconds):
                _log.info("%s", line if own_file else line.expandtabs(4))

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        """See Instrument."""
        worker = (op, batch.worker)
        free = self._free.get(worker, self._started)
        self._free[worker] = now
        began, ran = batch.began, batch.ran
        if began is None or not ran or errors == len(batch.samples):
            return
        sums = self._ops.get(op)
        if sums is None:
            sums = self._ops[op] = [0.0] * (1 + len(STAGES))
        sums[0] += 1
        if began > free:  # ``max`` would take longer
            sums[1] += began - free
        sums[2] += batch.prepared
        sums[3] += batch.processed
        sums[4] += ran - batch.prepared - batch.processed
        if now > began + ran:
            sums[5] += now - began - ran

    def given_up(self, op: str, batch: Batch, now: float) -> None:
        """See Instrument."""
        self._free[op, batch.worker] = now

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        """See Instrument."""
        if request.copied:
            return
        self._seconds.append(now - request.admitted_at)
        if error is not None:
            self._failed.append(request.data_id)

    def take(self) -> Taken:
        """Return and reset the figures."""
        taken = {"ops": self._ops, "seconds": [*self._seconds], "failed": self._failed}
        self._ops, self._seconds, self._failed = {}, array("d"), []
        return taken


def report(
    windows: Sequence[Taken], channels: Iterable[Channel], workers: int, interval: float
) -> list[str]:
    """The lines of one report.

    Args:
        windows: of all engines.
        channels: in the order of their numbers.
        workers: the configuration's ``worker_num``.
        interval: seconds that the report covers.
    """
    return [
        "==================== TRACER ======================",
        *_ops(windows),
        *_requests(windows, interval),
        f"Channel (server worker num[{workers}]):",
        *(
            f"\tchl{number}(In: {before}, Out: {[op]}) size[{waiting}/{most}]"
            for number, (before, op, waiting, most) in enumerate(channels)
        ),
    ]


def is_empty(windows: Sequence[Taken]) -> bool:
    """Whether there was no activity."""
    return not any(each["ops"] or each["seconds"] for each in windows)


def _ops(windows: Sequence[Taken]) -> Iterator[str]:
    for op in dict.fromkeys(chain.from_iterable(each["ops"] for each in windows)):
        found = [each["ops"][op] for each in windows if op in each["ops"]]
        batches, *seconds = map(sum, zip(*found, strict=True))
        yield f"Op({op}):"
        for stage, each in zip(STAGES, seconds, strict=True):
            yield f"\t{stage}[{1000 * each / batches} ms]"
        whole = sum(seconds)
        yield f"\tidle[{1 - sum(seconds[1:4]) / whole if whole else 1.0}]"


def _requests(windows: Sequence[Taken], interval: float) -> Iterator[str]:
    times = sorted(1000 * each for window in windows for each in window["seconds"])
    failed = [each for window in windows for each in window["failed"]]
    count = len(times)
    if not count:
        return
    yield "DAGExecutor:"
    yield f"\tQuery count[{count}]"
    yield f"\tQPS[{count / interval} q/s]"
    yield f"\tSucc[{1 - len(failed) / count}]"
    yield f"\tError req[{', '.join(map(str, failed))}]"
    yield "\tLatency:"
    yield f"\t\tave[{sum(times) / count} ms]"
    for each in QUANTILES:
        yield f"\t\t.{each}[{times[count * each // 100]} ms]"


def _channels(engine: Engine, waiting: list[int], most: int) -> list[Channel]:
    """The queue of each op, and the channel from each graph's last op to its reply."""
    found: list[Channel] = []
    ends: list[Channel] = []
    left = iter(waiting)
    for graph in engine.graphs:
        names = [stage.name for stage in graph.stages]
        for name, inputs in zip(names, graph.plan.inputs, strict=True):
            before = [REQUEST_OP_NAME if i == REQUEST else names[i] for i in inputs]
            found.append((before, name, next(left, 0), most))
        ends.append(([names[graph.plan.last]], REQUEST_OP_NAME, 0, most))
    return found + ends
