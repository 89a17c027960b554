"""Reports of engines: their form in messages, and their sum."""

from __future__ import annotations

import zlib
from base64 import b85decode, b85encode
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import orjson

Report: TypeAlias = dict[str, Any]


def packed(report: Report) -> str:
    """A report as text for a message."""
    return b85encode(zlib.compress(orjson.dumps(report), 1)).decode()


def unpacked(text: str) -> Report:
    """The report from text of ``packed``."""
    report: Report = orjson.loads(zlib.decompress(b85decode(text)))
    return report


_NOW: Final = frozenset(
    ("calls", "engines", "idle", "inside", "loaded", "memory", "open", "ready", "suspects",
     "unsent", "waiting", "why", "workers")
)  # fmt: skip
"""Keys of gauges, which end with the process."""


def counted(report: Any) -> Any:
    """The counters of a report, which remain after the engine's end."""
    if isinstance(report, dict):
        return {key: counted(each) for key, each in report.items() if key not in _NOW}
    if isinstance(report, list):
        return [counted(each) for each in report]
    return report


def total(reports: Sequence[Report], ended: Sequence[Report] = ()) -> Report:
    """The sum of several engines' reports: numbers added, ready only if all are; plus the counters
    of ended engines.
    """
    summed: Report = added([*reports, *ended])
    summed["ready"] = all(each["ready"] for each in reports)
    summed["why"] = next((each["why"] for each in reports if not each["ready"]), "ok")
    return summed


_SAME: Final = frozenset(("batching", "most_running"))
"""Keys of settings, which are the same for every engine."""


def added(values: list[Any]) -> Any:
    """The sum of values of the same form; of other values the first."""
    first = values[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for each in values for key in each)
        return {
            key: found[0] if key in _SAME else added(found)
            for key in keys
            if (found := [each[key] for each in values if key in each])
        }
    if isinstance(first, list) and first and isinstance(first[0], dict):
        things = [thing for each in values for thing in each]
        return _sum_named(things) if "name" in first[0] else things
    if isinstance(first, int | float) and not isinstance(first, bool):
        return sum(values)
    return first


def _sum_named(things: list[Report]) -> list[Report]:
    """Add items of the same name and version."""
    found: dict[tuple[Any, Any], list[Report]] = {}
    for each in things:
        found.setdefault((each["name"], each.get("version")), []).append(each)
    return [added(same) for same in found.values()]
