"""Hooks for Schemathesis: msgpack bodies are serialized and parsed, and traces are kept short."""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

import ormsgpack
import schemathesis


@schemathesis.serializer("application/msgpack")
def serialize_msgpack(ctx: Any, value: Any) -> bytes:
    return ormsgpack.packb(encodable(value), str, ormsgpack.OPT_NON_STR_KEYS)


@schemathesis.deserializer("application/msgpack")
def deserialize_msgpack(ctx: Any, response: Any) -> Any:
    return as_in_json(ormsgpack.unpackb(response.content))


def as_in_json(value: Any) -> Any:
    """The value with NaN and infinities as JSON has them: schemas have no other words for them."""
    if isinstance(value, dict):
        return {key: as_in_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [*map(as_in_json, value)]
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Shorten traces: without other clients a trace records for all of its ``seconds``."""
    if case.path == "/trace" and _seconds(case.query) > 0.1:
        case.query = {**(case.query or {}), "seconds": 0.1}


def _seconds(query: Any) -> float:
    """The ``seconds`` of a query; 0 for an invalid value, which has to be refused."""
    try:
        return float((query or {}).get("seconds", 1))
    except (TypeError, ValueError):
        return 0.0


def encodable(value: Any) -> Any:
    """The value with numbers that msgpack can encode, and valid Unicode strings."""
    if isinstance(value, dict):
        return {encodable(key): encodable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [encodable(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value) if abs(value) < 10**300 else 0
    return value
