"""Twenty traces of requests, and models whose true costs they meet; see ``replay``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from tests.batching.replay import Arrival

Cost = Callable[[int, int], float]

MODELS: dict[str, Cost] = {
    "gains from rows": lambda rows, _: 1e-3 + 2e-5 * rows,
    "gains nothing": lambda rows, _: 1e-6 + 1e-4 * rows,
    "gains up to 8": lambda rows, _: 1e-4 + 1e-3 * max(8, rows) / 8,
    "jumps at 16": lambda rows, _: 1e-3 + 1e-4 * rows + (5e-3 if rows >= 16 else 0.0),
    "padded": lambda _, elements: 1e-4 + 1.2e-6 * elements,
}
"""Seconds of a batch from its rows and its padded elements."""


@dataclass(frozen=True)
class Trace:
    """Requests of one op.

    Attributes:
        model: of ``MODELS``.
        load: seconds of work that arrive in a second, if each request ran alone.
        arrivals: in order of time.
        pads: whether their sizes differ and are padded.
    """

    model: str
    load: float
    arrivals: tuple[Arrival, ...]
    pads: bool

    def __str__(self) -> str:
        return f"{self.model}, load {self.load:g}"


def traces(count: int = 4000) -> Iterator[Trace]:
    """All of them.

    Args:
        count: requests of each.
    """
    for number, (name, cost) in enumerate(MODELS.items()):
        pads = name == "padded"
        for load in (0.3, 0.9, 1.5, 5.0):
            random = Random(f"{number} {load}")
            rate = load / cost(1, 76 if pads else 0)
            arrivals = tuple(_arrivals(random, rate, count, pads=pads))
            yield Trace(name, load, arrivals, pads)


def _arrivals(random: Random, rate: float, count: int, *, pads: bool) -> Iterator[Arrival]:
    """Poisson arrivals; every fourth second's share of requests comes in bursts, and a third of the
    requests has little time.
    """
    now = 0.0
    burst = 0
    for _ in range(count):
        if burst:
            burst -= 1
        else:
            now += random.expovariate(rate * 0.75)
            if random.random() < 0.02:
                burst = random.randrange(30)
        width = 1 + int(random.lognormvariate(4, 0.8)) if pads else 0
        within = random.uniform(0.005, 0.1) if random.random() < 0.33 else 1.0
        yield Arrival(now, 1, width, within)
