"""The configuration keys that a plan reads and changes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import unified_diff
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.ops.words import KEYS, WORDS
from penstock.plan.costs import Costs, OpCosts

_OP_KEYS: Final = ("concurrency", "batch_size", "auto_batching_timeout", "executor")
_TOP_KEYS: Final = "worker_num, build_dag_each_worker, dag.is_thread_op"


class UnknownSetting(PenstockError):
    """A setting that plans do not support."""


def changes_of(texts: Iterable[str], costs: Costs) -> dict[str, dict[str, Any]]:
    """Convert ``KEY=VALUE`` texts to changes of costs; see ``calibration.changed``.

    Raises:
        UnknownSetting: plans do not support a key or value.
    """
    found: dict[str, dict[str, Any]] = {}
    # First build_dag_each_worker, which decides whether ``worker_num`` counts engines.
    for text in sorted(texts, key=lambda each: not each.startswith("build_dag")):
        key, given, value = text.partition("=")
        parts = key.strip().split(".")
        if not given:
            raise UnknownSetting(f"{text!r}: write KEY=VALUE")
        if parts[0] == "op" and len(parts) == 3:
            parts = parts[1:]
        try:
            _add(found, parts, value.strip().lower(), costs)
        except ValueError:
            raise UnknownSetting(f"{text!r}: the value is none of {key}") from None
    return found


def check_settings(texts: Iterable[str], status: Mapping[str, Any]) -> None:
    """Check settings before a service is measured.

    Args:
        texts: settings, as of ``changes_of``.
        status: the service's.

    Raises:
        UnknownSetting: plans do not support a key or value, or the service has no such op.
    """
    ops = [op for graph in status["graphs"] for op in graph["ops"]]
    known = [OpCosts(name=op["name"], given_by=op.get("given_by", "")) for op in ops]
    changes_of(texts, Costs(ops=tuple(known)))


def _add(found: dict[str, dict[str, Any]], parts: list[str], value: str, costs: Costs) -> None:
    names = {_public(op): op for op in costs.ops}
    key = ".".join(parts)
    if len(parts) == 2 and parts[0] in names:
        op, field = names[parts[0]], KEYS.get(parts[1], parts[1])
        own = found.setdefault(op.name, {})
        if field == "concurrency":
            own["workers"] = _count(value)
        elif field == "batch_size":
            own["batch_size"] = _count(value)
        elif field == "auto_batching_timeout":
            own["window"] = None if float(value) <= 0 else float(value) / 1000
        elif field == "executor" and value in ("thread", "process"):
            own["place"] = value
        else:
            raise UnknownSetting(f"{key}={value}: of an op can be planned: {_settings_of([op])}")
    elif key == "dag.is_thread_op":
        place = "thread" if _boolean(value) else "process"
        for op in costs.ops:
            if op.place != "loop":
                found.setdefault(op.name, {})["place"] = place
    elif key == "worker_num":
        own = found.setdefault("", {})
        several = own["most_running"] is None if own else costs.engines > 1
        own["engines" if several else "most_running"] = _count(value)
    elif key == "build_dag_each_worker":
        several = _boolean(value)
        number = costs.most_running or costs.engines  # that is, ``worker_num``
        found[""] = {
            "engines": number if several else 1,
            "most_running": None if several else number,
        }
    else:
        settings = _settings_of(names.values())
        known = f"of the ops {', '.join(names)}: {settings}; besides: {_TOP_KEYS}"
        raise UnknownSetting(f"{key} cannot be planned; {known}")


def _settings_of(ops: Iterable[OpCosts]) -> str:
    """Return what can be planned of ops, in their own words if all of them have these."""
    by_word = all(op.given_by for op in ops)
    return ", ".join(WORDS.get(key, key) if by_word else key for key in _OP_KEYS)


def _public(op: OpCosts) -> str:
    """Return the op's name in configurations; with several graphs, names have a prefix."""
    return op.name.rpartition("/")[2]


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _boolean(text: str) -> bool:
    if text not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return text in ("true", "1")


def settings_diff(before: Costs, after: Costs) -> str:
    """Return the changes of settings as a unified diff, of the configuration or, if ops are given
    by the short form, of the options of their functions and models; empty if there are none.
    """
    by_word = any(op.given_by for op in before.ops)
    lines_of, name = (_words, "options") if by_word else (_yaml, "config.yml")
    old, new = lines_of(before, before, after), lines_of(after, before, after)
    return "\n".join(unified_diff(old, new, name, name, lineterm="", n=9))


def _words(costs: Costs, before: Costs, after: Costs) -> list[str]:
    """Return the differing options as arguments, with the values of ``costs``."""
    top = [f"{key}={value}" for key, value in _top_keys(costs, before, after)]
    lines = [f"App or Service: {', '.join(top)}"] if top else []
    for op in costs.ops:
        differ = _differing(op.name, before, after)
        if differ:
            own = _keys(op)
            quoted = {**own, "executor": repr(own["executor"])}
            given = ", ".join(f"{WORDS.get(key, key)}={quoted[key]}" for key in differ)
            lines.append(f"{op.given_by or f'op {_public(op)!r}'}: {given}")
    return lines


def _yaml(costs: Costs, before: Costs, after: Costs) -> list[str]:
    """Return the differing keys as YAML, with the values of ``costs``."""
    lines = [f"{key}: {value}".lower() for key, value in _top_keys(costs, before, after)]
    ops = []
    for op in costs.ops:
        differ = _differing(op.name, before, after)
        if differ:
            ops.append(f"  {_public(op)}:")
            ops += [f"    {key}: {_keys(op)[key]}" for key in differ]
    return [*lines, *(["op:", *ops] if ops else [])]


def _top_keys(costs: Costs, before: Costs, after: Costs) -> list[tuple[str, object]]:
    """Return the differing keys of the service, with the values of ``costs``."""
    found: list[tuple[str, object]] = []
    if before.engines != after.engines:
        found.append(("build_dag_each_worker", costs.engines > 1))
        if costs.engines > 1:
            found.append(("worker_num", costs.engines))
    if before.most_running != after.most_running and costs.most_running is not None:
        found.append(("worker_num", costs.most_running))
    return found


def _differing(op: str, before: Costs, after: Costs) -> list[str]:
    """Return the keys of an op whose values differ."""
    old, new = _keys(before.op(op)), _keys(after.op(op))
    return [key for key in old if old[key] != new[key]]


def _keys(op: OpCosts) -> Mapping[str, str]:
    return {
        "concurrency": str(op.workers),
        "batch_size": str(op.batch_size),
        "auto_batching_timeout": "0" if op.window is None else f"{1000 * op.window:g}",
        "executor": op.place,
    }
