"""The engine under a virtual clock: admission, deadlines, cancellation, time-outs, drain."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from penstock.batching.batcher import Batcher, BatchPolicy
from penstock.engine.engine import Engine, EngineOptions, log_dropped
from penstock.engine.graph import ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import (
    DeadlineExceeded,
    HookFailed,
    OpTimeout,
    RequestError,
    ServiceBusy,
    ServiceClosed,
)
from penstock.executors.work import WorkOptions
from penstock.instrument import Instrument, Instruments, RequestInfo
from penstock.request import Batch, CloseReason, Outcome, Sample
from penstock.testing.clock import ManualClock
from penstock.testing.executor import FakeExecutor
from tests.graph.test_dag import plan_of


class Heard(Instrument):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def dispatched(self, op: str, batch: Batch, now: float) -> None:
        self.lines.append(f"{op} {batch.data_ids} {batch.reason.value}")

    def late(self, op: str, batch: Batch, now: float) -> None:
        self.lines.append(f"late {op} {batch.data_ids}")


@dataclass
class House:
    """An engine on a manual clock with fake workers."""

    engine: Engine
    clock: ManualClock
    workers: dict[str, FakeExecutor]
    heard: Heard
    answers: dict[int, list[Outcome]] = field(default_factory=dict)

    def submit(
        self,
        reply: Callable[[Outcome], object],
        life: float = 60.0,
        log_id: int = 0,
        **feed: object,
    ) -> Submission:
        submission = Submission(self.engine.graphs[0], dict(feed), life, log_id)
        self.engine.submit(submission, lambda _, outcome: reply(outcome))
        return submission

    def ask(self, life: float = 60.0, **feed: object) -> Submission:
        got: list[Outcome] = []
        asked = self.submit(got.append, life, **feed)
        self.answers[asked.data_id] = got
        self.clock.run()
        return asked

    def answer(self, asked: Submission) -> Outcome:
        (outcome,) = self.answers[asked.data_id]
        return outcome


def house(
    edges: dict[str, list[str]] | None = None,
    *,
    policy: BatchPolicy | None = None,
    options: EngineOptions | None = None,
    work: WorkOptions | None = None,
    workers: int = 1,
    attempts: int = 1,
    instruments: Sequence[Instrument] = (),
) -> House:
    edges = edges or {"op": ["@"]}
    plan = plan_of(edges, list(edges)[-1], attempts=attempts)
    clock = ManualClock()
    heard = Heard()
    engine = Engine(clock, options, Instruments([heard, *instruments], log_dropped))
    graph = ServedGraph(engine, plan)
    executors = {name: FakeExecutor(workers) for name in plan.names}
    for name in plan.names:
        graph.add_op(
            name,
            queue=Batcher(policy or BatchPolicy()),
            executor=executors[name],
            options=work or WorkOptions(),
        )
    engine.add(graph)
    return House(engine, clock, executors, heard)


def test_a_request_goes_through_its_ops_and_is_answered_once() -> None:
    h = house({"a": ["@"], "b": ["a"]})
    asked = h.ask(x=1)
    h.workers["a"].finish()
    h.clock.run()
    h.workers["b"].finish()
    assert h.answer(asked).value == {"x": 1}
    stats = h.engine.statistics()
    assert (stats.admitted, stats.replied, stats.inside) == (1, 1, 0)


def test_data_ids_start_and_step_as_told_so_that_engines_do_not_collide() -> None:
    h = house(options=EngineOptions(first_id=2, id_step=3))
    assert [h.ask().data_id for _ in range(3)] == [2, 5, 8]


def test_one_too_many_is_refused_and_the_others_are_not_disturbed() -> None:
    h = house(options=EngineOptions(max_requests=2))
    first = h.ask()
    h.ask()
    with pytest.raises(ServiceBusy):
        h.ask()
    h.workers["op"].finish()
    assert h.answer(first).error is None
    h.ask()
    assert h.engine.statistics().refused == 1


def test_a_full_channel_refuses_at_the_entrance() -> None:
    h = house({"a": ["@"], "b": ["a"]}, policy=BatchPolicy(capacity=1))
    h.ask()  # runs
    h.ask()  # waits
    with pytest.raises(ServiceBusy, match="'a'"):
        h.ask()


def test_a_channel_that_fills_up_inside_ends_the_request_that_found_it_full() -> None:
    h = house({"a": ["@"], "b": ["a"]}, policy=BatchPolicy(capacity=1), workers=3)
    h.workers["b"].workers = 3
    asked = [h.ask() for _ in range(3)]
    h.engine.stages[1]._busy = 3  # nobody takes from b's queue
    for _ in range(3):
        h.workers["a"].finish()
        h.clock.run()
    errors = [answers[0].error for answers in h.answers.values() if answers]
    assert len(errors) == 2
    assert all(isinstance(error, ServiceBusy) for error in errors)
    assert h.answers[asked[0].data_id] == []


def test_beyond_the_running_limit_callers_wait_and_are_not_refused() -> None:
    h = house(options=EngineOptions(max_running=1), workers=4)
    first, second = h.ask(), h.ask()
    assert [b.data_ids for b in h.workers["op"].batches()] == [[first.data_id]]
    h.workers["op"].finish()
    h.clock.run()
    assert [b.data_ids for b in h.workers["op"].batches()] == [[second.data_id]]


def test_queued_work_past_its_deadline_is_answered_and_never_dispatched() -> None:
    h = house()
    h.ask()
    late = h.ask(life=0.5)
    h.clock.advance(0.6)
    error = h.answer(late).error
    assert isinstance(error, DeadlineExceeded)
    h.workers["op"].finish()
    h.clock.run()
    assert h.workers["op"].batches() == []


def test_a_result_after_the_deadline_is_dropped_without_a_word_to_the_caller() -> None:
    h = house()
    asked = h.ask(life=0.5)
    h.clock.advance(1.0)
    h.workers["op"].finish()
    assert isinstance(h.answer(asked).error, DeadlineExceeded)


def too_late(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if "deadline" in line.getMessage()]


def test_a_request_whose_time_is_over_has_one_line_in_the_log_with_its_op_and_its_ids(
    caplog: pytest.LogCaptureFixture,
) -> None:
    h = house({"a": ["@"], "b": ["a"]}, options=EngineOptions(time_limit=1.0))
    asked = [h.submit(lambda _: None, log_id=7) for _ in range(2)]
    h.clock.advance(2.0)
    h.workers["a"].finish()
    h.clock.run()
    first, second = (f"(data_id={each.data_id} log_id=7)" for each in asked)
    assert too_late(caplog) == [
        f"op a: the request's deadline passed while it ran {first}",
        f"op a: the request's deadline passed while it waited {second}",
    ]


def test_a_worker_that_finds_that_the_time_is_over_is_as_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    h = house(options=EngineOptions(time_limit=1.0))
    h.submit(lambda _: None)
    h.clock.advance(1.001)  # before the tick
    late = DeadlineExceeded("the request's deadline passed before the op began")
    h.workers["op"].finish(outcomes=[Outcome(None, late)])
    h.clock.run()
    h.clock.advance(1.0)
    assert too_late(caplog) == [
        "op op: the request's deadline passed before the op began (data_id=0 log_id=0)"
    ]


def test_the_time_that_a_client_gave_is_no_failure_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    h = house()
    h.ask(life=0.5)
    h.clock.advance(1.0)
    assert too_late(caplog) == []


@pytest.mark.parametrize(("life", "by_client"), [(0.5, True), (60.0, False)])
def test_an_op_that_finds_that_the_time_is_over_need_not_know_whose_time(
    life: float, by_client: bool
) -> None:
    h = house(options=EngineOptions(time_limit=1.0))
    asked = h.ask(life=life)
    late = DeadlineExceeded("DEADLINE_EXCEEDED: the other server says so first")
    h.workers["op"].finish(outcomes=[Outcome(None, late)])
    h.clock.run()
    error = h.answer(asked).error
    assert isinstance(error, DeadlineExceeded)
    assert error.by_client is by_client
    assert str(error) == str(late)


def test_a_request_that_comes_too_late_is_refused() -> None:
    with pytest.raises(DeadlineExceeded):
        house().ask(life=0.0)


def test_cancelling_takes_queued_work_out_and_leaves_the_rest_alone() -> None:
    h = house(policy=BatchPolicy(max_rows=8))
    h.ask()
    gone, stays = h.ask(), h.ask()
    h.engine.cancel(gone)
    h.engine.cancel(gone)
    h.workers["op"].finish()
    h.clock.run()
    assert [b.data_ids for b in h.workers["op"].batches()] == [[stays.data_id]]
    assert h.answers[gone.data_id] == []
    assert h.engine.statistics().cancelled == 1


def test_cancelling_while_it_runs_gives_no_answer_and_frees_the_place() -> None:
    h = house(options=EngineOptions(max_requests=1))
    gone = h.ask()
    h.engine.cancel(gone)
    again = h.ask()
    h.workers["op"].finish()
    h.clock.run()
    h.workers["op"].finish()
    assert h.answers[gone.data_id] == []
    assert h.answer(again).error is None


def test_a_call_is_given_up_when_the_last_of_its_requests_has_gone() -> None:
    h = house(policy=BatchPolicy(max_rows=2, window=1.0))
    left, right = h.ask(), h.ask()
    ((work, _),) = h.workers["op"].running
    h.engine.cancel(left)
    h.clock.run()
    assert h.workers["op"].abandoned == []
    h.engine.cancel(right)
    h.clock.run()
    assert h.workers["op"].abandoned == [work]
    assert h.engine.statistics().stages[0].idle == 0, "it keeps its slot until it is back"


def test_a_call_past_its_requests_deadline_is_given_up() -> None:
    h = house()
    late = h.ask(life=0.5)
    ((work, _),) = h.workers["op"].running
    h.clock.advance(0.6)
    assert isinstance(h.answer(late).error, DeadlineExceeded)
    assert h.workers["op"].abandoned == [work]


def test_a_call_is_not_given_up_for_one_that_has_gone_while_others_wait_behind_it() -> None:
    h = house()
    h.engine.stages[0]._hand_over.learn(1e-6)
    js = [h.submit(lambda _: None) for _ in range(3)]
    h.clock.run()
    ((work, _),) = h.workers["op"].running
    assert work.crowded
    h.engine.cancel(js[0])
    h.clock.run()
    assert h.workers["op"].abandoned == []


def test_cancelling_in_the_admission_queue_leaves_no_trace() -> None:
    h = house(options=EngineOptions(max_running=1))
    h.ask()
    for _ in range(50):
        h.engine.cancel(h.ask())
    assert h.engine.statistics().waiting == 0
    assert not h.engine._waiting


def begin(h: House, op: str = "op") -> None:
    """Let the running calls' ``process`` begin now."""
    for batch in h.workers[op].batches():
        batch.started = h.clock.now()


