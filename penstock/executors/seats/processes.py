"""Ops with seats in worker processes: the executor, and the engine's handle of one worker.

A worker has up to ``seats`` Works at once, each of one batch of one sample. When it dies, the
requests that it has taken in fail, because any of them may have killed it; the others go to another
worker. A request under suspicion runs in a worker without any other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from penstock.executors.executor import Finished, Work
from penstock.executors.processes.executor import ProcessExecutor
from penstock.executors.processes.worker import ProcessWorker, pickled
from penstock.executors.seats.counts import added
from penstock.executors.stream import MOST_PIECES, TOLD_AFTER, TOLD_AFTER_BYTES, Stream
from penstock.executors.transport.frames import CREDIT, Frame, FrameError, Kind, header
from penstock.executors.transport.marshalling import batches_out, outcomes_in, output
from penstock.executors.transport.values import encode
from penstock.executors.workers.watchdog import Doing, why_replaced
from penstock.ops.failures import cannot_send
from penstock.request import Batch, CloseReason, Outcome


@dataclass(slots=True, eq=False)
class _Seated:
    """A request of a worker.

    Attributes:
        begun: whether the worker has taken it in.
        told, told_bytes: the credit of which the worker has been told.
    """

    number: int
    batch: Batch
    work: Work
    finished: Finished
    begun: bool = False
    told: int = 0
    told_bytes: int = 0

    @property
    def stream(self) -> Stream:
        stream: Stream = self.batch.samples[0].stream
        return stream


class SeatedWorker(ProcessWorker):
    """One process; see Worker.

    Attributes:
        seated: its requests, by the numbers of their batches.
        alone: a request under suspicion is its only one, or will be: it gets no other.
        retiring: it is replaced when it has none.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        self.seated: dict[int, _Seated] = {}
        self.alone = self.retiring = False
        self._last = 0  # the number of the last batch that was sent
        self._telling = False
        super().__init__(*args, **more)

    @property
    def step_counts(self) -> list[int]:
        """The counts of its steps; see ``StepCounts``."""
        return self._page.steps.tolist()

    def run(self, work: Work, finished: Finished) -> None:
        """Send a Work's batch."""
        (batch,) = work.pending
        self._last += 1
        one = _Seated(self._last, batch, work, finished)
        try:
            value = [*batches_out([batch.samples], time.monotonic()), 0]
            body = encode(value, pickle=pickled, blobs=True)
            head = header(Kind.RUN, one.number, sum(map(len, body)))
        except FrameError as error:
            work.begin_next()
            work.add_result(
                batch, [Outcome(None, cannot_send(self._op, str(error), batch.samples))]
            )
            self._done(self, work, finished)
            return
        self.seated[one.number] = one
        stream = one.stream
        stream.notify = Stream.arrive
        stream.changed = lambda stream: self._changed(one, stream)
        self._channel.send([head, *body])
        if stream.cancelled:  # while it waited for a worker
            self._changed(one, stream)

    def look(self) -> None:
        """Update the Works from the answers and the status page."""
        self._channel.read()
        self._take_page()

    def _take_page(self) -> None:
        page = self._page
        number, joining, started = page.number, page.joining, page.started
        if number > self._last:
            self._channel.end(FrameError("the worker reports a batch that it was not sent"))
            return
        for one in self.seated.values():
            if one.number <= number:
                self._take_in(one)
                runs = one.number == joining if joining else not one.stream.is_full
                one.batch.started = started if runs else None
                one.batch.joins = one.number == joining

    def _take_in(self, one: _Seated) -> None:
        if not one.begun:
            one.begun = self.has_begun = True
            one.work.begin_next()

    def doing(self) -> Doing | None:
        """The running call; or that it takes in no request."""
        self.look()
        started = self._page.started
        begun = [one for one in self.seated.values() if one.begun]
        if started is not None and begun:
            wanted = any(not one.batch.samples[0].gone for one in begun)
            return Doing(int(started * 1e6), begun=True, wanted=wanted)
        if len(begun) < len(self.seated):
            return Doing(self._page.number, begun=False, wanted=True)
        return None

    def lost_works(self) -> list[_Seated]:
        """After its end: read its remaining messages, and release its Works."""
        self._channel.read()
        self._take_page()
        lost = [*self.seated.values()]
        for one in lost:
            one.stream.changed = None
        self.seated.clear()
        self._channel.close()
        self._loan.end()
        return lost

    def _frame_received(self, frame: Frame) -> None:
        one = self.seated.get(frame.number)
        match frame.kind:
            case Kind.PIECE if one is not None:
                self._piece_of(one, frame.body)
            case Kind.DONE if one is not None:
                self._end_of(one, frame.body)
            case _:
                super()._frame_received(frame)

    def _piece_of(self, one: _Seated, body: bytes | memoryview) -> None:
        stream = one.stream
        if stream.made - one.told >= MOST_PIECES:
            raise FrameError("a worker sent more pieces than it has credit for")
        self._take_in(one)
        stream.add(output(self._decoder.decode(body)))

    def _end_of(self, one: _Seated, body: bytes | memoryview) -> None:
        batch, work = one.batch, one.work
        outcomes = outcomes_in(self._decoder.decode(body), batch)
        self._take_in(one)
        if not self._telling:  # once for all that have ended with this one
            self._telling = True
            self._loop.call_soon(self._tell)
        del self.seated[one.number]
        one.stream.changed = None
        self.batches += 1
        batch.worker = self.index
        batch.started = None
        work.add_result(batch, outcomes)
        self._done(self, work, one.finished)

    def _tell(self) -> None:
        """The ends that it has sent are settled, and what waited for its seats has been sent."""
        self._telling = False
        self._channel.send([header(Kind.HANDLED, self.batches, 0)])

    def _changed(self, one: _Seated, stream: Stream) -> None:
        if stream.cancelled:
            stream.changed = None
            self._channel.send([header(Kind.CANCEL, one.number, 0)])
        elif (
            stream.credited - one.told >= TOLD_AFTER
            or stream.credited_bytes - one.told_bytes >= TOLD_AFTER_BYTES
        ):
            one.told, one.told_bytes = stream.credited, stream.credited_bytes
            body = CREDIT.pack(stream.credited)
            self._channel.send([header(Kind.CREDIT, one.number, len(body)), body])


