"""Simulated workers of an op with seats: the real steps and seats, with an op that is drawn, and
what the engine sees of them.

A step is one ``begin``, when ``step`` is called, and one ``advance``, when it returns. ``join``
takes no time, but callers may leave meanwhile. Each worker's calls are recorded for the history
checker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import HookFailed
from penstock.executors.executor import Finished, Work
from penstock.executors.seats.steps import Seated, Steps
from penstock.executors.stream import MOST_PIECES, TOLD_AFTER, Stream
from penstock.executors.work import BoundOp, WorkOptions
from penstock.executors.workers.child_stream import ChildStream
from penstock.ops.op import Op
from penstock.ops.seats import Done, SeatHooks, hooks_of
from penstock.request import Batch, CloseReason, Feed, Outcome, Sample
from tests.simulation.processes import Process, ProcessWorkers
from tests.simulation.streams import Generator
from tests.simulation.workers import Workers

if TYPE_CHECKING:
    from tests.simulation.graphs import RandomGraph


class State:
    """What ``join`` returns.

    Attributes:
        one: its request.
        sample: the engine's sample of it.
        size: what it takes of the memory.
        runs: whether it has that.
    """

    def __init__(self, graph: RandomGraph, one: Seated, sample: Sample, size: int) -> None:
        self.one = one
        self.sample = sample
        self.generator = Generator(graph, one.sample)
        self.size = size
        self.runs = False


class Model:
    """What a user writes, for one worker: checks and records its calls."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._world = room.graph.world

    def join(self, feed: Feed) -> State:
        room, world, random = self._room, self._world, self._world.random
        one = room.joining
        assert one is not None
        sample = room.sample_of(one)
        if one.stream.cancelled:
            world.problems.append(f"{room} lets {sample} join, which is cancelled")
        room.deaths.run(room.batch_of(one), again=room.again)
        if random.random() < 0.05:  # it takes a while
            world.cancel()
            world.clock.run()
        if room.is_poisoned(one) and random.random() < 0.3:
            room.die()
        if world.errors and random.random() < world.errors / 4:
            raise HookFailed("made up")
        state = State(room.graph, one, sample, random.randint(1, room.memory))
        room.states[one] = state
        room.record("joined", one)
        return state

    def step(self, running: list[State]) -> Any:
        """The results; see ``Room`` for the moment of the call."""
        world, random = self._world, self._world.random
        for state in running:
            if self._room.is_poisoned(state.one) and random.random() < 0.5:
                self._room.die()
        if world.errors and random.random() < world.errors / 10:
            if random.random() < 0.5:
                raise HookFailed("made up")
            return [None] * (len(running) + 1)
        return [self._result(state) for state in running]

    def _result(self, state: State) -> Any:
        random = self._world.random
        if random.random() < 0.15:
            return None
        found = state.generator.step()
        if not isinstance(found, Outcome):
            last = state.generator.is_over and random.random() < 0.3
            return Done(found) if last else found
        if self._room.is_poisoned(state.one):
            self._room.die()
        return Done() if found.error is None else found.error

    def leave(self, state: State | None) -> None:
        room = self._room
        if state is None or room.states.pop(state.one, None) is None:
            self._world.problems.append(f"{room}: {state and state.sample} leaves twice")
            return
        room.record("left", state.one)


class FittingModel(Model):
    """With memory for some requests."""

    def fits(self, state: State) -> bool:
        room = self._room
        used = sum(each.size for each in room.states.values() if each.runs)
        state.runs = used + state.size <= room.memory
        return state.runs


class SeatedOp(Op):
    """An op around one of them."""

    seated = True

    def __init__(self, made: Model) -> None:
        super().__init__(name="op")
        self._made = made

    def preprocess(self, input_dicts: Any, data_id: Any = 0, log_id: Any = 0) -> Any:
        (feed, *_) = input_dicts.values()
        return feed

    @property
    def seat_hooks(self) -> SeatHooks:
        return hooks_of(self._made, self._made.join, lambda piece: piece)