def test_a_call_over_its_time_out_is_answered_and_keeps_its_slot() -> None:
    h = house(work=WorkOptions(timeout=0.5))
    slow = h.ask()
    begin(h)
    waiting = h.ask()
    h.clock.advance(0.6)
    error = h.answer(slow).error
    assert isinstance(error, OpTimeout)
    assert "Failed to process(batch: [0]): exceeded retry count." in str(error)
    assert len(h.workers["op"].running) == 1, "the abandoned call still holds the only slot"
    h.workers["op"].finish()
    h.clock.run()
    assert "late op [0]" in h.heard.lines
    assert [b.data_ids for b in h.workers["op"].batches()] == [[waiting.data_id]]


def test_only_process_counts_for_the_time_out() -> None:
    h = house(work=WorkOptions(timeout=0.5))
    asked = h.ask()
    h.clock.advance(3.0)  # a long preprocess
    assert h.answers[asked.data_id] == []
    begin(h)
    h.clock.advance(0.4)
    assert h.answers[asked.data_id] == []
    h.clock.advance(0.7)
    assert isinstance(h.answer(asked).error, OpTimeout)


def test_a_timed_out_call_is_tried_again_on_another_worker_with_fresh_inputs() -> None:
    h = house(work=WorkOptions(timeout=0.5, retry=2), workers=2)
    asked = h.ask(x=1)
    begin(h)
    (batch,) = h.workers["op"].batches()
    batch.samples[0].inputs["@DAGExecutor"]["x"] = "edited by the first attempt"
    h.clock.advance(0.6)
    first, second = h.workers["op"].batches()
    assert (first.attempt, second.attempt) == (1, 2)
    h.workers["op"].finish(1)
    assert h.answer(asked).value == {"x": 1}


