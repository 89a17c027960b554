"""Answers in pieces under a virtual clock: any number of pieces, then one end."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from penstock import Signature
from penstock.engine.engine import EngineOptions
from penstock.engine.gathered import MOST_GATHERED, Gathered
from penstock.engine.promise import Promise
from penstock.engine.submission import Submission
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    HookFailed,
    InferenceFailed,
    OpTimeout,
    RequestError,
    TooLarge,
    WrongType,
)
from penstock.executors.stream import MOST_PIECES, Stream
from penstock.executors.work import WorkOptions
from penstock.instrument import Instrument, RequestInfo
from penstock.request import Feed, Outcome
from tests.engine.test_engine import EngineHarness, make_harness
from tests.graph.test_dag import plan_of


class Reader(Submission):
    """A caller that gets pieces one by one."""

    __slots__ = ("ends", "got", "reads", "refuses", "together")

    got: list[Feed]
    together: list[int]
    ends: list[Outcome]
    reads: bool
    refuses: Exception | None

    def piece(self, piece: Feed) -> bool:
        if self.refuses is not None:
            raise self.refuses
        self.got.append(piece)
        return self.reads

    def pieces(self, pieces: list[Feed]) -> bool:
        self.together.append(len(pieces))
        return super().pieces(pieces)

    def whole(self, outcome: Outcome) -> Outcome:
        return outcome


@dataclass
class Streams:
    """An engine whose one op streams."""

    h: EngineHarness
    readers: list[Reader] = field(default_factory=list)

    def ask(self, life: float | None = None, *, reads: bool = True) -> Reader:
        reader = Reader(self.h.engine.graphs[0], {"x": 1}, life)
        reader.got, reader.ends, reader.reads, reader.refuses = [], [], reads, None
        reader.together = []
        self.h.engine.submit(reader, lambda one, outcome: one.ends.append(outcome))
        self.h.clock.run()
        return reader

    def stream(self, index: int = 0) -> Stream:
        """That of the sample that a worker runs; its worker is this thread."""
        (sample,) = self.h.workers["op"].batches()[index].samples
        stream: Stream = sample.stream
        stream.notify = Stream.arrive
        return stream

    def end(self, error: RequestError | None = None) -> None:
        self.h.workers["op"].finish(outcomes=[Outcome({} if error is None else None, error)])
        self.h.clock.run()


def make_streams(
    work: WorkOptions | None = None, options: EngineOptions | None = None, attempts: int = 1
) -> Streams:
    h = make_harness(work=work, options=options, attempts=attempts, workers=2)
    (graph,) = h.engine.graphs
    graph.streams = graph.stages[0].streams = True
    return Streams(h)


def test_pieces_come_in_order_and_then_one_end() -> None:
    s = make_streams()
    reader = s.ask()
    stream = s.stream()
    for n in range(3):
        assert stream.add({"n": n})
    assert reader.got == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert not reader.ends
    s.end()
    (end,) = reader.ends
    assert end.error is None
    assert s.h.engine.statistics().inside == 0


def test_pieces_that_have_not_been_passed_on_come_before_the_end() -> None:
    s = make_streams()
    reader = s.ask()
    stream = s.stream()
    stream.notify = lambda _: None  # the loop has not been told yet
    stream.add({"n": 0})
    s.end()
    assert reader.got == [{"n": 0}]
    assert len(reader.ends) == 1


class Begins(Instrument):
    """Notes the events of streams, and how many pieces had been taken by then."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def stream_begun(self, request: RequestInfo, now: float) -> None:
        self.seen.append(("begun", request.stream.taken))

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        self.seen.append(("replied", request.stream.taken if request.stream else 0))

    def cancelled(self, request: RequestInfo, now: float) -> None:
        self.seen.append(("cancelled", request.stream.taken if request.stream else 0))


def test_instruments_hear_of_the_first_piece_and_of_the_end_only() -> None:
    s = make_streams()
    begins = Begins()
    s.h.engine.instruments.install(begins)
    s.ask()
    stream = s.stream()
    for n in range(3):
        stream.add({"n": n})
    s.end()
    assert begins.seen == [("begun", 1), ("replied", 3)]
    s.ask()
    s.end(HookFailed("before the first piece"))
    assert begins.seen[2:] == [("replied", 0)]
    reader = s.ask()
    s.stream().add({"n": 0})
    reader.cancel()
    assert begins.seen[3:] == [("begun", 1), ("cancelled", 1)]


