"""Rates, durations, and arrival times of requests. Pure.

In a closed loop so many callers each wait for an answer before they send again, so a service that
stalls is sent less, and the requests that would have met the stall are missing from the figures. In
an open loop requests are due at times that do not depend on the answers, and latency counts from
then: nothing is missing. Sources: Schroeder, Wierman, Harchol-Balter, "Open Versus Closed: A
Cautionary Tale" (NSDI 2006); G. Tene's coordinated omission, as corrected in wrk2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal, TypeAlias

Arrivals: TypeAlias = Literal["poisson", "constant"]

MOST_IN_FLIGHT: Final = 256
"""Of an open loop that names no other number; a guess, and within a process's usual 1,024 files."""

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(us|ms|s|m|h|)")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One level of load.

    Attributes:
        rate: requests a second of an open loop; None is a closed loop.
        concurrency: requests in flight: so many in a closed loop, at most so many in an open one,
            where those beyond wait in the client and their latency counts on.
    """

    rate: float | None = None
    concurrency: int = MOST_IN_FLIGHT

    def __post_init__(self) -> None:
        if self.concurrency < 1 or (self.rate is not None and not 0 < self.rate < float("inf")):
            raise ValueError("a step has a positive rate, and a concurrency of at least 1")

    def part(self, number: int, of: int) -> Step:
        """The share of one process among several."""
        whole, rest = divmod(self.concurrency, of)
        rate = None if self.rate is None else self.rate / of
        return replace(self, rate=rate, concurrency=whole + (number < rest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a run consists of; times in seconds.

    Attributes:
        steps: one after another.
        duration: of each step, measured.
        warm_up: before that, under the same load, not measured.
        arrivals: of an open loop: at random times, as of many callers that know nothing of each
            other, or evenly spaced.
        timeout: after which a request is given up, from its sending.
        connections: that gRPC calls share; over HTTP each request in flight has its own.
        processes: that share the load.
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
    """The seconds after the start at which requests are due, without end."""
    at = random.random() / rate if kind == "constant" else random.expovariate(rate)
    while True:
        yield at
        at += 1 / rate if kind == "constant" else random.expovariate(rate)


def seconds_of(text: str) -> float:
    """``10s``, ``50ms``, ``2m`` or a plain number of seconds.

    Raises:
        ValueError: it is none.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration: write 10s, 500ms or 2m")
    return float(match[1]) * _SECONDS[match[2]]