def test_the_graph_is_tried_again_after_a_time_out_when_told_so() -> None:
    h = house(work=WorkOptions(timeout=0.5), attempts=2, workers=2)
    asked = h.ask(x=1)
    begin(h)
    h.clock.advance(0.6)
    h.workers["op"].finish(1)
    assert h.answer(asked).value == {"x": 1}


def test_draining_refuses_new_requests_and_finishes_the_admitted_ones() -> None:
    h = house(policy=BatchPolicy(max_rows=4, window=10.0))
    inside = h.ask()
    at_rest: list[bool] = []
    h.engine.drain(lambda: at_rest.append(True))
    with pytest.raises(ServiceClosed):
        h.ask()
    assert h.heard.lines == ["op [0] drain"], "nobody waits for company any more"
    assert at_rest == []
    h.workers["op"].finish()
    assert h.answer(inside).error is None
    assert at_rest == [True]


def test_closing_answers_whoever_is_still_inside() -> None:
    h = house()
    asked = [h.ask(), h.ask()]
    h.engine.close()
    assert [str(h.answer(j).error) for j in asked] == ["dag closed."] * 2
    h.workers["op"].finish()


def test_double_and_late_outcomes_are_ignored() -> None:
    h = house()
    asked = h.ask()
    ((work, _finished),) = h.workers["op"].running
    sample = work.current.samples[0]  # type: ignore[union-attr]
    h.workers["op"].finish()
    h.engine.settle(sample, Outcome(None, HookFailed("again")))
    assert h.answer(asked).error is None


