"""Where the workers of an op are, why some are nowhere, and which were lost: as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from penstock.executors.workers.places import FAILED, RUNNING, WAITING

Report: TypeAlias = Mapping[str, Any]

_MOST_LOST: Final = 3
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"))


def lines_of(op: Report, engines: int) -> list[str]:
    """Lines about the workers of an op: of those on nodes, of those that do not run, and of the
    latest lost ones; none for an op without processes, or whose workers all run on this machine.

    Args:
        op: its report.
        engines: of the service: with several of them each has workers of its own.
    """
    places: Sequence[Report] = op.get("places", ())
    lines = []
    nodes: dict[str, list[Report]] = {}
    for each in places:
        if each["node"] is not None:
            nodes.setdefault(called(each["node"]), []).append(each)
    for node, there in nodes.items():
        workers = ", ".join(_one(each, engines) for each in there)
        lines.append(f"on {node}: {workers}")
    for (state, why), waiting in _without(places).items():
        names = ", ".join(_name(each, engines) for each in waiting)
        seconds = max(each["seconds"] for each in waiting)
        what = "not started" if state == WAITING else "failed"
        plural = "s" if len(waiting) > 1 else ""
        lines.append(f"{what} for {span(seconds)}: worker{plural} {names}: {why}")
    lost = sorted(op.get("lost", ()), key=lambda each: each["ago"])
    for each in reversed(lost[:_MOST_LOST]):
        back = "not back" if each["back"] is None else f"back after {span(each['back'])}"
        where = f" ({each['where']})" if each["where"] else ""
        name = _name(each, engines)
        lines.append(f"lost {span(each['ago'])} ago: worker {name}{where}: {each['how']}, {back}")
    return lines


def missing(op: Report) -> int:
    """The number of its workers for which there is no room, or that do not start."""
    return sum(each["state"] in (WAITING, FAILED) for each in op.get("places", ()))


def idle(op: Report) -> int:
    """The number of its workers that can take a batch now: a worker that is not there has none, but
    is no idle one.
    """
    slots, busy = op.get("idle", 0), op.get("workers", 0) - op.get("idle", 0)
    return int(slots if "ready" not in op else min(slots, max(0, op["ready"] - busy)))


def called(node: Report) -> str:
    """What messages call a node: its host name if it has one, and its address."""
    host, address = node["host"], node["address"]
    return address if host in ("", address) else f"{host} ({address})"


def span(seconds: float) -> str:
    """A duration, roughly."""
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _without(places: Sequence[Report]) -> dict[tuple[str, str], list[Report]]:
    """The workers that do not run, by their state and the reason."""
    found: dict[tuple[str, str], list[Report]] = {}
    for each in places:
        if each["state"] in (WAITING, FAILED):
            found.setdefault((each["state"], each["why"]), []).append(each)
    return found


def _one(each: Report, engines: int) -> str:
    since = f"for {span(each['seconds'])}"
    pid = "" if each["pid"] is None else f" pid {each['pid']}"
    state = since if each["state"] == RUNNING else f"{each['state']} {since}"
    return f"worker {_name(each, engines)}{pid} {state}"


def _name(each: Report, engines: int) -> str:
    return f"{each['engine']}/{each['worker']}" if engines > 1 else str(each["worker"])
