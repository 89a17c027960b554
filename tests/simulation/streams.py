"""Simulated workers of an op whose answers come in pieces, and the callers of its graph.

A thread shares the stream with the engine. A process and the engine only know each other's
messages: pieces, credit and cancellation arrive one turn after they were sent."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.engine.submission import Submission
from penstock.errors import Cancelled, HookFailed, OpTimeout
from penstock.executors.executor import Finished, Work
from penstock.executors.stream import MOST_PIECES, TOLD_AFTER, Stream
from penstock.request import Batch, Feed, Outcome, Sample
from tests.simulation.processes import Process, ProcessWorkers
from tests.simulation.workers import Call, Workers

if TYPE_CHECKING:
    from tests.simulation.graphs import RandomGraph
    from tests.simulation.world import Client, World

_LENGTHS = (3, 0, 1, 2, 7, MOST_PIECES, 2 * MOST_PIECES + 1)


def pieces_of(nonce: int) -> int:
    """The number of pieces in the answer to a nonce."""
    return _LENGTHS[nonce % len(_LENGTHS)]


class Gatherer(Submission):
    """The request of a client that gets all pieces at once."""

    __slots__ = ("client", "world")

    client: Client
    world: World

    def piece(self, piece: Feed) -> bool:
        """See Submission."""
        self.world.begin_answer(self.client)
        return super().piece(piece)


class Reader(Gatherer):
    """The request of a client that gets its answer in pieces."""

    __slots__ = ()

    def piece(self, piece: Feed) -> bool:
        """See Submission."""
        return self.world.take_piece(self.client, piece)

    def whole(self, outcome: Outcome) -> Outcome:
        """See Submission."""
        return outcome


class Generator:
    """What an op's generator does for one sample, step by step."""

    def __init__(self, graph: RandomGraph, sample: Sample) -> None:
        (feed, *_) = sample.inputs.values()
        self._world = graph.world
        self._name = graph.name
        self._nonce: int = feed["nonce"]
        self.made = 0

    @property
    def is_over(self) -> bool:
        """Whether it has made all pieces."""
        return self.made == pieces_of(self._nonce)

    def step(self) -> Feed | Outcome:
        """The next piece, or the end."""
        world = self._world
        if world.errors and world.random.random() < world.errors / 2:
            kind = OpTimeout if world.random.random() < 0.2 else HookFailed
            return Outcome(None, kind("made up"))
        if self.is_over:
            return Outcome({})
        self.made += 1
        return {"nonce": self._nonce, "graph": self._name, "piece": self.made - 1}


CANCELLED = Outcome(None, Cancelled("nobody waits for it"))


class StreamingCall(Call):
    """One sample at a worker in this process: each step makes a piece, for which there is room."""

    __slots__ = ("_generator",)

    def __init__(self, workers: Workers, work: Work, finished: Finished) -> None:
        super().__init__(workers, work, finished)
        assert work.current is not None
        (sample,) = work.current.samples
        self._generator = Generator(workers.graph, sample)
        clock = workers.world.clock
        self.stream.notify = lambda stream: clock.soon(stream.arrive)

    @property
    def stream(self) -> Stream:
        """That of its sample."""
        assert self.work.current is not None
        found: Stream = self.work.current.samples[0].stream
        return found

    @property
    def waits(self) -> bool:
        """Whether it waits for credit."""
        return self.stream.is_full and not self.stream.cancelled

    @property
    def runs_for(self) -> Sample | None:
        """The sample for which it would make a further piece."""
        batch = self.work.current
        return None if batch is None or self.stream.cancelled else batch.samples[0]

    def begin(self) -> list[int] | None:
        """See RunningWork: ``next`` begins."""
        return None if self.work.current is None or self.waits else super().begin()

    def advance(self) -> list[int]:
        """See RunningWork: one step, unless it waits for credit."""
        batch = self.work.current
        assert batch is not None
        if self.waits:
            return []
        batch.started = None
        found = CANCELLED if self.stream.cancelled else self._generator.step()
        if isinstance(found, Outcome):
            self._workers.deaths.run(batch)
            batch.ran = self._workers.seconds
            self._results.append((batch, [found]))
            self.work.current = None
            self._report()
        else:
            self.stream.add(found)
        return batch.data_ids

    def end(self) -> list[int]:
        """See RunningWork: until it waits for credit."""
        ids: list[int] = []
        while self.work.current is not None and not self.waits:
            ids = self.advance()
        return ids


