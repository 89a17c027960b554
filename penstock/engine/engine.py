"""The engine: admits requests, walks each through the graph, answers each exactly once.

The only place that completes requests. It joins the pure parts (flight, batcher, deadlines) with
the stages; time and turns come through a Clock, so the whole engine runs under a virtual clock too.

Guarantees:
    - an admitted request is answered exactly once, or cancelled by its caller; admitted = answered
      + cancelled when the engine is at rest;
    - nothing is dispatched past its deadline, and the answer comes within one tick after it;
    - capacity is bounded: what does not fit is refused at once, before anything has started;
    - late, double and unknown results are dropped and recorded, never raised.

Thread: everything runs on one loop. Source: ``docs/compatibility.md`` (ids, deadlines, capacity).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from penstock.batching.batcher import Batcher, Line
from penstock.engine.clock import Alarm, Clock
from penstock.engine.deadlines import Deadlines
from penstock.engine.guarded import Guarded
from penstock.engine.journey import Journey, Reply
from penstock.engine.stage import Stage
from penstock.engine.statistics import StageStatistics
from penstock.errors import (
    DeadlineExceeded,
    OpTimeout,
    RequestError,
    ServiceBusy,
    ServiceClosed,
)
from penstock.executors.executor import Executor
from penstock.executors.work import WorkOptions
from penstock.graph.dag import Plan
from penstock.graph.flight import Put
from penstock.instrument import Instrument
from penstock.request import REQUEST_OP_NAME, Feed, Outcome, Request, Sample

_log = logging.getLogger(__name__)

IDS_WRAP = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How much the engine takes on.

    Attributes:
        max_requests: the most requests admitted at once; one more is refused.
        max_running: the most of them inside the graph (``worker_num``); the others wait.
            None means no bound of its own.
        first_id, id_step: data ids start here and step so, to be unique among several engines.
    """

    max_requests: int = 1024
    max_running: int | None = None
    first_id: int = 0
    id_step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """A snapshot for tests, logs and status pages."""

    admitted: int
    replied: int
    cancelled: int
    refused: int
    inside: int
    waiting: int
    draining: bool
    stages: tuple[StageStatistics, ...]


