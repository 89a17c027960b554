"""The worker's end of a link: reads batches, runs them, and writes their outcomes, in order.

Single-threaded and blocking. Its answer is in the link before the next batch begins, so that its
death loses only the running batch. A hand-over has several batches because they were predicted to
be short: if they take longer, each answer is signalled at once, and batches that have not begun are
returned.

A link is a stream socket, maybe to another machine: values are plain, and nothing is unpickled.
``processes/child.py`` has more: it shares memory with the engine.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.executors.streaming import run_stream
from penstock.executors.transport.frames import CREDIT, Frame, FrameError, FrameReader, Kind, header
from penstock.executors.transport.marshalling import batches_in, outcomes_out, output
from penstock.executors.transport.values import (
    Array,
    Blob,
    Decoder,
    OnlyPickledError,
    Ref,
    Stored,
    decode,
    encode,
)
from penstock.executors.work import BoundOp, run_batch
from penstock.executors.workers.child_stream import JoiningStream, Sender
from penstock.ops.failures import cannot_send
from penstock.request import Batch, CloseReason, Feed, Outcome, Sample

if TYPE_CHECKING:
    from penstock.executors.external_store.worker import WorkerStore

_AT_ONCE: Final = 256 << 10
_MOST_BODY: Final = (1 << 32) - 1
_MOST_WORDS: Final = 8 << 10  # most characters of the reason of a failed start; a guess
_SLOW: Final = 200e-6  # seconds of a batch, from which on its answer is signalled at once
_DO_NOT_WAIT: Final = int(socket.MSG_DONTWAIT)

UNOPENED: Final = object()
"""Stands for a value that could not be unpickled."""

_log = logging.getLogger(__name__)


class Progress(Protocol):
    """Shows the engine what runs.

    Attributes:
        number: of the running batch.
        started: the start of the running ``process`` call in monotonic seconds; None between calls.
    """

    number: int
    started: float | None


class Shared(Protocol):
    """Memory that a worker shares with the engine, for large outputs."""

    def begin(self, grant: int) -> None:
        """Begin a hand-over, with a slab for the outputs; 0 is none."""

    def place(self, array: Array) -> Ref | None:
        """Put an output array there; None if it does not fit."""

    def end(self) -> list[int]:
        """End a hand-over; returns the slabs that now belong to the op."""


class _Reported:
    """The progress of a worker without a status page: a frame for the start of each call, if the
    engine limits their time.
    """

    def __init__(self, send: Callable[[Sequence[bytes]], None]) -> None:
        self.number = 0
        self.limited = False
        self._send = send
        self._started: float | None = None

    @property
    def started(self) -> float | None:
        return self._started

    @started.setter
    def started(self, when: float | None) -> None:
        self._started = when
        if when is not None and self.limited:
            self._send([header(Kind.CALL, self.number, 0)])


class _Nothing:
    """No shared memory."""

    def begin(self, grant: int) -> None:
        return

    def place(self, array: Array) -> Ref | None:
        return None

    def end(self) -> list[int]:
        return []


class _Running(Batch):
    """The running batch, whose calls the engine sees; after a call that was not short, ``look``
    reads what the engine has sent meanwhile.
    """

    __slots__ = ("_look", "_progress", "_since")

    def __init__(self, progress: Progress, look: Callable[[], object]) -> None:
        self._progress = progress
        self._look = look
        self._since = inf
        super().__init__([Sample(0, {}, 0.0)], CloseReason.FULL, 0.0)

    @property
    def started(self) -> float | None:
        return self._progress.started

    @started.setter
    def started(self, when: float | None) -> None:
        self._progress.started = when
        if when is not None:
            self._since = when
        elif monotonic() - self._since > _SLOW:
            self._since = inf
            self._look()


class Child:
    """The worker's end of the protocol; waits for the engine's HELLO.

    Args:
        link: the socket, blocking.
        answer_bytes: most bytes of an answer outside of shared memory.

    Attributes:
        decides: whether this worker decides how requests are batched, and reports it.
        sending: held while a frame is sent.
    """

    _op: BoundOp
    _progress: Progress
    _shared: Shared

    def __init__(self, link: socket.socket, answer_bytes: int = _MOST_BODY) -> None:
        self._link = link
        self._answer_bytes = answer_bytes
        self._frames = FrameReader(_MOST_BODY)
        self._queue: deque[Frame] = deque()
        self._pickle: Callable[[Any], bytes] | None = None
        self._outside: str | None = None  # a reader of its outputs that accepts only plain values
        self._unopened: str | None = None  # why a value of the current batch could not be unpickled
        self._greeted = self._ended = False  # ended: no more batches are run
        self.decides = False
        self._decided: Callable[[Any], None] = lambda batching: None
        self._writable = select.poll()
        self._writable.register(link, select.POLLOUT)
        self._readable = select.poll()
        self._readable.register(link, select.POLLIN)
        self.sending: AbstractContextManager[Any] = threading.RLock()
        self._sender: Sender | None = None
        self._stream: JoiningStream | None = None
        self._store: WorkerStore | None = None
        self._gone: set[int] = set()  # batches of the hand-over whose requests have ended
        self._prepare()
        while not (self._greeted or self._ended):
            self._read()
        if self._ended:
            raise ConnectionResetError("the engine has ended")
        self._begin()
        self._running = _Running(self._progress, self._look)

    def _prepare(self) -> None:
        """Make what reading frames needs."""
        self._decoder = Decoder(open_blob=_refuse, stored=_as_it_is)
        self._shared = _Nothing()

    def _begin(self) -> None:
        """Make what running batches needs, after HELLO."""
        self._progress = _Reported(self._send)

    def _prepare_for(self, op: BoundOp, outside: str | None) -> None:
        """The arguments of ``serve``."""
        assert isinstance(self._progress, _Reported)
        self._progress.limited = op.options.timeout is not None
        self._outside = outside or "the engine"

    def step(self, doing: str) -> None:
        """Report the current step of the start, as a text."""
        self._send_message(Kind.STEP, doing)

    def ready(self, loaded: dict[str, Any]) -> None:
        """Report that the model is open and ``init_op`` has run, and what was loaded."""
        self._send_message(Kind.READY, loaded)

    def failed(self, text: str) -> None:
        """Report a failed start."""
        self._send_message(Kind.FAILED, text[:_MOST_WORDS])

    def use_store(self, store: WorkerStore) -> None:
        """Use an external store, for the values for which the engine says so."""
        self._store = store

    def serve(
        self,
        op: BoundOp,
        outside: str | None = None,
        decided: Callable[[Any], None] = lambda batching: None,
    ) -> None:
        """Run batches until the engine sends STOP or closes the socket.

        Args:
            op: the worker's copy of the op.
            outside: a reader of its outputs that accepts only plain values and arrays, if any.
            decided: called with another worker's decision how requests are batched.
        """
        self._op = op
        self._decided = decided
        self._prepare_for(op, outside)
        if op.seat_hooks is not None:
            self._serve_seats(op)
            return
        while self._queue or not self._ended:
            if self._queue:
                self._run_all(op, self._queue.popleft())
            else:
                self._read()

    def _serve_seats(self, op: BoundOp) -> None:
        """The same for an op with seats."""
        raise NotImplementedError("workers with seats are processes on this machine")

    def _run_all(self, op: BoundOp, frame: Frame) -> None:
        progress, running = self._progress, self._running
        progress.number = number = first = frame.number  # a crash in reading counts for the first
        self._unopened = None
        *value, grant = self._decoder.decode(frame.body)
        last = first + len(value[0] or value[2]) - 1
        self._shared.begin(grant)
        left = 2 * op.options.hand_over
        if self._gone:
            self._gone = {each for each in self._gone if each >= first}
        for samples in batches_in(value, monotonic()):
            if left <= 0.0:
                samples = running.samples = []
                self._leave_rest(number, value)
                return
            progress.number = number
            running.samples = samples
            if number in self._gone:
                self._mark_gone()
            running.began = None
            running.prepared = running.processed = 0.0
            if op.streams:
                samples[0].stream = self._new_stream(number)
            if self._store is None:
                outcomes = self._outcomes(op, samples)
            else:
                outcomes = self._stored_outcomes(self._store, op, samples)
            if self._stream is not None:
                self._stream.flush()
            for sample in samples:
                sample.inputs = {}
            body = self._body(op, outcomes)
            pieces = [header(Kind.DONE, number, sum(map(len, body))), *body]
            if number == last:
                outcomes = []
                samples = running.samples = []
                pieces = [*self._kept(), *pieces]
            self._send(pieces)
            # To wake the engine for each of many short batches would keep it from other work.
            if number == last or running.ran > _SLOW:
                self._wake()
            left -= running.ran
            number += 1

    def piece_frame(
        self, op: BoundOp, number: int, sample: Sample, piece: Feed | list[Feed]
    ) -> list[bytes | memoryview]:
        """A piece, or a list of them, as a frame.

        Raises:
            RequestError: it cannot be sent.
        """
        try:
            plain = [*map(output, piece)] if isinstance(piece, list) else output(piece)
            body = self._allowed(encode(plain, pickle=self._pickle))
        except FrameError as error:
            raise cannot_send(op.name, f"a piece: {error}", [sample], op.label) from None
        return [header(Kind.PIECE, number, sum(map(len, body))), *body]

    def _mark_gone(self) -> None:
        """The requests of the running batch have ended: no further call for them."""
        for sample in self._running.samples:
            sample.gone = True

    def _look(self) -> None:
        """Handle frames that have arrived during a batch."""
        with suppress(OSError):  # the engine has ended, which the next read of a batch notices
            self.read(False)

    def _new_stream(self, number: int) -> JoiningStream:
        stream = self._stream = JoiningStream(number, self, self._make_sender)
        stream.cancelled = number in self._gone
        return stream

    def _make_sender(self) -> Sender:
        if self._sender is None:
            self._sender = Sender()
        return self._sender

    def send_pieces(self, number: int, pieces: list[Feed]) -> None:
        """Send pieces of the stream of the batch ``number`` in one frame.

        Raises:
            RequestError: one of them cannot be sent.
        """
        self._send(self.piece_frame(self._op, number, self._running.samples[0], pieces))
        self._wake()

    def has_cancelled(self, number: int) -> bool | None:
        """Whether no further piece of the batch is wanted; None if only a frame tells."""
        return None

    def read(self, wait: bool) -> bool:
        """Read the engine's frames, if there are any, or wait for them; returns False when it has
        ended.
        """
        return self.read_for(None if wait else 0)

    def read_for(self, milliseconds: int | None) -> bool:
        """Read the engine's frames, if some come within that time; returns False when it has ended,
        or wants this worker to end.
        """
        if not self._ended and self._readable.poll(milliseconds):
            self._read()
        return not self._ended

    def _leave_rest(self, number: int, value: list[Any]) -> None:
        value[2].clear()
        self._send([*self._kept(), header(Kind.REST, number, 0)])
        self._wake()

    def _kept(self) -> list[bytes]:
        """KEPT frames for the slabs in which the op still holds arrays."""
        return [header(Kind.KEPT, each, 0) for each in self._shared.end()]

    def _stored_outcomes(
        self, store: WorkerStore, op: BoundOp, samples: list[Sample]
    ) -> list[Outcome]:
        """Run a batch whose inputs and outputs may be in the external store."""
        batch = self._running
        lost = store.fetch(samples)
        batch.samples = [each for each, why in zip(samples, lost, strict=True) if why is None]
        ran = iter(self._outcomes(op, batch.samples) if batch.samples else ())
        if not batch.samples:
            batch.ran = 0.0
        batch.samples = samples
        outcomes = [next(ran) if why is None else Outcome(None, why) for why in lost]
        return store.keep(samples, outcomes)

    def _outcomes(self, op: BoundOp, samples: list[Sample]) -> list[Outcome]:
        batch = self._running
        if op.streams and self._unopened is None:
            return run_stream(op, batch)
        if self._unopened is None:
            return run_batch(op, batch)
        # Samples whose values could all be unpickled run.
        why, batch.samples = self._unopened, [s for s in samples if not _holds_unopened(s.inputs)]
        ran = iter(run_batch(op, batch) if batch.samples else ())
        opened = set(map(id, batch.samples))
        lost = [each for each in samples if id(each) not in opened]
        refusal = Outcome(None, cannot_send(op.name, why, lost, op.label))
        return [next(ran) if id(each) in opened else refusal for each in samples]

    def _body(self, op: BoundOp, outcomes: list[Outcome]) -> list[bytes | memoryview]:
        """The encoded outcomes; an outcome that cannot be encoded is replaced by its error."""
        samples = self._running.samples
        with suppress(FrameError):
            return self._encoded(outcomes_out(self._running, outcomes))
        sendable = [
            self._sendable(op, each, sample) for each, sample in zip(outcomes, samples, strict=True)
        ]
        try:
            return self._encoded(outcomes_out(self._running, sendable))
        except FrameError as error:  # each could be sent, but all together are too large
            refusal = Outcome(
                None, cannot_send(op.name, f"its outputs: {error}", samples, op.label)
            )
            return self._encoded(outcomes_out(self._running, [refusal] * len(samples)))

    def _sendable(self, op: BoundOp, outcome: Outcome, sample: Sample) -> Outcome:
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
                text += f" to {self._outside}: only ops that run in processes could unpickle it"
            return Outcome(None, cannot_send(op.name, text, [sample], op.label))
        return outcome

    def _encoded(self, value: Any) -> list[bytes | memoryview]:
        return self._allowed(encode(value, place=self._shared.place, pickle=self._pickle))

    def _allowed(self, body: list[bytes | memoryview]) -> list[bytes | memoryview]:
        length = sum(map(len, body))
        if length > self._answer_bytes:
            raise FrameError(f"{length} bytes are more than the {self._answer_bytes} allowed")
        return body

    def _send_message(self, kind: Kind, value: Any) -> None:
        body = encode(value)
        self._send([header(kind, 0, sum(map(len, body))), *body])
        self._wake()

    def _send(self, pieces: Sequence[bytes | memoryview]) -> None:
        with self.sending:
            self._send_now(pieces)

    def _send_now(self, pieces: Sequence[bytes | memoryview]) -> None:
        data: bytes | memoryview
        for data in [b"".join(pieces)] if sum(map(len, pieces)) <= _AT_ONCE else pieces:
            while data:
                try:
                    sent = self._link.send(data, _DO_NOT_WAIT)
                except BlockingIOError:  # the engine was not signalled, so it does not read
                    self._wake()
                    self._writable.poll()
                    continue
                data = memoryview(data)[sent:] if sent < len(data) else b""

    def _wake(self) -> None:
        """Wake the engine, if it does not watch the link."""

    def _read(self) -> None:
        """Read and handle the engine's frames."""
        data = self._receive()
        if not data:
            self._ended = True
            self._queue.clear()
            return
        for frame in self._frames.receive(data):
            self._frame_received(frame)

    def _receive(self) -> bytes:
        return self._link.recv(_AT_ONCE)

    def _frame_received(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.RUN:
                self._queue.append(frame)
            case Kind.HELLO:
                self.decides = frame.number == 1
                self._greeted = True
            case Kind.CREDIT if self._stream is not None:
                if frame.number == self._stream.number:
                    self._stream.credit(*CREDIT.unpack(frame.body))
            case Kind.CANCEL:
                self._gone.add(frame.number)  # it may not have begun
                if frame.number == self._progress.number:
                    self._mark_gone()
                if self._stream is not None and frame.number == self._stream.number:
                    self._stream.cancelled = True
            case Kind.BATCHING:
                self._decided(decode(frame.body))
            case Kind.STOP:
                self._ended = True


def _holds_unopened(value: Any) -> bool:
    """Whether a part of the value could not be unpickled."""
    if isinstance(value, dict):
        return any(map(_holds_unopened, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return any(map(_holds_unopened, value))
    return value is UNOPENED


def _as_it_is(stored: Stored) -> Stored:
    return stored


def _refuse(blob: Blob) -> Any:
    raise FrameError(f"a pickle of type {blob.type_name} is not opened here")
