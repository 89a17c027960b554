"""Timelines as JSON values for the live page, in milliseconds.

64-bit integers are texts, because browsers would round them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from penstock.observe.recorder import NO_ID
from penstock.observe.timeline import BatchTimes, Step, Timeline

Shown: TypeAlias = dict[str, Any]


def summary(timeline: Timeline, now: float) -> Shown:
    """One request in a list: its ids, duration, outcome, and longest part.

    Args:
        timeline: of the request.
        now: monotonic seconds.
    """
    return {
        "id": None if timeline.data_id == NO_ID else str(timeline.data_id),
        "engine": timeline.engine,
        "graph": timeline.graph,
        "route": timeline.route,
        "method": timeline.method,
        "log_id": str(timeline.log_id),
        "traceparent": timeline.trace,
        "caller": timeline.caller,
        "status": timeline.status,
        "error": timeline.error,
        "error_type": timeline.raised and timeline.raised.kind,
        "text": timeline.text,
        "ms": _ms(timeline.seconds),
        "ago": round(now - timeline.ended, 3),
        "longest": _longest(timeline),
        "stream": None if timeline.first_piece is None else _stream(timeline, timeline.first_piece),
    }


def _stream(timeline: Timeline, first: float) -> Shown:
    """The pieces of an answer: their number, the time of the first one, and how many followed it in
    a second. The error of the request, or none, says how it ended.
    """
    seconds = timeline.replied - first
    return {
        "pieces": timeline.pieces,
        "first": _ms(first - timeline.began),
        "rate": round((timeline.pieces - 1) / seconds, 2) if seconds > 0 else None,
    }


def details(timeline: Timeline, now: float, others: Iterable[Timeline] = ()) -> Shown:
    """One request with its steps.

    Args:
        timeline: of the request.
        now: monotonic seconds.
        others: requests among which those are that the same worker ran at the same time, in other
            batches: with seats, or on the event loop.

    ``unpack``, ``entry``, ``ops``, ``between`` and ``pack`` add up to ``ms``: ``entry`` is the wait
    for admission to the graph, ``ops`` the time in which at least one op has the request,
    ``between`` the engine's time between ops. Begins and ends count from the first byte.
    """
    raised = timeline.raised
    began, admitted, replied = timeline.began, timeline.admitted, timeline.replied
    entered = min((step.queued for step in timeline.steps), default=admitted)
    inside = _covered(
        (step.queued, min(step.stages(replied)[-1][2], replied)) for step in timeline.steps
    )
    return {
        **summary(timeline, now),
        "exception": raised
        and {"type": raised.kind, "op": raised.op, "traceback": raised.traceback},
        "unpack": _ms(admitted - began),
        "entry": _ms(entered - admitted),
        "ops": _ms(inside),
        "between": _ms(replied - entered - inside),
        "pack": _ms(timeline.ended - replied),
        "steps": [_step(step, timeline, others) for step in timeline.steps],
    }


def _step(step: Step, timeline: Timeline, others: Iterable[Timeline]) -> Shown:
    began, batch = timeline.began, step.batch
    return {
        "op": step.op,
        "attempt": step.attempt,
        "parts": [
            {"name": name, "begin": _ms(begin - began), "end": _ms(end - began)}
            for name, begin, end in step.stages(timeline.replied)
        ],
        "batch": None if batch is None else {**_batch(batch), "beside": _beside(batch, others)},
    }


def _beside(batch: BatchTimes, others: Iterable[Timeline]) -> list[str]:
    """The ids of requests that its worker ran at the same time, in other batches."""
    return [
        str(each.data_id)
        for each in others
        for other in (step.batch for step in each.steps)
        if other is not None
        and (other.op, other.worker) == (batch.op, batch.worker)
        and other.number != batch.number
        and other.took_up < batch.returned
        and other.returned > batch.took_up
    ]


def _batch(batch: BatchTimes) -> Shown:
    return {
        "number": batch.number,
        "worker": batch.worker,
        "closed": batch.reason,
        "rows": batch.rows,
        "requests": [str(each) for each in batch.data_ids],
        "errors": batch.errors,
        "timed_out": batch.given_up,
        "elements": batch.elements,
        "filled_in": batch.filled_in,
    }


def _longest(timeline: Timeline) -> Shown:
    """The longest part, inside or outside of ops."""
    parts = [
        (timeline.admitted - timeline.began, "", "unpack"),
        (timeline.ended - timeline.replied, "", "pack"),
    ]
    if timeline.steps:
        entered = min(step.queued for step in timeline.steps)
        parts.append((entered - timeline.admitted, "", "entry"))
    parts += [
        (end - begin, step.op, name)
        for step in timeline.steps
        for name, begin, end in step.stages(timeline.replied)
    ]
    seconds, op, name = max(parts)
    return {"op": op, "part": name, "ms": _ms(seconds)}


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """The seconds covered by at least one of the intervals."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        if end > until:
            covered += end - max(begin, until)
            until = end
    return covered


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 4)