class Room:
    """One worker with its seats, as its thread or its process sees them; see RunningWork.

    Attributes:
        joining: the request that joins now.
        states: of those that have joined.
        running: those in the step that has begun.
        numbers: of the requests in the history of seats.
        open: the requests that it has.
    """

    again = False

    def __init__(self, workers: SeatedThreads | SeatedProcessWorkers, index: int) -> None:
        self.stuck = False
        self.workers = workers
        self.graph = workers.graph
        self.world = workers.world
        self.deaths = workers.deaths
        self.index = index
        self.memory = workers.memory
        self.joining: Seated | None = None
        self.states: dict[Seated, State] = {}
        self.running: list[Seated] = []
        self.numbers: dict[Seated, int] = {}
        self.open: set[Seated] = set()
        made = FittingModel(self) if workers.fitting else Model(self)
        self.op = BoundOp(SeatedOp(made), None, WorkOptions(seats=workers.seats), index)
        self._made = made
        self.steps = Steps(
            self.op,
            workers.seats,
            self._ended,
            lambda: None,
            self._called,
            clock=self.world.clock.now,
        )

    def __repr__(self) -> str:
        return f"<worker {self.index} of {self.name} with {len(self.open)} requests>"

    @property
    def name(self) -> str:
        """Of its op in the history."""
        return self.graph.stages[self.workers.op].name

    def sample_of(self, one: Seated) -> Sample:
        """The engine's sample."""
        return self.batch_of(one).samples[0]

    def batch_of(self, one: Seated) -> Batch:
        """The engine's batch."""
        return one.batch

    def is_poisoned(self, one: Seated) -> bool:
        """Whether its process dies of it."""
        return False

    def die(self) -> list[int] | None:
        """See RunningWork; a thread does not."""
        return None

    def record(self, what: Literal["asked", "joined", "left", "released"], one: Seated) -> None:
        """Record an event of a request in the history of seats."""
        if not self.is_dead:
            write = getattr(self.world.seats, what)
            write(self.name, self.index, self.numbers[one], self.world.clock.now())

    @property
    def is_dead(self) -> bool:
        """Whether its process has died; then nobody hears of it any more."""
        return False

    # Its loop, in parts.

    def take_in(self) -> None:
        """Take what was handed over."""
        raise NotImplementedError

    def ask(self, one: Seated) -> None:
        """A request asks for a seat."""
        self.numbers[one] = next(self.world.seat_numbers)
        self.record("asked", one)
        self.open.add(one)
        self.steps.take(one)

    @property
    def has_work(self) -> bool:
        """Whether it would not sleep."""
        raise NotImplementedError

    def begin(self) -> list[int] | None:
        """See RunningWork: requests leave and join, and a step begins if one can run."""
        if self.running or not self.has_work:
            return None
        self.take_in()
        self.steps.admit()
        self.running = self.steps.begin_step()
        if self.running and not self.is_dead:
            self._check_step()
        self.rest()
        return [one.sample.data_id for one in self.running] or None

    def _check_step(self) -> None:
        world = self.world
        ids = [self.numbers[one] for one in self.running]
        world.seats.stepped(self.name, self.index, ids, world.clock.now())
        for one in self.running:
            if one not in self.states:
                world.problems.append(f"{self} runs {one.sample} in a step, and it has left")
            if one.stream.cancelled or one.stream.is_full:
                world.problems.append(f"{self} runs {self.sample_of(one)} without credit")
        for state in self.states.values():
            one = state.one
            wanted = not (one.stream.cancelled or one.stream.is_full)
            fits = state.runs or not self.workers.fitting
            if wanted and fits and one not in self.running:
                world.problems.append(f"{self} leaves {self.sample_of(one)} out of a step")

    def advance(self) -> list[int]:
        """See RunningWork: a step ends."""
        self.begin()
        running, self.running = self.running, []
        ids = [one.sample.data_id for one in running]
        if running:
            results, fault = None, None
            try:
                results = self._made.step([*filter(None, map(self.states.get, running))])
            except HookFailed as error:
                fault = error
            self.steps.end_step(running, results, fault)
        self.rest()
        return ids

    def end(self) -> list[int]:
        """See RunningWork: until there is nothing to do."""
        ids = self.advance()
        while self.has_work:
            ids = self.advance()
        return ids

    def rest(self) -> None:
        """Leave the world's running calls if it has no requests."""
        if not self.open and self in self.world.calls and not self.has_work:
            self.world.calls.remove(self)
            self.stuck = False  # there is no call

    def wake(self) -> None:
        """It has requests."""
        if self not in self.world.calls:
            self.world.calls.append(self)

    def _called(self, started: float | None, joins: Seated | None) -> None:
        self.joining = joins

    def _ended(self, one: Seated, outcome: Outcome) -> None:
        self.record("released", one)
        self.open.discard(one)
        self.report(one, outcome)

    def report(self, one: Seated, outcome: Outcome) -> None:
        """Tell the engine the end of a request."""
        raise NotImplementedError


