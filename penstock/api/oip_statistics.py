"""The statistics of each model in the Open Inference Protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from penstock.batching.stack import rows_of
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.engine.stage import Stage
from penstock.errors import RequestError
from penstock.instrument import Instrument, RequestInfo
from penstock.request import Batch

Rows: TypeAlias = list[dict[str, Any]]
"""The statistics of versions of models, one each, in the protocol's JSON format."""

_RowsOf: TypeAlias = Callable[[Batch], int]

_PHASES: Final = ("compute_input", "compute_infer", "compute_output")


class _Totals:
    """The statistics of one graph; durations are counts and seconds."""

    __slots__ = ("batches", "executions", "fail", "last", "phases", "queue", "rows", "success")

    def __init__(self) -> None:
        self.success = [0, 0.0]
        self.fail = [0, 0.0]
        self.queue = [0, 0.0]
        self.phases = [0.0, 0.0, 0.0]
        self.executions = self.rows = 0
        self.last = 0.0
        self.batches: dict[int, list[float]] = {}


class ModelStatistics(Instrument):
    """Counts what an engine does, by graph, from the first request of the protocol on.

    As Triton counts: inferences are rows of requests, if the graph has a batch axis (the first axis
    of all its inputs and outputs is open), else requests; executions are batches. Batches that have
    failed count in neither. For a graph with several ops the seconds are the sum over all,
    executions and rows those of its last op.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock
        self._totals: dict[tuple[str | None, str], _Totals] = {}  # by name and version
        self._graphs: dict[str, tuple[_Totals, _RowsOf | None]] = {}

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        if request.copied:
            return
        key = request.graph.key
        found = self._totals.get(key) or self._totals_of(key)
        duration = found.success if error is None else found.fail
        duration[0] += 1
        duration[1] += now - request.admitted_at
        found.last = now

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        known = self._graphs.get(op)
        if known is None:
            known = self._find(op)
            if known is None:
                return
        found, rows_of_last = known
        samples = batch.samples
        if errors == len(samples):
            return
        closed = batch.closed
        found.queue[1] += sum([closed - sample.arrived for sample in samples])
        phases = batch.phases
        for index, seconds in enumerate(phases):
            found.phases[index] += seconds
        if rows_of_last is not None:
            rows = rows_of_last(batch)
            found.queue[0] += sum([x.piece is None or x.piece[1] == 0 for x in samples])
            found.executions += 1
            found.rows += rows - rows * errors // len(samples)  # of each, they are not known
            of_size = found.batches.get(rows)
            if of_size is None:
                of_size = found.batches[rows] = [0, 0.0, 0.0, 0.0]
            of_size[0] += 1
            for index, seconds in enumerate(phases, 1):
                of_size[index] += seconds

    def _find(self, op: str) -> tuple[_Totals, _RowsOf | None] | None:
        for graph in self._engine.all_graphs:
            for stage in graph.stages:
                if stage.name == op:
                    found = self._totals.get(graph.key) or self._totals_of(graph.key)
                    is_last = stage is graph.stages[-1]
                    self._graphs[op] = (found, _how(graph, stage) if is_last else None)
                    return self._graphs[op]
        return None

    def _totals_of(self, key: tuple[str | None, str]) -> _Totals:
        """Begin to count a version; those that are gone are forgotten."""
        graphs = self._engine.all_graphs
        keys = {key, *(graph.key for graph in graphs)}
        ops = {stage.name for graph in graphs for stage in graph.stages}
        self._totals = {each: found for each, found in self._totals.items() if each in keys}
        self._graphs = {op: found for op, found in self._graphs.items() if op in ops}
        return self._totals.setdefault(key, _Totals())

    def of(self, graph: ServedGraph) -> dict[str, Any]:
        """The statistics of a graph, in the protocol's JSON format."""
        found = self._totals.get(graph.key) or _Totals()
        ago = graph.now() - found.last
        return {
            "name": graph.name,
            "version": graph.version,
            "last_inference": round((self._clock() - ago) * 1000) if found.last else 0,
            "inference_count": found.rows,
            "execution_count": found.executions,
            "inference_stats": {
                "success": _duration(*found.success),
                "fail": _duration(*found.fail),
                "queue": _duration(*found.queue),
                **{
                    name: _duration(found.queue[0], seconds)
                    for name, seconds in zip(_PHASES, found.phases, strict=True)
                },
                "cache_hit": _duration(0, 0.0),
                "cache_miss": _duration(0, 0.0),
            },
            "batch_stats": [
                {
                    "batch_size": rows,
                    **{
                        name: _duration(numbers[0], seconds)
                        for name, seconds in zip(_PHASES, numbers[1:], strict=True)
                    },
                }
                for rows, numbers in sorted(found.batches.items())
            ],
        }


def _how(graph: ServedGraph, last: Stage) -> _RowsOf:
    """How the rows of the batches of a graph's last op are counted."""
    signature = graph.signature
    if last.sizing is not None:
        return _measured
    specs = (
        ()
        if signature is None
        else (*signature.input_specs.values(), *signature.output_specs.values())
    )
    has_axis = all(x.shape and x.shape[0] is None and not x.shape_is_hint for x in specs)
    return _first_axes if specs and has_axis else _requests


def _measured(batch: Batch) -> int:
    return batch.rows


def _first_axes(batch: Batch) -> int:
    return sum([max(1, rows_of(next(iter(x.inputs.values())))) for x in batch.samples])


def _requests(batch: Batch) -> int:
    return len(batch.samples)


def _duration(count: float, seconds: float) -> dict[str, int]:
    return {"count": int(count), "ns": round(seconds * 1e9)}


def summed(answers: Iterable[Rows]) -> Rows:
    """The statistics of a service, from those of its engines."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for rows in answers:
        for row in rows:
            key = row["name"], row["version"]
            found[key] = _sum(found[key], row) if key in found else row
    return [*found.values()]


def _sum(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The sum of two rows, or of parts of them with the same members."""
    found: dict[str, Any] = {}
    for name, value in one.items():
        if isinstance(value, dict):
            found[name] = _sum(value, other[name])
        elif name == "batch_stats":
            found[name] = _batches([*value, *other[name]])
        elif name == "last_inference":
            found[name] = max(value, other[name])
        else:  # texts are names, and a batch's size is that of both
            same = isinstance(value, str) or name == "batch_size"
            found[name] = value if same else value + other[name]
    return found


def _batches(rows: Rows) -> Rows:
    found: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["batch_size"]):
        size = row["batch_size"]
        found[size] = _sum(found[size], row) if size in found else row
    return [*found.values()]
