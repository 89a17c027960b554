"""The rollouts of a running service: a new version gets a growing share of the requests by itself,
or is taken back.

Every engine counts what its versions do in the current step, and runs the copies of requests. The
first engine asks all of them every second, judges (``repository/rollout.py``), and changes the
state of the name in all engines. A successor of the first engine goes on from that state.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import reduce
from typing import Any, Final

from penstock import errors
from penstock.config.schema import RolloutConfig
from penstock.engine.engine import ANY_NAME, Engine, Versions
from penstock.engine.graph import ServedGraph
from penstock.errors import StartupError, VersionsError
from penstock.observe.counters import Counters
from penstock.observe.sketch import durations
from penstock.repository.rollout import (
    Decision,
    Reading,
    Rollout,
    Seen,
    Verdict,
    Window,
    decided,
    judge,
    quantile,
)
from penstock.repository.served import Description, Served
from penstock.service.daemon_pool import DaemonPool
from penstock.service.rollout_plan import entry_for, plan_of
from penstock.service.shadow import EXAMPLES, Comparisons, Shadow
from penstock.supervisor.queries import AllEngines

_log = logging.getLogger(__name__)

QUESTION: Final = "rollout"
"""The query for what an engine has seen of a step."""

_EVERY: Final = 1.0  # seconds between two judgements

SUPERSEDED: Final = "superseded"
"""The end of a rollout whose place a newer version takes."""

_BY_CALLERS: Final = frozenset(
    each.code
    for each in (
        errors.Undecodable,
        errors.UnknownEncoding,
        errors.UnknownMediaType,
        errors.TooLarge,
        errors.UnknownService,
        errors.Unauthenticated,
        errors.PermissionDenied,
        errors.TooManyRequests,
        errors.PackageError,
        errors.Cancelled,
    )
)
"""Codes of errors that do not count: they are found before a version runs. An input that it refuses
counts, as the stable version may take it.
"""


class Rollouts:
    """See the module. Belongs to the engine's loop.

    Args:
        config: the entries of models.
        engine: this engine, whose versions may change.
        versions: changes them in all engines.
        counters: of this engine.

    Attributes:
        ended: called in the first engine with the state of a name before its rollout's end by
            itself, and the rollout after it.
    """

    def __init__(
        self,
        config: Mapping[str, RolloutConfig],
        engine: Engine,
        versions: Versions,
        counters: Counters,
    ) -> None:
        self._config = config
        self._engine = engine
        self._versions = versions
        self._counters = counters
        self._threads = DaemonPool(1, "shadow")
        self._windows: defaultdict[str | None, Window] = defaultdict(Window)
        self._comparisons: defaultdict[tuple[str | None, str], Comparisons] = defaultdict(
            Comparisons
        )
        self._shadows: dict[str | None, tuple[tuple[ServedGraph, ServedGraph], Shadow]] = {}
        self._engines: AllEngines | None = None
        self._judging: asyncio.Task[None] | None = None
        self._seen: dict[str | None, tuple[Rollout, Reading, Verdict, list[Any]]] = {}
        self._told: dict[str | None, str] = {}
        self._begun: dict[str | None, int] = {}  # numbers of the rollouts whose begin was told
        self._running: dict[str | None, int] = {}  # numbers of those that this engine knows
        self._ends: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.ended: Callable[[Served, Rollout], object] = lambda before, rollout: None

    def start(self, engines: AllEngines | None) -> None:
        """Begin to copy requests, if a rollout runs already.

        Args:
            engines: those of the service, in the first one, which judges; None in the others.
        """
        for name in self._versions.names():
            state = self._versions.served(name)
            if state is not None:
                self.changed(state)
        if engines is not None:
            self._engines = engines  # from here on its changes are told
            self._judging = asyncio.get_running_loop().create_task(self._judge_all())

    async def close(self) -> None:
        """End."""
        if self._judging is not None:
            self._judging.cancel()
            await asyncio.gather(self._judging, return_exceptions=True)
        for _, shadow in self._shadows.values():
            shadow.close()
        self._shadows.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def forget(self, graph: ServedGraph) -> None:
        """A graph was removed: what its answers were compared with is dropped."""
        self._comparisons.pop(graph.key, None)

    def rules(self, name: str | None, own: RolloutConfig | None = None) -> RolloutConfig | None:
        """How a new version of a name gets the requests; ``own``: as its own configuration says."""
        return entry_for(name, self._config, own)

    def arriving(self, description: Description, state: Served | None) -> Served:
        """The state with a further version of a name, which is rolled out, or which serves at once
        in place of the others.

        Args:
            description: of the version.
            state: the present state.

        Raises:
            VersionsError: it is the default, with another description, and another version is being
                rolled out from it.
        """
        state = state or Served(name=description.get("name"))
        rules = self.rules(state.name)
        plan = None if rules is None else plan_of(rules)
        if plan is None or state.default in (None, description["version"]):
            return state.only(description)
        return state.with_rollout(description, plan, time.time_ns())

    def changed(self, state: Served) -> None:
        """This engine serves a state from now on."""
        self._count_end(state)
        name, rollout = state.name, state.rolling
        new = rollout is not None and self._begun.get(name) != rollout.number
        if self._engines is not None and rollout is not None and new and not rollout.step:
            self._begun[name] = rollout.number
            _tell(state, rollout, f"in place of version {rollout.stable}")
        graphs = None
        if rollout is not None and rollout.plan.shadow.share:
            by_version = {graph.version: graph for graph in self._engine.serving(name)}
            source, target = by_version[rollout.stable], by_version[rollout.version]
            graphs = None if source.streams or target.streams else (source, target)
        before, shadow = self._shadows.get(name, (None, None))
        if shadow is not None and before != graphs:
            shadow.close()
            del self._shadows[name]
        if rollout is not None and graphs is not None and name not in self._shadows:
            comparisons = self._comparisons[graphs[1].key] = Comparisons()
            shadow = Shadow(self._engine, *graphs, rollout.plan.shadow, comparisons, self._threads)
            self._shadows[name] = graphs, shadow

    def _count_end(self, state: Served) -> None:
        name, rollout = state.name, state.rollout
        number = self._running.pop(name, None)
        result = None
        if rollout is not None and rollout.running:
            self._running[name] = rollout.number
            if number not in (None, rollout.number):
                result = SUPERSEDED
        elif rollout is not None and rollout.number == number:
            result = rollout.state.value
        if self._engines is not None and result is not None:
            self._ends[name or ANY_NAME][result] += 1

    # What this engine has seen.

    def copies(self, key: tuple[str | None, str]) -> dict[str, int] | None:
        """The answers of a version to copies of requests, by how they compare; None without any."""
        found = self._comparisons.get(key)
        if found is None:
            return None
        same = found.compared - found.differed
        failed = self._counters.copies[key].errors.total() if key in self._counters.copies else 0
        counts = {"same": same, "differed": found.differed, "dropped": found.dropped}
        return {**counts, "failed": failed}

    def answer(self, name: str | None, number: int, step: int) -> dict[str, Any] | None:
        """What this engine has seen of a step of a rollout; None if it has another state."""
        state = self._versions.served(name)
        rollout = None if state is None else state.rolling
        if rollout is None or (rollout.number, rollout.step) != (number, step):
            return None
        stable, new = self._seen_of((name, rollout.stable)), self._seen_of((name, rollout.version))
        reading = self._windows[name].read(rollout, stable, new, self._engine.clock.now())
        comparisons = self._comparisons.get((name, rollout.version))
        examples = [] if comparisons is None else [*comparisons.examples]
        return {"reading": reading.plain(), "examples": examples}

    def _seen_of(self, key: tuple[str | None, str]) -> Seen:
        """What a version did since this engine's start."""
        open_ = Counter(
            round(seconds, 3)
            for graph in self._engine.serving(key[0])
            if graph.key == key
            for seconds in self._engine.waiting(graph)
        )
        found = Seen(waiting=open_)
        for requests in (self._counters.requests.get(key), self._counters.copies.get(key)):
            if requests is not None:
                requests.count()
                refused = _failed(requests.refusals)
                one = Seen(
                    answers=sum(requests.durations) + refused,
                    failed=_failed(requests.errors) + refused,
                    durations=durations(requests.sketch.plain()),
                    given_up=durations(requests.given_up.plain()),
                )
                found = found.plus(one)
        of = self._comparisons.get(key)
        if of is None:
            return found
        return found.plus(Seen(compared=of.compared, differed=of.differed))

    # The first engine.

    async def _judge_all(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            for name in self._versions.names():
                state = self._versions.served(name)
                if state is None or state.rolling is None:
                    self._seen.pop(name, None)
                    continue
                try:
                    await self._judge(state, state.rolling)
                except Exception:  # noqa: BLE001 - a bug must not end all rollouts
                    _log.exception("the rollout of %s cannot be judged", state.called)

    async def _judge(self, state: Served, rollout: Rollout) -> None:
        """Judge a rollout, and change it if that is due."""
        assert self._engines is not None
        name = state.name
        answers = await self._engines.ask(QUESTION, name, rollout.number, rollout.step)
        found = [each for each in answers if each is not None]
        reading = reduce(Reading.plus, [Reading.of_plain(x["reading"]) for x in found], Reading())
        verdict = judge(rollout, reading)
        examples = [example for each in found for example in each["examples"]][-EXAMPLES:]
        self._seen[name] = rollout, reading, verdict, examples
        if verdict.decision is Decision.WAIT:
            return
        after: list[Rollout] = []

        def update(now: Served | None) -> Served:
            after.clear()
            current = None if now is None else now.rollout
            changed = decided(current, rollout, verdict)
            if now is None or changed is None or changed == current:
                raise VersionsError("it was changed meanwhile")
            after.append(changed)
            return now.rolled(changed)

        try:
            await self._versions.change(name, update)
        except StartupError as error:
            if after and self._told.get(name) != str(error):  # tried again in a second
                self._told[name] = str(error)
                _log.error("%s: the rollout cannot go on: %s", state.called, error)
            return
        self._told.pop(name, None)
        (changed,) = after
        _tell(state, changed, verdict.why)
        if not changed.running:
            self.ended(state, changed)

    def report(self) -> dict[str, Any]:
        """The part of the first engine's report about the rollouts of all names."""
        found = []
        for name in self._versions.names():
            state = self._versions.served(name)
            if state is not None and state.rollout is not None:
                found.append(self._reported(name, state.rollout))
        ends = [{"name": name, "outcomes": dict(each)} for name, each in self._ends.items()]
        return {"rollouts": found, "rollout_ends": ends}

    def _reported(self, name: str | None, rollout: Rollout) -> dict[str, Any]:
        report: dict[str, Any] = {
            "name": name,
            "version": rollout.version,
            "stable": rollout.stable,
            "state": rollout.state.value,
            "why": rollout.why,
            "step": str(rollout.step + 1),
            "steps": str(len(rollout.plan.steps)),
            "share": str(rollout.weights[rollout.version]),
            "shares": [str(each.share) for each in rollout.plan.steps],
            "hold": rollout.plan.steps[rollout.step].hold,
            "limits": asdict(rollout.plan.limits),
        }
        seen = self._seen.get(name)
        if rollout.running and seen is not None and seen[0] == rollout:
            _, reading, verdict, examples = seen
            report["why"] = verdict.why
            report["held"] = reading.held
            sides = {"stable": reading.stable, "new": reading.new}
            report["seen"] = {side: _shown(each) for side, each in sides.items()}
            report["examples"] = examples
        return report


def _tell(state: Served, rollout: Rollout, why: str) -> None:
    """Log what a rollout has come to."""
    version, called = rollout.version, state.called
    if rollout.running:
        _log.info(
            "%s: version %s gets %d %% of the requests, step %d of %d: %s",
            called, version, rollout.weights[version], rollout.step + 1, len(rollout.plan.steps),
            why,
        )  # fmt: skip
    elif rollout.why:
        _log.warning("%s: version %s is taken back: %s", called, version, why)
    else:
        _log.info("%s: version %s gets all requests: %s", called, version, why)


def _failed(codes: Mapping[str, int]) -> int:
    return sum(count for code, count in codes.items() if code not in _BY_CALLERS)


def _shown(seen: Seen) -> dict[str, Any]:
    return {
        "answers": seen.answers,
        "failed": seen.failed,
        "p99": quantile(seen.durations, 0.99),
        "compared": seen.compared,
        "differed": seen.differed,
    }
