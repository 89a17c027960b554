"""The sum of several engines' reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

Report: TypeAlias = dict[str, Any]


_NOW: Final = frozenset(
    ("calls", "engines", "idle", "inside", "loaded", "memory", "open", "ready", "removed",
     "suspects", "unsent", "waiting", "why", "workers")
)  # fmt: skip
"""Keys of gauges, which end with the process."""


def total(reports: Sequence[Report]) -> Report:
    """The sum of several engines' reports: numbers added, ready only if all are.

    A version that an engine has removed is left out: its counters would decrease.

    Args:
        reports: of running engines first; then maybe that of ended ones.
    """
    summed: Report = _sum([*reports])
    running = [each for each in reports if "ready" in each]
    summed["ready"] = all(each["ready"] for each in running)
    removed = {tuple(key) for each in running for key in each.get("removed", ())}
    graphs = summed.get("graphs", [])
    summed["graphs"] = [x for x in graphs if (x["name"], x["version"]) not in removed]
    summed.pop("removed", None)
    summed["why"] = next((each["why"] for each in running if not each["ready"]), "ok")
    return summed


def with_ended(ended: Report | None, last: Report | None) -> Report:
    """The counters of ended engines, those of another one included.

    Args:
        ended: of earlier ones.
        last: its last report; None if it has sent none.
    """
    reports = [ended, {"engines_ended": 1}, _counters(last)]
    summed: Report = _sum([each for each in reports if each is not None])
    return summed


def _counters(report: Any) -> Any:
    """The counters of a report, which remain after the engine's end."""
    if isinstance(report, dict):
        return {key: _counters(each) for key, each in report.items() if key not in _NOW}
    if isinstance(report, list):
        return [_counters(each) for each in report]
    return report


_SAME: Final = frozenset(("batching", "most_running"))
"""Keys of settings, which are the same for every engine."""


def _sum(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for each in values for key in each)
        return {
            key: found[0] if key in _SAME else _sum(found)
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
    return [_sum(same) for same in found.values()]