class StreamingProcess(Process):
    """One process whose op streams; its state and what the engine knows of it."""

    def __init__(self, workers: ProcessWorkers, slot: int) -> None:
        super().__init__(workers, slot)
        self._generator: Generator | None = None
        # The worker's view of its stream.
        self._credited = 0
        self._cancelled: Batch | None = None  # the batch that was cancelled last
        self._told = 0  # the engine's: the credit of which it has told the worker

    # The worker's side.

    @property
    def waits(self) -> bool:
        """Whether it waits for credit."""
        running, generator = self._running, self._generator
        return (
            running is not None
            and generator is not None
            and self._cancelled is not running
            and generator.made - self._credited >= MOST_PIECES
        )

    @property
    def runs_for(self) -> Sample | None:
        """The sample for which it would make a further piece."""
        batch = self._running
        return None if batch is None or self._cancelled is batch else batch.samples[0]

    def begin(self) -> list[int] | None:
        """See Process: at first to the status page and into the first call, then into the next."""
        if self._running is not None and self._generator is not None:
            if self._started is not None or self.waits:
                return None
            self._started = self._world.clock.now()
            return self._running.data_ids
        begun = super().begin()
        if self._running is not None and self._started is not None:
            self._generator = Generator(self._workers.graph, self._running.samples[0])
            self._credited = 0
        return begun

    def advance(self) -> list[int]:
        """See RunningWork: one step, unless it waits for credit."""
        if self.waits:
            return []
        while self._started is None:
            if self.begin() is None:
                return []
        batch, generator = self._running, self._generator
        assert batch is not None
        assert generator is not None
        poisoned = self._workers.graph.is_poisoned(self._workers.op, batch)
        if poisoned and self._world.random.random() < 0.5:
            self.die()
            return batch.data_ids
        self._started = None
        found = CANCELLED if self._cancelled is batch else generator.step()
        soon = self._world.clock.soon
        if not isinstance(found, Outcome):
            soon(partial(self._receive_piece, batch, found))
        elif poisoned:
            self.die()
        else:
            self._running = self._generator = None
            soon(partial(self._receive, batch, [found]))
            if not self._queue:
                self._leave_calls()
        return batch.data_ids

    def end(self) -> list[int]:
        """See RunningWork: until it waits for credit."""
        ids: list[int] = []
        while not self._dead and not self.waits and (self._running is not None or self._queue):
            ids = self.advance()
        return ids

    def _hear_credit(self, batch: Batch, credited: int) -> None:
        if self._running is batch:
            self._credited = credited

    def _hear_cancel(self, batch: Batch) -> None:
        self._cancelled = batch

    # The engine's side.

    def take(self, work: Work, finished: Finished) -> None:
        """See Process."""
        super().take(work, finished)
        self._told = 0
        for batch in self._in_flight:
            stream: Stream = batch.samples[0].stream
            stream.notify, stream.changed = Stream.arrive, partial(self._changed, batch)
            if stream.cancelled:
                self._changed(batch, stream)

    def _changed(self, batch: Batch, stream: Stream) -> None:
        soon = self._world.clock.soon
        if stream.cancelled:
            stream.changed = None
            soon(partial(self._hear_cancel, batch))
        elif stream.credited - self._told >= TOLD_AFTER:
            self._told = stream.credited
            soon(partial(self._hear_credit, batch, stream.credited))

    def _receive_piece(self, batch: Batch, piece: Feed) -> None:
        assert self._in_flight[0] is batch
        stream: Stream = batch.samples[0].stream
        if stream.made - self._told >= MOST_PIECES and not stream.cancelled:
            self._world.problems.append(f"a process sends {stream.made} pieces without credit")
        self._begun(batch)
        stream.add(piece)


class StreamingWorkers(Workers):
    """The fake executor of an op that streams, in this process."""

    def __init__(self, graph: RandomGraph, op: int, kind: str) -> None:
        super().__init__(graph, op, kind)
        self.takes_several = False

    def _call(self, work: Work, finished: Finished) -> Call:
        return StreamingCall(self, work, finished)


class StreamingProcessWorkers(ProcessWorkers):
    """The fake process executor of an op that streams."""

    def __init__(self, graph: RandomGraph, op: int) -> None:
        super().__init__(graph, op)
        self.takes_several = False

    def _new_process(self, slot: int) -> Process:
        return StreamingProcess(self, slot)
