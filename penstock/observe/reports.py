"""The sum of several engines' reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from penstock.observe.callers import MOST, first_ones, most_active
from penstock.observe.swaps import merged

Report: TypeAlias = dict[str, Any]


_NOW: Final = frozenset(
    ("calls", "costs", "engines", "idle", "inside", "labels", "loaded", "memory", "models", "open",
     "places", "ready", "removed", "repositories", "rollouts", "seats", "share", "suspects",
     "swaps", "unsent", "waiting", "why", "workers")
)  # fmt: skip
"""Keys of gauges, which end with the process."""

_LOST: Final = "lost"
"""Of an op: a list of workers, which ends with the process; of the external store: a counter."""


def total(reports: Sequence[Report], *, sketches: bool = True) -> Report:
    """The sum of several engines' reports: numbers added, ready only if all are.

    A version that an engine has removed is left out: its counters would decrease. So is one that no
    running engine has, long after its end.

    Args:
        reports: of running engines first; then maybe that of ended ones.
        sketches: whether it has the sketches of durations, which are most of its bytes; without
            them it is for metrics, and has the series of callers.
    """
    summed: Report = _sum([*reports], _NOTHING if sketches else _SKETCHES)
    running = [each for each in reports if "ready" in each]
    summed["ready"] = all(each["ready"] for each in running)
    removed = {tuple(key) for each in running for key in each.get("removed", ())}
    there = {
        (x["name"], x["version"]) for each in running or reports for x in each.get("graphs", ())
    }
    graphs = summed.get("graphs", [])
    summed["graphs"] = [x for x in graphs if (x["name"], x["version"]) in there - removed]
    summed.pop("removed", None)
    if "swaps" in summed:
        summed["swaps"] = merged(summed["swaps"])
    summed["callers"] = most_active(summed.get("callers", ()))
    if sketches:
        summed.pop("caller_series", None)
    summed["why"] = next((each["why"] for each in running if not each["ready"]), "ok")
    return summed


def joined(graphs: Sequence[Report]) -> Sequence[Report]:
    """An engine's graphs, with those of the same name and version as one: a version whose content
    is replaced is reported twice, and what both share is in the first one only.
    """
    keys = {(each["name"], each["version"]) for each in graphs}
    return graphs if len(keys) == len(graphs) else _sum_named([*graphs], _NOTHING)


def with_ended(ended: Report | None, last: Report | None) -> Report:
    """The counters of ended engines, those of another one included.

    Args:
        ended: of earlier ones.
        last: its last report; None if it has sent none.
    """
    reports = [ended, {"engines_ended": 1}, _counters(last)]
    summed: Report = _sum([each for each in reports if each is not None], _NOTHING)
    for key, bounded in (("callers", most_active), ("caller_series", first_ones)):
        if key in summed:
            summed[key] = bounded(summed[key], MOST)
    return summed


def _counters(report: Any) -> Any:
    """The counters of a report, which remain after the engine's end."""
    if isinstance(report, dict):
        return {
            key: _counters(each)
            for key, each in report.items()
            if key not in _NOW and not (key == _LOST and isinstance(each, list))
        }
    if isinstance(report, list):
        return [_counters(each) for each in report]
    return report


_SAME: Final = frozenset(("batching", "most_running"))
"""Keys of settings, which are the same for every engine."""


_LARGEST: Final = frozenset(("share",))
"""Keys of numbers that the engines agree on, except for versions that one of them lacks."""

_COSTS: Final = "costs"
"""What an op's batches cost. Each engine learns it; the one with the most batches knows best."""

_NOTHING: Final[frozenset[str]] = frozenset()
_SKETCHES: Final = frozenset(("sketch",))


def _sum(values: list[Any], without: frozenset[str]) -> Any:
    """The sum of values, without these keys; what an engine does not have, None, adds nothing."""
    values = [each for each in values if each is not None] or [None]
    first = values[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for each in values for key in each if key not in without)
        return {
            key: _sum_of(key, found, without)
            for key in keys
            if (found := [each[key] for each in values if key in each])
        }
    if isinstance(first, list):
        things = [thing for each in values for thing in each]
        known = next((each for each in things if each is not None), None)
        if not isinstance(known, dict):
            return first
        return _sum_named(things, without) if "name" in known else things
    if isinstance(first, int | float) and not isinstance(first, bool):
        return sum(values)
    return first


def _sum_of(key: str, values: list[Any], without: frozenset[str]) -> Any:
    if key in _SAME:
        return values[0]
    if key == _COSTS:
        return max(values, key=lambda each: each["batches"])
    if key in _LARGEST:
        return max((each for each in values if each is not None), default=None)
    return _sum(values, without)


def _sum_named(things: list[Report], without: frozenset[str]) -> list[Report]:
    """Add items of the same name and version."""
    found: dict[tuple[Any, Any], list[Report]] = {}
    for each in things:
        found.setdefault((each["name"], each.get("version")), []).append(each)
    return [_sum(same, without) for same in found.values()]
