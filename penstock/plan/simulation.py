"""A discrete-event simulation of a service under load. Pure: the same seed gives the same figures.

The model. Requests arrive at random times (Poisson) or from callers that each wait for an answer.
Each passes the client, the engine and the ops of its graph. An op is a queue with workers; batches
are formed as in ``penstock.batching``. A batch waits for a time (disks, other servers) and computes
for a time. Computing tasks share the cores evenly (processor sharing, Kleinrock 1967). An engine's
loop, the client, and threads that hold the GIL are limited to one core each. The times of a request
at all ops are drawn together from one observed request, so that a large image is slow at every op.

With one op, Poisson arrivals and exponential times this is M/M/c; the tests compare it with the
formulas of Erlang and of Pollaczek and Khinchine. Batches, forks and shared cores have no exact
formulas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final, TypeAlias

from penstock.plan.costs import Costs, OpCosts

Then: TypeAlias = Callable[[], None]

_FREE: Final = 0
_CLIENT: Final = 1
_ENGINES: Final = 2  # the first group of an engine


@dataclass(frozen=True, slots=True, kw_only=True)
class OpLoad:
    """An op's simulated figures; times in seconds.

    Attributes:
        queue: mean time of a request in its queue.
        waiting: mean number of requests in its queue; by Little's law.
        batch: mean requests in a batch.
        busy: mean share of busy workers.
    """

    queue: float
    waiting: float
    batch: float
    busy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The results of a simulation; times in seconds.

    Attributes:
        rate: answers per second.
        latencies: sorted latencies of the requests.
        cores: mean number of busy cores.
        loop: share of time in which an engine's loop, or a thread with the GIL, was busy.
        client: share of time in which the client was busy.
        ops: figures of ops, by name.
    """

    rate: float
    latencies: Sequence[float]
    cores: float
    loop: float
    client: float
    ops: dict[str, OpLoad]

    @property
    def mean(self) -> float:
        """Mean latency."""
        return sum(self.latencies) / len(self.latencies)

    def quantile(self, share: float) -> float:
        """Return a quantile of the latencies, by the nearest rank."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def simulate(
    costs: Costs,
    *,
    rate: float | None = None,
    in_flight: int = 1,
    requests: int = 5000,
    seed: int = 1,
) -> Simulated:
    """Simulate a load.

    Args:
        costs: the costs of requests.
        rate: requests per second of an open loop; None for a closed loop.
        in_flight: callers of a closed loop.
        requests: number of measured requests, after a warm-up of a fifth as many.
        seed: the random seed.
    """
    service = _Service(costs, Random(seed))  # noqa: S311 - not for cryptography
    return service.run(rate, in_flight, requests)


@dataclass(slots=True)
class _Group:
    """Tasks that compute concurrently at the same speed.

    Attributes:
        done: virtual time: seconds that a task present since the start would have computed.
        speed: virtual seconds per second, for each task.
        tasks: a heap of (``done`` at the task's end, number, callback).
        busy: seconds in which there were tasks.
    """

    done: float = 0.0
    speed: float = 0.0
    tasks: list[tuple[float, int, Then]] = field(default_factory=list)
    busy: float = 0.0


class _Machine:
    """The virtual clock, and the tasks that share the cores."""

    def __init__(self, cores: float, groups: int) -> None:
        self.now = 0.0
        self.used = 0.0  # core seconds
        self.groups = [_Group() for _ in range(groups)]
        self._cores = cores
        self._timers: list[tuple[float, int, Then]] = []
        self._numbers = count()

    def after(self, seconds: float, then: Then) -> None:
        """Call ``then`` after ``seconds``."""
        heappush(self._timers, (self.now + seconds, next(self._numbers), then))

    def compute(self, group: int, seconds: float, then: Then) -> None:
        """Call ``then`` when the group has computed a new task of ``seconds``."""
        found = self.groups[group]
        heappush(found.tasks, (found.done + seconds, next(self._numbers), then))

    def step(self) -> None:
        """Advance to the next event."""
        groups, now = self.groups, self.now
        free = groups[0]
        running = len(free.tasks)
        for group in groups:
            if group.tasks and group is not free:
                running += 1
        speed = min(1.0, self._cores / running) if running else 0.0
        at, chosen = self._timers[0][0] if self._timers else float("inf"), None
        for group in groups:
            if group.tasks:
                group.speed = speed if group is free else speed / len(group.tasks)
                end = now + (group.tasks[0][0] - group.done) / group.speed
                if end < at:
                    at, chosen = end, group
        passed = at - now
        self.now = at
        self.used += passed * speed * running
        for group in groups:
            if group.tasks:
                group.done += passed * group.speed
                group.busy += passed
            else:
                group.done = 0.0
        if chosen is None:
            heappop(self._timers)[2]()
        else:
            chosen.done, _, then = heappop(chosen.tasks)
            then()


class _Request:
    __slots__ = ("due", "engine", "factors", "missing", "unfinished")

    def __init__(self, due: float, engine: _Engine, factors: dict[str, float]) -> None:
        self.due = due
        self.engine = engine
        self.factors = factors
        self.missing: dict[str, int] = {}
        self.unfinished = 0


class _Station:
    """An op of one engine."""

    def __init__(self, op: OpCosts) -> None:
        self.op = op
        self.idle = op.workers
        self.queue: deque[tuple[_Request, float]] = deque()
        self.reset()

    def reset(self) -> None:
        """Reset the counts."""
        self.queued = self.busy = 0.0
        self.samples = self.batches = 0


class _Engine:
    def __init__(self, costs: Costs, group: int) -> None:
        self.group = group
        self.stations = {each.name: _Station(each) for each in costs.ops}
        self.running = 0
        self.outside: deque[_Request] = deque()


class _Service:
    def __init__(self, costs: Costs, random: Random) -> None:
        self._costs = costs
        self._random = random
        self._machine = _Machine(costs.cores, _ENGINES + costs.engines)
        self._engines = [_Engine(costs, _ENGINES + n) for n in range(costs.engines)]
        self._inputs = {each.name: len(each.inputs) for each in costs.ops}
        self._consumers: dict[str, list[str]] = {each.name: [] for each in costs.ops}
        for each in costs.ops:
            for source in each.inputs:
                self._consumers[source].append(each.name)
        self._piece = costs.engine / (len(costs.ops) + 1)
        self._latencies: list[float] = []
        self._closed = True

    def run(self, rate: float | None, in_flight: int, requests: int) -> Simulated:
        """See ``simulate``."""
        machine = self._machine
        self._closed = rate is None
        if rate is None:
            for _ in range(in_flight):
                self._start()
        else:
            self._arrive(rate)
        self._until(requests // 5)
        began, used = machine.now, machine.used
        busy = [group.busy for group in machine.groups]
        self._latencies.clear()
        stations = [each for engine in self._engines for each in engine.stations.values()]
        for each in stations:
            each.reset()
        self._until(requests)
        seconds = machine.now - began
        shares = [
            (group.busy - was) / seconds for group, was in zip(machine.groups, busy, strict=True)
        ]
        ops = {}
        for op in self._costs.ops:
            same = [each for each in stations if each.op is op]
            queued = sum(each.queued for each in same)
            samples = max(1, sum(each.samples for each in same))
            ops[op.name] = OpLoad(
                queue=queued / samples,
                waiting=queued / seconds,
                batch=samples / max(1, sum(each.batches for each in same)),
                busy=sum(each.busy for each in same) / seconds / op.workers / len(same),
            )
        return Simulated(
            rate=len(self._latencies) / seconds,
            latencies=sorted(self._latencies),
            cores=(machine.used - used) / seconds,
            loop=max(shares[_ENGINES:]),
            client=shares[_CLIENT],
            ops=ops,
        )

    def _until(self, requests: int) -> None:
        while len(self._latencies) < requests:
            self._machine.step()

    def _arrive(self, rate: float) -> None:
        self._start()
        self._machine.after(self._random.expovariate(rate), partial(self._arrive, rate))

    def _start(self) -> None:
        """Start a request that is due."""
        machine, costs = self._machine, self._costs
        factors = self._random.choice(costs.requests) if costs.requests else {}
        engine = self._engines[0]
        if len(self._engines) > 1:
            engine = self._random.choice(self._engines)
        request = _Request(machine.now, engine, factors)
        sent = partial(machine.after, costs.overhead, partial(self._come_in, request))
        machine.compute(_CLIENT, costs.client / 2, sent)

    def _come_in(self, request: _Request) -> None:
        engine, most = request.engine, self._costs.most_running
        if most is not None and engine.running >= most:
            engine.outside.append(request)
        else:
            engine.running += 1
            self._on_loop(engine, partial(self._begin, request))

    def _on_loop(self, engine: _Engine, then: Then) -> None:
        self._machine.compute(engine.group, self._piece, partial(self._after_loop, engine, then))

    def _after_loop(self, engine: _Engine, then: Then) -> None:
        then()
        if not self._machine.groups[engine.group].tasks:  # the loop is idle
            for station in engine.stations.values():
                if station.queue and station.op.batch_size > 1:
                    self._dispatch(engine, station)

    def _begin(self, request: _Request) -> None:
        request.unfinished = len(self._inputs)
        for name, inputs in self._inputs.items():
            if inputs:
                request.missing[name] = inputs
            else:
                self._offer(request, name)

    def _offer(self, request: _Request, name: str) -> None:
        engine = request.engine
        station = engine.stations[name]
        station.queue.append((request, self._machine.now))
        self._dispatch(engine, station)

    def _dispatch(self, engine: _Engine, station: _Station) -> None:
        """Hand batches to idle workers, as the batcher of the engine does."""
        machine, op, queue = self._machine, station.op, station.queue
        while station.idle and queue:
            size = min(len(queue), op.batch_size)
            if size < op.batch_size:
                if op.window is not None:
                    left = queue[0][1] + op.window - machine.now
                    if left > 1e-9:
                        machine.after(left, partial(self._dispatch, engine, station))
                        return
                elif machine.groups[engine.group].tasks:
                    return  # deferred until the loop has processed other arrivals
            members = [queue.popleft() for _ in range(size)]
            station.idle -= 1
            station.batches += 1
            station.samples += size
            station.queued += sum(machine.now - since for _, since in members)
            batch = [request for request, _ in members]
            factor = sum(each.factors.get(op.name, 1.0) for each in batch) / size
            back = partial(self._returned, engine, station, batch, machine.now)
            run = partial(self._compute, engine, op, op.cpu.of(size) * factor, back)
            wait = op.wait.of(size) * factor
            if wait > 0:
                machine.after(wait, run)
            else:
                run()

    def _compute(self, engine: _Engine, op: OpCosts, seconds: float, then: Then) -> None:
        machine = self._machine
        if op.place == "thread" and self._costs.locked:
            machine.compute(engine.group, seconds, then)
            return
        threads = [None] * op.threads

        def one_ended() -> None:
            threads.pop()
            if not threads:
                then()

        for _ in range(op.threads):
            machine.compute(_FREE, seconds / op.threads, one_ended)

    def _returned(
        self, engine: _Engine, station: _Station, batch: list[_Request], began: float
    ) -> None:
        station.idle += 1
        station.busy += self._machine.now - began
        for request in batch:
            self._on_loop(engine, partial(self._go_on, request, station.op.name))
        if station.queue:
            self._dispatch(engine, station)

    def _go_on(self, request: _Request, name: str) -> None:
        request.unfinished -= 1
        for consumer in self._consumers[name]:
            request.missing[consumer] -= 1
            if not request.missing[consumer]:
                self._offer(request, consumer)
        if not request.unfinished:
            engine = request.engine
            engine.running -= 1
            if engine.outside:
                self._come_in(engine.outside.popleft())
            half = self._costs.client / 2
            self._machine.compute(_CLIENT, half, partial(self._end, request))

    def _end(self, request: _Request) -> None:
        self._latencies.append(self._machine.now - request.due)
        if self._closed:
            self._start()
