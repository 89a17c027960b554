"""The request log: one line for each request, when its answer has been sent.

A line has route, status and ids, and the milliseconds of each phase; the phases add up to the
whole, unless ops ran at the same time. With JSON lines the member ``request`` has the same.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from penstock.observe.recorder import NO_ID
from penstock.observe.timeline import Timeline

_log: Final = logging.getLogger(__name__)


def log_request(timeline: Timeline) -> None:
    """Write the line of one request."""
    facts = facts_of(timeline)
    _log.info("%s", _line(timeline, facts), extra={"request": facts})


def facts_of(timeline: Timeline) -> dict[str, Any]:
    """The log's facts about a request; times are milliseconds."""
    facts: dict[str, Any] = {
        "route": timeline.route,
        "status": timeline.status,
        "ms": _ms(timeline.seconds),
    }
    if timeline.trace:
        facts["traceparent"] = timeline.trace
    if timeline.data_id == NO_ID:
        return facts
    return {
        "data_id": timeline.data_id,
        "log_id": timeline.log_id,
        "graph": timeline.graph,
        **facts,
        "outcome": timeline.error or "ok",
        "unpack_ms": _ms(timeline.admitted - timeline.began),
        "ops": [
            {
                "op": step.op,
                "attempt": step.attempt,
                "batch": len(step.mates),
                **{
                    f"{part.replace(' ', '_')}_ms": _ms(end - begin)
                    for part, begin, end in step.stages(timeline.replied)
                },
            }
            for step in timeline.steps
        ],
        "pack_ms": _ms(timeline.ended - timeline.replied),
    }


def _line(timeline: Timeline, facts: dict[str, Any]) -> str:
    words = [timeline.route or "embedded", str(timeline.status), f"{facts['ms']} ms"]
    if timeline.data_id == NO_ID:
        return " ".join(words)
    words += [timeline.graph, facts["outcome"]]
    words.append(f"(data_id={timeline.data_id} log_id={timeline.log_id})")
    words.append(f"unpack {facts['unpack_ms']}")
    for op in facts["ops"]:
        parts = [f"{key[:-3]} {value}" for key, value in op.items() if key.endswith("_ms")]
        words.append(f"| {op['op']} batch {op['batch']}: {', '.join(parts)}")
    words.append(f"| pack {facts['pack_ms']}")
    return " ".join(words)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
