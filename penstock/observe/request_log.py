"""The request log: one line for each request, when its answer has been sent.

A line has route, status and ids, and the milliseconds of each phase; the phases add up to the
whole, unless ops ran at the same time. With JSON lines the member ``request`` has the same, and
``members_of`` the ids by which all lines about a request can be found.

This runs on the loop for each request, so it is written to take little time.
"""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import Any, Final

from penstock.observe.logs import info_without_record
from penstock.observe.recorder import NO_ID
from penstock.observe.timeline import Step, Timeline
from penstock.protocols.trace_context import trace_id_of

_log: Final = logging.getLogger(__name__)


def log_request(timeline: Timeline) -> None:
    """Write the line of one request."""
    if not _log.isEnabledFor(logging.INFO):
        return
    text, members = text_of(timeline), partial(members_of, timeline)
    if not info_without_record(_log, text, members):  # the script configured logging, or log files
        _log.info("%s", text, extra=members())


def members_of(timeline: Timeline) -> dict[str, Any]:
    """The members of a JSON line: the ids that the request has, and its facts."""
    members: dict[str, Any] = {}
    if timeline.data_id != NO_ID:
        members = {"data_id": timeline.data_id, "log_id": timeline.log_id}
    trace = trace_id_of(timeline.trace)
    if trace:
        members["trace"] = trace
    if timeline.caller:
        members["caller"] = timeline.caller
    return members | {"request": facts_of(timeline)}


def facts_of(timeline: Timeline) -> dict[str, Any]:
    """The log's facts about a request; times are milliseconds."""
    facts: dict[str, Any] = {
        "route": timeline.route,
        "status": timeline.status,
        "ms": _ms(timeline.seconds),
    }
    if timeline.trace:
        facts["traceparent"] = timeline.trace
    if timeline.caller:
        facts["caller"] = timeline.caller
    if timeline.data_id == NO_ID:
        return facts
    ops = []
    for step in timeline.steps:
        op = {"op": step.op, "attempt": step.attempt, "batch": len(step.mates)}
        for part, begin, end in step.stages(timeline.replied):
            op[_key(part)] = _ms(end - begin)
        ops.append(op)
    return {
        "data_id": timeline.data_id,
        "log_id": timeline.log_id,
        "graph": timeline.graph,
        **facts,
        "outcome": timeline.error or "ok",
        "unpack_ms": _ms(timeline.admitted - timeline.began),
        "ops": ops,
        "pack_ms": _ms(timeline.ended - timeline.replied),
    }


def text_of(timeline: Timeline) -> str:
    """The line's text."""
    whole = f"{timeline.route or 'embedded'} {timeline.status} {1000 * timeline.seconds:.3f} ms"
    if timeline.caller:
        whole += f" caller={timeline.caller!r}"
    if timeline.data_id == NO_ID:
        return whole
    return (
        f"{whole} {timeline.graph} {timeline.error or 'ok'}"
        f" (data_id={timeline.data_id} log_id={timeline.log_id})"
        f" unpack {1000 * (timeline.admitted - timeline.began):.3f}"
        f"{''.join([_step(step, timeline.replied) for step in timeline.steps])}"
        f" | pack {1000 * (timeline.ended - timeline.replied):.3f}"
    )


def _step(step: Step, replied: float) -> str:
    stages = step.stages(replied)
    form = _form(tuple([part for part, _, _ in stages]))  # all numbers at once: faster
    return form % (step.op, len(step.mates), *[1000 * (end - begin) for _, begin, end in stages])


@cache
def _form(parts: tuple[str, ...]) -> str:
    return " | %s batch %d: " + ", ".join([f"{_key(part)[:-3]} %.3f" for part in parts])


@cache
def _key(part: str) -> str:
    return f"{part.replace(' ', '_')}_ms"


def _ms(seconds: float) -> float:
    return (1_000_000 * seconds + 0.5) // 1 / 1000  # ``round`` takes several times as long
