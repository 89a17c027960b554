"""For Schemathesis: how bodies of msgpack are written and read, and no wait for a trace."""

from __future__ import annotations

from typing import Any

import ormsgpack
import schemathesis


@schemathesis.serializer("application/msgpack")
def written(ctx: Any, value: Any) -> bytes:
    return ormsgpack.packb(within(value), str, ormsgpack.OPT_NON_STR_KEYS)


@schemathesis.deserializer("application/msgpack")
def read(ctx: Any, response: Any) -> Any:
    return ormsgpack.unpackb(response.content)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """A trace of a service without other callers takes all the seconds that it may."""
    if case.path == "/trace" and _seconds(case.query) > 0.1:
        case.query = {**(case.query or {}), "seconds": 0.1}


def _seconds(query: Any) -> float:
    """What a query asks for; 0 where it has to be refused."""
    try:
        return float((query or {}).get("seconds", 1))
    except (TypeError, ValueError):
        return 0.0


def within(value: Any) -> Any:
    """The value with numbers that msgpack can hold, and texts that are Unicode."""
    if isinstance(value, dict):
        return {within(key): within(each) for key, each in value.items()}
    if isinstance(value, list):
        return [within(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value) if abs(value) < 10**300 else 0
    return value
