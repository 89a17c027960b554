"""The last minutes of a service, one point every few seconds: rates, queues and percentiles.

Points have numbers: point ``n`` covers the monotonic seconds from ``n * EVERY`` to ``(n + 1) *
EVERY``, in all engines, as all processes of a machine have the same clock. An engine makes a point
of two of its reports (``point``) and keeps the latest (``History``); those of several engines are
added up, and become series of numbers, only when somebody reads them (``series``). Percentiles are
those of all engines together, as the points have sketches. Pure; time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from penstock.observe.reports import joined
from penstock.observe.sketch import quantiles, since

Report: TypeAlias = Mapping[str, Any]
Values: TypeAlias = dict[str, Any]
Point: TypeAlias = dict[str, Any]
"""``graphs``: the values of each graph, by name, version and label as JSON; ``ops``: those of each
op that did or had something, by name. Numbers and sketches, which can be added."""

EVERY: Final = 5.0
"""Seconds of a point."""
POINTS: Final = 180
"""Number of points that are kept: 15 minutes."""
MOST_BYTES: Final = 8 << 20
"""Bytes of the points that are kept: those of some hundred busy ops."""


def number_at(now: float) -> int:
    """The number of the point whose end is now, or was shortly before."""
    return int((now + EVERY / 10) // EVERY) - 1


def point(before: Report, now: Report, seconds: float) -> Point:
    """What an engine did between two of its reports.

    Args:
        before: the earlier report.
        now: the later one.
        seconds: between them.
    """
    earlier, later = joined(before["graphs"]), joined(now["graphs"])
    graphs = {(each["name"], each["version"]): each for each in earlier}
    ops = {op["name"]: op for op in _ops(earlier)}
    found = ((op["name"], _of_op(ops.get(op["name"]), op, seconds)) for op in _ops(later))
    return {
        "graphs": {
            _key(each): _of_graph(graphs.get((each["name"], each["version"])), each, seconds)
            for each in later
        },
        "ops": {name: values for name, values in found if values is not None},
    }


def _ops(graphs: Iterable[Report]) -> Iterable[Report]:
    return (op for graph in graphs for op in graph["ops"])


def _key(graph: Report) -> str:
    return orjson.dumps([graph["name"], graph["version"]]).decode()


def _of_graph(before: Report | None, now: Report, seconds: float) -> Values:
    old, new = (before or {}).get("requests", {}), now["requests"]

    def rate(key: str, without: str = "") -> float:
        was, is_now = (
            sum(count for code, count in each.get(key, {}).items() if code != without)
            for each in (old, new)
        )
        return _risen(is_now, was) / seconds

    return {
        "rate": rate("answers"),
        "failed": rate("answers", "ok"),
        "refused": rate("refusals"),
        "inside": now["inside"],
        "sketch": _sketch(old, new, "seconds"),
    }


def _of_op(before: Report | None, now: Report, seconds: float) -> Values | None:
    old = before or {}

    def rate(key: str) -> float:
        return _risen(now.get(key, 0), old.get(key, 0)) / seconds

    busy = _risen(sum(now["seconds"].values()), sum(old.get("seconds", {}).values()))
    counts = {"rate": "samples", "batches": "batches", "errors": "errors", "timeouts": "timeouts"}
    values = {name: rate(key) for name, key in counts.items()}
    if not (any(values.values()) or now["waiting"]):
        return None
    return {
        **values,
        "waiting": now["waiting"],
        "workers": now["workers"],
        "busy": busy / seconds,
        "wait": _sketch(old, now, "queue"),
        "run": _sketch(old, now, "passes"),
    }


def _risen(now: float, before: float) -> float:
    """How much a counter has risen; one of a version that came again began again at 0."""
    return float(now - before if now >= before else now)


def _sketch(before: Report, now: Report, key: str) -> dict[str, int]:
    return since(before.get(key, {}).get("sketch", {}), now[key]["sketch"])


def _kept(values: Mapping[str, Any]) -> bytes:
    """Values as JSON, in no more memory than they need: orjson's own bytes keep its buffer."""
    return bytes(memoryview(orjson.dumps(values)))


class _Kept(NamedTuple):
    number: int
    graphs: bytes
    ops: dict[str, bytes]  # of each op, so that a reader of one need not decode all
    size: int


