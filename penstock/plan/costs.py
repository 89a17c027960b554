"""The cost of a request in each op, the engine and the client. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.plan.recording import Place


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a batch: ``base``, and ``each`` for every request in it."""

    base: float
    each: float

    def of(self, size: float) -> float:
        """For a batch of so many."""
        return self.base + self.each * size


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCosts:
    """An op: how it is set up, and what its batches cost.

    Attributes:
        inputs: the ops before it.
        workers: of one engine.
        batch_size: the most requests in a batch.
        window: seconds that the oldest of a batch waits for others.
        cpu: CPU time of a batch.
        wait: time in which a batch neither computes nor waits for a core.
        threads: that compute a batch together.
        stages: preprocess, process and postprocess of a batch, under the lightest load.
        largest: the largest mean batch that was seen.
        batches: that were seen.
    """

    name: str
    inputs: tuple[str, ...] = ()
    workers: int = 1
    batch_size: int = 1
    window: float | None = None
    place: Place = "thread"
    cpu: Line = Line(0.0, 0.0)
    wait: Line = Line(0.0, 0.0)
    threads: int = 1
    stages: tuple[float, float, float] = (0.0, 0.0, 0.0)
    largest: float = 1.0
    batches: int = 0

    def cost(self, size: float = 1.0) -> float:
        """op_cost: seconds of a batch that need not wait for a core."""
        return self.cpu.of(size) / self.threads + self.wait.of(size)

    @property
    def fullest(self) -> float:
        """The batch in which it is quickest: a full one."""
        return float(self.batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A service and its client; times in seconds.

    Attributes:
        ops: every one behind its inputs.
        engine: CPU time of an engine's loop for a request.
        client: of the client.
        overhead: of a request alone, what is in none of the other times: wake-ups, the network.
        cores: that are there for all of it.
        engines: of the service.
        most_running: requests inside one engine's graphs; None is no limit.
        locked: whether ops in threads hold Python's lock while they compute.
        requests: of each request that was seen, its time at the ops as a multiple of the mean.
    """

    ops: tuple[OpCosts, ...]
    engine: float = 0.0
    client: float = 0.0
    overhead: float = 0.0
    cores: float = 1.0
    engines: int = 1
    most_running: int | None = None
    locked: bool = False
    requests: tuple[dict[str, float], ...] = ()

    def op(self, name: str) -> OpCosts:
        """The op of that name."""
        return next(each for each in self.ops if each.name == name)