def test_pieces_that_arrive_together_are_passed_on_together() -> None:
    s = make_streams()
    reader = s.ask()
    stream = s.stream()
    stream.notify = lambda _: None
    for n in range(3):
        stream.add({"n": n})
    stream.arrive()
    assert reader.got == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert reader.together == [3]


def test_a_piece_that_is_not_as_declared_ends_the_answer_after_those_before_it() -> None:
    s = make_streams()
    (graph,) = s.h.engine.graphs
    promised = {"y": ("FP32", [-1])}
    graph.promise = Promise("op", Signature(inputs=promised, outputs=promised))
    reader = s.ask()
    reader.sizes = {}
    stream = s.stream()
    stream.notify = lambda _: None
    right = {"y": np.zeros(1, np.float32)}
    for each in (right, {"x": 1}, right):
        stream.add(each)
    stream.arrive()
    assert [[*each] for each in reader.got] == [["y"]]
    (end,) = reader.ends
    assert isinstance(end.error, WrongType)


def test_an_error_after_pieces_is_the_one_end() -> None:
    s = make_streams()
    reader = s.ask()
    s.stream().add({"n": 0})
    s.end(HookFailed("it raised"))
    (end,) = reader.ends
    assert isinstance(end.error, HookFailed)
    assert reader.got == [{"n": 0}]


def test_a_reader_that_has_enough_gives_no_credit_until_it_resumes() -> None:
    s = make_streams()
    reader = s.ask(reads=False)
    stream = s.stream()
    for n in range(MOST_PIECES):
        stream.add({"n": n})
    assert stream.is_full
    reader.resume()
    assert not stream.is_full


def test_a_slow_reader_does_not_slow_another() -> None:
    s = make_streams()
    slow, quick = s.ask(reads=False), s.ask()
    streams = s.stream(0), s.stream(1)
    for n in range(MOST_PIECES):
        for stream in streams:
            stream.add({"n": n})
    assert [each.is_full for each in streams] == [True, False]
    assert len(slow.got) == len(quick.got) == MOST_PIECES


def test_a_cancelled_request_wants_no_further_piece_and_gets_none() -> None:
    s = make_streams()
    reader = s.ask()
    stream = s.stream()
    stream.add({"n": 0})
    s.h.engine.cancel(reader)
    assert not stream.add({"n": 1})
    s.end(Cancelled("the request was cancelled"))
    assert reader.got == [{"n": 0}]
    assert not reader.ends


@pytest.mark.parametrize("pieces", [0, 1])
def test_a_caller_that_needs_no_further_piece_is_answered_at_once(pieces: int) -> None:
    s = make_streams()
    reader = s.ask()
    stream = s.stream()
    for n in range(pieces):
        stream.add({"n": n})
    reader.complete()
    assert [end.error for end in reader.ends] == [None]
    assert not stream.add({"n": 1})
    s.end(Cancelled("the request was cancelled"))
    assert len(reader.got) == pieces
    assert len(reader.ends) == 1
    assert s.h.engine.statistics().inside == 0


def test_nothing_runs_again_after_the_first_piece() -> None:
    s = make_streams(WorkOptions(timeout=1.0, retry=3), attempts=3)
    reader = s.ask()
    stream = s.stream()
    stream.add({"n": 0})
    (batch,) = s.h.workers["op"].batches()
    batch.started = s.h.clock.now()
    s.h.clock.advance(2.0)
    (end,) = reader.ends
    assert isinstance(end.error, OpTimeout)
    assert not stream.add({"n": 1}), "its worker is told when it returns"
    assert len(s.h.workers["op"].running) == 1


def test_ops_for_which_the_last_one_has_not_waited_stop_with_the_first_piece() -> None:
    edges = {"slow": ["@"], "fast": ["@"], "op": ["slow", "fast"]}
    h = make_harness(edges, workers=2)
    (graph,) = h.engine.graphs
    graph.plan = plan_of(edges, "op", first_arrival=True)
    graph.streams = graph.stages[graph.plan.last].streams = True
    s = Streams(h)
    reader = s.ask()
    h.workers["fast"].finish()
    h.clock.run()
    s.stream().add({"n": 0})
    h.clock.run()
    assert h.workers["slow"].abandoned, "nobody needs its result"
    s.end()
    assert [end.error for end in reader.ends] == [None]
    h.workers["slow"].finish()
    h.clock.run()
    assert h.engine.statistics().inside == 0