class History:
    """The latest points of an engine, as JSON."""

    def __init__(self) -> None:
        self._points: deque[_Kept] = deque()
        self._size = 0

    def add(self, number: int, point: Point) -> None:
        """Keep a point, the newest; the oldest are dropped."""
        graphs = _kept(point["graphs"])
        ops = {name: _kept(values) for name, values in point["ops"].items()}
        size = len(graphs) + sum(map(len, ops.values()))
        self._points.append(_Kept(number, graphs, ops, size))
        self._size += size
        while len(self._points) > POINTS or (self._size > MOST_BYTES and len(self._points) > 1):
            self._size -= self._points.popleft().size

    def since(self, after: int, ops: Sequence[str]) -> list[tuple[int, Point]]:
        """The points with larger numbers, with those ops only."""
        return [
            (
                each.number,
                {
                    "graphs": orjson.loads(each.graphs),
                    "ops": {name: orjson.loads(each.ops[name]) for name in ops if name in each.ops},
                },
            )
            for each in self._points
            if each.number > after
        ]


def series(
    points: Iterable[tuple[int, Point]], now: float, after: int, ops: Sequence[str]
) -> Values:
    """The points of all engines as series, as ``docs/live-page.md`` describes them.

    Args:
        points: with their numbers, in any order; several have the same one.
        now: monotonic seconds.
        after: only points with larger numbers.
        ops: names of ops whose series are wanted, if they are known.
    """
    oldest = max(after, number_at(now) - POINTS)
    found: dict[int, list[Point]] = {}
    for number, each in points:
        if number > oldest:
            found.setdefault(number, []).append(each)
    first = min(found, default=max(after, 0) + 1)
    slots = [found.get(number, ()) for number in range(first, max(found, default=0) + 1)]
    keys = dict.fromkeys(key for slot in slots for each in slot for key in each["graphs"])
    return {
        "every": EVERY,
        "now": now,
        "first": first,
        "service": _series_of_graph(
            [
                _added([values for each in slot for values in each["graphs"].values()])
                for slot in slots
            ]
        ),
        "graphs": [
            _described(key) | _series_of_graph(_all_of("graphs", key, slots)) for key in keys
        ],
        "ops": [{"name": name} | _series_of_op(_all_of("ops", name, slots), slots) for name in ops],
    }


def _described(key: str) -> Values:
    name, version = orjson.loads(key)
    return {"name": name, "version": version}


def _all_of(kind: str, key: str, slots: Sequence[Sequence[Point]]) -> list[Values | None]:
    return [_added([each[kind][key] for each in slot if key in each[kind]]) for slot in slots]


def _added(values: Sequence[Values]) -> Values | None:
    """The sum of the values of several engines, or graphs; None for none."""
    if len(values) < 2:
        return values[0] if values else None
    return {
        key: _sum_of_sketches([each[key] for each in values])
        if isinstance(first, dict)
        else sum(each[key] for each in values)
        for key, first in values[0].items()
    }


def _sum_of_sketches(sketches: Sequence[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in sketches:
        for bucket, count in each.items():
            found[bucket] = found.get(bucket, 0) + count
    return found


def _series_of_graph(values: Sequence[Values | None]) -> Values:
    numbers = {name: _numbers(values, name) for name in ("rate", "failed", "refused", "inside")}
    half, most = _percentiles(values, "sketch")
    return {**numbers, "p50": half, "p99": most}


_IDLE: Final[Values] = {
    "rate": 0, "batches": 0, "errors": 0, "timeouts": 0, "waiting": 0, "workers": 0, "busy": 0,
    "wait": {}, "run": {},
}  # fmt: skip


def _series_of_op(values: Sequence[Values | None], slots: Sequence[Sequence[Point]]) -> Values:
    seen = [each or (_IDLE if slot else None) for each, slot in zip(values, slots, strict=True)]
    names = ("rate", "errors", "timeouts", "waiting")
    wait_half, wait_most = _percentiles(seen, "wait")
    half, most = _percentiles(seen, "run")
    return {
        **{name: _numbers(seen, name) for name in names},
        "busy": [_quotient(each, "busy", "workers", 1.0) for each in seen],
        "batch": [_quotient(each, "rate", "batches", None) for each in seen],
        "wait_p50": wait_half,
        "wait_p99": wait_most,
        "p50": half,
        "p99": most,
    }


def _quotient(values: Values | None, above: str, below: str, most: float | None) -> float | None:
    if values is None:
        return None
    if not values[below]:
        return None if most is None else 0
    # Batches are counted at their end, so those of one point may have more time than it has.
    found = values[above] / values[below]
    return _round(found if most is None else min(most, found))


def _numbers(values: Sequence[Values | None], name: str) -> list[float | None]:
    return [None if each is None else _round(each[name]) for each in values]


def _percentiles(
    values: Sequence[Values | None], name: str
) -> tuple[list[float | None], list[float | None]]:
    pairs = [quantiles(each[name] if each else {}, 0.5, 0.99) for each in values]
    return [_ms(half) for half, _ in pairs], [_ms(most) for _, most in pairs]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else _round(1000 * seconds)


def _round(value: float) -> float:
    """As many digits as a reader needs."""
    return round(value, 3)
