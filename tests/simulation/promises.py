"""What must be true of a made-up world after every event; what is not goes to its problems."""

from __future__ import annotations

from penstock.engine.deadlines import TICK
from tests.simulation.world import NEARLY, World


class Promises:
    """The engine's, of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._heard = -1
        self._occupied = [False] * len(world.workers)

    def check(self, quiet: bool) -> None:
        """Look at everything; ``quiet`` says that all turns and alarms that were due have run."""
        world = self._world
        waiting = self._check_queues(quiet)
        wanted = 0
        now = world.clock.now()
        for data_id, client in world.open.items():
            assert client.submission is not None
            for sample in client.submission.samples:
                wanted += sample.waiting
            if quiet and now > client.deadline + TICK + NEARLY:
                world.problems.append(f"data id {data_id} has no answer after its deadline")
        if waiting != wanted:
            world.problems.append(f"{waiting} samples stand in queues, {wanted} are wanted")
        heard = len(world.recorder.events)
        if heard != self._heard:  # counting is dear, and nothing changes in silence
            self._check_counts(quiet)
            self._heard = heard if quiet else -1

    def _check_queues(self, quiet: bool) -> int:
        """Each queue's own bookkeeping, its bound, and that nobody waits beside an idle worker."""
        world = self._world
        waiting = 0
        for op, stage in enumerate(world.engine.stages):
            batcher = stage.batcher
            count = len(batcher)
            if count or self._occupied[op]:
                batcher.check_invariants()
                self._occupied[op] = count > 0
                waiting += count
                capacity = batcher.policy.capacity
                if capacity is not None and count > capacity:
                    world.problems.append(f"{count} wait at op{op} where {capacity} may")
                executor = world.workers[op]
                if quiet and count and executor.running < executor.workers:
                    self._check_wait(op)
            if quiet and len(stage.quarantine):
                self._check_lone(op)
        return waiting

    def _check_wait(self, op: int) -> None:
        """A worker is idle: whoever waits must have a window that is still open."""
        world = self._world
        stage = world.engine.stages[op]
        now = world.clock.now()
        window = stage.batcher.policy.window
        if window is None or stage.draining or len(stage.batcher) >= stage.batcher.policy.max_rows:
            world.problems.append(f"{len(stage.batcher)} wait at op{op} beside an idle worker")
            return
        for client in world.open.values():
            assert client.submission is not None
            for sample in client.submission.samples:
                if sample.waiting and sample.op == op:
                    until = sample.arrived + window
                    if now >= until or sample.deadline <= until:
                        world.problems.append(f"{sample} still waits though a worker is idle")

    def _check_lone(self, op: int) -> None:
        """Who is to run alone need not wait for company, only for a worker."""
        executor = self._world.workers[op]
        if executor.running < executor.workers:
            waiting = self._world.engine.stages[op].quarantine
            self._world.problems.append(f"{waiting} beside an idle worker")

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
