"""Rates, durations, and arrival times of requests. Pure.

In a closed loop each caller waits for its answer before it sends again, so a stalled service gets
fewer requests, and the figures lack those that the stall would have delayed (coordinated omission).
In an open loop the due times of requests do not depend on answers, and latency counts from the due
time. Sources: Schroeder, Wierman, Harchol-Balter, "Open Versus Closed: A Cautionary Tale" (NSDI
2006); G. Tene's coordinated omission, as corrected in wrk2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal, TypeAlias

Arrivals: TypeAlias = Literal["poisson", "constant"]

MOST_IN_FLIGHT: Final = 256
"""Default concurrency of an open loop, within the usual limit of 1,024 open files."""

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(us|ms|s|m|h|)")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One level of load.

    Attributes:
        rate: requests per second of an open loop; None for a closed loop.
        concurrency: number of requests in flight; in an open loop the maximum, beyond which due
            requests wait in the client while their latency counts.
    """

    rate: float | None = None
    concurrency: int = MOST_IN_FLIGHT

    def __post_init__(self) -> None:
        if self.concurrency < 1 or (self.rate is not None and not 0 < self.rate < float("inf")):
            raise ValueError("a step has a positive rate, and a concurrency of at least 1")

    def part(self, number: int, of: int) -> Step:
        """Return the part of one process."""
        whole, rest = divmod(self.concurrency, of)
        rate = None if self.rate is None else self.rate / of
        return replace(self, rate=rate, concurrency=whole + (number < rest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The options of a run; times in seconds.

    Attributes:
        steps: the steps, run one after another.
        duration: measured time of each step.
        warm_up: time before it, under the same load, that is not measured.
        arrivals: arrivals of an open loop: a Poisson process, as from many independent callers, or
            evenly spaced.
        timeout: timeout of a request, from its sending.
        connections: number of connections that gRPC calls share; over HTTP each request in flight
            has its own.
        processes: number of processes that share the load.
    """

    steps: tuple[Step, ...]
    duration: float = 10.0
    warm_up: float = 1.0
    arrivals: Arrivals = "poisson"
    timeout: float = 30.0
    connections: int = 1
    processes: int = 1

    def __post_init__(self) -> None:
        if not self.steps or min(self.connections, self.processes) < 1:
            raise ValueError("a load has at least one step, one connection and one process")
        if self.duration <= 0 or self.timeout <= 0 or self.warm_up < 0:
            raise ValueError("duration and timeout are positive, the warm-up is not negative")


def arrivals(rate: float, kind: Arrivals, random: Random) -> Iterator[float]:
    """Yield the due times of requests in seconds after the start, without end."""
    at = random.random() / rate if kind == "constant" else random.expovariate(rate)
    while True:
        yield at
        at += 1 / rate if kind == "constant" else random.expovariate(rate)


def seconds_of(text: str) -> float:
    """Parse a duration: ``10s``, ``50ms``, ``2m`` or a number of seconds.

    Raises:
        ValueError: the text is not a duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration: write 10s, 500ms or 2m")
    return float(match[1]) * _SECONDS[match[2]]
