"""The engine's handle of one worker process: its Work, its state and its messages.

A worker has one Work at a time. Its messages are not trusted: a violation of the protocol is a
FrameError, and the worker is ended.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from penstock.errors import StartupError
from penstock.executors.executor import Finished, Work
from penstock.executors.processes.channel import Channel
from penstock.executors.processes.slabs import Loan, Slab, SlabPool
from penstock.executors.processes.spawner import Exited, Spawned
from penstock.executors.processes.status_page import StatusPage
from penstock.executors.processes.watchdog import Doing, Watch
from penstock.executors.transport.frames import Frame, FrameError, Kind, header
from penstock.executors.transport.marshalling import batches_out, outcomes_in
from penstock.executors.transport.values import LARGE, Decoder, decode, encode
from penstock.ops.failures import cannot_send
from penstock.request import Batch, Outcome

ANSWER_BYTES: Final = 1 << 30
"""Most bytes of one answer that goes through the socket."""

SLAB_BYTES: Final = 512 << 20
"""Most bytes of shared memory for one op's large arrays; other arrays go through the socket."""

_STACK_TIMEOUT: Final = 1.0
"""Seconds for a hanging worker to write its stack."""
_LEAVE_TIMEOUT: Final = 5.0
"""Seconds within which an idle worker ends after STOP."""