class SeatedThread(Room):
    """A worker in this process: it shares streams and batches with the engine.

    Attributes:
        taken: the number of its Works; the engine's.
    """

    def __init__(self, workers: SeatedThreads, index: int) -> None:
        self.taken = 0
        self._workers = workers
        self._inbox: deque[tuple[Work, Finished]] = deque()
        super().__init__(workers, index)

    @property
    def has_work(self) -> bool:
        return bool(self._inbox) or self.steps.has_work

    def give(self, work: Work, finished: Finished) -> None:
        """On the loop: hand over a Work."""
        clock = self.world.clock
        stream: Stream = work.pending[0].samples[0].stream
        stream.notify = lambda stream: clock.soon(stream.arrive)
        self.taken += 1
        self._inbox.append((work, finished))
        self.wake()

    def take_in(self) -> None:
        while self._inbox:
            work, finished = item = self._inbox.popleft()
            batch = work.begin_next()
            if batch is None:  # taken back
                self._soon(work, finished)
            else:
                self.ask(Seated(batch, item))

    def report(self, one: Seated, outcome: Outcome) -> None:
        work, finished = one.given_by
        work.add_result(one.batch, [outcome])
        work.current = None
        self._soon(work, finished)

    def _soon(self, work: Work, finished: Finished) -> None:
        self.world.clock.soon(partial(self._report, work, finished))

    def _report(self, work: Work, finished: Finished) -> None:
        self.taken -= 1
        self._workers.report(work, finished, work.take_results())


class SeatedThreads(Workers):
    """The fake executor of an op with seats in threads."""

    def __init__(self, graph: RandomGraph, op: int) -> None:
        super().__init__(graph, op, "thread")
        self.takes_several = False
        self.seats = draw_seats(graph)
        self.fitting, self.memory = draw_memory(graph)
        self._rooms = [*map(partial(SeatedThread, self), range(self.places))]
        self.places = self.workers = self.places * self.seats

    def __repr__(self) -> str:
        return f"{super().__repr__()}, {self.seats} seats each, {self.memory * self.fitting} memory"

    @property
    def rooms(self) -> list[Room]:
        """Its workers."""
        return [*self._rooms]

    def submit(self, work: Work, finished: Finished) -> None:
        """Give a Work to the worker with the most free seats."""
        self.take(work)
        for batch in work.pending:
            self.graph.inspect(self.op, batch)
        min(self._rooms, key=lambda each: each.taken).give(work, finished)


class Entry:
    """What the engine knows of a request in a process.

    Attributes:
        number: of its batch.
        begun: whether the process has taken it in.
        told: the credit of which the process knows.
    """

    def __init__(self, number: int, work: Work, finished: Finished) -> None:
        self.number = number
        self.batch = work.pending[0]
        self.work = work
        self.finished = finished
        self.begun = False
        self.told = 0

    @property
    def stream(self) -> Stream:
        """That of the engine."""
        found: Stream = self.batch.samples[0].stream
        return found


class ProcessRoom(Room):
    """The seats of one process, which knows the engine's messages only."""

    def __init__(self, process: SeatedProcess) -> None:
        self._process = process
        self.again = process.workers.retry_on_crash
        super().__init__(process.workers, process.slot)

    @property
    def has_work(self) -> bool:
        return bool(self._process.inbox) or self.steps.has_work

    def batch_of(self, one: Seated) -> Batch:
        entry: Entry = one.given_by
        return entry.batch

    def is_poisoned(self, one: Seated) -> bool:
        return self.graph.is_poisoned(self.workers.op, one.batch)

    def die(self) -> list[int] | None:
        return self._process.die()

    @property
    def is_dead(self) -> bool:
        return self._process.is_dead

    def take_in(self) -> None:
        process = self._process
        while process.inbox:
            entry = process.inbox.popleft()
            process.page = entry.number
            theirs = entry.batch.samples[0]
            inputs = {name: dict(feed) for name, feed in theirs.inputs.items()}
            sample = Sample(theirs.data_id, inputs, theirs.deadline, theirs.log_id)
            sample.stream = ChildStream(entry.number, process.send_piece, lambda wait: True)
            sample.stream.cancelled = entry.number in process.cancelled
            process.streams[entry.number] = sample.stream
            self.ask(Seated(Batch([sample], CloseReason.FULL, 0.0), entry))

    def report(self, one: Seated, outcome: Outcome) -> None:
        self._process.send_end(one, outcome)

    def rest(self) -> None:
        self._process.rest()

    def _called(self, started: float | None, joins: Seated | None) -> None:
        super()._called(started, joins)
        self._process.started = started


