"""Guarantees that a simulated world must keep after every event; violations are added to
problems."""

from __future__ import annotations

from penstock.batching.queue_policy import QueuePolicy
from penstock.engine.deadlines import TICK
from penstock.engine.stage import Stage
from penstock.request import Sample
from tests.simulation.graphs import RandomGraph
from tests.simulation.seats import Room, SeatedProcessWorkers, SeatedThreads
from tests.simulation.streams import StreamingCall, StreamingProcess
from tests.simulation.world import NEARLY, World


class Guarantees:
    """The engine's guarantees, in one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._events_seen = -1
        self._occupied: set[Stage] = set()

    def check(self, quiet: bool) -> None:
        """Checks everything; ``quiet``: all turns and alarms that were due have run."""
        world = self._world
        waiting = self._check_queues(quiet)
        if quiet:
            self._check_streams()
        wanted = 0
        now = world.clock.now()
        for data_id, client in world.open.items():
            assert client.submission is not None
            for sample in client.submission.samples:
                wanted += sample.waiting
                if quiet and sample.waiting:
                    self._check_limit(sample, now)
            if quiet and now > client.deadline + TICK + NEARLY:
                world.problems.append(f"data id {data_id} has no answer after its deadline")
        if waiting != wanted:
            world.problems.append(f"{waiting} samples stand in queues, {wanted} are wanted")
        events_seen = len(world.recorder.events)
        if events_seen != self._events_seen:  # only events change the counts
            self._check_counts(quiet)
            self._events_seen = events_seen if quiet else -1

    def _check_streams(self) -> None:
        """A worker waits for a client that does not read only, and works for no other sample than
        one that is wanted."""
        world = self._world
        for graph in world.graphs:
            last = graph.workers[graph.plan.last]
            if isinstance(last, SeatedThreads | SeatedProcessWorkers):
                for room in last.rooms:
                    self._check_seats(room)
        for call in world.calls:
            if not isinstance(call, StreamingCall | StreamingProcess):
                continue
            sample = call.runs_for
            if sample is None:
                continue
            if sample.gone:
                world.problems.append(f"a worker makes pieces for {sample}, which has ended")
            elif call.waits and world.open[sample.data_id].reads:
                world.problems.append(f"a worker waits for credit for {sample}, whose client reads")

    def _check_seats(self, room: Room) -> None:
        """One that has a seat waits for a client that does not read only, and whoever has ended is
        known to its worker."""
        world = self._world
        for one in room.states:
            sample = room.sample_of(one)
            if one.stream.cancelled:
                continue
            if sample.gone:
                world.problems.append(f"{room} has a seat for {sample}, which has ended")
            elif one.stream.is_full and world.open[sample.data_id].reads:
                world.problems.append(f"{room} waits for credit for {sample}, whose client reads")

    def _check_queues(self, quiet: bool) -> int:
        """Checks each queue's bookkeeping and capacity, and that no sample waits beside an idle
        worker."""
        world = self._world
        waiting = 0
        for graph in world.graphs:
            for op, stage in enumerate(graph.stages):
                batcher = stage.batcher
                count = len(batcher)
                executor = graph.workers[op]
                idle = executor.running < executor.workers
                if count or stage in self._occupied:
                    batcher.check_invariants()
                    (self._occupied.add if count else self._occupied.discard)(stage)
                    waiting += count
                    capacity = batcher.policy.capacity
                    if capacity is not None and count > capacity:
                        world.problems.append(f"{count} wait at {stage.name} where {capacity} may")
                    if quiet and count and idle:
                        self._check_wait(graph, op)
                if quiet and idle and len(stage.quarantine):
                    # Samples that must run alone wait for a worker only.
                    world.problems.append(f"{stage.quarantine} beside an idle worker")
        return waiting

    def _check_limit(self, sample: Sample, now: float) -> None:
        """A sample that has waited longer than its queue allows is late, or no longer there."""
        policies = self._world.engine.queue_policies
        policy = policies[sample.level] if policies else QueuePolicy()
        over = policy.timeout is not None and now > sample.arrived + policy.timeout + TICK + NEARLY
        if over and not (policy.delay and sample.late):
            self._world.problems.append(f"{sample} has waited longer than {policy}")

    def _check_wait(self, graph: RandomGraph, op: int) -> None:
        """With an idle worker, a sample may only wait for its window."""
        world = self._world
        stage = graph.stages[op]
        now = world.clock.now()
        window = stage.batcher.policy.window
        if window is None or stage.draining or len(stage.batcher) >= stage.batcher.policy.max_rows:
            text = f"{len(stage.batcher)} wait at {stage.name} beside an idle worker"
            world.problems.append(text)
            return
        for client in world.open.values():
            assert client.submission is not None
            for sample in client.submission.samples:
                if client.is_in(graph.served) and sample.waiting and sample.op == op:
                    until = sample.arrived + window
                    if now >= until or sample.deadline <= until:
                        world.problems.append(f"{sample} still waits though a worker is idle")

    def _check_counts(self, quiet: bool) -> None:
        world = self._world
        options = world.engine.options
        now = world.engine.statistics()
        inside = len(world.open)
        if now.admitted - now.replied - now.cancelled != inside or now.refused != world.refused:
            world.problems.append(f"{inside} requests are open, but the engine counts {now}")
        if now.inside + now.waiting != inside or inside > options.max_requests:
            world.problems.append(f"{inside} requests are inside: {options}, {now}")
        most = options.max_running
        if most is not None and (
            now.inside > most or (quiet and now.waiting and now.inside < most)
        ):
            world.problems.append(f"{now.inside} requests run where {most} may: {now}")
