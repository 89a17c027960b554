"""What a service does between two of its status reports: a table with a line for each op. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from penstock.observe.places import missing
from penstock.observe.sketch import quantiles as sketched
from penstock.observe.sketch import since

Report: TypeAlias = Mapping[str, Any]

_BUSY: Final = 0.8
"""The share of time from which workers, or a loop, count as busy: queues grow fast beyond it."""

_HEAD: Final = (
    "op", "load", "workers", "waiting", "req/s", "batch", "ms a batch", "wait p50", "wait p99",
)  # fmt: skip
_FAILURES: Final = ("errors", "timeouts", "deaths")


def table(before: Report, now: Report, seconds: float) -> str:
    """The lines for the time between two reports of a service.

    Args:
        before: the earlier report.
        now: the later one.
        seconds: between them.
    """
    old = {op["name"]: op for op in _ops(before)}
    ops = [(op, old.get(op["name"], {})) for op in _ops(now)]
    answered = now["requests"]["answered"] - before["requests"]["answered"]
    refused = now["requests"]["refused"] - before["requests"]["refused"]
    failed = answered - (now["answers"].get("ok", 0) - before["answers"].get("ok", 0))
    half, most = quantiles(before["seconds"], now["seconds"])
    head = (
        f"{'ready' if now['ready'] else 'not ready: ' + now['why']}"
        f"   {answered / seconds:.1f} answers/s   p50 {half}   p99 {most}"
        f"   failed {failed}   refused {refused}   inside {now['requests']['inside']}"
    )
    rows = [_HEAD, *(_row(op, former, seconds) for op, former in ops)]
    return "\n".join([head, "", *aligned(rows), "", bottleneck(before, now, seconds)])


def bottleneck(before: Report, now: Report, seconds: float) -> str:
    """What limits the throughput, as one line."""
    old = {op["name"]: op for op in _ops(before)}
    loads = {op["name"]: _load(op, old.get(op["name"], {}), seconds) for op in _ops(now)}
    loop = now["process"]["loop"] - before["process"]["loop"]
    loop /= seconds * max(1, now["engines"])
    if loop >= _BUSY and loop > max(loads.values(), default=0.0):
        return f"bottleneck: the engine's event loop, busy {loop:.0%}: more engines (worker_num)"
    if not loads:
        return "no bottleneck"
    name = max(loads, key=loads.__getitem__)
    (op,) = [each for each in _ops(now) if each["name"] == name]
    if loads[name] < _BUSY:
        return f"no bottleneck; the busiest op is {name}, {loads[name]:.0%}"
    return (
        f"bottleneck: {name}, its workers are busy {loads[name]:.0%}, {op['waiting']} requests wait"
    )


def quantiles(before: Report, now: Report) -> tuple[str, str]:
    """The median and the 99th percentile of the durations between two reports, as texts; ``-``
    without durations.

    Args:
        before: the earlier durations, with their sketch.
        now: the later ones.
    """
    half, most = sketched(since(before.get("sketch", {}), now.get("sketch", {})), 0.5, 0.99)
    return _ms(half), _ms(most)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f} ms"


def _ops(report: Report) -> list[Report]:
    return [op for graph in report["graphs"] for op in graph["ops"]]


def _busy(op: Report) -> float:
    return float(sum(op["seconds"].values())) if op else 0.0


def _load(op: Report, former: Report, seconds: float) -> float:
    """The share of time in which its workers ran batches; those that ended in between count."""
    return float((_busy(op) - _busy(former)) / (seconds * max(1, op["workers"])))


def _row(op: Report, former: Report, seconds: float) -> tuple[str, ...]:
    batches = op["batches"] - former.get("batches", 0)
    samples = op["samples"] - former.get("samples", 0)
    half, most = quantiles(former.get("queue", {}), op["queue"])
    # A request at a seat is a batch of one for the engine, and says nothing about its steps.
    has_batches = batches and "steps" not in op
    further = [
        f"{name} {op[name] - former.get(name, 0)}"
        for name in _FAILURES
        if op.get(name, 0) > former.get(name, 0)
    ]
    if absent := missing(op):
        further.append(f"{absent} of {len(op['places'])} workers are missing")
    return (
        op["name"],
        f"{_load(op, former, seconds):.0%}",
        f"{op['workers'] - op['idle']}/{op['workers']}",
        str(op["waiting"]),
        f"{samples / seconds:.1f}",
        f"{samples / batches:.1f}" if has_batches else "-",
        f"{1000 * (_busy(op) - _busy(former)) / batches:.2f}" if has_batches else "-",
        half,
        most,
        *_steps(op, former),
        *further,
    )


def _steps(op: Report, former: Report) -> list[str]:
    """The steps of an op with seats: how many requests ran in one, and how long one took."""
    if "steps" not in op:
        return []
    steps, old = op["steps"], former.get("steps")
    count = steps["count"] - (old["count"] if old else 0)
    if not count:
        return []
    running, seconds = (
        (steps[each]["sum"] - (old[each]["sum"] if old else 0)) / count
        for each in ("running", "seconds")
    )
    return [f"{running:.1f} a step", f"{1000 * seconds:.2f} ms a step"]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, with the first column left and the others right aligned."""
    columns = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(columns)]
    return [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        ).rstrip()
        for row in rows
    ]