class SeatedProcess(Process):
    """One process with seats: what the engine and its worker know of each other.

    Attributes:
        inbox: requests that it has not read.
        page, started: its status page.
        in_flight: the engine's requests there, by number.
        alone: the engine gives it no other request than one under suspicion.
        cancelled: the numbers of requests that it knows to be cancelled.
    """

    def __init__(self, workers: SeatedProcessWorkers, slot: int) -> None:
        super().__init__(workers, slot)
        self.workers = workers
        self.inbox: deque[Entry] = deque()
        self.page = 0
        self.started: float | None = None
        self.in_flight: dict[int, Entry] = {}
        self.alone = False
        self.cancelled: set[int] = set()
        self.streams: dict[int, ChildStream] = {}
        self._last = 0
        self.room = ProcessRoom(self)

    def __repr__(self) -> str:
        return f"<SeatedProcess with {len(self.in_flight)} requests>"

    # The worker's side.

    def begin(self) -> list[int] | None:
        return self.room.begin()

    def advance(self) -> list[int]:
        return [] if self._dead else self.room.advance()

    def end(self) -> list[int]:
        ids = self.advance()
        while not self._dead and self.room.has_work:
            ids = self.advance()
        return ids

    @property
    def is_dead(self) -> bool:
        """Whether it has died; the engine may not know yet."""
        return self._dead

    def die(self) -> list[int] | None:
        if self._dead:
            return None
        self._dead = True
        self._leave_calls()
        self._world.clock.soon(partial(self._workers.handle_death, self))
        room = self.room
        self._world.seats.worker_ended(room.name, room.index, self._world.clock.now())
        lost = [each for each in self.in_flight.values() if each.number <= self.page]
        for each in lost:
            self._workers.deaths.ended_with(each.batch)
        return [each.batch.samples[0].data_id for each in lost]

    def rest(self) -> None:
        """Leave the world's running calls if it has no requests."""
        if not self._dead and not self.room.open and not self.inbox:
            self._leave_calls()

    def send_piece(self, number: int, piece: Feed) -> None:
        """A piece on its way."""
        if not self._dead:
            self._world.clock.soon(partial(self._receive_seated_piece, number, piece))

    def send_end(self, one: Seated, outcome: Outcome) -> None:
        """The end of a request on its way."""
        if not self._dead:
            entry: Entry = one.given_by
            self.streams.pop(entry.number, None)
            self._world.clock.soon(partial(self._receive_end, entry, outcome))

    def _hear(self, entry: Entry, credited: int | None) -> None:
        """Credit, or None for a cancellation, has arrived."""
        stream = self.streams.get(entry.number)
        if credited is None:
            self.cancelled.add(entry.number)
        if stream is None:
            return
        if credited is None:
            stream.cancelled = True
        else:
            stream.credit(credited)

    # The engine's side.

    def take(self, work: Work, finished: Finished) -> None:
        """Send it a Work's batch."""
        self._last += 1
        entry = Entry(self._last, work, finished)
        is_alone = entry.batch.reason is CloseReason.ALONE
        if self.in_flight and (is_alone or self.alone):
            self._world.problems.append(f"{self} gets {entry.batch}, and a suspect is not alone")
        self.in_flight[entry.number] = entry
        stream = entry.stream
        stream.notify, stream.changed = Stream.arrive, partial(self._changed, entry)
        if not self._dead:  # otherwise the engine does not know yet
            self.inbox.append(entry)
            if self not in self._world.calls:
                self._world.calls.append(self)
        if stream.cancelled:
            self._changed(entry, stream)

    def look(self) -> None:
        for entry in self.in_flight.values():
            if entry.number <= self.page:
                self._take_in(entry)
                joins = self.room.joining
                runs = joins.given_by is entry if joins is not None else not entry.stream.is_full
                entry.batch.started = self.started if runs else None

    def _take_in(self, entry: Entry) -> None:
        if not entry.begun:
            entry.begun = True
            entry.work.begin_next()

    def _changed(self, entry: Entry, stream: Stream) -> None:
        soon = self._world.clock.soon
        if stream.cancelled:
            stream.changed = None
            soon(partial(self._hear, entry, None))
        elif stream.credited - entry.told >= TOLD_AFTER:
            entry.told = stream.credited
            soon(partial(self._hear, entry, stream.credited))

    def _receive_seated_piece(self, number: int, piece: Feed) -> None:
        entry = self.in_flight[number]
        stream = entry.stream
        if stream.made - entry.told >= MOST_PIECES and not stream.cancelled:
            self._world.problems.append(f"a process sends {stream.made} pieces without credit")
        self._take_in(entry)
        stream.add(piece)

    def _receive_end(self, entry: Entry, outcome: Outcome) -> None:
        self._take_in(entry)
        del self.in_flight[entry.number]
        entry.stream.changed = None
        batch = entry.batch
        batch.started = None
        batch.ran = self._workers.seconds
        self.has_worked = True
        self._workers.deaths.ran(batch)
        entry.work.add_result(batch, [outcome])
        self.workers.done_one(self, entry)