class SeatedProcesses(ProcessExecutor):
    """``count`` worker processes of one op, each with ``seats`` seats; see the module."""

    _kind = SeatedWorker

    def __init__(self, *args: Any, seats: int, **more: Any) -> None:
        super().__init__(*args, seats=seats, streams=True, **more)
        self._alone: deque[tuple[Work, Finished]] = deque()  # wait for a worker without requests
        self._counted = added(())  # the steps of workers that have ended

    def submit(self, work: Work, finished: Finished) -> None:
        """Give the Work to the worker with the most free seats, or to the next one that has any."""
        if len(self._given_up) == len(self._restarts) and not self._alive:
            self._refuse(work, finished)
            return
        waiting = self._alone if _runs_alone(work) else self._waiting
        waiting.append((work, finished))
        self._hand_out()

    @property
    def step_counts(self) -> list[int]:
        """The counts of all steps, those of ended workers included; see ``StepCounts``."""
        return added((self._counted, *(each.step_counts for each in self._workers)))

    @property
    def _workers(self) -> Iterable[SeatedWorker]:
        return cast("Iterable[SeatedWorker]", self._alive)

    def _make_idle(self, worker: ProcessWorker) -> None:
        self._hand_out()

    def _hand_out(self) -> None:
        """Give Works to workers with free seats."""
        now = self._loop.time()
        while self._waiting or self._alone:
            free = [
                each
                for each in self._workers
                if len(each.seated) < self._seats and not (each.ending or each.retiring)
            ]
            if self._alone and not any(each.alone for each in free):
                # It gets no further request, so that one under suspicion can run alone.
                reserved = min(free, key=_taken, default=None)
                if reserved is not None:
                    reserved.alone = True
            alone = [each for each in free if each.alone and not each.seated]
            if alone and self._alone:
                self._give(alone[0], self._alone)
                continue
            others = [each for each in free if not each.alone]
            trusted = [each for each in others if self._is_trusted(each, now)]
            if not others or not self._waiting:
                return
            self._give(min(trusted or others, key=_taken), self._waiting)

    def _give(self, worker: SeatedWorker, waiting: deque[tuple[Work, Finished]]) -> None:
        work, finished = waiting.popleft()
        if work.pending:
            self._dispatch(worker, work, finished)
        else:  # its request has ended while there was no worker
            worker.alone = worker.alone and bool(worker.seated)
            self._loop.call_soon(finished, work, [])

    def _done(self, worker: Any, work: Work, finished: Finished) -> None:
        del self._busy[work]
        work.current = None
        if not worker.seated:
            worker.alone = False
        if not worker.ending:
            self._judge(worker)
            self._hand_out()
        finished(work, work.take_results())

    def _judge(self, worker: SeatedWorker) -> None:
        """Let a worker that must be replaced get no further requests, and end it without any."""
        others = any(each.retiring for each in self._workers if each is not worker)
        if not worker.retiring and not others and not self._given_up and not self._closing:
            worker.retiring = why_replaced(self._supervision, worker) is not None
        if worker.retiring and not worker.seated and not self._end_to_replace(worker):
            worker.retiring = False

    def _report_lost(self, worker: ProcessWorker) -> None:
        assert isinstance(worker, SeatedWorker)
        self._counted = added((self._counted, worker.step_counts))
        lost = worker.lost_works()
        worker.lost = [each for one in lost if one.begun for each in one.batch.data_ids]
        for one in lost:
            if one.begun:
                one.work.add_result(one.batch, self._lost_outcomes(worker, one.batch))
            del self._busy[one.work]
            one.work.current = None
        for one in lost:
            one.finished(one.work, one.work.take_results())

    def _give_up(self, index: int) -> None:
        super()._give_up(index)
        if len(self._given_up) == len(self._restarts) and not self._alive:
            while self._alone:
                self._refuse(*self._alone.popleft())


def _runs_alone(work: Work) -> bool:
    return work.pending[0].reason is CloseReason.ALONE


def _taken(worker: SeatedWorker) -> int:
    return len(worker.seated)
