"""The worker process: batches come in over its socket, outcomes go out, one after the other.

Single-threaded and blocking. Before each batch it says on its board which one it begins, then looks
there whether it is called to its socket, where it hears whether that batch is still wanted; the
engine tells, calls, and then looks what has begun. So a batch that the engine takes back is either
not begun here or, when both were at it in the same moment, skipped by both and handed over again:
it never runs twice.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident
from time import monotonic
from typing import Any, Final

from penstock.errors import text_of
from penstock.executors.processes.answering import Answering
from penstock.executors.processes.board import Board
from penstock.executors.processes.crossing import batches_in, output
from penstock.executors.processes.frame import (
    Blob,
    Decoder,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    OnlyPickledError,
    decode,
    encode,
    header,
)
from penstock.executors.processes.lending import Borrower
from penstock.executors.processes.passing import receive
from penstock.executors.processes.slab import Draft
from penstock.executors.processes.slab_pool import SlabPool
from penstock.executors.processes.upkeep import FREED_AFTER, TRIM_EVERY, frees
from penstock.executors.work import BoundOp, run_batch
from penstock.ops.failures import HOOK_FAULTS, cannot_travel
from penstock.request import Batch, CloseReason, Outcome, Sample

_AT_ONCE: Final = 64 << 10
_MOST_DESCRIPTORS: Final = 16
_STDERR: Final = 2
_MOST_BODY: Final = (1 << 32) - 1
_MOST_WORDS: Final = 10_000  # characters, far below UNASKED_BYTES in any alphabet
_CHEAP: Final = 100e-6  # seconds
_UNOPENED: Final = object()


class _Running(Batch):
    """The batch that runs, whichever that is, with its progress on the board."""

    __slots__ = ("_cell",)

    def __init__(self, board: Board) -> None:
        self._cell = board.started_cell
        super().__init__([Sample(0, {}, 0.0)], CloseReason.FULL, 0.0)
        self.samples = []

    @property
    def started(self) -> float | None:
        """See Batch."""
        return self._cell[0] or None

    @started.setter
    def started(self, when: float | None) -> None:
        self._cell[0] = when or 0.0


class Child:
    """One worker's side of the conversation.

    Args:
        channel: the socket, blocking.
        slab_bytes: most bytes of the slabs for its answers; the same for what it is sent.
        answer_bytes: most bytes of an answer beside them.
    """

    def __init__(
        self, channel: socket.socket, slab_bytes: int, answer_bytes: int = _MOST_BODY
    ) -> None:
        self._channel = channel
        self._frames = FrameReader(_MOST_BODY)
        self._descriptors: deque[int] = deque()
        self._queue: deque[Frame] = deque()
        self._skipped: list[tuple[int, int]] = []  # first and last, in the order of their coming
        self._board, self._board_descriptor = Board.create()
        self._out = SlabPool(slab_bytes)
        self._thread = get_ident()
        self._in = Borrower(slab_bytes)
        self._decode = Decoder(self._in.fetch, self._open, trusted=True).decode
        self._running = _Running(self._board)
        self._trim_at = monotonic() + TRIM_EVERY
        self._ended = False  # nothing more is to be run, but what is here already
        self._gone = False  # so has the engine
        self._calls = 0  # to the socket, that were heard
        self._heard = False  # by the engine, what goes to standard error
        self._opens = True  # what it is handed, unless that was taken back
        self._unopened: str | None = None  # why a value of the batches at hand could not be opened
        self._pickle: Callable[[Any], bytes] | None = _pickled
        self._answering = Answering(channel, self._board.kept, self._out, self._in, answer_bytes)
        self._answering.use(self._pickle)
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        self._told = poll.poll

    def room(self, nbytes: int) -> Draft | None:
        """Memory for an array that need not be copied, for who serves; see ``penstock.arrays``."""
        return self._out.draft(nbytes) if get_ident() == self._thread else None

    def take_stderr(self) -> None:
        """Write to the engine from now on what goes to standard error: the first thing to do."""
        while not self._heard and not self._ended:
            self._read()

    def ready(self) -> None:
        """Say that the model is open and ``init_op`` has run."""
        descriptors = [self._board_descriptor, self._answering.engines_end.fileno()]
        socket.send_fds(self._channel, [header(Kind.READY, 0, 0)], descriptors)
        os.close(self._board_descriptor)
        self._answering.engines_end.close()

    def failed(self, text: str) -> None:
        """Say why not."""
        pieces = encode(text[:_MOST_WORDS])
        self._channel.sendall(b"".join([header(Kind.FAILED, 0, sum(map(len, pieces))), *pieces]))

    def serve(self, op: BoundOp, outside: str | None = None) -> None:
        """Run batches until the engine says stop or has gone.

        Args:
            op: what runs them.
            outside: who reads its outputs and is no worker process, if anybody: only plain values
                and arrays may go there.
        """
        self._pickle = _pickled if outside is None else None
        self._answering.use(self._pickle)
        while True:
            if not self._queue:
                if self._ended:
                    return
                self._give_back()
                self._read()
                continue
            self._run_all(op, self._queue.popleft(), outside)

    def _run_all(self, op: BoundOp, frame: Frame, outside: str | None) -> None:
        on_board, first = self._board.batch_cell, frame.number
        on_board[0] = number = first  # whoever dies of reading them dies of the first
        while not self._gone and self._told(0):  # else of one that another worker has by now
            self._read()
        self._opens = not (self._skipped and self._is_skipped(first))
        count, batches = self._batches_in(frame)
        answering, running, calls = self._answering, self._running, self._board.calls_cell
        answering.last = first + count - 1
        for samples in batches:
            # What is known not to be wanted is not begun: the engine is just looking what is.
            if number > first and not (self._skipped and self._is_skipped(number)):
                on_board[0] = number
                # To ask the system costs as much as a tenth of a cheap batch. What takes longer
                # may as well hear in time of memory that it can use again.
                if calls[0] != self._calls or running.ran > _CHEAP:
                    self._calls = calls[0]
                    # All of it: word of its having been taken back may stand behind those after.
                    while not self._gone and self._told(0):
                        self._read()
            if self._skipped and self._is_skipped(number):
                answering.tell(number, None)
            else:
                self._run(op, number, samples, outside)
            number += 1
        running.samples = []  # what they hold goes back

    def _batches_in(self, frame: Frame) -> tuple[int, Iterator[list[Sample]]]:
        """How many, and these; what is in them goes as they do."""
        self._unopened = None
        value = self._decode(frame.body)
        return len(value[0] or value[2]), batches_in(value)

    def _open(self, blob: Blob) -> Any:
        """What another worker or the engine's own ops made; both are the user's code, as we are."""
        if not self._opens:
            return _UNOPENED
        try:
            return pickle.loads(blob.data)  # noqa: S301 - never bytes from the network
        except HOOK_FAULTS as error:
            self._unopened = f"it cannot be opened: {type(error).__name__}: {text_of(error)}"
            return _UNOPENED

    def _run(self, op: BoundOp, number: int, samples: list[Sample], outside: str | None) -> None:
        batch = self._running
        batch.samples = samples
        if self._unopened is None:
            outcomes = run_batch(op, batch)
        else:
            outcomes = self._run_opened(op, batch, self._unopened)
        for sample in samples:
            sample.inputs = {}  # what nobody else has of it goes back with the answer
        answer = self._answering.answer
        # Before the next one is begun: its death must not take this answer along.
        try:
            answer(number, batch.ran, outcomes)
        except FrameError:
            good = [
                self._that_travels(op.name, each, sample, outside)
                for each, sample in zip(outcomes, samples, strict=True)
            ]
            try:
                answer(number, batch.ran, good)
            except FrameError as error:  # each could go, and all together are too large
                refusal = Outcome(None, cannot_travel(op.name, f"its outputs: {error}", samples))
                answer(number, batch.ran, [refusal] * len(samples))

    def _run_opened(self, op: BoundOp, batch: Batch, why: str) -> list[Outcome]:
        """Run those of whom everything could be opened; it is nobody else's fault."""
        samples = batch.samples
        batch.samples = [each for each in samples if not _holds_unopened(each.inputs)]
        ran = iter(run_batch(op, batch) if batch.samples else ())
        opened = set(map(id, batch.samples))
        refusal = cannot_travel(op.name, why, [each for each in samples if id(each) not in opened])
        return [next(ran) if id(each) in opened else Outcome(None, refusal) for each in samples]

    def _is_skipped(self, number: int) -> bool:
        # What stands further behind may have been taken back earlier.
        self._skipped = [each for each in self._skipped if each[1] >= number]
        return any(first <= number for first, _ in self._skipped)

    def _that_travels(
        self, op: str, outcome: Outcome, sample: Sample, outside: str | None
    ) -> Outcome:
        """The outcome, or the error that it cannot leave this process."""
        for key, value in (outcome.value or {}).items():
            try:
                self._answering.allowed(encode(output({key: value}), pickle=self._pickle))
            except FrameError as error:
                text = f"its output {key!r}: {error}"
                if isinstance(error, OnlyPickledError):
                    text += f" to {outside}: only ops that run in processes could open it"
                return Outcome(None, cannot_travel(op, text, [sample]))
        return outcome

    def _give_back(self) -> None:
        """Until the engine says something: what is not read, or not used, any more goes back."""
        if monotonic() >= self._trim_at:
            self._trim()
        while not self._ended:
            freed = frees(self._in)
            if freed:
                self._told(FREED_AFTER * 1000)
                self._channel.sendall(b"".join(freed))
            elif self._out.size:
                if self._told(max(0.0, self._trim_at - monotonic()) * 1000):
                    return
                self._trim()
            else:
                return

    def _trim(self) -> None:
        self._out.trim()
        self._trim_at = monotonic() + TRIM_EVERY

    def _read(self) -> None:
        """Take what the engine has sent, though we are to end: it still takes batches back."""
        data, descriptors, _ = receive(self._channel, _AT_ONCE, _MOST_DESCRIPTORS)
        if not data:
            self._ended = self._gone = True  # nobody wants the rest
            self._queue.clear()
            return
        self._descriptors.extend(descriptors)
        for frame in self._frames.receive(data):
            self._hear(frame)

    def _hear(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.RUN:
                self._queue.append(frame)
            case Kind.SLAB:
                self._in.accept(frame.number, self._descriptors.popleft())
            case Kind.FREE:
                self._out.release(frame.number >> 32, frame.number & 0xFFFFFFFF)
            case Kind.RECALL:
                self._in.recall(frame.number)
            case Kind.SKIP:
                last = decode(frame.body)
                self._skipped.append((frame.number, last))
            case Kind.STOP:
                self._ended = True
            case Kind.STDERR:
                descriptor = self._descriptors.popleft()
                os.dup2(descriptor, _STDERR)
                os.close(descriptor)
                self._heard = True


def _holds_unopened(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_unopened, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return any(map(_holds_unopened, value))
    return value is _UNOPENED


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
