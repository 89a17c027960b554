"""The timeline of a request as the header field ``Server-Timing`` of its answer.

The first metric is the request, and each further one an op, in the order of their begins::

    total;dur=18.2;unpack=0.1;engine=0;id=17, detect;dur=15.1;begin=0.2;queue=3.1;process=11.2

Begins count from the request's first byte; all times are milliseconds. The time in which the answer
is encoded is not in it: the field is sent before the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.observe.timeline import Step, Timeline
from penstock.protocols.server_timing import Metric, encode

MOST_BYTES: Final = 3000
"""Maximum bytes of the field: nginx takes 4 KiB of header fields in all, grpcio 8 KiB."""


def field_of(timeline: Timeline) -> bytes:
    """The field's value. If it would be too long, the last ops are left out, and their number is
    the metric ``left-out``.
    """
    pieces = encode(_metrics(timeline))
    room = MOST_BYTES
    for at, piece in enumerate(pieces):
        room -= len(piece) + 2
        if room < 0:
            left = Metric("left-out", {"count": str(len(pieces) - at)})
            return b", ".join([*pieces[:at], *encode([left])])
    return b", ".join(pieces)


def _metrics(timeline: Timeline) -> Iterator[Metric]:
    began, replied = timeline.began, timeline.replied
    yield Metric(
        "total",
        {
            "dur": _ms(replied - began),
            "unpack": _ms(timeline.admitted - began),
            "engine": str(timeline.engine),
            "id": str(timeline.data_id),
        },
    )
    for step in sorted(timeline.steps, key=lambda each: each.queued):
        parts = step.stages(replied)
        yield Metric(
            step.op,
            {
                "dur": _ms(parts[-1][2] - step.queued),
                "begin": _ms(step.queued - began),
                **{name.replace(" ", "-"): _ms(end - begin) for name, begin, end in parts},
                **_facts(step),
            },
        )


def _facts(step: Step) -> dict[str, str]:
    facts = {} if step.attempt == 1 else {"attempt": str(step.attempt)}
    if step.batch is not None:
        facts |= {"rows": str(step.batch.rows), "worker": str(step.batch.worker)}
    return facts


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f}".rstrip("0").rstrip(".")
