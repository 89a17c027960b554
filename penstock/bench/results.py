"""Results of a step: percentiles, failures, and limits. Pure.

Percentiles use the nearest rank over all values, without sampling or buckets. Requests that timed
out count with their timeout, because omitting the slowest requests would improve the figures.
Error answers do not count, because a refusal is fast.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from penstock.bench.schedule import Step

TIMEOUT: Final = "timeout"
UNSENT: Final = "not sent"
"""A due request that was never sent: the maximum was in flight until the end of the step."""
UNFINISHED: Final = "not finished"
"""A request in flight when the run was interrupted."""

WAITED_FOR: Final = (TIMEOUT, UNSENT)
"""Failures that count in the latencies."""

_BUSY: Final = 0.9
"""Share of time in which a client may be busy before it counts as the bottleneck."""
_LAG: Final = 0.1
"""Share of the p99 latency that the client's own delay may have."""
_KEPT_UP: Final = 0.95
_SHARES: Final = (50, 90, 95, 99, 99.9, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles in seconds; all 0 without values."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """Compute the percentiles of these values."""
        if not seconds:
            return cls()
        values = np.asarray(seconds)
        found = np.percentile(values, _SHARES, method="inverted_cdf").tolist()
        return cls(
            mean=float(values.mean()),
            **dict(zip(("p50", "p90", "p95", "p99", "p999", "max"), found, strict=True)),
        )


@dataclass(slots=True)
class Measured:
    """The measurements of one process in one step.

    Attributes:
        latencies: seconds from a request's due time to its answer, for requests that were due
            within the measured time.
        from_sending: the same, from the time of sending.
        lags: seconds by which requests were sent too late.
        first_pieces: seconds from a request's due time to the first piece of its good answer.
        between_pieces: mean seconds between the pieces of a good answer, one value for each.
        pieces: pieces that arrived within the measured time; ``of_good``: those of good answers to
            requests that were due within it.
        answered: good answers within the measured time.
        errors: number of failed requests by kind; ``texts`` has the first text of each kind.
        seconds: measured time; shorter than planned if interrupted.
        busy: seconds of it in which this process ran, or waited for a core.
    """

    latencies: array[float] = field(default_factory=lambda: array("d"))
    from_sending: array[float] = field(default_factory=lambda: array("d"))
    lags: array[float] = field(default_factory=lambda: array("d"))
    first_pieces: array[float] = field(default_factory=lambda: array("d"))
    between_pieces: array[float] = field(default_factory=lambda: array("d"))
    pieces: int = 0
    of_good: int = 0
    answered: int = 0
    good: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    busy: float = 0.0
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """An op's times in a step, from the server's status; in seconds, stages as means per batch.

    Attributes:
        batches: batches that returned.
        samples: samples in these batches.
        queue: mean time of a sample in the queue.
        waiting: samples in the queue at the end of the step.
    """

    name: str
    batches: int
    samples: int
    queue: float
    waiting: int
    preprocess: float
    process: float
    postprocess: float

    @property
    def batch_size(self) -> float:
        """The mean batch size."""
        return self.samples / self.batches if self.batches else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceTimes:
    """The pieces of good answers in a step; percentiles in seconds.

    Attributes:
        first: time to the first piece, from a request's due time.
        between: mean time between the pieces of an answer: from the first to the last one, divided
            by their number less one, for answers with at least two.
        rate: pieces per second within the measured time, also of answers that failed later.
        mean: pieces of an answer.
    """

    first: Percentiles
    between: Percentiles
    rate: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step; each request that was due within its measured time has one outcome.

    Attributes:
        step: the step's load.
        seconds: measured time.
        requests: requests that were due within that time; ``good`` had good answers, the others are
            in ``errors`` by kind, with the first text of each kind in ``texts``.
        rate: good answers per second within the measured time.
        latency: from a request's due time, so that the delays of a stalled service count. In a
            closed loop a request is due when the one before has ended: the same as
            ``from_sending``, not corrected for coordinated omission.
        from_sending: latency from the time of sending.
        pieces: if the answers come in pieces; else None.
        lag_p99: p99 of the client's own delay in sending.
        client_busy: share of time in which the busiest client process ran, or waited for a core.
        ops: op times from the server's status; empty without a status.
        server_note: why ``ops`` is empty, or a remark about the server.
        interrupted: the step was ended early.
    """

    step: Step
    seconds: float
    requests: int
    good: int
    errors: Mapping[str, int]
    texts: Mapping[str, str]
    rate: float
    latency: Percentiles
    from_sending: Percentiles
    pieces: PieceTimes | None = None
    lag_p99: float
    client_busy: float
    ops: tuple[OpTimes, ...] = ()
    server_note: str = ""
    interrupted: bool = False

    @property
    def failed(self) -> int:
        """Requests without a good answer."""
        return self.requests - self.good

    @property
    def remarks(self) -> list[str]:
        """Return warnings about the validity of the figures."""
        found = []
        if self.client_busy > _BUSY:
            share = 100 * min(1.0, self.client_busy)
            found.append(
                "the client is the limit: it computed, or waited for a core,"
                f" {share:.0f} % of the time"
            )
        elif self.lag_p99 > max(0.001, _LAG * self.latency.p99):
            found.append(
                f"the client is the limit: it sent up to {1000 * self.lag_p99:.1f} ms late (p99)"
            )
        wished = self.step.rate
        if wished is not None and self.good and self.rate < _KEPT_UP * self.requests / self.seconds:
            found.append(f"the service did not keep up with {wished:g}/s")
        return found


def result_of(
    step: Step,
    parts: Sequence[Measured],
    ops: tuple[OpTimes, ...] = (),
    server_note: str = "",
    *,
    in_pieces: bool = False,
) -> StepResult:
    """Combine the measurements of several processes in one step."""
    latencies, sendings, lags = array("d"), array("d"), array("d")
    first, between = array("d"), array("d")
    errors: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for part in parts:
        latencies += part.latencies
        sendings += part.from_sending
        lags += part.lags
        first += part.first_pieces
        between += part.between_pieces
        errors += part.errors
        texts = part.texts | texts
    seconds = max(part.seconds for part in parts)
    good = sum(part.good for part in parts)
    pieces = PieceTimes(
        first=Percentiles.of(first),
        between=Percentiles.of(between),
        rate=sum(part.pieces for part in parts) / seconds if seconds else 0.0,
        mean=sum(part.of_good for part in parts) / good if good else 0.0,
    )
    return StepResult(
        step=step,
        seconds=seconds,
        requests=good + errors.total(),
        good=good,
        errors=dict(errors),
        texts=texts,
        rate=sum(part.answered for part in parts) / seconds if seconds else 0.0,
        latency=Percentiles.of(latencies),
        from_sending=Percentiles.of(sendings),
        pieces=pieces if in_pieces else None,
        lag_p99=Percentiles.of(lags).p99,
        client_busy=max(part.busy / part.seconds if part.seconds else 0.0 for part in parts),
        ops=ops,
        server_note=server_note,
        interrupted=any(part.interrupted for part in parts),
    )


def ops_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[OpTimes, ...]:
    """Compute op times between two answers of ``GET /status``; idle ops are left out."""
    then = dict(_ops(before))
    found = []
    for key, op in _ops(after):
        was = then.get(key, {})
        batches = op["batches"] - was.get("batches", 0)
        if batches <= 0:
            continue
        began = was.get("seconds", {})
        samples = op["samples"] - was.get("samples", 0)
        waited = op["queue"]["sum"] - was.get("queue", {}).get("sum", 0.0)
        found.append(
            OpTimes(
                name=op["name"],
                batches=batches,
                samples=samples,
                queue=waited / samples if samples else 0.0,
                waiting=op["waiting"],
                **{
                    phase: (op["seconds"][phase] - began.get(phase, 0.0)) / batches
                    for phase in ("preprocess", "process", "postprocess")
                },
            )
        )
    return tuple(found)


def _ops(report: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    return [
        ((graph["name"], graph["version"], op["name"]), op)
        for graph in report["graphs"]
        for op in graph["ops"]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for every step; None is no limit."""

    max_p99: float | None = None
    max_errors: int | None = None
    min_rate: float | None = None

    def broken(self, result: StepResult) -> list[str]:
        """Return a text for each limit that the step exceeds."""
        found = []
        if not result.good:
            found.append("no good answer")
        elif self.max_p99 is not None and result.latency.p99 > self.max_p99:
            found.append(f"p99 {1000 * result.latency.p99:.1f} ms > {1000 * self.max_p99:g} ms")
        if self.max_errors is not None and result.failed > self.max_errors:
            found.append(f"{result.failed} errors > {self.max_errors}")
        if self.min_rate is not None and result.rate < self.min_rate:
            found.append(f"{result.rate:.1f} answers a second < {self.min_rate:g}")
        return found