def test_a_reply_that_cannot_be_delivered_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    h = house()

    def broken(_: Outcome) -> None:
        raise RuntimeError("the transport broke")

    h.submit(broken)
    h.clock.run()
    fine = h.ask()
    h.workers["op"].finish()
    h.clock.run()
    h.workers["op"].finish()
    assert h.answer(fine).error is None
    assert "could not be delivered" in caplog.text


EDGES = {"top": ["@"], "a": ["top"], "b": ["top"], "end": ["a", "b"]}


def test_nothing_more_is_put_for_a_request_that_a_full_queue_has_just_ended() -> None:
    h = house(EDGES, policy=BatchPolicy(capacity=1), workers=3)
    h.engine.graphs[0].plan = plan_of(EDGES, "end", first_arrival=True)
    h.engine.stages[1]._busy = 3  # nobody takes from a's queue
    asked = [h.ask() for _ in range(2)]
    h.workers["top"].finish()
    h.clock.run()
    h.workers["top"].finish()
    h.clock.run()
    assert isinstance(h.answer(asked[1]).error, ServiceBusy)
    assert [b.data_ids for b in h.workers["b"].batches()] == [[0]]


def test_requests_that_expire_together_are_answered_once_whatever_a_reply_does() -> None:
    h = house()
    got: list[Outcome] = []
    j: list[Submission] = []
    j.append(h.submit(lambda o: h.engine.cancel(j[1]), 1.0))
    j.append(h.submit(got.append, 1.0))
    h.clock.advance(2.0)
    assert got == []
    s = h.engine.statistics()
    assert (s.admitted, s.replied, s.cancelled, s.inside) == (2, 1, 1, 0)


def test_the_engine_is_at_rest_only_after_the_last_answer_is_delivered() -> None:
    h = house()
    order: list[str] = []
    h.submit(lambda o: order.append("answer"))
    h.clock.run()
    h.engine.drain(lambda: order.append("at rest"))
    h.workers["op"].finish()
    assert order == ["answer", "at rest"]


def test_large_answers_that_come_back_together_are_given_in_several_turns() -> None:
    h = house()
    h.ask()
    h.workers["op"].finish()  # so that the next ones travel together
    order: list[object] = []

    def write(outcome: Outcome) -> None:
        order.append(outcome.value)
        h.clock.spend(0.01)

    for number in range(3):
        h.submit(write, x=number)
    h.clock.run()
    ((work, _),) = h.workers["op"].running
    assert len(work.pending) == 2
    h.clock.soon(lambda: order.append("others have their turn"))
    h.workers["op"].finish()
    assert order == [{"x": 0}]
    h.clock.run()
    assert order == [{"x": 0}, "others have their turn", {"x": 1}, {"x": 2}]
    assert h.engine.statistics().inside == 0


def test_no_more_is_handed_out_while_answers_wait_to_be_given() -> None:
    h = house()
    h.ask()
    h.workers["op"].finish()
    handed_out: list[int] = []

    def write(outcome: Outcome) -> None:
        handed_out.append(len(h.workers["op"].running))
        h.clock.spend(0.01)

    for _ in range(40):  # more than travel together
        h.submit(write)
    h.clock.run()
    h.workers["op"].finish()
    h.clock.run()
    assert handed_out == [0] * 32
    h.workers["op"].finish()
    h.clock.run()
    assert handed_out == [0] * 40


def test_what_is_taken_back_is_not_dispatched_for_those_who_left_or_are_late() -> None:
    h = house(work=WorkOptions(timeout=0.5))
    h.engine.stages[0]._hand_over.learn(1e-6)
    js = [h.submit(lambda _: None) for _ in range(3)]
    h.clock.run()
    begin(h)
    h.clock.advance(0.6)
    h.engine.cancel(js[1])
    h.heard.lines.clear()
    h.workers["op"].finish()
    h.clock.run()
    assert [line for line in h.heard.lines if "late" not in line] == ["op [2] full"]