class SeatedProcessWorkers(ProcessWorkers):
    """The fake process executor of an op with seats."""

    def __init__(self, graph: RandomGraph, op: int) -> None:
        self.seats = draw_seats(graph)
        self.fitting, self.memory = draw_memory(graph)
        self._alone: deque[tuple[Work, Finished]] = deque()
        super().__init__(graph, op, seats=self.seats)
        self.takes_several = False

    def __repr__(self) -> str:
        return f"{super().__repr__()}, {self.seats} seats each, {self.memory * self.fitting} memory"

    @property
    def rooms(self) -> list[Room]:
        """Its workers."""
        return [each.room for each in self._seated]

    @property
    def _seated(self) -> Iterator[SeatedProcess]:
        for each in self._alive:
            assert isinstance(each, SeatedProcess)
            yield each

    def _new_process(self, slot: int) -> Process:
        return SeatedProcess(self, slot)

    def submit(self, work: Work, finished: Finished) -> None:
        """See Executor."""
        self.take(work)
        for batch in work.pending:
            self.graph.inspect(self.op, batch)
        self.deaths.hand_over(work.pending, self.world.clock.now())
        if self._is_given_up:
            self._refuse(work, finished)
            return
        is_alone = work.pending[0].reason is CloseReason.ALONE
        (self._alone if is_alone else self._waiting).append((work, finished))
        self._hand_out()

    def _hand_out(self) -> None:
        """As ``SeatedProcesses`` does."""
        while self._waiting or self._alone:
            free = [each for each in self._seated if len(each.in_flight) < self.seats]
            if self._alone and not any(each.alone for each in free):
                reserved = min(free, key=_taken, default=None)
                if reserved is not None:
                    reserved.alone = True
            alone = [each for each in free if each.alone and not each.in_flight]
            others = [each for each in free if not each.alone]
            if alone and self._alone:
                self._give(alone[0], self._alone)
            elif others and self._waiting:
                self._give(min(others, key=_taken), self._waiting)
            else:
                return

    def _give(self, process: SeatedProcess, waiting: deque[tuple[Work, Finished]]) -> None:
        work, finished = waiting.popleft()
        if work.pending:
            self._hand(process, work, finished)
        else:  # taken back while there was no process
            process.alone = process.alone and bool(process.in_flight)
            self.world.clock.soon(partial(self.report, work, finished, []))

    def abandon(self, work: Work) -> None:
        """See Executor: the whole process is killed for a call over its timeout."""
        process, batch = self._at.get(work), work.current
        if process is None or batch is None or not batch.settled or not self.kills:
            return
        process.abandoned = True
        process.die()

    def done_one(self, process: SeatedProcess, entry: Entry) -> None:
        """Handles the end of a request."""
        work = entry.work
        del self._at[work]
        work.current = None
        if not process.in_flight:
            process.alone = False
        self._hand_out()
        self.report(work, entry.finished, work.take_results())

    def handle_death(self, process: Process) -> None:
        """Handles a dead process: reports the begun requests, and returns the others."""
        assert isinstance(process, SeatedProcess)
        self._alive.remove(process)
        process.look()
        lost = [*process.in_flight.values()]
        process.in_flight.clear()
        begun = sum(entry.begun for entry in lost)
        for entry in lost:
            entry.stream.changed = None
            if entry.begun:
                outcomes = self._outcomes_of_lost(process, entry.batch, alone=begun == 1)
                entry.work.add_result(entry.batch, outcomes)
            del self._at[entry.work]
            entry.work.current = None
        for entry in lost:
            self.report(entry.work, entry.finished, entry.work.take_results())
        self._restart(process.slot, had_worked=process.has_worked)

    def _next_work(self, process: Process) -> None:
        self._hand_out()

    def _refuse_waiting(self) -> None:
        super()._refuse_waiting()
        while self._alone:
            self._refuse(*self._alone.popleft())


def _taken(process: SeatedProcess) -> int:
    return len(process.in_flight)


def draw_seats(graph: RandomGraph) -> int:
    """The seats of a worker."""
    return graph.world.random.choice((1, 2, 3, 5))


def draw_memory(graph: RandomGraph) -> tuple[bool, int]:
    """Whether requests must fit, and the memory; the largest request takes all of it."""
    random = graph.world.random
    return random.random() < 0.3, random.randint(1, 6)
