"""A rollout: a new version gets a growing share of the requests, or is taken back.

A rollout has steps. At each the new version has a share of the requests, for some seconds at least,
and the counts of both versions since the step's begin decide what comes next::

    step 1 ──go on──> step 2 ──go on──> ... ──go on──> promoted
       └───────take back──┴──> taken back

A version is taken back if it is certainly worse than the stable one in the same time, by more than
a limit: more of its answers failed, were slow, or differed. Certain: the confidence intervals of
both shares lie apart, each four standard errors to both sides (Wilson's score interval). The counts
are looked at again and again, so that a rarer event than the usual two standard errors is needed;
with two, one rollout in ten of an equal version would be taken back. A step goes on if the limits
are kept and there are enough answers to say so; else it lasts longer.

An answer is slow if it took longer than the stable version's p99, times the ratio that is allowed:
for equal versions 1 % of the answers at most. So a slower version is found after tens of answers,
while its own p99 would be known after a thousand. A request that is open for longer, or was when
its caller gave up, counts as a slow answer, so that a version that never answers is found as well.

Pure: counts and seconds in, a verdict out. The state of a rollout is plain data, from which any
engine goes on. Source of the interval: Wilson, "Probable inference, the law of succession, and
statistical inference", JASA 22 (1927).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from math import sqrt
from typing import Any, Final, TypeAlias

from penstock.repository.comparison import Comparison

Durations: TypeAlias = Mapping[float, int]
"""The number of answers, by the seconds that they took."""

FEW: Final = 20
"""Fewer answers say nothing, as the errors of one batch come together."""

_ERRORS: Final = 4.0  # standard errors
_P99: Final = 0.99
_ALL: Final = 100  # percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a rollout.

    Attributes:
        share: of the requests, in percent; 0: the new version gets only copies of requests.
        hold: the fewest seconds that the step lasts.
    """

    share: int
    hold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """By how much a new version may be worse than the stable one in the same time; None: any.

    Attributes:
        error_rate: so many more of its answers may fail, as a part of 1.
        p99_ratio: its p99 may be so many times that of the stable version.
        disagreement: so many of its answers may differ from those of the stable version, as a part
            of 1.
        samples: the fewest answers, and compared answers if ``disagreement`` is limited, with
            which a step goes on.
    """

    error_rate: float | None = 0.01
    p99_ratio: float | None = 1.25
    disagreement: float | None = None
    samples: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """Copies of requests to the stable version, which the new version runs as well.

    Attributes:
        share: of the requests, in percent.
        most: open copies in one engine; further ones are dropped.
        comparison: when two answers are the same.
    """

    share: int = 0
    most: int = 8
    comparison: Comparison = field(default_factory=Comparison)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a rollout does; after its last step the new version gets all requests."""

    steps: tuple[Step, ...]
    limits: Limits = field(default_factory=Limits)
    shadow: Shadow = field(default_factory=Shadow)

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Plan:
        """From plain data, as ``asdict`` makes it."""
        shadow = {**plain["shadow"]}
        shadow["comparison"] = Comparison(**shadow["comparison"])
        return cls(
            steps=tuple(Step(**each) for each in plain["steps"]),
            limits=Limits(**plain["limits"]),
            shadow=Shadow(**shadow),
        )


class State(Enum):
    """The states of a rollout."""

    RUNNING = "running"
    PROMOTED = "promoted"
    TAKEN_BACK = "taken back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The state of a rollout.

    Attributes:
        number: distinguishes it from earlier ones of the same name.
        stable: the version from which it goes.
        version: the new version.
        plan: its steps and limits.
        step: the current one, from 0 on.
        state: see ``State``.
        why: why it was taken back.
        keep: versions that stay when it ends, but for one that was taken back.
    """

    number: int
    stable: str
    version: str
    plan: Plan
    step: int = 0
    state: State = State.RUNNING
    why: str = ""
    keep: tuple[str, ...] = ()

    @property
    def is_won(self) -> bool:
        """Whether its version gets all requests since then."""
        return self.state is State.PROMOTED

    @property
    def running(self) -> bool:
        """Whether a verdict may still change it."""
        return self.state is State.RUNNING

    @property
    def weights(self) -> dict[str, int]:
        """The shares of both versions, while it runs."""
        share = self.plan.steps[self.step].share
        return {self.stable: _ALL - share, self.version: share}

    def next(self) -> Rollout:
        """It goes on: to the next step, or to its end."""
        if self.step + 1 < len(self.plan.steps):
            return replace(self, step=self.step + 1)
        return self.promoted()

    def promoted(self) -> Rollout:
        """The new version gets all requests from now on."""
        return replace(self, state=State.PROMOTED)

    def taken_back(self, why: str) -> Rollout:
        """The stable version gets all requests again."""
        return replace(self, state=State.TAKEN_BACK, why=why)

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "state": self.state.value}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Rollout:
        """From what ``plain`` has returned."""
        plan, state = Plan.of_plain(plain["plan"]), State(plain["state"])
        return cls(**{**plain, "plan": plan, "state": state, "keep": tuple(plain["keep"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a version did, in one engine or in several.

    Attributes:
        answers: with the failed ones, those to copies of requests too.
        failed: those that failed, but by their callers' fault.
        durations: of the answers.
        given_up: of the requests whose callers gave up.
        waiting: of the requests that are open now, so far.
        compared: answers to copies that were compared.
        differed: those that differed from the stable version's.
    """

    answers: int = 0
    failed: int = 0
    durations: Durations = field(default_factory=dict)
    given_up: Durations = field(default_factory=dict)
    waiting: Durations = field(default_factory=dict)
    compared: int = 0
    differed: int = 0

    def since(self, before: Seen) -> Seen:
        """What came after an earlier time."""
        return Seen(
            answers=self.answers - before.answers,
            failed=self.failed - before.failed,
            durations=_difference(self.durations, before.durations),
            given_up=_difference(self.given_up, before.given_up),
            waiting=self.waiting,
            compared=self.compared - before.compared,
            differed=self.differed - before.differed,
        )

    def plus(self, other: Seen) -> Seen:
        """The sum of both."""
        return Seen(
            answers=self.answers + other.answers,
            failed=self.failed + other.failed,
            durations=_sum(self.durations, other.durations),
            given_up=_sum(self.given_up, other.given_up),
            waiting=_sum(self.waiting, other.waiting),
            compared=self.compared + other.compared,
            differed=self.differed + other.differed,
        )

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), **{each: [*getattr(self, each).items()] for each in _DURATIONS}}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Seen:
        """From what ``plain`` has returned."""
        return cls(**{**plain, **{each: dict(plain[each]) for each in _DURATIONS}})


_DURATIONS: Final = ("durations", "given_up", "waiting")


def _difference(durations: Durations, before: Durations) -> Durations:
    return {at: n for at, count in durations.items() if (n := count - before.get(at, 0))}


def _sum(durations: Durations, others: Durations) -> Durations:
    found = dict(durations)
    for at, count in others.items():
        found[at] = found.get(at, 0) + count
    return found


def _beyond(seen: Seen, most: float) -> tuple[int, int]:
    """The answers of a version that took longer, with the requests that did so without an answer;
    and all of them.
    """
    overdue = sum(_slow(each, most) for each in (seen.given_up, seen.waiting))
    return _slow(seen.durations, most) + overdue, sum(seen.durations.values()) + overdue


def _slow(durations: Durations, most: float) -> int:
    return sum(count for seconds, count in durations.items() if seconds > most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What both versions did in a step, and the seconds since its begin."""

    held: float = 0.0
    stable: Seen = field(default_factory=Seen)
    new: Seen = field(default_factory=Seen)

    def plus(self, other: Reading) -> Reading:
        """Of both engines; the step began when the first of them knew of it."""
        return Reading(
            held=max(self.held, other.held),
            stable=self.stable.plus(other.stable),
            new=self.new.plus(other.new),
        )

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {"held": self.held, "stable": self.stable.plain(), "new": self.new.plain()}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Reading:
        """From what ``plain`` has returned."""
        stable, new = Seen.of_plain(plain["stable"]), Seen.of_plain(plain["new"])
        return cls(held=plain["held"], stable=stable, new=new)


class Window:
    """What one engine has seen of the current step of a name's rollout.

    An engine's counts grow from its start. The window remembers those at its first reading of a
    step, and subtracts them.
    """

    def __init__(self) -> None:
        self._step: tuple[int, int] | None = None
        self._began = 0.0
        self._stable = self._new = Seen()

    def read(self, rollout: Rollout, stable: Seen, new: Seen, now: float) -> Reading:
        """What both versions did since the first reading of this step.

        Args:
            rollout: it, running.
            stable: what its stable version did since the engine's start.
            new: what its new version did since then.
            now: monotonic seconds.
        """
        step = rollout.number, rollout.step
        if step != self._step:
            self._step, self._began, self._stable, self._new = step, now, stable, new
        return Reading(
            held=now - self._began,
            stable=stable.since(self._stable),
            new=new.since(self._new),
        )


class Decision(Enum):
    """What to do with a rollout."""

    GO_ON = "go on"
    WAIT = "wait"
    TAKE_BACK = "take back"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision, and the reason in a sentence."""

    decision: Decision
    why: str


def decided(current: Rollout | None, judged: Rollout, verdict: Verdict) -> Rollout | None:
    """The state after a verdict.

    Args:
        current: the present state.
        judged: the state that the verdict is about. If the present one is another, it stays.
        verdict: it.
    """
    if current is None or current != judged or verdict.decision is Decision.WAIT:
        return current
    if verdict.decision is Decision.GO_ON:
        return current.next()
    return current.taken_back(verdict.why)


def judge(rollout: Rollout, reading: Reading) -> Verdict:
    """Whether a running rollout goes on, waits, or is taken back, after its step's reading in all
    engines.
    """
    stable, new, held = reading.stable, reading.new, reading.held
    step, limits = rollout.plan.steps[rollout.step], rollout.plan.limits
    tests = _tests(rollout, stable, new)
    for each in tests:
        if each.certainly_worse:
            return Verdict(Decision.TAKE_BACK, each.text)
    if held < step.hold:
        return Verdict(Decision.WAIT, f"the step has lasted {held:.0f} of {step.hold:g} s")
    for count, what in (
        (new.answers, "answers"),
        (limits.samples if limits.disagreement is None else new.compared, "compared answers"),
    ):
        if count < limits.samples:
            return Verdict(Decision.WAIT, f"there are {count} of {limits.samples} {what}")
    few = sum(stable.durations.values())
    if limits.p99_ratio is not None and few < FEW and step.share < _ALL:
        text = f"there are {few} of {FEW} answers of version {rollout.stable}, for its p99"
        return Verdict(Decision.WAIT, text)
    for each in tests:
        if each.worse:
            return Verdict(Decision.WAIT, f"{each.text}, which is not certain yet")
    return Verdict(Decision.GO_ON, f"the limits are kept with {new.answers} answers")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """A comparison of two shares, each a number and that of all.

    Attributes:
        bad: answers of the new version.
        usual: those of the stable version; 0 of 0 without any.
        more: the difference that is allowed.
        text: what was seen.
    """

    bad: tuple[int, int]
    usual: tuple[float, int] = (0.0, 0)
    more: float = 0.0
    text: str

    @property
    def worse(self) -> bool:
        """Whether the new version exceeds what is allowed."""
        (bad, count), (usual, usual_count) = self.bad, self.usual
        return bool(count) and bad / count > usual / max(1, usual_count) + self.more

    @property
    def certainly_worse(self) -> bool:
        """Whether that is no chance."""
        (bad, count), (usual, usual_count) = self.bad, self.usual
        if count < FEW:
            return False
        most = interval(usual, usual_count)[1] if usual_count else 0.0
        return interval(bad, count)[0] > most + self.more


def _tests(rollout: Rollout, stable: Seen, new: Seen) -> list[_Test]:
    """What the limits ask."""
    limits, old = rollout.plan.limits, f"version {rollout.stable}"
    found = []
    if limits.error_rate is not None:
        text = (
            f"{new.failed} of its {new.answers} answers failed, and {stable.failed} of the "
            f"{stable.answers} of {old}"
        )
        seen, usual = (new.failed, new.answers), (stable.failed, stable.answers)
        found.append(_Test(bad=seen, usual=usual, more=limits.error_rate, text=text))
    p99 = quantile(stable.durations, _P99)
    if limits.p99_ratio is not None and p99 is not None:
        most = p99 * limits.p99_ratio
        slow, count = _beyond(new, most)
        usual_slow, usual_count = _beyond(stable, most)
        text = (
            f"{slow} of its {count} answers took longer than {1000 * most:.3g} ms, "
            f"{limits.p99_ratio:g} times the p99 of {old}"
        )
        beyond = max(usual_slow, (1 - _P99) * usual_count), usual_count
        found.append(_Test(bad=(slow, count), usual=beyond, text=text))
    if limits.disagreement is not None:
        text = f"{new.differed} of its {new.compared} compared answers differ from those of {old}"
        seen = new.differed, new.compared
        found.append(_Test(bad=seen, more=limits.disagreement, text=text))
    return found


def interval(bad: float, count: int) -> tuple[float, float]:
    """Wilson's interval of a share, of which ``bad`` of ``count`` were seen, at least one."""
    square = _ERRORS * _ERRORS
    share = bad / count
    middle = share + square / (2 * count)
    side = _ERRORS * sqrt(share * (1 - share) / count + square / (4 * count * count))
    whole = 1 + square / count
    return max(0.0, (middle - side) / whole), min(1.0, (middle + side) / whole)


def quantile(durations: Durations, share: float) -> float | None:
    """The shortest duration that this share of all does not exceed; None without any."""
    wanted = share * sum(durations.values())
    seen = 0
    for seconds, count in sorted(durations.items()):
        seen += count
        if seen >= wanted:
            return seconds
    return None
