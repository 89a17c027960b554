"""The tracer: a periodic report of each op and the graph, in the original's format.

``in`` is the time that a worker waited for a batch, ``out`` the time that its results took to
return to the engine. Source: docs/tracing.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

from penstock.errors import RequestError
from penstock.instrument import Instrument, RequestInfo
from penstock.request import Batch

TRACER: Final = "pipeline.tracer"
"""The logger of the reports."""

STAGES: Final = ("in", "prep", "midp", "postp", "out")
QUANTILES: Final = (50, 60, 70, 80, 90, 95, 99)

Taken: TypeAlias = dict[str, Any]
"""One engine's figures as plain values: ``ops``, each with the number of its batches and the
seconds of each stage; the ``seconds`` of each request; the ids of those that ``failed``."""

Channel: TypeAlias = tuple[list[str], str, int, int]
"""A queue: source ops, reading op, length, and capacity."""


class Window(Instrument):
    """One engine's figures since the last report.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._started = now
        self._free: dict[tuple[str, int], float] = {}  # when each worker's last results arrived
        self._ops: dict[str, list[float]] = {}
        self._seconds = array("d")
        self._failed: list[int] = []

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
