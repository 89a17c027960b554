"""The engine's handle of one worker behind a link: its Work, its state and its messages.

A worker has one Work at a time. Its messages are not trusted: a violation of the protocol is a
FrameError, and the worker is ended.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from penstock.errors import StartupError
from penstock.executors.executor import Finished, Work
from penstock.executors.stream import MOST_PIECES, TOLD_AFTER, TOLD_AFTER_BYTES, Stream
from penstock.executors.transport.frames import CREDIT, Frame, FrameError, Kind, header
from penstock.executors.transport.marshalling import outcomes_in, output
from penstock.executors.transport.values import LARGE, Decoder, Fetch, decode, encode
from penstock.executors.workers.channel import Channel
from penstock.executors.workers.watchdog import Doing, Watch
from penstock.ops.failures import cannot_send
from penstock.request import Batch, Outcome

ANSWER_BYTES: Final = 1 << 30
"""Most bytes of one answer that goes through the link."""

_LEAVE_TIMEOUT: Final = 5.0
"""Seconds within which an idle worker ends after STOP."""


def _nobody(step: str) -> None:
    """Nobody wants to know."""


class Worker(ABC):
    """One worker, from its start to its end.

    Args:
        index: its number within the op.
        where: where it runs, for messages.
        exit: see below.
        hang_limit: see Supervision.
        done: called when a Work is finished.
        fetch: reads arrays of its answers in shared memory, if there is any.

    Attributes:
        ready: a future: done when it is ready, with what it has loaded; fails with its reason.
        exit: a future: done when it has ended.
        broken: a future: done when it violated the protocol, with the violation.
        work: what it runs now.
        batches: how many it has finished.
        has_begun: whether it has begun one.
        step: the current step of its start, as text.
        passed: called with each step of its start that is over.
        watch: decides whether it hangs.
        ending: we are ending it.
        replacing: we are ending it to replace it: this does not count as a death.
        late: we are ending it because a call exceeded its timeout.
        lost: the ids of the requests whose batch ended with it.
        streams: whether the answers of its op come in pieces.
    """

    has_own_clock = False
    """Whether its monotonic clock may differ from the engine's, as on another machine."""

    node: Mapping[str, str] | None = None
    """The machine on which it runs: its id, address and host name; None if it is this one, or not
    known."""

    _channel: Channel

    def __init__(
        self,
        op: str,
        index: int,
        where: str,
        exit: asyncio.Future[Any],
        loop: asyncio.AbstractEventLoop,
        *,
        hang_limit: float | None,
        done: Callable[[Any, Work, Finished], None],
        fetch: Fetch | None = None,
    ) -> None:
        self.index = index
        self.where = where
        self.exit = exit
        self.ready: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.broken: asyncio.Future[FrameError] = loop.create_future()
        self.work: Work | None = None
        self.batches = 0
        self.has_begun = False
        self.step = "its process starts"
        self.passed: Callable[[str], object] = _nobody
        self.watch = Watch(hang_limit)
        self.ending = self.replacing = self.late = False
        self.lost: list[int] = []
        self.streams = False
        self._done = done
        self._op = op
        self._loop = loop
        self._finished: Finished | None = None
        self._in_flight: deque[Batch] = deque()  # batches not answered, in order
        self._first = 1  # the number of the first of them
        self._begun = 0  # the last number that has begun
        self._useless = 0  # the last number of which it knows that nobody waits for it
        self._answered_bytes = 0  # of large answers to the current Work
        self._closing: asyncio.TimerHandle | None = None
        # The credit of the current stream of which it has been told.
        self._told = self._told_bytes = 0
        self._decoder = Decoder(fetch)

    @property
    def has_failed(self) -> bool:
        """Whether it reported why it cannot start."""
        return self.ready.done() and self.ready.exception() is not None

    @property
    @abstractmethod
    def how_it_ended(self) -> str:
        """How it ended, as text; after ``exit``."""

    @property
    def memory(self) -> int | None:
        """Its resident memory in bytes; None if unknown."""
        return None

    def batch_by(self, batching: Any) -> None:
        """Send how another worker decided that requests are batched."""
        body = encode(batching)
        self._channel.send([header(Kind.BATCHING, 0, sum(map(len, body))), *body])

    def run(self, work: Work, finished: Finished) -> None:
        """Send a Work's batches; or only the first, if they do not fit into one frame."""
        self.work, self._finished = work, finished
        batches = list(work.pending)
        for batch in batches:
            if self.streams:
                self._told = self._told_bytes = 0
                stream: Stream = batch.samples[0].stream
                stream.notify, stream.changed = _several, self._stream_changed
        try:
            if batches:
                self._send(batches)
        except FrameError:
            self._send_first(work, batches[0])
        for batch in self._in_flight:
            if self.streams and batch.samples[0].stream.cancelled:  # while it waited for a worker
                self._stream_changed(batch.samples[0].stream)
        if not self._in_flight:
            self._end()

    def _send_first(self, work: Work, batch: Batch) -> None:
        """Send the first batch only; the others stay ``pending``, and are handed over again."""
        try:
            self._send([batch])
        except FrameError as error:
            self._forget_stream(batch)
            work.begin_next()
            refusal = Outcome(None, cannot_send(self._op, str(error), batch.samples))
            work.add_result(batch, [refusal] * len(batch.samples))

    @abstractmethod
    def _send(self, batches: list[Batch]) -> None:
        """Send batches in one frame, and add them to ``_in_flight``.

        Raises:
            FrameError: they cannot be sent; nothing was.
        """

    def look(self) -> None:
        """Update the Work from the answers."""
        self._channel.read()

    def _stream_changed(self, stream: Stream) -> None:
        """Tell the worker about the stream of the batch that it runs."""
        if stream.cancelled:
            stream.changed = None
            self._channel.send([header(Kind.CANCEL, self._first, 0)])
        elif (
            stream.credited - self._told >= TOLD_AFTER
            or stream.credited_bytes - self._told_bytes >= TOLD_AFTER_BYTES
        ):
            self._told, self._told_bytes = stream.credited, stream.credited_bytes
            body = CREDIT.pack(stream.credited)
            self._channel.send([header(Kind.CREDIT, self._first, len(body)), body])

    def tell_useless(self) -> None:
        """Tell it for which of its batches nobody waits; those of streams know it already."""
        if self.streams:
            return
        for number, batch in enumerate(self._in_flight, self._first):
            if number > self._useless and all(sample.gone for sample in batch.samples):
                self._useless = number
                self._channel.send([header(Kind.CANCEL, number, 0)])

    def ask_to_stop(self) -> None:
        """Make it end after its current batches."""
        self._channel.send([header(Kind.STOP, 0, 0)])

    def doing(self) -> Doing | None:
        if self._in_flight:
            self.look()
        if not self._in_flight:
            return None
        gone = all(sample.gone for sample in self._in_flight[0].samples)
        return Doing(self._first, begun=self._begun >= self._first, wanted=not gone)

    def leave(self) -> None:
        """End an idle worker that is to be replaced; this does not count as a death."""
        self.ending = self.replacing = True
        self.ask_to_stop()
        self._closing = self._loop.call_later(_LEAVE_TIMEOUT, self.kill)

    @abstractmethod
    def kill(self) -> None:
        """End it now."""

    def abort(self) -> None:
        """End it, after it has written its stack if it can."""
        self.kill()

    def stacks(self) -> list[str]:
        """The stacks that it wrote when a signal ended it."""
        return []

    def release(self) -> tuple[Work, Finished, list[Batch]] | None:
        """After its end, or that of its link: read its remaining messages, and release its Work.

        Returns:
            Its Work, and the batches begun and not answered, of which only the first can have
            killed it; None if it was idle.
        """
        self._channel.read()
        work, finished = self.work, self._finished
        begun = [*self._in_flight][: max(0, self._begun - self._first + 1)]
        for batch in self._in_flight:
            self._forget_stream(batch)
        self._in_flight.clear()
        self.work = self._finished = None
        self._channel.close()
        return None if work is None or finished is None else (work, finished, begun)

    def close(self) -> None:
        """Close its resources."""
        if self._closing is not None:
            self._closing.cancel()
        self._channel.close()

    def _frame_received(self, frame: Frame) -> None:
        kind, number, body = frame
        match kind:
            case Kind.DONE if self._in_flight and number == self._first:
                self._answered(self._in_flight[0], body)
            case Kind.PIECE if self._in_flight and number == self._first:
                self._piece_arrived(self._in_flight[0], body)
            case Kind.REST if self._begun < number == self._first and self._in_flight:
                self._in_flight.clear()
                self._end()
            case Kind.STEP if not self.ready.done():
                self.passed(self.step)
                self.step = str(decode(body))
            case Kind.READY if not self.ready.done():
                self.ready.set_result(_report_of(decode(body)))
            case Kind.FAILED if not self.ready.done():
                self.ready.set_exception(StartupError(str(decode(body))))
            case _:
                self._other_frame(frame)

    def _other_frame(self, frame: Frame) -> None:
        raise FrameError(f"a worker sent {frame.kind.name}, which is not expected here")

    def _piece_arrived(self, batch: Batch, body: bytes | memoryview) -> None:
        if not self.streams:
            raise FrameError("a worker sent a piece of an answer that is whole")
        stream: Stream = batch.samples[0].stream
        given = self._decoder.decode(body)
        pieces = given if type(given) is list else [given]
        if stream.made - self._told + len(pieces) > MOST_PIECES:
            raise FrameError("a worker sent more pieces than it has credit for")
        self._begin(self._first)
        for each in pieces:
            stream.add(output(each))
        stream.arrive()

    def _outcomes(self, batch: Batch, body: bytes | memoryview) -> list[Outcome]:
        """Decode the outcomes of a batch; raises FrameError."""
        return outcomes_in(self._decoder.decode(body), batch)

    def _answered(self, batch: Batch, body: bytes | memoryview) -> None:
        outcomes = self._outcomes(batch, body)
        if self.has_own_clock:
            _set_times(batch)
        if len(body) >= LARGE:
            self._answered_bytes += len(body)
        self._begin(self._first)
        self._in_flight.popleft()
        self._forget_stream(batch)
        self._first += 1
        self.batches += 1
        batch.worker = self.index
        batch.started = None
        work = self.work
        assert work is not None
        work.add_result(batch, outcomes)
        if not self._in_flight:
            self._end()

    def _forget_stream(self, batch: Batch) -> None:
        if self.streams:
            batch.samples[0].stream.changed = None

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
        self._answered_bytes = 0
        self._first = max(self._first, self._begun + 1)
        work, finished = self.work, self._finished
        assert work is not None
        assert finished is not None
        self.work = self._finished = None
        self._done(self, work, finished)

    def _cut(self, error: FrameError) -> None:
        if not self.broken.done():
            self.broken.set_result(error)


def _several(stream: Stream) -> None:
    """The pieces of one frame arrive together; see ``Worker._piece_arrived``."""


def _report_of(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FrameError("the worker's report is none")
    return value


def _set_times(batch: Batch) -> None:
    """Check durations from another machine, and set the begin of the batch by our clock.

    Raises:
        FrameError: they are none.
    """
    for each in (batch.ran, batch.prepared, batch.processed):
        if type(each) is not float or not 0.0 <= each < inf:
            raise FrameError("the worker's times are none")
    batch.began = time.monotonic() - batch.ran
