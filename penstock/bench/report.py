"""The results as a table, CSV and JSON. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import orjson

from penstock.bench.results import PieceTimes, StepResult
from penstock.bench.schedule import Load
from penstock.bench.target import Target

_UNCORRECTED: Final = (
    "closed loop: latency counts from the sending, not corrected for coordinated omission; --rate"
    " counts it from when each request was due"
)
_TIMES: Final = ("mean", "p50", "p90", "p95", "p99", "p999", "max")


def heading(target: Target, load: Load) -> str:
    """Return the description of the load, and the header of the table."""
    rate = load.steps[0].rate
    kind = f"open loop, {load.arrivals} arrivals" if rate is not None else "closed loop"
    first = "rate" if rate is not None else "in flight"
    columns = "".join(f"{name:>9}" for name in ("p50 ms", "p90 ms", "p99 ms", "p99.9", "max"))
    return (
        f"{target.url}: {kind}, {load.duration:g} s a step after {load.warm_up:g} s of warm-up\n"
        f"{first:>9}{'answers/s':>11}{columns}{'failed':>9}"
    )


def lines_of(result: StepResult) -> list[str]:
    """Return the lines of a step: its row, failures, op times and remarks."""
    latency = result.latency
    times = (latency.p50, latency.p90, latency.p99, latency.p999, latency.max)
    lines = [
        f"{level_of(result):>9g}{result.rate:>11.1f}"
        + "".join(f"{_ms(each):>9}" for each in times)
        + f"{result.failed:>9}"
    ]
    if result.pieces is not None:
        lines.append(_pieces(result.pieces))
    for kind, count in sorted(result.errors.items(), key=lambda each: -each[1]):
        text = result.texts.get(kind, "")
        lines.append(f"          {count} × {kind}" + (f": {text}" if text else ""))
    for op in result.ops:
        lines.append(
            f"          op {op.name}: {op.batches} batches of {op.batch_size:.1f}, queue"
            f" {_ms(op.queue)}, preprocess"
            f" {_ms(op.preprocess)} + process {_ms(op.process)} + postprocess"
            f" {_ms(op.postprocess)} ms, {op.waiting} waiting"
        )
    remarks = [*result.remarks, *(["interrupted"] if result.interrupted else [])]
    return [*lines, *(f"          {each}" for each in remarks)]


def _pieces(times: PieceTimes) -> str:
    shown = [
        f"{name} {_ms(each.p50)}, {_ms(each.p90)}, {_ms(each.p99)}"
        for name, each in (("first", times.first), ("between", times.between))
    ]
    return (
        f"          pieces: {times.rate:.1f}/s, {times.mean:.1f} an answer;"
        f" {' and '.join(shown)} ms (p50, p90, p99)"
    )


def level_of(result: StepResult) -> float:
    """Return the step's load: its rate, or in a closed loop its concurrency."""
    return result.step.concurrency if result.step.rate is None else result.step.rate


def level(result: StepResult) -> str:
    """Return the step's load with its unit."""
    what = "in flight" if result.step.rate is None else "a second"
    return f"{level_of(result):g} {what}"


def footing(results: Sequence[StepResult]) -> list[str]:
    """Return the lines that concern all steps."""
    lines = []
    if any(result.step.rate is None for result in results):
        lines.append(_UNCORRECTED)
    notes = dict.fromkeys(result.server_note for result in results if result.server_note)
    return [*lines, *notes]


def as_csv(results: Sequence[StepResult]) -> str:
    """Return a CSV table with a row for each step; times in seconds."""
    out = io.StringIO()
    rows = [_row(result) for result in results]
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_json(target: Target, load: Load, results: Sequence[StepResult]) -> bytes:
    """Return all results as JSON; times in seconds."""
    found = {
        "target": target.url,
        "load": {name: value for name, value in asdict(load).items() if name != "steps"},
        "steps": [
            {**asdict(each), "failed": each.failed, "remarks": each.remarks} for each in results
        ],
    }
    return orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _row(result: StepResult) -> dict[str, Any]:
    return {
        "rate_wished": result.step.rate,
        "concurrency": result.step.concurrency,
        "seconds": result.seconds,
        "requests": result.requests,
        "good": result.good,
        "failed": result.failed,
        "rate": result.rate,
        **{f"latency_{name}": getattr(result.latency, name) for name in _TIMES},
        **{f"from_sending_{name}": getattr(result.from_sending, name) for name in _TIMES},
        **_piece_columns(result.pieces),
        "lag_p99": result.lag_p99,
        "client_busy": result.client_busy,
    }


def _piece_columns(times: PieceTimes | None) -> dict[str, Any]:
    if times is None:
        return {}
    return {
        **{f"first_piece_{name}": getattr(times.first, name) for name in _TIMES},
        **{f"between_pieces_{name}": getattr(times.between, name) for name in _TIMES},
        "piece_rate": times.rate,
        "pieces_mean": times.mean,
    }


def _ms(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:.2f}" if milliseconds < 100 else f"{milliseconds:.0f}"
