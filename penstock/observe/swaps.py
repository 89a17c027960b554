"""Records how the versions of models came and went: the latest swaps with the times of their steps,
and how many loads succeeded or failed.

A swap is one change of what a name serves. A version is fetched and made ready aside, and gets
requests; another one finishes its requests and ends::

    fetched, verified, opened, probed, started, warmed up, swapped, drained, ended

Every engine records its own part, and the one that loads models also what comes before. ``merged``
makes one timeline of the parts: a step is over when the last engine has done it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

Report: TypeAlias = dict[str, Any]

STEPS: Final = (
    "fetched", "verified", "opened", "probed", "started", "warmed up", "swapped", "drained",
    "ended",
)  # fmt: skip
"""The steps of a swap, in their order."""

MOST: Final = 32
"""Swaps that are remembered."""

SERVED: Final = "served"
NOT_STARTED: Final = "start"
"""Outcomes of loads: every engine serves the version, or one could not make it ready. The others
are the codes of errors: the files could not be had, or their content was refused."""

_MOST_NAMES: Final = 1000
OTHERS: Final = "*"
"""The name under which loads of further models are counted."""

_RUNNING: Final = "running"
_DONE: Final = "done"
_FAILED: Final = "failed"


class Swap:
    """One swap, as far as this engine knows it.

    Attributes:
        model: its name.
        versions: those that it brings; none if it ends versions, or moves labels and weights.
        ends: the versions that it ends.
        change: the number of the change, the same in all engines; 0 before it has one.
        began: when, in monotonic seconds.
        steps: when each was over, the last time; and when it failed.
        state: running, done or failed.
        why: it failed.
        serves: what the name serves since then, as text.
        tries: how often in a row it has failed for this reason.
    """

    __slots__ = (
        "_now", "began", "change", "ends", "model", "serves", "state", "steps", "tries", "versions",
        "why",
    )  # fmt: skip

    def __init__(
        self, model: str | None, versions: Sequence[str], now: Callable[[], float]
    ) -> None:
        self._now = now
        self.model = model
        self.versions = [*versions]
        self.ends: list[str] = []
        self.change = 0
        self.began = now()
        self.steps: dict[str, float] = {}
        self.state = _RUNNING
        self.why = self.serves = ""
        self.tries = 1

    def passed(self, step: str) -> None:
        """A step is over; any thread."""
        self.steps[step] = self._now()

    def done(self) -> None:
        """It is over."""
        self.state = _DONE

    def plain(self) -> Report:
        """As plain data."""
        return {
            "model": self.model,
            "versions": self.versions,
            "ends": self.ends,
            "change": self.change,
            "began": self.began,
            "steps": dict(self.steps),
            "state": self.state,
            "why": self.why,
            "serves": self.serves,
            "tries": self.tries,
        }


class Swaps:
    """The swaps that an engine has seen. Belongs to the engine's loop.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._swaps: list[Swap] = []
        self._loads: dict[str, Counter[str]] = {}

    def begin(self, model: str | None, version: str | None, began: float | None = None) -> Swap:
        """A version is to be fetched, and then served.

        Args:
            model: its name.
            version: None if it has none yet.
            began: monotonic seconds; None: now.
        """
        found = self._add(Swap(model, [] if version is None else [version], self._now))
        found.began = found.began if began is None else began
        return found

    def prepare(self, change: int, model: str | None, versions: Sequence[str]) -> Swap:
        """All engines make these versions ready: a swap that has begun goes on, or a new one."""
        for each in self._swaps:
            begun = each.state == _RUNNING and not each.change
            if begun and each.model == model and each.versions == [*versions]:
                each.change = change
                return each
        found = self._add(Swap(model, versions, self._now))
        found.change = change
        return found

    def _add(self, swap: Swap) -> Swap:
        self._swaps.append(swap)
        if len(self._swaps) > MOST:
            over = (each for each in self._swaps if each.state != _RUNNING)
            self._swaps.remove(next(over, self._swaps[0]))
        return swap

    def fail(self, swap: Swap, why: str) -> None:
        """A swap has failed, if it is not over. What failed before for the same reason is replaced:
        a store that is down is asked again and again.
        """
        if swap.state != _RUNNING:
            return
        swap.passed(_FAILED)
        swap.state, swap.why = _FAILED, why
        same = (swap.model, swap.versions, why)
        for each in [*self._swaps]:
            failed = each is not swap and each.state == _FAILED
            if failed and (each.model, each.versions, each.why) == same:
                swap.tries += each.tries
                self._swaps.remove(each)

    def count(self, model: str | None, outcome: str) -> None:
        """A load has ended; to be called in one engine for each."""
        name = model or OTHERS
        if name not in self._loads and len(self._loads) >= _MOST_NAMES:
            name = OTHERS
        self._loads.setdefault(name, Counter())[outcome] += 1

    def report(self) -> Report:
        """The part of the engine's report about swaps."""
        loads = [{"name": name, "outcomes": dict(x)} for name, x in self._loads.items()]
        return {"swaps": [each.plain() for each in self._swaps], "loads": loads}


def merged(swaps: Iterable[Report]) -> list[Report]:
    """The swaps of a service from those of its engines, the oldest first."""
    found: dict[tuple[Any, ...], Report] = {}
    for each in swaps:
        alone = None if each["change"] else (*each["versions"], each["began"])
        key = each["model"], each["change"], alone
        found[key] = _joined(found[key], each) if key in found else each
    return sorted(found.values(), key=lambda each: float(each["began"]))[-MOST:]


def _joined(one: Report, other: Report) -> Report:
    states = {one["state"], other["state"]}
    steps = dict(one["steps"])
    for step, at in other["steps"].items():
        steps[step] = max(at, steps.get(step, at))
    # The engine that fetched it knows how people call things.
    first, second = (one, other) if "fetched" in one["steps"] else (other, one)
    return {
        **one,
        "ends": one["ends"] or other["ends"],
        "began": min(one["began"], other["began"]),
        "steps": steps,
        "state": next(each for each in (_FAILED, _RUNNING, _DONE) if each in states),
        "why": first["why"] or second["why"],
        "serves": one["serves"] or other["serves"],
        "tries": max(one["tries"], other["tries"]),
    }


def unresolved(swaps: Sequence[Report]) -> list[Report]:
    """Of merged swaps those that failed, without a later one of the same model that succeeded."""
    last: dict[str | None, Report] = {}
    for each in swaps:
        is_load = each["versions"] or each["state"] == _FAILED
        if is_load and each["state"] != _RUNNING:
            last[each["model"]] = each
    return [each for each in last.values() if each["state"] == _FAILED]
