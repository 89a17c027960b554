"""Steps: runs the requests of one worker with seats through its op, step by step.

    preprocess -> join -> step -> step -> ... -> leave, with postprocess for each piece

The same in threads and in worker processes, which only bring requests, and pass on pieces and
outcomes. It never waits, and knows no clock.

Guarantees:
    - one Outcome for each request, after its last piece;
    - ``leave`` is called once for each ``join`` that returned, before the request's outcome;
    - a request that is cancelled does not join, and runs in no further step;
    - an exception of ``join``, or an invalid piece, ends its request only; one of ``step`` ends all
      that have joined, each with its own outcome, and the worker continues with free seats.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.errors import Cancelled, RequestError
from penstock.executors.seats.counts import StepCounts
from penstock.executors.seats.table import Seats
from penstock.executors.streaming import maker_of
from penstock.executors.work import BoundOp, broken, preprocess
from penstock.ops.failures import (
    HOOK_FAULTS,
    log_culprits,
    not_a_feed,
    process_raised,
    refused_alone,
    type_instead,
    with_status,
)
from penstock.ops.seats import Done
from penstock.request import Batch, Feed, Outcome, Sample

_log = logging.getLogger(__name__)

MOST_WAIT: Final = 0.005
"""Most seconds for which a worker waits for requests that may take seats given back; it waits no
longer than the last step took."""
_LONG: Final = 0.0005
"""Seconds of a step from which on it waits: in a shorter one a free seat costs less."""

_CANCELLED = Cancelled("the request was cancelled")


class Seated:
    """A request that has a seat, or waits for its turn to join.

    Attributes:
        batch: of its one sample.
        sample: that sample.
        stream: where its pieces go.
        given_by: whatever the shell needs to report its end.
        state: what ``join`` returned.
        make: makes the pieces of its answer of those of ``step``; set when it joins.
    """

    __slots__ = ("batch", "given_by", "make", "sample", "state", "stream")

    make: Callable[[Any], Feed | RequestError]

    def __init__(self, batch: Batch, given_by: Any = None) -> None:
        self.batch = batch
        (self.sample,) = batch.samples
        self.stream: Any = self.sample.stream
        self.given_by = given_by
        self.state: Any = None

    @property
    def unwanted(self) -> bool:
        """Whether no further piece of it is wanted."""
        cancelled: bool = self.stream.cancelled
        return cancelled

    @property
    def held_up(self) -> bool:
        """Whether its reader is slow."""
        full: bool = self.stream.is_full
        return full


class Steps:
    """See the module.

    Args:
        op: the worker's copy.
        seats: their number.
        ended: called with each request and its outcome.
        flush: called before and after each step: what has come so far is passed on.
        called: called with the start of each call of ``join`` or ``step``, and with the request
            that joins; at the end of the call with None twice. For workers whose engine does not
            see their batches.
        counts: counts the steps; None: those of its own.
        heard: called after each ``join``, which takes time: takes in which requests were cancelled
            meanwhile.
        clock: returns monotonic seconds.

    Attributes:
        counts: the same.
    """

    def __init__(
        self,
        op: BoundOp,
        seats: int,
        ended: Callable[[Seated, Outcome], None],
        flush: Callable[[], None],
        called: Callable[[float | None, Seated | None], None] = lambda when, joins: None,
        counts: StepCounts | None = None,
        heard: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert op.seat_hooks is not None
        self._op = op
        self._hooks = op.seat_hooks
        self._seats: Seats[Seated] = Seats(seats)
        self._count = seats
        self._asked = 0  # the requests that it has
        self._freed = False  # one has ended while it had as many as seats
        self._started = self._took = 0.0  # the last step, in seconds
        self._ended = ended
        self._flush = flush
        self._called = called
        self._heard = heard
        self._clock = clock
        self.counts = counts or StepCounts()

    @property
    def has_work(self) -> bool:
        """Whether there is something to do without a further event."""
        return self._seats.has_work

    def __len__(self) -> int:
        """The number of its requests."""
        return self._asked

    def take(self, one: Seated) -> None:
        """A request asks for a seat."""
        self._seats.ask(one)
        self._asked += 1

    def admit(self) -> bool:
        """Let requests leave and join; returns whether any has asked to join, which takes time.
        Raises nothing.
        """
        joined = False
        try:
            for one in self._seats.leaving():
                self._give_back(one)
                self._end(one, _CANCELLED)
            for one in self._seats.withdrawn():
                self._end(one, _CANCELLED)
            joined = self._let_join()
        except BaseException:  # noqa: BLE001 - a worker that ends would take its seats along
            self._failed()
        self._flush()
        return joined

    def step(self) -> None:
        """Make one step with those that run, if there are any. Raises nothing."""
        try:
            running = self.begin_step()
            if not running:
                return
            self.end_step(running, *self._results(running))
        except BaseException:  # noqa: BLE001
            self._failed()
        self._flush()

    def wait_for_others(self) -> float:
        """The seconds to wait before the next step for requests that may take seats given back
        since the last call; 0 if there are none, or nobody can wait for them.
        """
        freed, self._freed = self._freed, False
        return min(self._took, MOST_WAIT) if freed and self._took >= _LONG else 0.0

    def _failed(self) -> None:
        _log.exception("op %s: a step failed inside penstock; please report this", self._op.label)
        self.close()

    def close(self) -> None:
        """End all requests; those that have joined leave."""
        joined, waiting = self._seats.empty()
        for one in joined:
            self._give_back(one)
        for one in (*joined, *waiting):
            self._asked -= 1
            self._ran(one.batch)
            self._ended(one, *broken(one.batch))
        self._flush()

    def _let_join(self) -> bool:
        seats, fits = self._seats, self._hooks.fits
        joined = False
        if seats.fitting is not None and self._fits(seats.fitting):
            seats.fit()
        while (one := seats.next()) is not None:
            if one.unwanted:  # it was cancelled while another one joined
                self._end(one, _CANCELLED)
                continue
            joined = True
            error = self._join(one)
            self._heard()
            if error is not None:
                self._end(one, error)
                continue
            seats.sit(one, runs=fits is None)
            if fits is not None and self._fits(one):
                seats.fit()
        return joined

    def _join(self, one: Seated) -> RequestError | None:
        """Let a request join; returns its error if it cannot."""
        op, batch, sample = self._op, one.batch, one.sample
        batch.worker = op.index
        batch.began = began = self._clock()
        feed, _, error = preprocess(op, sample, began)
        batch.prepared = self._clock() - began
        if error is not None:
            return error
        if not isinstance(feed, dict):
            return not_a_feed(op.name, feed)
        one.make = maker_of(op, sample)
        batch.joins = True
        batch.started = started = began + batch.prepared
        self._called(started, one)
        try:
            one.state = self._hooks.join(feed)
        except HOOK_FAULTS as fault:
            return self._failure([one], fault, "join")
        finally:
            batch.started = None
            batch.joins = False
            self._called(None, None)
            batch.processed = self._clock() - started
        return None

    def _fits(self, one: Seated) -> bool:
        """Ask whether a request that has joined may run; ends it if it cannot."""
        assert self._hooks.fits is not None
        try:
            if self._hooks.fits(one.state):
                return True
        except HOOK_FAULTS as fault:
            self._leave(one, self._failure([one], fault, "fits"))
            return False
        if not self._seats.running:
            error = refused_alone(self._op.name, self._op.op.hook_name("fits"))
            self._leave(one, self._logged([one], error, "fits"))
        return False

    def begin_step(self) -> list[Seated]:
        """A step begins; returns those that run in it."""
        running = self._seats.ready()
        if running:
            self._started = started = self._clock()
            for one in running:
                one.batch.started = started
            self._called(started, None)
        return running

    def _results(self, running: list[Seated]) -> tuple[Any, BaseException | None]:
        try:
            return self._hooks.step([one.state for one in running]), None
        except HOOK_FAULTS as fault:
            return None, fault

    def end_step(self, running: list[Seated], results: Any, fault: BaseException | None) -> None:
        """A step has ended with these results, or raised ``fault``: pass them on."""
        self._took = took = self._clock() - self._started
        self._called(None, None)
        self.counts.add(len(running), took)
        for one in running:
            one.batch.started = None
            one.batch.processed += took
        if fault is not None:
            everyone = [*self._seats.joined]
            failure = self._failure(everyone, fault, "step")
            for one in everyone:
                self._leave(one, failure)
        elif type(results) not in (list, tuple) or len(results) != len(running):
            failure = self._failure(running, _misfit(self._op, results, len(running)), "step")
            for one in running:
                self._leave(one, failure)
        else:
            for one, result in zip(running, results, strict=True):
                if result is not None:
                    self._pass_on(one, result)

    def _pass_on(self, one: Seated, result: Any) -> None:
        """Pass on the result of a step for one request."""
        if isinstance(result, Done) or result is Done:
            piece = result.piece if isinstance(result, Done) else None
            self._leave(one, None if piece is None else self._send(one, piece))
        elif isinstance(result, BaseException):
            self._leave(one, self._failure([one], result, "step"))
        else:
            error = self._send(one, result)
            if error is not None:
                self._leave(one, error)

    def _send(self, one: Seated, piece: Any) -> RequestError | None:
        """Send a piece; returns the error if it is none."""
        try:
            made = one.make(self._hooks.wrap(piece))
        except HOOK_FAULTS as fault:
            return self._failure([one], fault, "step")
        if isinstance(made, RequestError):
            return self._logged([one], made, "step")
        try:
            one.stream.add(made)
        except RequestError as error:  # it cannot be sent
            return error
        return None

    def _failure(self, failed: Sequence[Seated], fault: BaseException, hook: str) -> RequestError:
        """The error of these requests, for an exception of a hook, which is logged."""
        op = self._op
        log_id = failed[0].sample.log_id
        error = process_raised(op.name, with_status(op.op, fault), log_id, op.label)
        return self._logged(failed, error, hook)

    def _logged(self, failed: Sequence[Seated], error: RequestError, hook: str) -> RequestError:
        samples: list[tuple[Sample, RequestError]] = [(one.sample, error) for one in failed]
        log_culprits(self._op.label, samples, self._op.op.hook_name(hook))
        return error

    def _leave(self, one: Seated, error: RequestError | None) -> None:
        """A request that has joined ends."""
        self._seats.leave(one)
        self._give_back(one)
        self._end(one, error)

    def _give_back(self, one: Seated) -> None:
        leave = self._hooks.leave
        if leave is not None:
            try:
                leave(one.state)
            except HOOK_FAULTS:
                _log.exception("op %s: %s raised", self._op.label, self._op.op.hook_name("leave"))
        one.state = None

    def _end(self, one: Seated, error: RequestError | None) -> None:
        if self._asked >= self._count:
            self._freed = True
        self._asked -= 1
        self._ran(one.batch)
        self._ended(one, Outcome({}) if error is None else Outcome(None, error))

    def _ran(self, batch: Batch) -> None:
        if batch.began is not None:
            batch.ran = self._clock() - batch.began


def _misfit(op: BoundOp, results: Any, size: int) -> TypeError:
    """The error of a step whose results are not one for each running request."""
    found = (
        f"{len(results)} of them"
        if type(results) in (list, tuple)
        else f"one {type_instead(results)}"
    )
    what = op.op.hook_name("step")
    return TypeError(
        f"{what} must return a list of {size} results, one for each running request, got {found}"
    )
