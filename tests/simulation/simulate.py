"""Runs the real engine in random worlds and checks its guarantees after every event.

Faults: outcomes that come late, twice, never, out of order, or for work that was not handed out;
calls over their timeout, abandoned calls that return; readers of pieces that stop for a while or
leave; steps that raise, or whose results are too many; processes that die at any moment, of poison
or not, are replaced later or never, and begin batches that are just taken back; cancellation,
deadlines, drain and close at any moment; full queues; replies that raise or call the engine; graphs
that are replaced or removed while another one serves.

Then faults stop: every open request must end by its deadline plus one tick (and, if no call hangs,
before its deadline), and the engine must become idle with nothing left. Finally the history of both
sides is checked by ``penstock.testing.history``.

    python -m tests.simulation.simulate --seeds 10000 --events 200 --jobs 2

A failure shows its seed and the last events; ``--seed`` repeats the same run.
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
from typing import NamedTuple

from penstock.engine.deadlines import TICK
from penstock.executors.executor import Work
from penstock.request import Batch, CloseReason, Outcome, Sample
from penstock.testing.history import Asked, Invoke, Limits, Piece, check
from tests.simulation.guarantees import Guarantees
from tests.simulation.seats import SeatedProcessWorkers, SeatedThreads
from tests.simulation.world import NEARLY, World

_EVENTS_SHOWN = 30
_MOST_ROUNDS = 20_000


class Violation(AssertionError):
    """A guarantee of the engine was violated. The text has the seed and the last events."""


class Counts(NamedTuple):
    """What a world has had.

    Attributes:
        requests: all of them.
        streams: those for pieces that were submitted.
        seated: those that were given to a worker with seats.
        pieces: that clients have got.
    """

    requests: int = 0
    streams: int = 0
    seated: int = 0
    pieces: int = 0


def simulate(seed: int, events: int = 200) -> Counts:
    """Runs one world to its end.

    Args:
        seed: determines everything.
        events: number of events before faults stop; a shorter run of a seed is the beginning of a
            longer one.

    Returns:
        what it has had.

    Raises:
        Violation: with the seed and the last events.
    """
    run = Simulation(seed)
    try:
        run.run(events)
    except Exception as error:
        raise Violation(run.description(error)) from error
    world = run.world
    invoked = [each for each in world.history.events if isinstance(each, Invoke)]
    return Counts(
        world.requests_sent,
        sum(each.pieces is not None for each in invoked),
        sum(isinstance(each, Asked) for each in world.seats.events),
        sum(isinstance(each, Piece) for each in world.history.events),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Disables logs: replies that raise and culprits are logged, and occur by the thousand here."""
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
    """One seed's world, its events, and the guarantees."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self._guarantees = Guarantees(self.world)
        self.drains = 0
        self.rests = 0
        self._events = 0
        self._deck = self._draw_deck()
        self._lines: deque[tuple[int, int, float, str, object]] = deque(maxlen=_EVENTS_SHOWN)

    def _draw_deck(self) -> list[Callable[[], object]]:
        """The events, each repeated by its weight."""
        world = self.world
        faults = world.random.choice((0, 1, 1, 2))
        end = world.random.random()
        return (
            [world.request] * world.random.choice((8, 16, 32))
            + [self.begin] * 8
            + [self.advance] * world.random.choice((4, 8, 16))
            + [self.end] * world.random.choice((1, 4, 8))
            + [world.let_time_pass] * 4
            + [world.wait_for_alarm] * 5
            + [world.cancel] * world.random.choice((1, 3))
            + [world.read] * world.random.choice((1, 4))
            + [world.start_prepared, world.start_prepared, world.change_graphs]
            + [self.stick, self.stick, world.unstick, self.die, self.report_twice] * faults
            + [self.report_unknown, self.settle_again, world.kill] * faults
            + [self.drain] * (end < 0.2)
            + [self.close] * (end < 0.04)
        )

    def run(self, events: int) -> None:
        """Runs that many events, ends all requests, and checks the history."""
        with _quiet():
            for _ in range(events):
                self.step()
            self.finish_requests()
            self.check_history()

    def step(self) -> None:
        """One event, the turns that follow (sometimes later), and a check of everything."""
        self._events += 1
        world = self.world
        before = world.clock.now()
        self._run_event(world.random.choice(self._deck))
        quiet = world.clock.now() > before or world.random.random() < 0.8
        if quiet:
            world.clock.run()
        self._check(quiet)

    def _run_event(self, event: Callable[[], object]) -> object:
        events_before = len(self.world.recorder.events)
        result: object = "..."
        try:
            result = event()
        finally:
            now = self.world.clock.now()
            self._lines.append((self._events, events_before, now, event.__name__, result))
        return result

    # Events other than those of the world's clients.

    def begin(self) -> object:
        """A ``process`` call begins."""
        call = self.world.pick()
        return call and call.begin()

    def advance(self) -> object:
        """A worker ends one batch and continues with the next."""
        call = self.world.pick()
        return call and call.advance()

    def end(self) -> object:
        """A worker ends all its batches."""
        call = self.world.pick()
        return call and call.end()

    def die(self) -> object:
        """A worker ends during a batch."""
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
        """A worker reports the same results again."""
        if not self.world.reported:
            return None
        work, finished, results = self.world.random.choice(self.world.reported)
        finished(work, results)
        return [batch.data_ids for batch, _ in results]

    def report_unknown(self) -> object:
        """A report of a Work that was never handed out."""
        samples = self._over()
        if not samples:
            return None
        _, finished, _ = self.world.reported[-1]
        batch = Batch(samples, CloseReason.FULL, self.world.clock.now())
        finished(Work([]), [(batch, [Outcome({"nonce": -1}) for _ in samples])])
        return batch.data_ids

    def settle_again(self) -> object:
        """An outcome for a sample that has one."""
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
        """A drain begins; perhaps a second one during it."""
        if self.drains == 2:
            return
        self.drains += 1
        self.world.engine.drain(self._at_rest)

    def _at_rest(self) -> None:
        self.rests += 1
        self._check_all_answered("at rest")

    def close(self) -> None:
        """The engine is closed."""
        self.world.engine.close()
        self._check_all_answered("closed")

    def _check_all_answered(self, claim: str) -> None:
        if self.world.open:
            self.world.problems.append(f"{claim}, and {list(self.world.open)} have no answer")

    def _check(self, quiet: bool) -> None:
        self._guarantees.check(quiet)
        if self.world.problems:
            raise Violation("; ".join(self.world.problems))

    def finish_requests(self) -> None:
        """Faults stop. Every request must be answered in time, and nothing may be left."""
        world = self.world
        world.errors = world.mischief = world.slowness = 0.0
        world.read_all()
        while world.prepared:
            world.start_prepared()
        nothing_hangs = world.random.random() < 0.5
        if nothing_hangs:
            self.world.unstick()
        for each in world.processes:
            each.fails = 0.0
        world.clock.run()
        windows = [stage.batcher.policy.window or 0.0 for stage in world.stages]
        began = world.clock.now()
        starts = [max(0.0, each.next_start - began) for each in world.processes]
        time_limit = sum(windows) * (1 + len(world.open)) + 2 * TICK + sum(starts)
        time_limit -= sum(each.rested for each in world.processes)
        self._work_until(lambda: not world.open)
        time_limit += sum(each.rested for each in world.processes)  # before further starts
        if nothing_hangs and world.clock.now() > began + time_limit:
            took = world.clock.now() - began
            raise Violation(f"no call hangs, yet it took {took:.3f} s to answer everybody")
        self.world.unstick()
        for _ in range(_MOST_ROUNDS):
            if world.calls:
                self._run_event(self.end)
            elif self._run_event(world.wait_for_alarm) is None:
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
        """Lets workers do all their work; time passes only when they have none."""
        world = self.world
        for _ in range(_MOST_ROUNDS):
            world.clock.run()
            self._check(True)
            if done():
                return
            if any(not call.stuck for call in world.calls):
                self._run_event(self.end)
            elif self._run_event(world.wait_for_alarm) is None:
                raise Violation(f"nothing will ever happen, and {list(world.open)} are open")
        raise Violation(f"{list(world.open)} never end")

    def check_history(self) -> None:
        """Checks the finished history."""
        world = self.world
        ops = [each for g in world.graphs for each in zip([g] * 8, g.stages, g.workers)]  # noqa: B905
        limits = Limits(
            workers={stage.name: executor.places for _, stage, executor in ops},
            dispatches={
                s.name: s.options.retry * graph.plan.attempts * (1 + s.options.retry_on_crash)
                for graph, s, _ in ops
            },
            grace=TICK + NEARLY,
            seats={
                stage.name: executor.seats
                for _, stage, executor in ops
                if isinstance(executor, SeatedThreads | SeatedProcessWorkers)
            },
        )
        violations = check(world.history.events, world.recorder.events, limits, world.seats.events)
        if violations:
            raise Violation("; ".join(violations))

    def description(self, error: Exception) -> str:
        """The failure, its world, and the last events with what followed each."""
        world = self.world
        lines = [
            f"seed {self.seed}, event {self._events}: {type(error).__name__}: {error}",
            f"{world.engine.options}",
            *map(repr, world.graphs),
        ]
        recorded = world.recorder.events
        end = (0, len(recorded), 0.0, "", None)
        for (number, events_before, now, event, result), after in pairwise([*self._lines, end]):
            lines.append(f"{number:5} at {now:.6f} {event} {'' if result is None else result}")
            lines += [f"          {entry}" for entry in recorded[events_before : after[1]]]
        return "\n".join(lines)


def _run(seed: int, events: int) -> Counts | str:
    """What the world has had, or the text of the failure."""
    try:
        return simulate(seed, events)
    except Violation as violation:
        return str(violation)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 if every world kept the guarantees."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.simulate")
    parser.add_argument("--seeds", type=int, default=1, help="how many worlds")
    parser.add_argument("--events", type=int, default=200, help="events before faults stop")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes share the work")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    failed: list[int] = []
    total = Counts()
    run = partial(_run, events=options.events)
    seeds = range(options.seed, options.seed + options.seeds)
    with ExitStack() as stack:
        if options.jobs == 1:
            results: Iterable[Counts | str] = map(run, seeds)
        else:
            results = stack.enter_context(Pool(options.jobs)).imap(run, seeds, chunksize=50)
        for seed, result in zip(seeds, results, strict=True):
            if isinstance(result, str):
                failed.append(seed)
                sys.stderr.write(f"{result}\n\n")
            else:
                total = Counts(*map(sum, zip(total, result, strict=True)))
    took = time.monotonic() - began
    verdict = f"FAILED: seeds {failed[:20]}" if failed else "all promises kept"
    sys.stdout.write(
        f"{options.seeds} seeds of {options.events} events, {total.requests} requests, "
        f"{total.streams} of them for pieces, {total.pieces} pieces, {total.seated} with seats, "
        f"{took:.1f} s "
        f"({60 * options.seeds / max(took, 1e-9):.0f} seeds a minute): {verdict}\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
