"""The header fields that the call of a remote op has besides its own: the trace context."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from penstock.protocols.http2 import encode_block
from penstock.protocols.trace_context import TRACEPARENT, fields, state_of
from penstock.request import Batch

Outgoing: TypeAlias = Callable[[Batch], bytes]


def passed_on(batch: Batch) -> bytes:
    """The incoming trace context of the first request that has one."""
    for sample in batch.samples:
        exchange = getattr(getattr(sample.flight, "call", None), "exchange", None)
        if exchange is not None and TRACEPARENT in exchange.head.fields:
            head = exchange.head
            return encode_block(fields(head.fields[TRACEPARENT], state_of(head)))
    return b""
