"""The trace context fields of a request. Pure.

Source: W3C Trace Context, level 1.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.protocols.heads import Headers, RequestHead

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
SAMPLED: Final = 1
"""The flag of a sampled trace."""

_match: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})").fullmatch


def parse(traceparent: str) -> tuple[int, int, int] | None:
    """Return trace id, the caller's span id, and flags; None if the context is invalid."""
    found = _match(traceparent)
    if found is None:
        return None
    trace, span, flags = (int(each, 16) for each in found.groups())
    return (trace, span, flags) if trace and span else None


def trace_id_of(traceparent: str) -> str:
    """Return the trace id of a context as it is written; empty if the context is invalid."""
    return "" if parse(traceparent) is None else traceparent[3:35]


def state_of(head: RequestHead) -> bytes:
    """Join all ``tracestate`` fields."""
    if TRACESTATE not in head.fields:
        return b""
    return b",".join(value for name, value in head.headers if name == TRACESTATE)


def fields(traceparent: bytes, tracestate: bytes) -> Headers:
    """Return the header fields of a trace context."""
    sent = ((TRACEPARENT, traceparent), (TRACESTATE, tracestate))
    return sent if tracestate else sent[:1]
