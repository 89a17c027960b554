"""What the controller of a service's repositories knows of one model, and its rows of the index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.observe.swaps import Swap, Swaps
from penstock.repository.lifecycle import Lifecycle, State
from penstock.repository.next_state import is_beside
from penstock.repository.served import Description, Served
from penstock.service.catalog import Entry, Held

_log = logging.getLogger(__name__)


class NotServed(Exception):
    """Why a version is not served.

    Args:
        why: for people.
        fault: the exception, if nothing foresees it: then its place in the code is told, too.
    """

    def __init__(self, why: str, fault: Exception | None = None) -> None:
        super().__init__(why)
        self.fault = fault


@dataclass(slots=True)
class KnownModel:
    """See the module.

    Attributes:
        life: the states of its versions.
        lock: of its changes.
        held: what serves, by version.
        marks: of what serves, by version; see ``Entry.mark``.
        fetched: bytes transferred, and all, by version.
        previous: what was the default version before.
        unloaded: whether an operator unloaded it: then it is not loaded until told to.
        sent: the model as an operator sent it, instead of that of the repository.
        problem: why the repository has no such model; empty if it has.
        told: what was logged last about each version.
        unfinished: versions of which was logged that they are being copied.
        warnings: what was logged last about what is ignored.
    """

    life: Lifecycle = field(default_factory=Lifecycle)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    held: dict[str, Held] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    fetched: dict[str, tuple[int, int]] = field(default_factory=dict)
    previous: Description | None = None
    unloaded: bool = False
    sent: Entry | None = None
    problem: str = ""
    told: dict[str, str] = field(default_factory=dict)
    unfinished: set[str] = field(default_factory=set)
    warnings: tuple[str, ...] = ()

    def tell_problem(self, name: str, problem: str) -> None:
        """Keep why the repository has no such model, and log it once."""
        if problem and problem != self.problem:
            _log.error("model %s cannot be loaded: %s", name, problem)
        self.problem = problem

    def tell_warnings(self, warnings: tuple[str, ...]) -> None:
        """Log what is ignored, each once."""
        for text in warnings:
            if text not in self.warnings:
                _log.warning("%s", text)
        self.warnings = warnings

    def check_may_try(self, version: str, mark: str, served: Served | None) -> None:
        """Check that a version may be tried now.

        Raises:
            NotServed: it is barred, or has to wait for a rollout.
        """
        life = self.life
        barred = life.barred(mark)
        if barred is not None:
            if version not in life.versions:  # another engine has tried it, and told why
                life.advance(version, State.FOUND)
                life.fail(version, barred)
                self.told[version] = barred
            raise NotServed(barred)
        rolling = None if served is None else served.rolling
        if rolling is not None and version == rolling.stable and version in self.marks:
            raise NotServed(f"version {rolling.version} is being rolled out: it comes after")

    def fail_unforeseen(
        self, version: str, error: Exception, swaps: Swaps, swap: Swap
    ) -> NotServed:
        """A version fails by an exception that nothing foresees; like after an outage it is tried
        again. Returns what to raise.
        """
        why = repr(error)
        self.life.fail(version, why)
        swaps.fail(swap, why)
        return NotServed(why, error)

    def rows(
        self,
        name: str,
        served: Served | None,
        entry: Entry | None,
        gap: Callable[[str], State | None],
    ) -> Iterator[dict[str, Any]]:
        """Its rows of the index.

        Args:
            name: its name.
            served: what the engines serve; None if they do not know it.
            entry: as the repository has it; None if it has not.
            gap: see ``Lifecycle.rows``.
        """
        rows = self.life.rows(name, gap)
        for each in rows:
            row: dict[str, Any] = each._asdict()
            if served is not None and each.version in served.versions:
                row["default"] = each.version == served.default
                row["labels"] = [k for k, at in served.labels.items() if at == each.version]
                if served.weights:
                    row["weight"] = served.weights.get(each.version, 0)
                rolling = served.rolling
                if rolling is not None and rolling.version == each.version:
                    row["rollout"] = {
                        "step": rolling.step + 1,
                        "steps": len(rolling.plan.steps),
                        "share": rolling.weights[each.version],
                    }
                if is_beside(served, each.version):
                    row["reason"] = f"{each.reason}: it has no weight"
            if each.version in self.fetched:
                row["fetched"] = [*self.fetched[each.version]]
            if digest := self.life.versions[each.version].digest:
                row["digest"] = digest
            yield row
        known = {each.version for each in rows}
        wanted = [] if entry is None or entry.problem else entry.wanted()
        missing = [each for each in wanted if each not in known]
        if not rows and not missing:
            missing = [""]
        for version in missing:
            problem = (entry.problem if entry is not None else "") or self.problem
            why = problem or ("unloaded" if self.unloaded else "not loaded")
            yield {"name": name, "version": version, "state": "UNAVAILABLE", "reason": why}
