"""What a debug call brings back: where the call was sent, and how it went through the servers'
graphs. All times are milliseconds; on a server they count from the request's first byte there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from penstock.errors import RequestError
from penstock.protocols.server_timing import ASKS, FIELD, Metric, decode

_FACTS: Final[Sequence[str]] = ("attempt", "rows", "worker")
_NOT_PARTS: Final = ("dur", "begin", "desc", *_FACTS)


ASKING: Final = ((ASKS, b"1"),)
"""Header fields with which servers send their timelines."""


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """A step of a request in a server: its attempt at an op, or what else the server tells.

    Attributes:
        op: the op's name.
        begin: when its inputs were complete; None if the server does not tell.
        ms: how long it took, with the wait in its queue.
        parts: the times of its parts, such as ``queue`` and ``process``, in their order.
        facts: the number of its ``worker``, the ``rows`` of its batch, and of a repetition its
            ``attempt``.
    """

    op: str
    begin: float | None
    ms: float
    parts: Mapping[str, float]
    facts: Mapping[str, int]

    def __str__(self) -> str:
        begin = "" if self.begin is None else f"{self.begin:.1f} .. {self.begin + self.ms:.1f} ms"
        facts = [f"{name} {value}" for name, value in self.facts.items()]
        parts = [f"{name} {ms:.1f}" for name, ms in self.parts.items()]
        return f"{self.op:<16} {begin:>18}  {', '.join(parts or [f'{self.ms:.1f} ms'])}" + (
            f" ({', '.join(facts)})" if facts else ""
        )


@dataclass(frozen=True, slots=True)
class Timeline:
    """A request in a server, until its result was known.

    Attributes:
        ms: how long it took, without the encoding of the answer.
        steps: by their begins.
        request_id: its data id in ``engine``, to find it on the server's live page; None if the
            server does not tell.
        engine: the number of its engine.
        left_out: the number of steps that had no room in the answer.
        others: what others on the way tell of the request, such as a proxy.
    """

    ms: float
    steps: tuple[TimelineStep, ...]
    request_id: int | None = None
    engine: int = 0
    left_out: int = 0
    others: tuple[TimelineStep, ...] = ()

    @classmethod
    def of_field(cls, value: bytes) -> Self | None:
        """The timeline in the field ``Server-Timing``; None if it has none."""
        metrics = decode(value)
        if not metrics:
            return None
        total, steps, others, left_out = {}, [], [], 0
        # Which metrics are Penstock's, if the field has its first one.
        ours = [each.name == "total" and "engine" in each.parameters for each in metrics]
        first = ours.index(True) if any(ours) else 0
        for at, metric in enumerate(metrics):
            if metric.name == "total" and at == first:
                total = dict(metric.parameters)
            elif metric.name == "left-out" and "count" in metric.parameters:
                left_out = int(_number(metric.parameters["count"]) or 0)
            elif any(ours) and "begin" not in metric.parameters:
                others.append(_step(metric))
            else:
                steps.append(_step(metric))
        ms = _number(total.get("dur", ""))
        if ms is None:
            ms = max((each.ms + (each.begin or 0.0) for each in steps), default=0.0)
        request_id = _number(total.get("id", ""))
        engine = int(_number(total.get("engine", "")) or 0)
        whole = None if request_id is None or request_id < 0 else int(request_id)
        return cls(ms, tuple(steps), whole, engine, left_out, tuple(others))

    @classmethod
    def of_times(cls, times: Sequence[int]) -> Self | None:
        """The timeline in begins and ends in microseconds, as Paddle Serving's servers give them;
        None if there are none.
        """
        if not times or len(times) % 2:
            return None
        first = times[0]
        steps = tuple(
            TimelineStep(f"op{at}", (begin - first) / 1000, (end - begin) / 1000, {}, {})
            for at, (begin, end) in enumerate(zip(times[::2], times[1::2], strict=True))
        )
        return cls((max(times) - first) / 1000, steps)

    def __str__(self) -> str:
        lines = [f"{self.ms:.1f} ms in the server", *(f"  {each}" for each in self.steps)]
        if self.request_id is not None:
            lines[0] += f" (request {self.request_id} of engine {self.engine})"
        if self.left_out:
            lines.append(f"  and {self.left_out} further steps")
        if self.others:
            lines += ["on the way:", *(f"  {each}" for each in self.others)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class AttemptTrace:
    """One attempt of a call.

    Attributes:
        replica: where it was sent, ``host:port``.
        begin: when, from the begin of the call.
        ms: until its answer or failure.
        outcome: ``ok``, or the error's text.
        timeline: of the request in the server; None if the server has sent none.
    """

    replica: str
    begin: float
    ms: float
    outcome: str
    timeline: Timeline | None

    def __str__(self) -> str:
        text = f"{self.begin:.1f} .. {self.begin + self.ms:.1f} ms  {self.replica}  {self.outcome}"
        if self.timeline is not None:
            text += f"\n  {str(self.timeline).replace(chr(10), chr(10) + '  ')}"
        return text


@dataclass(frozen=True, slots=True)
class Trace:
    """The result of a debug call. ``print`` shows all of it.

    Attributes:
        answer: see ``Endpoint.predict``; None if the call has failed.
        error: the error that ``predict`` would have raised; else None.
        tag: of the variant that was called.
        ms: how long the call took.
        attempts: in the order of their begins; more than one after failures and with backup
            requests.
    """

    answer: Any
    error: Exception | None
    tag: str
    ms: float
    attempts: tuple[AttemptTrace, ...]

    def __str__(self) -> str:
        how = "ok" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        lines = [f"variant {self.tag}: {self.ms:.1f} ms, attempts: {len(self.attempts)}, {how}"]
        lines += [f"  {str(each).replace(chr(10), chr(10) + '  ')}" for each in self.attempts]
        return "\n".join(lines)


class TraceLog:
    """Collects the trace of one call. The loop's thread, until the call has ended.

    Args:
        tag: of the called variant.
        times_of: finds begins and ends in a reply, see ``Codec``.
    """

    def __init__(self, tag: str, times_of: Callable[[bytes], Sequence[int]]) -> None:
        self._tag = tag
        self._times_of = times_of
        self._began = time.monotonic()
        self._attempts: list[AttemptTrace] = []

    def sent(self, replica: str) -> int:
        """An attempt begins. Returns its number."""
        self._attempts.append(AttemptTrace(replica, self._ms(), 0.0, "", None))
        return len(self._attempts) - 1

    def head(self, attempt: int, fields: Mapping[bytes, bytes]) -> None:
        """The head of its answer has arrived."""
        value = fields.get(FIELD)
        if value is not None:
            found = Timeline.of_field(value)
            self._attempts[attempt] = replace(self._attempts[attempt], timeline=found)

    def ended(self, attempt: int, outcome: object, reply: bytes | None = None) -> None:
        """It has ended, with the error ``outcome``, or a reply."""
        before = self._attempts[attempt]
        timeline = before.timeline
        if timeline is None and reply is not None:
            with suppress(RequestError):  # what is wrong with the reply, the outcome says
                timeline = Timeline.of_times(self._times_of(reply))
        self._attempts[attempt] = replace(
            before, ms=self._ms() - before.begin, outcome=str(outcome), timeline=timeline
        )

    def trace(self, answer: Any, error: Exception | None) -> Trace:
        """The trace of the call, which has ended."""
        return Trace(answer, error, self._tag, self._ms(), (*self._attempts,))

    def _ms(self) -> float:
        return 1000 * (time.monotonic() - self._began)


def _step(metric: Metric) -> TimelineStep:
    numbers = {
        name: number
        for name, value in metric.parameters.items()
        if (number := _number(value)) is not None
    }
    parts = {name.replace("-", " "): ms for name, ms in numbers.items() if name not in _NOT_PARTS}
    facts = {name: int(numbers[name]) for name in _FACTS if name in numbers}
    return TimelineStep(metric.name, numbers.get("begin"), numbers.get("dur", 0.0), parts, facts)


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if abs(found) < 1e15 else None