def test_an_attempt_that_times_out_before_its_first_piece_is_repeated() -> None:
    s = make_streams(WorkOptions(timeout=1.0, retry=2))
    reader = s.ask()
    (batch,) = s.h.workers["op"].batches()
    batch.started = s.h.clock.now()
    s.h.clock.advance(1.5)
    assert not reader.ends
    s.stream(1).add({"n": 0})
    s.h.workers["op"].finish(1, [Outcome({})])
    assert reader.got == [{"n": 0}]
    assert reader.ends[0].error is None


@pytest.mark.parametrize(("life", "ends_at"), [(None, 600.0), (20.0, 20.0), (90.0, 90.0)])
def test_the_first_piece_replaces_the_service_s_deadline_but_not_the_caller_s(
    life: float | None, ends_at: float
) -> None:
    s = make_streams(options=EngineOptions(time_limit=60.0, stream_limit=600.0))
    asked = s.h.clock.now()
    reader = s.ask(life)
    s.h.clock.advance(10.0)
    s.stream().add({"n": 0})
    began = s.h.clock.now() if life is None else asked
    s.h.clock.advance(began + ends_at - s.h.clock.now() - 0.5)
    assert not reader.ends
    s.h.clock.advance(1.0)
    (end,) = reader.ends
    assert isinstance(end.error, DeadlineExceeded)
    assert end.error.by_client == (life is not None)


def test_a_caller_cannot_exceed_the_limit_of_an_answer_in_pieces() -> None:
    s = make_streams(options=EngineOptions(stream_limit=2.0))
    reader = s.ask(life=50.0)
    s.stream().add({"n": 0})
    s.h.clock.advance(2.1)
    (end,) = reader.ends
    assert isinstance(end.error, DeadlineExceeded)


def test_a_stream_without_a_piece_ends_at_the_usual_deadline() -> None:
    s = make_streams(options=EngineOptions(time_limit=60.0, stream_limit=600.0))
    reader = s.ask()
    s.h.clock.advance(61.0)
    assert isinstance(reader.ends[0].error, DeadlineExceeded)


@pytest.mark.parametrize(
    ("fault", "kind"), [(TooLarge("over"), TooLarge), (ValueError("a bug"), InferenceFailed)]
)
def test_a_piece_that_cannot_be_taken_ends_its_request_only(
    fault: Exception, kind: type[RequestError]
) -> None:
    s = make_streams()
    bad, good = s.ask(), s.ask()
    bad.refuses = fault
    streams = s.stream(0), s.stream(1)
    assert not streams[0].add({"n": 0})
    assert streams[1].add({"n": 0})
    assert isinstance(bad.ends[0].error, kind)
    assert good.got == [{"n": 0}]
    assert not good.ends


def test_who_does_not_stream_gets_the_pieces_as_a_list() -> None:
    s = make_streams()
    submission = s.h.request(x=1)
    for n in range(3):
        s.stream().add({"result": n})
    s.end()
    assert s.h.answer(submission).value == {"result": [0, 1, 2]}


def test_pieces_that_are_dicts_are_a_list_of_dicts() -> None:
    s = make_streams()
    submission = s.h.request(x=1)
    s.stream().add({"a": 1, "b": 2})
    s.end()
    assert s.h.answer(submission).value == {"result": [{"a": 1, "b": 2}]}


def test_pieces_of_numbers_count_as_well() -> None:
    gathered = Gathered()

    def gather(count: int) -> None:
        for n in range(count):
            gathered.add({"result": n})

    with pytest.raises(TooLarge):
        gather(MOST_GATHERED // 100)


def test_a_list_of_pieces_has_a_limit() -> None:
    s = make_streams()
    submission = s.h.request(x=1)
    stream = s.stream()
    assert stream.add({"result": b"x" * (MOST_GATHERED - 1024)})
    assert not stream.add({"result": b"x"})
    assert isinstance(s.h.answer(submission).error, TooLarge)
