"""The engine keeps its guarantees in random worlds, and the simulation notices an engine that does
not."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

import pytest

from penstock.batching.batcher import Batcher, FifoQueue
from penstock.batching.lanes import Lanes
from penstock.engine import quarantine
from penstock.engine.deadlines import Deadlines
from penstock.engine.engine import Engine
from penstock.engine.graph import GraphState, ServedGraph
from penstock.engine.quarantine import Quarantine
from penstock.engine.stage import Stage
from penstock.engine.timer import Timer
from penstock.errors import ServiceBusy, ServiceClosed
from penstock.executors.executor import Work
from penstock.executors.seats.steps import Seated, Steps
from penstock.executors.seats.table import Seats
from penstock.executors.stream import MOST_PIECES, Stream
from penstock.testing.history import (
    ClientEvent,
    Dispatched,
    Failed,
    Info,
    Invoke,
    Joined,
    Late,
    Left,
    NotAdmitted,
    Ok,
    Piece,
    Released,
    Replied,
    SeatEvent,
    Stepped,
    WorkerEnded,
)
from tests.simulation.graphs import draw_plan
from tests.simulation.processes import Process, ProcessWorkers
from tests.simulation.simulate import Simulation, Violation, main, simulate
from tests.simulation.workers import Workers

CHUNK = 100


@pytest.mark.parametrize("first", range(0, 400, CHUNK))
def test_the_engine_keeps_its_guarantees_in_random_worlds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        simulate(seed)


def test_a_seed_always_has_the_same_events() -> None:
    descriptions = []
    for _ in range(2):
        run = Simulation(7)
        for _ in range(100):
            run.step()
        descriptions.append(run.description(Violation("none")))
    assert descriptions[0] == descriptions[1]
    assert "seed 7, event 100" in descriptions[0]


def test_graphs_of_every_size_and_kind_are_drawn() -> None:
    plans = [draw_plan(Random(seed)) for seed in range(500)]
    assert {len(plan.names) for plan in plans} == set(range(1, 9))
    assert any(len(inputs) > 2 for plan in plans for inputs in plan.inputs)
    assert any(plan.first_arrival for plan in plans)
    assert any(any(plan.jump_to) for plan in plans)
    assert {plan.attempts for plan in plans} == {1, 2, 3}


def test_every_kind_of_event_and_outcome_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    occurred: Counter[str] = Counter()
    take_back = Work.take_back

    def counting(self: Work) -> Any:
        taken = take_back(self)
        occurred["taken back"] += bool(taken)
        return taken

    receive_rest = Process._receive_rest
    batch_returned = Quarantine.batch_returned
    handle_death = ProcessWorkers.handle_death
    drain_graph = Engine.drain_graph
    submit = Engine.submit

    def draining(self: Engine, graph: ServedGraph, *arguments: Any) -> None:
        occurred["a graph goes with requests inside"] += graph.inside > 0
        occurred["one goes while another serves"] += len(self.graphs) > 1
        drain_graph(self, graph, *arguments)

    def submitting(self: Engine, submission: Any, *arguments: Any) -> None:
        before = submission.graph
        submit(self, submission, *arguments)
        occurred["sent on to the next version"] += submission.graph is not before

    def receiving_rest(self: Process) -> None:
        occurred["a turn was too short"] += 1
        receive_rest(self)

    def coming_back(self: Quarantine, *arguments: Any) -> None:
        before = self.suspects
        batch_returned(self, *arguments)
        occurred["cleared"] += self.suspects < before

    def handling_death(self: ProcessWorkers, process: Process) -> None:
        occurred["worker ended by us" if process.abandoned else "killed worker"] += 1
        handle_death(self, process)

    monkeypatch.setattr(Work, "take_back", counting)
    monkeypatch.setattr(Process, "_receive_rest", receiving_rest)
    monkeypatch.setattr(Quarantine, "batch_returned", coming_back)
    monkeypatch.setattr(ProcessWorkers, "handle_death", handling_death)
    monkeypatch.setattr(Engine, "drain_graph", draining)
    monkeypatch.setattr(Engine, "submit", submitting)
    for seed in range(300):
        run = Simulation(seed)
        run.run(200)
        occurred["drained"] += run.rests
        for op in run.world.processes:
            occurred["given up"] += op.gave_up
            occurred["taken up again"] += op.took_up
            occurred["run again"] += max(op.deaths.runs.values(), default=0) > 1
        for stage in run.world.stages:
            occurred["timed out"] += stage.statistics().timeouts
            occurred["refused unseen"] += stage.statistics().refused
        occurred.update(ends_of_answers(run.world.history.events))
        occurred.update(ends_of_seats(run.world.seats.events))
        for event in run.world.recorder.events:
            match event:
                case Dispatched():
                    occurred["another attempt"] += event.attempt > 1
                    occurred["batch of several"] += len(event.data_ids) > 1
                case Replied():
                    occurred[f"replied {event.code}"] += 1
                case NotAdmitted():
                    occurred[f"refused {event.code}"] += 1
                case Late():
                    occurred["late"] += 1
    codes = ["None", "busy", "closed", "deadline", "hook_failed", "inference", "op_timeout"]
    expected = {f"replied {code}" for code in (*codes, "worker_died", "kills_workers")}
    expected |= {f"refused {code}" for code in ("busy", "closed", "deadline", "input_mismatch")}
    expected |= {"drained", "timed out", "another attempt", "batch of several", "late"}
    expected |= {"taken back", "a turn was too short", "given up", "worker ended by us"}
    expected |= {"a graph goes with requests inside", "one goes while another serves"}
    expected |= {"sent on to the next version"}
    expected |= {"joined", "did not join", "joined, then its worker died", "waited to fit"}
    expected |= {"all of many pieces", "no piece", "pieces, then failed", "pieces, then left"}
    expected |= {"killed worker", "refused unseen", "cleared", "run again", "taken up again"}
    assert {name for name, count in occurred.items() if count} == expected


def ends_of_answers(events: Iterable[ClientEvent]) -> Iterator[str]:
    """How answers in pieces have ended."""
    pieces: Counter[int] = Counter()
    empty = set()
    for event in events:
        if isinstance(event, Invoke):
            if event.pieces == 0:
                empty.add(event.id)
        elif isinstance(event, Piece):
            pieces[event.id] += 1
        elif isinstance(event, Ok) and pieces[event.id] > MOST_PIECES:
            yield "all of many pieces"
        elif isinstance(event, Failed | Info) and pieces[event.id]:
            yield "pieces, then failed" if isinstance(event, Failed) else "pieces, then left"
        elif isinstance(event, Ok) and event.id in empty:
            yield "no piece"


def ends_of_seats(events: Iterable[SeatEvent]) -> Iterator[str]:
    """What has happened to requests of workers with seats."""
    joined: dict[tuple[str, int], set[object]] = {}
    ran: set[object] = set()
    for event in events:
        here = joined.setdefault((event.op, event.worker), set())
        if isinstance(event, Joined):
            here.add(event.request)
            yield "joined"
        elif isinstance(event, Stepped):
            ran.update(event.requests)
            if event.requests and here - ran:
                yield "waited to fit"
        elif isinstance(event, Left):
            here.discard(event.request)
            ran.add(event.request)
        elif isinstance(event, Released) and event.request not in ran:
            yield "did not join"
        elif isinstance(event, WorkerEnded) and here:
            here.clear()
            yield "joined, then its worker died"


# Deliberate bugs: each is a patch, and the words by which the simulation must notice it.

Patch = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, tuple[Patch, str]] = {}


def bug(name: str, words: str) -> Callable[[Patch], Patch]:
    def register(patch: Patch) -> Patch:
        BUGS[name] = (patch, words)
        return patch

    return register


@bug("an outcome of an ended sample is accepted", "list.remove|answered again|is over")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine.settle

    def settle(self: Engine, sample: Any, outcome: Any) -> None:
        sample.gone = False
        real(self, sample, outcome)

    patch.setattr(Engine, "settle", settle)


@bug("a request is answered twice", "is over")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine._reply

    def reply(self: Engine, submission: Any, outcome: Any) -> None:
        real(self, submission, outcome)
        if submission.data_id % 5 == 0:
            submission.on_answer(submission, outcome)

    patch.setattr(Engine, "_reply", reply)


@bug("a cancelled request stays in the queues", "stand in queues|nobody waits for|which has ended")
def _(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Engine, submission: Any) -> None:
        for sample in submission.samples:
            sample.gone = True
        submission.samples.clear()

    patch.setattr(Engine, "_forget_samples", forget)


@bug("queues ignore deadlines", "too late")
def _(patch: pytest.MonkeyPatch) -> None:
    for queue in (Batcher, FifoQueue):

        def offer(self: Any, sample: Any, now: float, real: Any = queue.offer) -> None:
            sample.deadline += 0.5
            real(self, sample, now)

        patch.setattr(queue, "offer", offer)


@bug("an idle worker is not used again", "beside an idle worker|still waits")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Stage._finished

    def finished(self: Stage, work: Any, results: Any) -> None:
        before, self._pumping = self._pumping, True
        real(self, work, results)
        self._pumping = before

    patch.setattr(Stage, "_finished", finished)


@bug("the end of a window is forgotten", "beside an idle worker|still waits")
def _(patch: pytest.MonkeyPatch) -> None:
    at = Timer.at

    def at_deadlines_only(self: Timer, when: float) -> None:
        if isinstance(self._action.__self__, Engine):
            at(self, when)

    patch.setattr(Timer, "at", at_deadlines_only)


@bug("a timeout frees the worker of a call that still runs", "one Work more|a slot is lost")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Stage._give_up

    def give_up(self: Stage, batch: Any) -> None:
        self._busy -= 1
        real(self, batch)

    patch.setattr(Stage, "_give_up", give_up)


@bug(
    "batches that were taken back are lost",
    "no call hangs, yet|stand in queues|no answer|ran . Works",
)
def _(patch: pytest.MonkeyPatch) -> None:
    real = Work.take_back

    def take_back(self: Work) -> list[Any]:
        real(self)
        return []

    patch.setattr(Work, "take_back", take_back)


@bug("deadlines are not checked", "no answer after its deadline|nothing will ever happen")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_set_alarm", lambda self: None)


@bug("deadlines are checked too late", "no answer after its deadline|past its deadline")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Deadlines.next_due

    def next_due(self: Any) -> float | None:
        due = real(self)
        return None if due is None else due + 0.1

    patch.setattr(Deadlines, "next_due", next_due)


@bug("outcomes of a batch are assigned to the wrong samples", "another's dict|sent .* and got")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Stage._finished

    def finished(self: Stage, work: Any, results: Any) -> None:
        real(self, work, [(batch, outcomes[::-1]) for batch, outcomes in results])

    patch.setattr(Stage, "_finished", finished)


@bug("more requests are admitted than allowed", "are inside")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine._refusal

    def refusal(self: Engine, request: Any, now: float) -> Any:
        error = real(self, request, now)
        return None if isinstance(error, ServiceBusy) else error

    patch.setattr(Engine, "_refusal", refusal)


@bug("one request too many is started", "requests run where")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine._start_waiting

    def start_waiting(self: Engine) -> None:
        real(self)
        if self._waiting:
            submission = next(iter(self._waiting))
            del self._waiting[submission]
            self._start(submission, self.clock.now())

    patch.setattr(Engine, "_start_waiting", start_waiting)


@bug("a call is retried more often than allowed", "times where")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine._try_again

    def try_again(self: Engine, submission: Any, sample: Any) -> bool:
        mark = f"trace{sample.op}"  # the trace of the attempt before, which would be noticed first
        sample.spare = sample.spare or {
            name: {key: value for key, value in feed.items() if key != mark}
            for name, feed in sample.inputs.items()
        }
        return real(self, submission, sample)

    patch.setattr(Engine, "_try_again", try_again)


@bug("a second attempt gets inputs that the first has edited", "another's dict")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine._try_again

    def try_again(self: Engine, submission: Any, sample: Any) -> bool:
        sample.spare = sample.spare and sample.inputs
        return real(self, submission, sample)

    patch.setattr(Engine, "_try_again", try_again)


@bug("the end of a drain is reported too early", "at rest, and")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine.drain

    def drain(self: Engine, at_rest: Any) -> None:
        real(self, lambda: None)
        at_rest()

    patch.setattr(Engine, "drain", drain)


@bug("the end of a graph's drain is reported too early", "is at rest, and|requests inside")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_rests", lambda self, graph: graph is not None or not self._open)


@bug("the end of a graph's drain is not reported", "was told of rest 0 times")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine._rests
    patch.setattr(Engine, "_rests", lambda self, graph: graph is None and real(self, graph))


@bug(
    "a request for the next version runs through the last one's plan",
    "another's dict|IndexError| only$|no call hangs, yet",
)
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine._refusal

    def refusal(self: Engine, request: Any, now: float) -> Any:
        plan = request.plan
        error = real(self, request, now)
        request.plan = plan
        return error

    patch.setattr(Engine, "_refusal", refusal)


@bug("the names of two graphs are mixed up", "another's dict")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Engine,
        "graph",
        lambda self, name, version=None: self._for_no_name or next(iter(self.names.values()), None),
    )


@bug("a closed engine leaves a request unanswered", "closed, and")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine.close

    def close(self: Engine) -> None:
        for forgotten in [*self._deadlines][:1]:
            del forgotten.due[forgotten]
        real(self)

    patch.setattr(Engine, "close", close)


@bug("a dead worker loses batches that it had not begun", "no worker has died with it")
def _(patch: pytest.MonkeyPatch) -> None:
    def lost(self: Process) -> Any:
        self.look()
        if self._running is None and self._in_flight:
            assert self.work is not None
            return self.work.begin_next()
        return self._running

    patch.setattr(Process, "lost", lost)


@bug(
    "batches that a dead worker had not begun are dropped",
    "no call hangs|is lost|no answer|ran . Works",
)
def _(patch: pytest.MonkeyPatch) -> None:
    def report(self: ProcessWorkers, work: Work, *arguments: Any) -> None:
        work.pending.clear()
        Workers.report(self, work, *arguments)

    patch.setattr(ProcessWorkers, "report", report, raising=False)


@bug("a suspect shares its Work", "suspect over with others")
def _(patch: pytest.MonkeyPatch) -> None:
    def fill(self: Quarantine, most: int, clock: Any, again: Any, poll: Any) -> Any:
        now = clock()
        batches: list[Any] = []
        culprits: list[Any] = []
        while len(batches) < most:
            polled = again(now) or self._take_in_turn(now, poll)
            if polled is None or isinstance(polled, float):
                return batches, polled, culprits
            batch = self._screen(polled, now, culprits)
            batches += [batch] if batch else []
        return batches, None, culprits

    patch.setattr(Quarantine, "fill", fill)


@bug("suspects are not recognized", "a suspect|two workers have died")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quarantine, "_screen", lambda self, batch, now, refused: batch)


@bug("culprits are forgotten", "of which two workers have died")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quarantine, "_ban", lambda self, sample, now: None)


@bug("a death of a shared batch bans its requests", "no two workers have died of it")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Quarantine._remember

    def remember(self: Quarantine, digest: Any, now: float) -> Any:
        suspect = real(self, digest, now)
        suspect.banned_until = now + 1.0
        return suspect

    patch.setattr(Quarantine, "_remember", remember)


@bug("a lost batch is rerun without retry_on_crash", "runs .* 2 times|2 times where")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Quarantine.__init__
    patch.setattr(Quarantine, "__init__", lambda self, op, *, rerun: real(self, op, rerun=True))


@bug("a batch lost in its rerun is rerun", "runs .* 3 times|two workers have died")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Quarantine.died

    def died(self: Quarantine, batch: Any, outcomes: Any, now: float) -> Any:
        for sample in batch.samples:
            sample.key = None
        return real(self, batch, outcomes, now)

    patch.setattr(Quarantine, "died", died)


@bug("isolated samples wait beside an idle worker", "beside an idle worker")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quarantine, "_take_in_turn", lambda self, now, poll: poll())


@bug("a cancelled request is rerun", "nobody waits for|too late")
def _(patch: pytest.MonkeyPatch) -> None:
    def take(self: Quarantine, now: float) -> Any:
        return self._isolated.popleft() if self._isolated else None

    patch.setattr(Quarantine, "_take", take)


@bug(
    "a worker's death frees no slot",
    "a slot is lost|idle worker|no call hangs, yet|never end|for ever",
)
def _(patch: pytest.MonkeyPatch) -> None:
    real = ProcessWorkers.handle_death

    def handle_death(self: ProcessWorkers, process: Process) -> None:
        process.work = process._running = None
        real(self, process)

    patch.setattr(ProcessWorkers, "handle_death", handle_death)


@bug("priorities have no ageing", "overtakes")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Lanes.__init__

    def init(self: Lanes, levels: int, ageing: float, *samples: Any) -> None:
        real(self, levels, 1e6, *samples)

    patch.setattr(Lanes, "__init__", init)


@bug("a request of a high priority waits behind lower ones", "overtakes")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Lanes.__init__

    def init(self: Lanes, levels: int, ageing: float, *samples: Any) -> None:
        real(self, levels, 0.0, *samples)

    patch.setattr(Lanes, "__init__", init)


@bug("the oldest of the lowest priority is shed", "shed before others")
def _(patch: pytest.MonkeyPatch) -> None:
    def oldest_below(self: Lanes, level: int) -> Any:
        lower = [each for each in self if each.waiting and each.level > level]
        return min(lower, key=lambda each: (-each.level, each.arrived), default=None)

    patch.setattr(Lanes, "newest_below", oldest_below)


@bug("nothing is shed for a request of a higher priority", "of a lower one waits")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_shed", lambda *_: False)


@bug("a piece is lost", "got piece . where|ended well after|pieces .* back")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Stream.take
    patch.setattr(Stream, "take", lambda self: real(self)[:2])


@bug("pieces that arrive with the end are lost", "ended well after|pieces .* back")
def _(patch: pytest.MonkeyPatch) -> None:
    def end_stream(self: Engine, sample: Any) -> None:
        if sample.flight.graph.stages[sample.op].streams:
            sample.stream.cancel()

    patch.setattr(Engine, "_end_stream", end_stream)


@bug("an answer that has begun is repeated", "after its answer has begun|got piece 0 where")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine._begin_stream

    def begin_stream(self: Engine, submission: Any, sample: Any) -> None:
        attempt, spare = submission.attempt, sample.spare
        real(self, submission, sample)
        submission.attempt, sample.spare = attempt, spare

    patch.setattr(Engine, "_begin_stream", begin_stream)


@bug("an answer that has begun is repeated after a death", "after its answer has begun")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(quarantine, "_has_begun", lambda sample: False)


@bug("who does not read is sent everything", "does not read, and gets")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Engine._pieces

    def pieces(self: Engine, sample: Any) -> None:
        real(self, sample)
        sample.stream.credit()

    patch.setattr(Engine, "_pieces", pieces)


@bug("credit does not reach the worker", "whose client reads")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stream, "credit", lambda self: None)


@bug("a cancellation does not reach the worker", "makes pieces for .* which has ended")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stream, "cancel", lambda self: None)


@bug("the first piece does not move the deadline", "too late before|no answer after its deadline")
def _(patch: pytest.MonkeyPatch) -> None:
    def begin_stream(self: Engine, submission: Any, sample: Any) -> None:
        submission.stream, sample.spare = sample.stream, None
        submission.attempt = submission.plan.attempts

    patch.setattr(Engine, "_begin_stream", begin_stream)


@bug("a request for pieces is sent on to a version without", "ended well after")
def _(patch: pytest.MonkeyPatch) -> None:
    def taker(self: Engine, submission: Any) -> Any:
        graph, closed = submission.graph, ServiceClosed("it serves no more requests")
        if graph.state is not GraphState.DRAINING:
            return graph if graph.state is GraphState.SERVING else closed
        return self.default_of(graph.name) or closed

    patch.setattr(Engine, "_taker", taker)


@bug("a seat is not given back", "has a seat for|still has its seat|never left")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Steps, "_give_back", lambda self, one: None)


@bug("a request that has ended keeps its seat", "has left|leaves twice|KeyError")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seats, "leave", lambda self, one: None)


@bug("a seat stays free beside one who waits", "seats are taken, and")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Seats.next

    def next_one(self: Any) -> Any:
        return real(self) if len(self.running) < max(1, self._count - 1) else None

    patch.setattr(Seats, "next", next_one)


@bug("a request is left out of a step", "out of a step")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Seats.ready
    patch.setattr(Seats, "ready", lambda self: real(self)[:-1] or real(self))


@bug("a request with a slow reader runs", "without credit")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seated, "held_up", False)


@bug("a cancellation does not reach the seats", "without credit|which is cancelled")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seated, "unwanted", False)


@bug("a request that is cancelled while it waits for a seat joins", "which is cancelled")
def _(patch: pytest.MonkeyPatch) -> None:
    real = Seated.unwanted.fget
    assert real is not None
    patch.setattr(Seated, "unwanted", property(lambda self: self.state is not None and real(self)))


@bug("the last who asks joins first", "which had asked before")
def _(patch: pytest.MonkeyPatch) -> None:
    def next_one(self: Any) -> Any:
        if self.fitting is not None or len(self.running) >= self._count or not self._waiting:
            return None
        return self._waiting.pop()

    patch.setattr(Seats, "next", next_one)


@bug("others join while one does not fit", "never left|no call hangs|never end")
def _(patch: pytest.MonkeyPatch) -> None:
    def next_one(self: Any) -> Any:
        return (
            self._waiting.popleft() if self._waiting and len(self.running) < self._count else None
        )

    patch.setattr(Seats, "next", next_one)


@bug(
    "a worker sleeps beside those who wait for a seat",
    "no call hangs|will ever happen|never end",
)
def _(patch: pytest.MonkeyPatch) -> None:
    def has_work(self: Any) -> bool:
        return any(one.unwanted or not one.held_up for one in self.running)

    patch.setattr(Seats, "has_work", property(has_work))


@pytest.mark.parametrize("name", BUGS)
def test_the_simulation_detects(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, words = BUGS[name]
    patch(monkeypatch)
    headline = next(headlines(range(300)), "nothing was noticed")
    assert re.search(words, headline), headline


def headlines(seeds: Iterable[int]) -> Iterator[str]:
    for seed in seeds:
        try:
            simulate(seed)
        except Violation as violation:
            yield str(violation).splitlines()[0]


def test_the_command_runs_the_requested_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--events", "20", "--seed", "5"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("3 seeds of 20 events")
    assert output.out.endswith("all promises kept\n")
    assert output.err == ""


def test_several_processes_have_the_same_results_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    requests = []
    for jobs in ("1", "2"):
        assert main(["--seeds", "6", "--events", "20", "--jobs", jobs]) == 0
        requests.append(capsys.readouterr().out.split(",")[1])  # the number of requests
    assert requests[0] == requests[1]


def test_the_command_shows_the_seed_and_the_events_of_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, _ = BUGS["deadlines are not checked"]
    patch(monkeypatch)
    assert main(["--seeds", "30"]) == 1
    output = capsys.readouterr()
    assert "FAILED: seeds [" in output.out
    assert "Admitted(data_id=" in output.err
    assert "EngineOptions(" in output.err
