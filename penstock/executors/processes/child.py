"""The worker process: reads batches from its socket, runs them, and writes their outcomes, in
order.

Single-threaded and blocking. Before each batch it writes the batch's number to its status page, and
its answer is in the socket before the next batch begins, so that its death loses only the running
batch. A hand-over has several batches because they were predicted to be short: if they take longer,
each answer is signalled at once, and batches that have not begun are returned.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from penstock.errors import text_of
from penstock.executors.local import TURN
from penstock.executors.processes.channel import receive
from penstock.executors.processes.slabs import WorkerSlabs
from penstock.executors.processes.status_page import StatusPage
from penstock.executors.transport.frames import Frame, FrameError, FrameReader, Kind, header
from penstock.executors.transport.marshalling import batches_in, outcomes_out, output
from penstock.executors.transport.values import Blob, Decoder, OnlyPickledError, decode, encode
from penstock.executors.work import BoundOp, run_batch
from penstock.ops.failures import HOOK_FAULTS, cannot_send
from penstock.request import Batch, CloseReason, Outcome, Sample

_AT_ONCE: Final = 256 << 10
_MOST_DESCRIPTORS: Final = 16
_MOST_BODY: Final = (1 << 32) - 1
_MOST_WORDS: Final = 8 << 10  # most characters of the reason of a failed start; a guess
_SLOW: Final = 200e-6  # seconds of a batch, from which on its answer is signalled at once
_DO_NOT_WAIT: Final = int(socket.MSG_DONTWAIT)
_UNOPENED: Final = object()

_log = logging.getLogger(__name__)


class _Running(Batch):
    """The running batch, with its progress on the status page."""

    __slots__ = ("_page",)

    def __init__(self, page: StatusPage) -> None:
        self._page = page
        super().__init__([Sample(0, {}, 0.0)], CloseReason.FULL, 0.0)

    @property
    def started(self) -> float | None:
        """See Batch."""
        return self._page.started

    @started.setter
    def started(self, when: float | None) -> None:
        self._page.started = when


class Child:
    """The worker's end of the protocol; waits for the engine's HELLO.

    Args:
        channel: the socket, blocking.
        answer_bytes: most bytes of an answer outside of shared memory.

    Attributes:
        decides: whether this worker decides how requests are batched, and reports it.
    """

    def __init__(self, channel: socket.socket, answer_bytes: int = _MOST_BODY) -> None:
        self._channel = channel
        self._answer_bytes = answer_bytes
        self._frames = FrameReader(_MOST_BODY)
        self._descriptors: deque[int] = deque()
        self._queue: deque[Frame] = deque()
        self._slabs = WorkerSlabs(self._need)
        self._granted: int | None = None
        self._decoder = Decoder(self._slabs.fetch, self._open)
        self._pickle: Callable[[Any], bytes] | None = _pickled
        self._unopened: str | None = None  # why a value of the current batch could not be unpickled
        self._ended = False  # no more batches are run
        self.decides = False
        self._decided: Callable[[Any], None] = lambda batching: None
        self._writable = select.poll()
        self._writable.register(channel, select.POLLOUT)
        while len(self._descriptors) < 2 and not self._ended:
            self._read()
        if self._ended:
            raise ConnectionResetError("the engine has ended")
        self._event = self._descriptors.popleft()
        self._page = StatusPage(self._descriptors.popleft())
        self._page.take_stacks()
        self._running = _Running(self._page)

    def step(self, doing: str) -> None:
        """Report the current step of the start, as a text."""
        self._send_message(Kind.STEP, doing)

    def ready(self, loaded: dict[str, Any]) -> None:
        """Report that the model is open and ``init_op`` has run, and what was loaded."""
        self._send_message(Kind.READY, loaded)

    def failed(self, text: str) -> None:
        """Report a failed start."""
        self._send_message(Kind.FAILED, text[:_MOST_WORDS])

    def serve(
        self,
        op: BoundOp,
        outside: str | None = None,
        decided: Callable[[Any], None] = lambda batching: None,
    ) -> None:
        """Run batches until the engine sends STOP or closes the socket.

        Args:
            op: the worker's copy of the op.
            outside: a reader of its outputs that is no worker process, if any: it accepts only
                plain values and arrays.
            decided: called with another worker's decision how requests are batched.
        """
        self._decided = decided
        self._pickle = _pickled if outside is None else None
        while self._queue or not self._ended:
            if self._queue:
                self._run_all(op, self._queue.popleft(), outside)
            else:
                self._read()

    def _run_all(self, op: BoundOp, frame: Frame, outside: str | None) -> None:
        page, running, slabs = self._page, self._running, self._slabs
        page.number = number = first = frame.number  # a crash in reading counts for the first
        self._unopened = None
        *value, grant = self._decoder.decode(frame.body)
        last = first + len(value[0] or value[2]) - 1
        slabs.begin(grant)
        left = TURN
        for samples in batches_in(value, monotonic()):
            if left <= 0.0:
                samples = running.samples = []
                self._leave_rest(number, value)
                return
            page.number = number
            running.samples = samples
            running.began = None
            running.prepared = running.processed = 0.0
            outcomes = self._outcomes(op, samples)
            for sample in samples:
                sample.inputs = {}
            body = self._body(op, outcomes, outside)
            pieces = [header(Kind.DONE, number, sum(map(len, body))), *body]
            if number == last:
                outcomes = []
                samples = running.samples = []
                pieces = [*self._kept(), *pieces]
            self._send(pieces)
            # To wake the engine for each of many short batches would keep it from other work.
            if number == last or running.ran > _SLOW:
                os.eventfd_write(self._event, 1)
            left -= running.ran
            number += 1

    def _leave_rest(self, number: int, value: list[Any]) -> None:
        value[2].clear()
        self._send([*self._kept(), header(Kind.REST, number, 0)])
        os.eventfd_write(self._event, 1)

    def _kept(self) -> list[bytes]:
        """KEPT frames for the slabs in which the op still holds arrays."""
        return [header(Kind.KEPT, each, 0) for each in self._slabs.end()]

    def _outcomes(self, op: BoundOp, samples: list[Sample]) -> list[Outcome]:
        batch = self._running
        if self._unopened is None:
            return run_batch(op, batch)
        # Samples whose values could all be unpickled run.
        why, batch.samples = self._unopened, [s for s in samples if not _unopened(s.inputs)]
        ran = iter(run_batch(op, batch) if batch.samples else ())
        opened = set(map(id, batch.samples))
        lost = [each for each in samples if id(each) not in opened]
        refusal = Outcome(None, cannot_send(op.name, why, lost, op.label))
        return [next(ran) if id(each) in opened else refusal for each in samples]

    def _body(
        self, op: BoundOp, outcomes: list[Outcome], outside: str | None
    ) -> list[bytes | memoryview]:
        """The encoded outcomes; an outcome that cannot be encoded is replaced by its error."""
        samples = self._running.samples
        with suppress(FrameError):
            return self._encoded(outcomes_out(self._running, outcomes))
        sendable = [
            self._sendable(op, each, sample, outside)
            for each, sample in zip(outcomes, samples, strict=True)
        ]
        try:
            return self._encoded(outcomes_out(self._running, sendable))
        except FrameError as error:  # each could be sent, but all together are too large
            refusal = Outcome(
                None, cannot_send(op.name, f"its outputs: {error}", samples, op.label)
            )
            return self._encoded(outcomes_out(self._running, [refusal] * len(samples)))

    def _sendable(
        self, op: BoundOp, outcome: Outcome, sample: Sample, outside: str | None
    ) -> Outcome:
        """The outcome, or the error that it cannot be sent."""
        if outcome.error is not None:
            return outcome
        where = "its output"
        try:
            for key, value in output(outcome.value or {}).items():
                where = f"its output {key!r}"
                self._allowed(encode(value, pickle=self._pickle))
        except FrameError as error:
            text = f"{where}: {error}"
            if isinstance(error, OnlyPickledError):
                text += f" to {outside}: only ops that run in processes could unpickle it"
            return Outcome(None, cannot_send(op.name, text, [sample], op.label))
        return outcome

    def _encoded(self, value: Any) -> list[bytes | memoryview]:
        return self._allowed(encode(value, place=self._slabs.place, pickle=self._pickle))

    def _allowed(self, body: list[bytes | memoryview]) -> list[bytes | memoryview]:
        length = sum(map(len, body))
        if length > self._answer_bytes:
            raise FrameError(f"{length} bytes are more than the {self._answer_bytes} allowed")
        return body

    def _need(self, nbytes: int) -> int:
        """Request shared memory for an output, and wait: sending it through the socket takes far
        longer.
        """
        self._granted = None
        self._send([header(Kind.NEED, nbytes, 0)])
        os.eventfd_write(self._event, 1)
        while self._granted is None and not self._ended:
            self._read()
        return self._granted or 0

    def _open(self, blob: Blob) -> Any:
        """Unpickle a value of another worker or of an op in the engine, which run the same user
        code.
        """
        try:
            return pickle.loads(blob.data)  # noqa: S301 - never bytes from the network
        except HOOK_FAULTS as error:
            self._unopened = f"it cannot be unpickled: {type(error).__name__}: {text_of(error)}"
            return _UNOPENED

    def _send_message(self, kind: Kind, value: Any) -> None:
        body = encode(value)
        self._send([header(kind, 0, sum(map(len, body))), *body])
        os.eventfd_write(self._event, 1)

    def _send(self, pieces: Sequence[bytes | memoryview]) -> None:
        data: bytes | memoryview
        for data in [b"".join(pieces)] if sum(map(len, pieces)) <= _AT_ONCE else pieces:
            while data:
                try:
                    sent = self._channel.send(data, _DO_NOT_WAIT)
                except BlockingIOError:  # the engine was not signalled, so it does not read
                    os.eventfd_write(self._event, 1)
                    self._writable.poll()
                    continue
                data = memoryview(data)[sent:] if sent < len(data) else b""

    def _read(self) -> None:
        """Read and handle the engine's frames."""
        data, descriptors, lost = receive(self._channel, _AT_ONCE, _MOST_DESCRIPTORS)
        self._descriptors.extend(descriptors)
        if lost:
            raise OSError("a descriptor from the engine was lost: this process has too many")
        if not data:
            self._ended = True
            self._queue.clear()
            return
        for frame in self._frames.receive(data):
            match frame.kind:
                case Kind.RUN:
                    self._queue.append(frame)
                case Kind.HELLO:
                    self.decides = frame.number == 1
                case Kind.BATCHING:
                    self._decided(decode(frame.body))
                case Kind.SLAB:
                    self._slabs.accept(frame.number, self._descriptors.popleft())
                case Kind.DROP:
                    self._slabs.drop(frame.number)
                case Kind.GRANT:
                    self._granted = frame.number
                case Kind.STOP:
                    self._ended = True


def _unopened(value: Any) -> bool:
    """Whether a part of the value could not be unpickled."""
    if isinstance(value, dict):
        return any(map(_unopened, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return any(map(_unopened, value))
    return value is _UNOPENED


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
