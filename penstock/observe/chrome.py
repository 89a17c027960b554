"""Timelines in the trace format of Chrome (``chrome://tracing``) and Perfetto.

A request is a slice in a free lane, with its phases inside; concurrent steps have separate lanes.
Batches are slices of their workers, those of requests with seats in lanes beside each other. Arrows
lead from requests' steps to their batch.
Source: the Trace Event Format (Google, phases X, s, f and M).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from penstock.observe.timeline import BatchTimes, Step, Timeline

Event: TypeAlias = dict[str, Any]

_REQUESTS: Final = 1
"""The pid of the pseudo-process that shows all requests."""

_MOST_LANES: Final = 100_000
"""So that each lane of a worker has a tid of its own, and those of one worker follow each other."""

_SAME_TIME: Final = 1e-9
"""Seconds by which two batches of one worker may overlap, since times are sums of measured ones."""


def trace(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """The trace as a JSON value. Times are microseconds from the first request on."""
    start = min((each.began for each in timelines), default=0.0)
    made = _Trace(start)
    for each in sorted(timelines, key=lambda timeline: timeline.began):
        made.add(each)
    return {
        "traceEvents": [*made.names(), *made.events],
        "displayTimeUnit": "ms",
        "otherData": {"requests": len(timelines)},
    }


class _Trace:
    def __init__(self, start: float) -> None:
        self.events: list[Event] = []
        self._start = start
        self._lanes: list[float] = []  # when each is free
        self._workers: dict[tuple[int, int], list[float]] = {}  # by pid and worker, as the lanes
        self._ops: dict[tuple[int, str], int] = {}
        self._batches: dict[tuple[int, int], int] = {}  # the tid of each
        self._arrows = 0

    def add(self, timeline: Timeline) -> None:
        """Add one request, and its batches unless they have been added."""
        facts = {
            "data_id": timeline.data_id, "log_id": timeline.log_id, "route": timeline.route,
            "status": timeline.status, "error": timeline.error, "trace": timeline.trace,
            "caller": timeline.caller,
        }  # fmt: skip
        first = timeline.first_piece
        if first is not None:
            facts |= {"pieces": timeline.pieces, "ended": timeline.error or "ok"}
        lane = _lane(self._lanes, timeline.began, timeline.ended)
        name = f"{timeline.graph or 'request'} {timeline.data_id}"
        self._slice(name, timeline.began, timeline.ended, _REQUESTS, lane, facts)
        self._slice("unpack", timeline.began, timeline.admitted, _REQUESTS, lane)
        free = timeline.admitted
        for step in sorted(timeline.steps, key=lambda each: each.queued):
            *_, (_, _, end) = step.stages(timeline.replied)
            if step.queued >= free:
                free = end
                self._step(lane, timeline, step)
            else:
                self._step(_lane(self._lanes, step.queued, end), timeline, step)
        if first is not None:
            seconds = timeline.replied - first
            rate = round((timeline.pieces - 1) / seconds, 2) if seconds > 0 else None
            stream = {"pieces": timeline.pieces, "pieces_per_second": rate}
            own = _lane(self._lanes, first, timeline.replied)
            self._slice("pieces", first, timeline.replied, _REQUESTS, own, facts=stream)
        self._slice("pack", timeline.replied, timeline.ended, _REQUESTS, lane)

    def names(self) -> Iterable[Event]:
        """The names of processes and threads."""
        yield _name("process_name", _REQUESTS, 0, "requests")
        for lane in range(len(self._lanes)):
            yield _name("thread_name", _REQUESTS, lane, f"lane {lane + 1}")
        for (engine, op), number in self._ops.items():
            yield _name("process_name", number, 0, f"{op} (engine {engine})" if engine else op)
        for (number, worker), lanes in self._workers.items():
            for lane in range(len(lanes)):
                name = f"worker {worker}" + f", lane {lane + 1}" * (len(lanes) > 1)
                yield _name("thread_name", number, worker * _MOST_LANES + lane, name)

    def _step(self, lane: int, timeline: Timeline, step: Step) -> None:
        batch = step.batch
        parts = step.stages(timeline.replied)
        facts: dict[str, Any] = {"data_id": timeline.data_id, "attempt": step.attempt}
        if batch is not None:
            facts |= {"batch": batch.number, "shared_with": batch.data_ids, "rows": batch.rows}
        self._slice(step.op, step.queued, parts[-1][2], _REQUESTS, lane, facts)
        for part, begin, end in parts:
            self._slice(part, begin, end, _REQUESTS, lane)
        if batch is not None:
            op = self._op(timeline.engine, batch)
            self._arrow(lane, op, self._batch(timeline.engine, op, batch), batch)

    def _batch(self, engine: int, op: int, batch: BatchTimes) -> int:
        """The tid of a batch, whose slices are added once."""
        if (engine, batch.number) in self._batches:
            return self._batches[engine, batch.number]
        facts = {
            "requests": batch.data_ids, "rows": batch.rows, "closed": batch.reason,
            "errors": batch.errors, "timed_out": batch.given_up,
        }  # fmt: skip
        shown = [each for each in batch.stages if not each[0].startswith("transfer")]
        name = f"batch of {len(batch.data_ids)}"
        began, ended = shown[0][1], shown[-1][2]
        lanes = self._workers.setdefault((op, batch.worker), [])
        thread = batch.worker * _MOST_LANES + _lane(lanes, began, ended)
        self._batches[engine, batch.number] = thread
        self._slice(name, began, ended, op, thread, facts)
        for part, begin, end in shown:
            self._slice(part, begin, end, op, thread)
        return thread

    def _arrow(self, lane: int, op: int, thread: int, batch: BatchTimes) -> None:
        self._arrows += 1
        ends = (("s", batch.closed, _REQUESTS, lane), ("f", batch.took_up, op, thread))
        for phase, at, process, thread in ends:
            event = self._event(phase, "batch", at, process, thread)
            self.events.append(event | {"cat": "batch", "id": self._arrows, "bp": "e"})

    def _op(self, engine: int, batch: BatchTimes) -> int:
        """The pid of an op's pseudo-process."""
        op = (engine, batch.op)
        return self._ops.setdefault(op, _REQUESTS + 1 + len(self._ops))

    def _slice(
        self,
        name: str,
        begin: float,
        end: float,
        process: int,
        thread: int,
        facts: dict[str, Any] | None = None,
    ) -> None:
        event = self._event("X", name, begin, process, thread)
        event["dur"] = (end - begin) * 1e6
        if facts is not None:
            event["args"] = facts
        self.events.append(event)

    def _event(self, phase: str, name: str, at: float, process: int, thread: int) -> Event:
        return {
            "ph": phase, "name": name, "ts": (at - self._start) * 1e6,
            "pid": process, "tid": thread,
        }  # fmt: skip


def _lane(lanes: list[float], begin: float, end: float) -> int:
    """The index of a lane that is free from ``begin`` on, a further one if none is. ``lanes`` has
    when each is free; from now on this one is at ``end``.
    """
    for lane, free in enumerate(lanes):
        if free <= begin + _SAME_TIME:
            lanes[lane] = end
            return lane
    lanes.append(end)
    return len(lanes) - 1


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
