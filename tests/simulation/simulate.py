"""Runs the real engine through made-up worlds and checks its promises after every event.

Faults: outcomes that come late, twice, never, out of order, or from work nobody gave out; calls
over their time-out, given-up calls that come back; processes that die at any moment, of a poison or
of nothing, are replaced later or never, and begin what is taken back in that moment; cancelling,
deadlines, drain and close at any moment; full queues; replies that raise or call the engine again;
graphs that are replaced by other versions, or go, while another one serves.

Then faults stop: every open request must end by its deadline plus one tick (and, where no call
hangs, without waiting for it), and the engine must come to rest with nothing left over. At last
the history of both sides is judged by ``penstock.testing.history``.

    python -m tests.simulation.simulate --seeds 10000 --events 200 --jobs 2

A failure tells its seed and the last events; ``--seed`` tells the same story again.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from multiprocessing import Pool

from penstock.engine.deadlines import TICK
from penstock.executors.executor import Work
from penstock.request import Batch, CloseReason, Outcome, Sample
from penstock.testing.history import Limits, check
from tests.simulation.promises import Promises
from tests.simulation.world import NEARLY, World

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
    """Each reply that raises is logged, and each culprit; here they are made by the thousand."""
    names = ("engine.engine", "engine.quarantine", "ops.failures")
    logs = [logging.getLogger(f"penstock.{name}") for name in names]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        yield
    finally:
        for log, was in zip(logs, before, strict=True):
            log.disabled = was


class Simulation:
    """One seed's world, the events that befall it, and the promises."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self._promises = Promises(self.world)
        self.drains = 0
        self.rests = 0
        self._events = 0
        self._deck = self._draw_deck()
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
            + [world.start_prepared, world.start_prepared, world.change_graphs]
            + [self.stick, self.stick, world.unstick, self.die, self.report_twice] * faults
            + [self.report_unknown, self.settle_again, world.kill] * faults
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
        self._check(quiet)

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
        return call and call.begin()

    def advance(self) -> object:
        """A worker ends one batch and goes on to the next."""
        call = self.world.pick()
        return call and call.advance()

    def end(self) -> object:
        """A worker ends everything it was given."""
        call = self.world.pick()
        return call and call.end()

    def die(self) -> object:
        """A worker ends in the middle of a batch."""
        call = self.world.pick()
        return call and call.die()

    def stick(self) -> object:
        """A call hangs from now on."""
        call = self.world.pick()
        if call is None:
            return None
        call.stuck = True
        return call.begin()

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

    def _check(self, quiet: bool) -> None:
        self._promises.check(quiet)
        if self.world.problems:
            raise Violation("; ".join(self.world.problems))

    def come_to_rest(self) -> None:
        """Faults stop. Everybody must be answered in time, and nothing may be left over."""
        world = self.world
        world.errors = world.mischief = 0.0
        while world.prepared:
            world.start_prepared()
        calm = world.random.random() < 0.5
        if calm:
            self.world.unstick()
        for each in world.processes:
            each.fails = 0.0
        world.clock.run()
        windows = [stage.batcher.policy.window or 0.0 for stage in world.stages]
        began = world.clock.now()
        starts = [max(0.0, each.next_start - began) for each in world.processes]
        patience = sum(windows) * (1 + len(world.open)) + 2 * TICK + sum(starts)
        patience -= sum(each.rested for each in world.processes)
        self._work_until(lambda: not world.open)
        patience += sum(each.rested for each in world.processes)  # before further starts
        if calm and world.clock.now() > began + patience:
            took = world.clock.now() - began
            raise Violation(f"no call hangs, yet it took {took:.3f} s to answer everybody")
        self.world.unstick()
        for _ in range(_MOST_ROUNDS):
            if world.calls:
                self._happen(self.end)
            elif self._happen(world.wait_for_alarm) is None:
                break
            world.clock.run()
            self._check(True)
        else:
            raise Violation("alarms ring for ever")
        for stage in world.stages:
            if stage.statistics().idle != stage.executor.workers:
                raise Violation(f"a slot is lost: {stage}")
        if self.rests != self.drains:
            raise Violation(f"{self.drains} drains were told of rest {self.rests} times")
        for graph in world.graphs:
            if graph.rests != graph.drained:
                raise Violation(f"{graph.served} was told of rest {graph.rests} times")

    def _work_until(self, done: Callable[[], bool]) -> None:
        """Workers do what they have; time passes only when they have nothing."""
        world = self.world
        for _ in range(_MOST_ROUNDS):
            world.clock.run()
            self._check(True)
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
        ops = [each for g in world.graphs for each in zip([g] * 8, g.stages, g.workers)]  # noqa: B905
        limits = Limits(
            workers={stage.name: executor.places for _, stage, executor in ops},
            dispatches={
                s.name: s.options.retry * graph.plan.attempts * (1 + s.options.retry_on_crash)
                for graph, s, _ in ops
            },
            grace=TICK + NEARLY,
        )
        found = check(world.history.events, world.recorder.events, limits)
        if found:
            raise Violation("; ".join(found))

    def story(self, error: Exception) -> str:
        """The failure, the world it happened in, and the last events with what followed them."""
        world = self.world
        lines = [
            f"seed {self.seed}, event {self._events}: {type(error).__name__}: {error}",
            f"{world.engine.options}",
            *map(repr, world.graphs),
        ]
        heard = world.recorder.events
        end = (0, len(heard), 0.0, "", None)
        for (number, seen, now, event, told), after in pairwise([*self._lines, end]):
            lines.append(f"{number:5} at {now:.6f} {event} {'' if told is None else told}")
            lines += [f"          {entry}" for entry in heard[seen : after[1]]]
        return "\n".join(lines)


def _run(seed: int, events: int) -> int | str:
    """How many requests were asked, or the story of the failure."""
    try:
        return simulate(seed, events)
    except Violation as violation:
        return str(violation)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when every world kept its promises."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.simulate")
    parser.add_argument("--seeds", type=int, default=1, help="how many worlds")
    parser.add_argument("--events", type=int, default=200, help="events before faults stop")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes share the work")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    failed: list[int] = []
    requests = 0
    run = partial(_run, events=asked.events)
    seeds = range(asked.seed, asked.seed + asked.seeds)
    with ExitStack() as stack:
        if asked.jobs == 1:
            results: Iterable[int | str] = map(run, seeds)
        else:
            results = stack.enter_context(Pool(asked.jobs)).imap(run, seeds, chunksize=50)
        for seed, result in zip(seeds, results, strict=True):
            if isinstance(result, str):
                failed.append(seed)
                sys.stderr.write(f"{result}\n\n")
            else:
                requests += result
    took = time.monotonic() - began
    verdict = f"FAILED: seeds {failed[:20]}" if failed else "all promises kept"
    sys.stdout.write(
        f"{asked.seeds} seeds of {asked.events} events, {requests} requests, {took:.1f} s "
        f"({60 * asked.seeds / max(took, 1e-9):.0f} seeds a minute): {verdict}\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