class Engine:
    """See the module. ``add_op`` is called by the composition root, in the plan's order."""

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        options: EngineOptions | None = None,
        hear: Instrument | None = None,
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.options = options or EngineOptions()
        self.hear = None if hear is None else Guarded(hear)
        self.stages: list[Stage] = []
        self._bounded: list[Stage] = []  # those whose queues can be full
        self._journeys: set[Journey] = set()
        self._waiting: dict[Journey, None] = {}  # in order of arrival
        self._letting_in = False
        self._next_id = self.options.first_id
        self._deadlines: Deadlines[Journey] = Deadlines(self._set_alarm)
        self._alarm: Alarm | None = None
        self._alarm_at = 0.0
        self._draining = False
        self._at_rest: list[Callable[[], None]] = []
        self._admitted = self._replied = self._cancelled = self._refused = 0

    def __repr__(self) -> str:
        return f"<Engine {self.statistics()}>"

    def add_op(
        self,
        name: str,
        *,
        queue: Batcher | Line,
        executor: Executor,
        options: WorkOptions,
        key_of: Callable[[dict[str, Feed]], Hashable] | None = None,
    ) -> Stage:
        """Make the stage of the plan's next op, with this engine's clock, ears and answers.

        Args:
            name: the op's name.
            queue: what waits for it, and what of that runs together.
            executor: its workers.
            options: time-out, retries, isolation.
            key_of: what samples of one batch must have in common, as far as their inputs tell;
                None when only ``preprocess`` knows.
        """
        stage = Stage(
            name,
            batcher=queue,
            executor=executor,
            options=options,
            clock=self.clock,
            settle=self.settle,
            hear=self.hear,
            key_of=key_of,
        )
        self.add_stage(stage)
        return stage

    def add_stage(self, stage: Stage) -> None:
        """Give the next op of the plan its stage."""
        self.stages.append(stage)
        if stage.batcher.policy.capacity is not None:
            self._bounded.append(stage)

    def statistics(self) -> EngineStatistics:
        """How the engine stands now."""
        return EngineStatistics(
            admitted=self._admitted,
            replied=self._replied,
            cancelled=self._cancelled,
            refused=self._refused,
            inside=self._running,
            waiting=len(self._waiting),
            draining=self._draining,
            stages=tuple(stage.statistics() for stage in self.stages),
        )

    @property
    def _running(self) -> int:
        """Who is admitted and does not wait to be let in."""
        return len(self._journeys) - len(self._waiting)

    def why_stuck(self) -> str | None:
        """Why requests cannot be answered now, for probes; None when they can."""
        for stage in self.stages:
            if stage.lost:
                return f"op {stage.name!r}: no worker returns"
        return None

    def submit(self, request: Request, reply: Reply) -> Journey:
        """Admit a request; ``reply`` is called exactly once, later, unless it is cancelled.

        Raises:
            ServiceBusy: at capacity; a later retry may succeed.
            ServiceClosed: draining; a retry elsewhere may succeed.
            DeadlineExceeded: its time is over already.
        """
        now = self.clock.now()
        options = self.options
        journeys = self._journeys
        if (
            self._draining
            or len(journeys) >= options.max_requests
            or request.deadline <= now
            or self._bounded
        ):
            self._refuse(request, now)
        data_id = self._next_id
        next_id = data_id + options.id_step
        self._next_id = next_id if next_id < IDS_WRAP else options.first_id
        journey = Journey(data_id, request, self.plan, reply)
        journeys.add(journey)
        self._admitted += 1
        if self.hear is not None:
            self.hear.admitted(data_id, request.log_id, now)
        journey.due = self._deadlines.add(journey, request.deadline)
        most = options.max_running
        if most is not None and (self._waiting or len(journeys) > most):
            self._waiting[journey] = None
        else:
            self._start(journey, now)
        return journey

    def cancel(self, journey: Journey) -> None:
        """The caller went away: queued work is dropped, running calls end if they can, no reply."""
        if journey.over:
            return
        self._cancelled += 1
        if self.hear is not None:
            self.hear.cancelled(journey.data_id, self.clock.now())
        self._finish(journey)
        self._go_on()

    def drain(self, at_rest: Callable[[], None]) -> None:
        """Refuse new requests and finish the admitted ones; then call ``at_rest``, once."""
        self._draining = True
        for stage in self.stages:
            stage.drain()
        self._at_rest.append(at_rest)
        self._go_on()

    def close(self) -> None:
        """Answer whoever is still inside with ServiceClosed, now."""
        self._draining = True
        for journey in sorted(self._journeys, key=lambda journey: journey.data_id):
            self._reply(journey, Outcome(None, ServiceClosed("dag closed.")))
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def settle(self, sample: Sample, outcome: Outcome) -> None:
        """An op answered a sample. Called by its stage; what is no longer wanted is ignored."""
        if sample.gone:
            return
        sample.gone = True
        journey: Journey = sample.flight
        journey.samples.remove(sample)
        error = outcome.error
        if error is not None and isinstance(error, OpTimeout) and self._try_again(journey, sample):
            return
        attempt = journey.attempt
        answer = journey.arrived(sample.op, outcome)
        if isinstance(answer, Outcome):
            self._reply(journey, answer)
            return
        if journey.samples and journey.attempt != attempt:
            self._forget_samples(journey)
        if answer:
            self._put(journey, answer, self.clock.now())

    def _refuse(self, request: Request, now: float) -> None:
        """Raise what the request is refused for, if it is."""
        refusal = self._refusal(request, now)
        if refusal is not None:
            self._refused += 1
            if self.hear is not None:
                self.hear.refused(refusal, now)
            raise refusal

    def _refusal(self, request: Request, now: float) -> RequestError | None:
        if self._draining:
            return ServiceClosed("the service is shutting down")
        if len(self._journeys) >= self.options.max_requests:
            return ServiceBusy("the service is at capacity; try again later")
        if request.deadline <= now:
            return self._too_late(request.deadline_by_client)
        for stage in self._bounded:
            if stage.batcher.full:
                return ServiceBusy(f"op {stage.name!r} is at capacity; try again later")
        return None

    def _start(self, journey: Journey, now: float) -> None:
        request = journey.request
        feed, request.feed = request.feed, {}  # it is the ops' now, and goes when they let it go
        straight = self.plan.straight
        if straight is None:
            self._put(journey, journey.start(feed), now)
        else:
            self._offer(journey, straight, {REQUEST_OP_NAME: feed}, now)

    def _put(self, journey: Journey, puts: Sequence[Put], now: float) -> None:
        """Offer what is ready to its ops."""
        for op, inputs in puts:
            if journey.over:  # a full queue has ended it just now
                return
            self._offer(journey, op, inputs, now)

    def _offer(
        self, journey: Journey, op: int, inputs: dict[str, Feed], now: float, attempt: int = 1
    ) -> None:
        """Offer a sample with these inputs to an op. A full queue is an op's outcome."""
        request = journey.request
        stage = self.stages[op]
        sample = Sample(
            journey.data_id, inputs, request.deadline, request.log_id, op, journey, attempt
        )
        if attempt < stage.options.retry:
            # The call that is given up may still edit the dicts it was handed.
            sample.spare = {name: dict(feed) for name, feed in inputs.items()}
        journey.samples.append(sample)
        try:
            stage.offer(sample, now)
        except RequestError as busy:
            self.settle(sample, Outcome(None, busy))

    def _try_again(self, journey: Journey, sample: Sample) -> bool:
        """After a time-out: whether the op has an attempt left, which then begins."""
        if sample.spare is None:
            return False
        self._offer(journey, sample.op, sample.spare, self.clock.now(), sample.attempt + 1)
        return True

    def _reply(self, journey: Journey, outcome: Outcome) -> None:
        if journey.over:  # another's end, or what its caller did then, has ended this one too
            return
        self._replied += 1
        if self.hear is not None:
            self.hear.replied(journey.data_id, outcome.error, self.clock.now())
        # What _finish does, without the call.
        journey.over = True
        self._journeys.discard(journey)
        journey.due.pop(journey, None)
        if journey.samples or self._waiting:
            self._forget(journey)
        try:
            journey.reply(outcome)
        except Exception:  # noqa: BLE001 - whatever the transport does, the engine goes on
            _log.exception("a reply could not be delivered (data_id=%s)", journey.data_id)
        if self._waiting or self._at_rest:
            self._go_on()

    def _finish(self, journey: Journey) -> None:
        """Forget the journey and what it still has in queues."""
        journey.over = True
        self._journeys.discard(journey)
        journey.due.pop(journey, None)
        self._forget(journey)

    def _forget(self, journey: Journey) -> None:
        self._forget_samples(journey)
        self._waiting.pop(journey, None)

    def _go_on(self) -> None:
        """After an end, and after its answer has been delivered: the next ones, or the rest."""
        if self._waiting and not self._letting_in:
            self._let_in()
        if self._at_rest and not self._journeys:
            ready, self._at_rest = self._at_rest, []
            for tell in ready:
                tell()

    def _forget_samples(self, journey: Journey) -> None:
        """Drop what is queued; what runs is ended, or will find that nobody wants it."""
        for sample in journey.samples:
            sample.gone = True
            stage = self.stages[sample.op]
            if sample.waiting:
                stage.batcher.cancel(sample)
            else:
                stage.nobody_waits()
        journey.samples.clear()

    def _let_in(self) -> None:
        """Start those that have waited longest while there is room."""
        most = self.options.max_running
        self._letting_in = True
        try:
            while self._waiting and (most is None or self._running < most):
                journey = next(iter(self._waiting))
                del self._waiting[journey]
                self._start(journey, self.clock.now())
        finally:
            self._letting_in = False

    def _set_alarm(self) -> None:
        due = self._deadlines.next_due()
        if self._alarm is not None:
            if due is not None and self._alarm_at <= due:
                return
            self._alarm.cancel()
            self._alarm = None
        if due is not None:
            self._alarm_at = due
            self._alarm = self.clock.at(due, self._expire)

    def _expire(self) -> None:
        """Answer everybody whose time is over."""
        self._alarm = None
        for journey in self._deadlines.expire(self.clock.now()):
            self._reply(journey, Outcome(None, self._too_late(journey.request.deadline_by_client)))
        self._set_alarm()

    @staticmethod
    def _too_late(by_client: bool) -> DeadlineExceeded:
        return DeadlineExceeded("the request's deadline passed", by_client=by_client)
