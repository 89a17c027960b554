"""Runs the real engine through made-up worlds and checks its promises after every event.

Faults: outcomes that come late, twice, never, out of order, or from work nobody gave out; calls
over their time-out, given-up calls that come back, workers that die; cancelling, deadlines, drain
and close at any moment; full queues; replies that raise or call the engine again.

Then faults stop: every open request must end by its deadline plus one tick (and, where no call
hangs, without waiting for it), and the engine must come to rest with nothing left over. At last
the history of both sides is judged by ``penstock.testing.history``.

    python -m penstock.testing.simulate --seeds 10000 --events 200

A failure tells its seed and the last events; ``--seed`` tells the same story again.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from penstock.engine.deadlines import TICK
from penstock.executors.executor import Work
from penstock.request import Batch, CloseReason, Outcome, Sample
from penstock.testing.history import Limits, check
from penstock.testing.world import NEARLY, World

_STORY = 30
_MOST_ROUNDS = 20_000


class Violation(AssertionError):
    """A promise of the engine was broken. The text tells the seed and what happened."""


def simulate(seed: int, events: int = 200) -> int:
    """Run one world to its end.

    Args:
        seed: decides everything.
        events: how many before faults stop; fewer events of a seed are the beginning of more.

    Returns:
        how many requests were asked.

    Raises:
        Violation: with the seed and the story.
    """
    run = Simulation(seed)
    try:
        run.run(events)
    except Exception as error:
        raise Violation(run.story(error)) from error
    return run.world.asked


@contextmanager
def _quiet() -> Iterator[None]:
    """The engine logs each reply that raises; here they are made by the thousand."""
    log = logging.getLogger("penstock.engine.engine")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class Simulation:
    """One seed's world, the events that befall it, and the promises."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self.drains = 0
        self.rests = 0
        self._events = 0
        self._heard = -1
        self._deck = self._draw_deck()
        self._occupied = [False] * len(self.world.workers)
        self._lines: deque[tuple[int, int, float, str, object]] = deque(maxlen=_STORY)

    def _draw_deck(self) -> list[Callable[[], object]]:
        """The events, as often as their chances are."""
        world = self.world
        faults = world.random.choice((0, 1, 1, 2))
        end = world.random.random()
        return (
            [world.ask] * world.random.choice((8, 16, 32))
            + [self.begin] * 8
            + [self.advance] * world.random.choice((4, 8, 16))
            + [self.end] * world.random.choice((1, 4, 8))
            + [world.let_time_pass] * 4
            + [world.wait_for_alarm] * 5
            + [world.leave] * world.random.choice((1, 3))
            + [self.stick, self.stick, world.unstick, self.die, self.report_twice] * faults
            + [self.report_unknown, self.settle_again] * faults
            + [self.drain] * (end < 0.2)
            + [self.close] * (end < 0.04)
        )

    def run(self, events: int) -> None:
        """That many events, then the way to rest, then the judgement."""
        with _quiet():
            for _ in range(events):
                self.step()
            self.come_to_rest()
            self.judge()

    def step(self) -> None:
        """One event, the turns it brings about (sometimes later), and a look at everything."""
        self._events += 1
        world = self.world
        before = world.clock.now()
        self._happen(world.random.choice(self._deck))
        quiet = world.clock.now() > before or world.random.random() < 0.8
        if quiet:
            world.clock.run()
        self.check(quiet)

    def _happen(self, event: Callable[[], object]) -> object:
        seen = len(self.world.recorder.events)
        told: object = "..."
        try:
            told = event()
        finally:
            now = self.world.clock.now()
            self._lines.append((self._events, seen, now, event.__name__, told))
        return told

    # Events beyond what the world's clients do.

    def begin(self) -> object:
        """A ``process`` call begins."""
        call = self.world.pick()
        batch = None if call is None else call.work.current
        if batch is None or batch.started is not None:
            return None
        batch.started = self.world.clock.now()
        return batch.data_ids

    def advance(self) -> object:
        """A worker ends one batch and goes on to the next."""
        call = self.world.pick()
        return call and self.world.advance(call)

    def end(self) -> object:
        """A worker ends everything it was given."""
        call = self.world.pick()
        return call and self.world.end(call)

    def die(self) -> object:
        """A worker ends in the middle of a batch."""
        call = self.world.pick()
        return call and self.world.die(call)

    def stick(self) -> object:
        """A call hangs from now on."""
        call = self.world.pick()
        if call is None:
            return None
        call.stuck = True
        batch = call.work.current
        assert batch is not None
        if batch.started is None:
            batch.started = self.world.clock.now()
        return batch.data_ids

    def report_twice(self) -> object:
        """A worker reports what it has reported before."""
        if not self.world.reported:
            return None
        work, finished, results = self.world.random.choice(self.world.reported)
        finished(work, results)
        return [batch.data_ids for batch, _ in results]

    def report_unknown(self) -> object:
        """Somebody reports a Work that was never handed out."""
        samples = self._over()
        if not samples:
            return None
        _, finished, _ = self.world.reported[-1]
        batch = Batch(samples, CloseReason.FULL, self.world.clock.now())
        finished(Work([]), [(batch, [Outcome({"nonce": -1}) for _ in samples])])
        return batch.data_ids

    def settle_again(self) -> object:
        """An outcome for a sample that is over."""
        samples = self._over()
        if not samples:
            return None
        sample = self.world.random.choice(samples)
        self.world.engine.settle(sample, Outcome({"nonce": -1}))
        return sample.data_id

    def _over(self) -> list[Sample]:
        batches = [batch for _, _, results in self.world.reported for batch, _ in results]
        return [sample for batch in batches for sample in batch.samples if sample.gone]

    def drain(self) -> None:
        """An orderly stop begins; perhaps another in the middle of it."""
        if self.drains == 2:
            return
        self.drains += 1
        self.world.engine.drain(self._at_rest)

    def _at_rest(self) -> None:
        self.rests += 1
        self._all_answered("at rest")

    def close(self) -> None:
        """The end, now."""
        self.world.engine.close()
        self._all_answered("closed")

    def _all_answered(self, claim: str) -> None:
        if self.world.open:
            self.world.problems.append(f"{claim}, and {list(self.world.open)} have no answer")

    # Promises.

    def check(self, quiet: bool) -> None:
        """Look at everything; ``quiet`` says that all turns and alarms that were due have run."""
        world = self.world
        waiting = self._check_queues(quiet)
        wanted = 0
        now = world.clock.now()
        for data_id, client in world.open.items():
            assert client.journey is not None
            for sample in client.journey.samples:
                wanted += sample.waiting
            if quiet and now > client.deadline + TICK + NEARLY:
                world.problems.append(f"data id {data_id} has no answer after its deadline")
        if waiting != wanted:
            world.problems.append(f"{waiting} samples stand in queues, {wanted} are wanted")
        heard = len(world.recorder.events)
        if heard != self._heard:  # counting is dear, and nothing changes in silence
            self._check_counts(quiet)
            self._heard = heard if quiet else -1
        if world.problems:
            raise Violation("; ".join(world.problems))

    def _check_queues(self, quiet: bool) -> int:
        """Each queue's own bookkeeping, its bound, and that nobody waits beside an idle worker."""
        world = self.world
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
        return waiting

    def _check_wait(self, op: int) -> None:
        """A worker is idle: whoever waits must have a window that is still open."""
        world = self.world
        stage = world.engine.stages[op]
        now = world.clock.now()
        window = stage.batcher.policy.window
        if window is None or stage.draining or len(stage.batcher) >= stage.batcher.policy.max_rows:
            world.problems.append(f"{len(stage.batcher)} wait at op{op} beside an idle worker")
            return
        for client in world.open.values():
            assert client.journey is not None
            for sample in client.journey.samples:
                if sample.waiting and sample.op == op:
                    until = sample.arrived + window
                    if now >= until or sample.deadline <= until:
                        world.problems.append(f"{sample} still waits though a worker is idle")

    def _check_counts(self, quiet: bool) -> None:
        world = self.world
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

    def come_to_rest(self) -> None:
        """Faults stop. Everybody must be answered in time, and nothing may be left over."""
        world = self.world
        world.errors = world.mischief = 0.0
        calm = world.random.random() < 0.5
        if calm:
            self.world.unstick()
        windows = [stage.batcher.policy.window or 0.0 for stage in world.engine.stages]
        patience = sum(windows) * (1 + len(world.open)) + 2 * TICK
        began = world.clock.now()
        self._work_until(lambda: not world.open)
        if calm and world.clock.now() > began + patience:
            took = world.clock.now() - began
            raise Violation(f"no call hangs, yet it took {took:.3f} s to answer everybody")
        self.world.unstick()
        self._work_until(lambda: not world.calls)
        for _ in range(_MOST_ROUNDS):
            if self._happen(world.wait_for_alarm) is None:
                break
            self.check(True)
        else:
            raise Violation("alarms ring for ever")
        for stage in world.engine.stages:
            if stage.statistics().idle != stage.executor.workers:
                raise Violation(f"a slot is lost: {stage}")
        if self.rests != self.drains:
            raise Violation(f"{self.drains} drains were told of rest {self.rests} times")

    def _work_until(self, done: Callable[[], bool]) -> None:
        """Workers do what they have; time passes only when they have nothing."""
        world = self.world
        for _ in range(_MOST_ROUNDS):
            world.clock.run()
            self.check(True)
            if done():
                return
            if any(not call.stuck for call in world.calls):
                self._happen(self.end)
            elif self._happen(world.wait_for_alarm) is None:
                raise Violation(f"nothing will ever happen, and {list(world.open)} are open")
        raise Violation(f"{list(world.open)} never end")

    def judge(self) -> None:
        """The finished history must be good."""
        world = self.world
        stages = world.engine.stages
        limits = Limits(
            workers={s.name: s.executor.workers for s in stages},
            dispatches={s.name: s.options.retry * world.plan.attempts for s in stages},
            grace=TICK + NEARLY,
        )
        found = check(world.history.events, world.recorder.events, limits)
        if found:
            raise Violation("; ".join(found))

    def story(self, error: Exception) -> str:
        """The failure, the world it happened in, and the last events with what followed them."""
        world = self.world
        plan = world.plan
        lines = [
            f"seed {self.seed}, event {self._events}: {type(error).__name__}: {error}",
            f"{world.engine.options} attempts={plan.attempts} first_arrival={plan.first_arrival}",
        ]
        for op, stage in enumerate(world.engine.stages):
            lines.append(
                f"op{op} {stage.name!r} after {plan.inputs[op]} jumps to {plan.jump_to[op]}: "
                f"{world.workers[op]}, {stage.batcher.policy}, {stage.options}"
            )
        heard = world.recorder.events
        end = (0, len(heard), 0.0, "", None)
        for (number, seen, now, event, told), after in pairwise([*self._lines, end]):
            lines.append(f"{number:5} at {now:.6f} {event} {'' if told is None else told}")
            lines += [f"          {entry}" for entry in heard[seen : after[1]]]
        return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when every world kept its promises."""
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.simulate")
    parser.add_argument("--seeds", type=int, default=1, help="how many worlds")
    parser.add_argument("--events", type=int, default=200, help="events before faults stop")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    failed: list[int] = []
    requests = 0
    for seed in range(asked.seed, asked.seed + asked.seeds):
        try:
            requests += simulate(seed, asked.events)
        except Violation as violation:
            failed.append(seed)
            sys.stderr.write(f"{violation}\n\n")
    took = time.monotonic() - began
    verdict = f"FAILED: seeds {failed[:20]}" if failed else "all promises kept"
    sys.stdout.write(
        f"{asked.seeds} seeds of {asked.events} events, {requests} requests, {took:.1f} s "
        f"({60 * asked.seeds / max(took, 1e-9):.0f} seeds a minute): {verdict}\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