class Worker:
    """One process, from its start to its end.

    Args:
        index: its number within the op.
        exit: see below.
        pool: the shared memory for large arrays.
        hang_limit: see Supervision.
        decides: whether it decides how requests are batched, and reports it.
        done: called when a Work is finished.

    Attributes:
        ready: a future: done when it is ready, with what it has loaded; fails with its reason.
        exit: a future: done with its wait status when it has ended.
        broken: a future: done when it violated the protocol, with the violation.
        work: what it runs now.
        batches: how many it has finished.
        has_begun: whether it has begun one.
        step: the current step of its start, as text.
        watch: decides whether it hangs.
        ending: we are ending it.
        replacing: we are ending it to replace it: this does not count as a death.
        late: we are ending it because a call exceeded its timeout.
    """

    def __init__(
        self,
        op: str,
        index: int,
        spawned: Spawned,
        exit: asyncio.Task[Exited],
        loop: asyncio.AbstractEventLoop,
        pool: SlabPool,
        *,
        hang_limit: float | None,
        decides: bool = False,
        done: Callable[[Worker, Work, Finished], None],
    ) -> None:
        self.index = index
        self.pid = spawned.pid
        self.exit = exit
        self.ready: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.broken: asyncio.Future[FrameError] = loop.create_future()
        self.work: Work | None = None
        self.batches = 0
        self.has_begun = False
        self.step = "its process starts"
        self.watch = Watch(hang_limit)
        self.ending = self.replacing = self.late = False
        self._done = done
        self._op = op
        self._loop = loop
        self._pidfd = spawned.pidfd
        self._pool = pool
        self._loan = Loan(pool, self._share)
        self._slabs: set[Slab] = set()
        self._finished: Finished | None = None
        self._in_flight: deque[Batch] = deque()  # batches not answered, in order
        self._first = 1  # the number of the first of them
        self._begun = 0  # the last number that has begun
        self._closing: asyncio.TimerHandle | None = None
        self._decoder = Decoder(self._loan.fetch)
        self._page = StatusPage()
        self._channel = Channel(spawned.socket, loop, self._frame_received, self._cut, ANSWER_BYTES)
        descriptors = [os.dup(self._channel.event), os.dup(self._page.descriptor)]
        self._channel.send([header(Kind.HELLO, int(decides), 0)], descriptors)

    @property
    def has_failed(self) -> bool:
        """Whether it reported why it cannot start."""
        return self.ready.done() and self.ready.exception() is not None

    def batch_by(self, batching: Any) -> None:
        """Send how another worker decided that requests are batched."""
        body = encode(batching)
        self._channel.send([header(Kind.BATCHING, 0, sum(map(len, body))), *body])

    def run(self, work: Work, finished: Finished) -> None:
        """Send a Work's batches; or only the first, if they do not fit into one frame."""
        self.work, self._finished = work, finished
        batches = list(work.pending)
        try:
            if batches:
                self._send(batches)
        except FrameError:
            self._send_first(work, batches[0])
        if not self._in_flight:
            self._end()

    def _send_first(self, work: Work, batch: Batch) -> None:
        """Send the first batch only; the others stay ``pending``, and are handed over again."""
        try:
            self._send([batch])
        except FrameError as error:
            work.begin_next()
            refusal = Outcome(None, cannot_send(self._op, str(error), batch.samples))
            work.add_result(batch, [refusal] * len(batch.samples))

    def _send(self, batches: list[Batch]) -> None:
        loan = self._loan
        try:
            value = batches_out([batch.samples for batch in batches], time.monotonic())
            value.append(loan.grant())
            # Unpickling runs user code; if that kills the worker, only one batch is lost.
            body = encode(value, place=loan.place, pickle=_pickled, blobs=len(batches) == 1)
            head = header(Kind.RUN, self._first, sum(map(len, body)))
        except FrameError:
            loan.end()
            raise
        self._in_flight.extend(batches)
        self._channel.send([head, *body])

    def look(self) -> None:
        """Update the Work from the answers and the status page."""
        self._channel.read()
        if self._in_flight:
            page, first = self._page, self._first
            if page.number == first:
                self._begin(first)
                self._in_flight[0].started = page.started
            elif page.number >= first + len(self._in_flight):
                self._channel.end(FrameError("the worker reports a batch that it was not sent"))

    def ask_to_stop(self) -> None:
        """Make it end after its current batches."""
        self._channel.send([header(Kind.STOP, 0, 0)])

    def doing(self) -> Doing | None:
        """See Watched."""
        if self._in_flight:
            self.look()
        if not self._in_flight:
            return None
        gone = all(sample.gone for sample in self._in_flight[0].samples)
        return Doing(self._first, begun=self._begun >= self._first, wanted=not gone)

    def drop(self, slab: Slab) -> None:
        """See Reader."""
        self._slabs.discard(slab)
        self._channel.send([header(Kind.DROP, slab.number, 0)])

    def leave(self) -> None:
        """End an idle worker that is to be replaced; this does not count as a death."""
        self.ending = self.replacing = True
        self.ask_to_stop()
        self._closing = self._loop.call_later(_LEAVE_TIMEOUT, self.kill)

    def kill(self) -> None:
        """End it now."""
        self.ending = True
        self._signal(signal.SIGKILL)

    def abort(self) -> None:
        """End it, after it has written its stack, which needs no help of its interpreter.

        A stopped process is continued for that, unless it might begin a batch that another worker
        will run: while one of its threads handles the signal, the others run on.
        """
        self.ending = True
        self._signal(signal.SIGABRT)
        if not self._in_flight or self._begun >= self._first:
            self._signal(signal.SIGCONT)
        self._closing = self._loop.call_later(_STACK_TIMEOUT, self.kill)

    def stacks(self) -> list[str]:
        """The stacks that it wrote when a signal ended it."""
        return self._page.stacks()

    def release(self) -> tuple[Work, Finished, list[Batch]] | None:
        """After its end: read its remaining messages, and release its Work.

        Returns:
            Its Work, and the batches begun and not answered, of which only the first can have
            killed it; None if it was idle.
        """
        self._channel.read()
        work, finished, in_flight = self.work, self._finished, self._in_flight
        if in_flight:
            at = self._page.number
            last = self._first + len(in_flight) - 1
            if at >= self._first:
                self._begin(at if at <= last else self._first)  # else its status page is invalid
        begun = [*in_flight][: max(0, self._begun - self._first + 1)]
        in_flight.clear()
        self._loan.end()
        self.work = self._finished = None
        self._channel.close()
        return None if work is None or finished is None else (work, finished, begun)

    def close(self) -> None:
        """Close its resources."""
        if self._closing is not None:
            self._closing.cancel()
        self._channel.close()
        self._loan.end()
        for slab in self._slabs:
            slab.readers.pop(self, None)
        self._slabs.clear()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
            self._page.close()

    def _frame_received(self, frame: Frame) -> None:
        kind, number, body = frame
        match kind:
            case Kind.DONE if self._in_flight and number == self._first:
                self._answered(self._in_flight[0], body)
            case Kind.REST if self._begun < number == self._first and self._in_flight:
                self._in_flight.clear()
                self._end()
            case Kind.KEPT:
                self._loan.kept(number)
            case Kind.NEED if self._in_flight:
                grant = self._loan.grant(min(number, SLAB_BYTES))
                self._channel.send([header(Kind.GRANT, grant, 0)])
            case Kind.STEP if not self.ready.done():
                self.step = str(decode(body))
            case Kind.READY if not self.ready.done():
                self.ready.set_result(decode(body))
            case Kind.FAILED if not self.ready.done():
                self.ready.set_exception(StartupError(str(decode(body))))
            case _:
                raise FrameError(f"a worker sent {kind.name}, which is not expected here")

    def _answered(self, batch: Batch, body: bytes | memoryview) -> None:
        outcomes = outcomes_in(self._decoder.decode(body), batch)
        if len(body) >= LARGE:
            self._loan.fetched += len(body)
        self._begin(self._first)
        self._in_flight.popleft()
        self._first += 1
        self.batches += 1
        batch.worker = self.index
        batch.started = None
        work = self.work
        assert work is not None
        work.add_result(batch, outcomes)
        if not self._in_flight:
            self._end()

    def _begin(self, at: int) -> None:
        """Mark the batches up to this number as begun."""
        work = self.work
        assert work is not None
        self.has_begun = True
        self._begun = max(self._begun, self._first - 1)
        while self._begun < at:
            self._begun += 1
            work.begin_next()

    def _end(self) -> None:
        """End the Work."""
        pool, loan = self._pool, self._loan
        pool.reply_bytes = max(loan.fetched, pool.reply_bytes * 7 // 8)
        loan.fetched = 0
        loan.end()
        self._first = max(self._first, self._begun + 1)
        work, finished = self.work, self._finished
        assert work is not None
        assert finished is not None
        self.work = self._finished = None
        self._done(self, work, finished)

    def _share(self, slab: Slab, writing: bool) -> bool:
        """See Share: send the slab before frames that refer to it."""
        writes = slab.readers.get(self)
        if writes is None or (writing and not writes):
            try:
                descriptor = slab.descriptor_for(writing=writing)
            except OSError:  # no descriptor is left
                return False
            self._channel.send([header(Kind.SLAB, slab.number, 0)], [descriptor])
            slab.readers[self] = writing
            self._slabs.add(slab)
        return True

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd < 0:  # closed, but its wait status may not have arrived yet
            return
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def _cut(self, error: FrameError) -> None:
        if not self.broken.done():
            self.broken.set_result(error)


def _pickled(value: Any) -> bytes:
    """Pickle a value of an op in this process; only the worker unpickles it."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
