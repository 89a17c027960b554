"""The cost of a request in each op, the engine and the client. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.plan.recording import Place


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a batch: ``base``, plus ``each`` per request."""

    base: float
    each: float

    def of(self, size: float) -> float:
        """Return the seconds of a batch of ``size`` requests."""
        return self.base + self.each * size


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCosts:
    """An op's settings and the costs of its batches.

    Attributes:
        inputs: the ops before it.
        workers: number of workers of one engine.
        batch_size: maximum requests in a batch.
        window: seconds that the oldest request of a batch waits for others.
        cpu: CPU time of a batch.
        wait: time in which a batch neither computes nor waits for a core.
        threads: number of threads that compute a batch.
        stages: preprocess, process and postprocess of a batch, under the lightest load.
        largest: largest observed mean batch size.
        batches: number of observed batches.
        given_by: see ``OpSeen``.
        words: what the service says of the costs of its batches, such as "8 rows cost 1.9 x one";
            empty if it says nothing.
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
    given_by: str = ""
    words: str = ""

    def cost(self, size: float = 1.0) -> float:
        """op_cost: seconds of a batch, without waiting for a core."""
        return self.cpu.of(size) / self.threads + self.wait.of(size)

    @property
    def fullest(self) -> float:
        """The batch size with the least cost per request: a full batch."""
        return float(self.batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of a service and its client; times in seconds.

    Attributes:
        ops: the ops, each after its inputs.
        engine: CPU time of an engine's loop per request.
        client: CPU time of the client per request.
        overhead: time of a single request that no other cost covers: wake-ups, the network.
        cores: number of cores that all of it shares.
        engines: number of engines.
        most_running: maximum requests inside one engine's graphs; None for no limit.
        locked: whether ops in threads hold the GIL while they compute.
        requests: for each observed request, its time at each op as a multiple of the mean.
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
        """Return the op with this name."""
        return next(each for each in self.ops if each.name == name)