def test_a_call_that_begins_while_the_one_before_is_given_up_is_watched_too() -> None:
    h = house(work=WorkOptions(timeout=0.5))
    h.engine.stages[0]._hand_over.learn(1e-6)
    asked = [h.ask()]
    ((work, _),) = h.workers["op"].running
    begin(h)
    h.clock.advance(0.6)
    # The worker went on to a batch that the engine did not get hold of in time.
    late = h.ask()
    h.workers["op"].finish()
    h.clock.run()
    ((work, _),) = h.workers["op"].running
    assert work.current is not None
    assert work.current.data_ids == [late.data_id]
    begin(h)
    h.clock.advance(1.1)
    assert isinstance(h.answer(late).error, OpTimeout)
    assert isinstance(h.answer(asked[0]).error, OpTimeout)


def crowd(h: House, count: int) -> None:
    """Let a hand-over carry several batches, and fill one."""
    h.engine.stages[0]._hand_over.learn(1e-6)
    for _ in range(count):
        got: list[Outcome] = []
        h.answers[h.submit(got.append).data_id] = got
    h.clock.run()


def test_a_slow_batch_neither_holds_back_finished_neighbours_nor_waiting_ones() -> None:
    h = house(workers=2)
    first = h.ask()  # keeps one worker busy, so that the others travel together
    crowd(h, 3)
    ((_, _), (work, _)) = h.workers["op"].running
    assert len(work.pending) == 2
    done = work.current
    assert done is not None
    work.add_result(done, [Outcome({})])
    work.begin_next()  # and this one takes for ever
    h.clock.advance(0.1)
    assert h.answers[1][0].error is None, "what has been run is answered"
    h.workers["op"].finish()
    h.clock.run()
    assert h.answer(first).error is None
    assert [b.data_ids for b in h.workers["op"].batches()] == [[2], [3]], "who waits moves on"


def test_inputs_that_cannot_even_be_compared_run_alone() -> None:
    h = house(policy=BatchPolicy(max_rows=4))

    def key_of(inputs: object) -> str:
        raise TypeError("unhashable")

    h.engine.stages[0]._key_of = key_of
    h.ask()
    h.ask()
    h.ask()
    h.workers["op"].finish()
    h.clock.run()
    assert [b.data_ids for b in h.workers["op"].batches()] == [[1]]


def test_probes_learn_that_no_worker_of_an_op_returns() -> None:
    h = house(work=WorkOptions(timeout=0.5))
    h.ask()
    begin(h)
    assert h.engine.why_stuck() is None
    h.clock.advance(0.6)
    assert h.engine.why_stuck() == "op 'op': no worker returns"
    h.workers["op"].finish()
    h.clock.run()
    assert h.engine.why_stuck() is None


def test_every_moment_of_a_request_and_its_batch_is_told_in_order() -> None:
    class All(Instrument):
        def __init__(self) -> None:
            self.told: list[tuple[str, object]] = []

        def admitted(self, request: RequestInfo, now: float) -> None:
            self.told.append(("admitted", request.graph.version))

        def queued(self, op: str, sample: Sample, now: float) -> None:
            self.told.append(("queued", op))

        def batch_closed(self, op: str, batch: Batch, now: float) -> None:
            self.told.append(("closed", batch.reason))

        def dispatched(self, op: str, batch: Batch, now: float) -> None:
            self.told.append(("dispatched", op))

        def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
            self.told.append(("returned", errors))

        def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
            self.told.append(("replied", now - request.admitted_at))

        def cancelled(self, request: RequestInfo, now: float) -> None:
            self.told.append(("cancelled", now - request.admitted_at))

        def refused(self, request: RequestInfo, error: RequestError, now: float) -> None:
            self.told.append(("refused", error.code))

    listening = All()
    h = house(options=EngineOptions(max_requests=1), instruments=[listening])
    h.ask()
    with pytest.raises(ServiceBusy):
        h.ask()
    h.clock.advance(0.25)
    h.workers["op"].finish()
    h.clock.run()
    gone = h.ask()
    h.clock.advance(0.5)
    h.engine.cancel(gone)
    assert listening.told[:8] == [
        ("admitted", "1"),
        ("queued", "op"),
        ("closed", CloseReason.FULL),
        ("dispatched", "op"),
        ("refused", "busy"),
        ("returned", 0),
        ("replied", 0.25),
        ("admitted", "1"),
    ]
    assert listening.told[-1] == ("cancelled", 0.5)
