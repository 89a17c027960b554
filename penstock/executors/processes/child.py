"""The worker process: the worker's end of its socket, with memory that it shares with the engine.

Before each batch it writes the batch's number to its status page, so that the engine knows which
batch its death has lost. It opens pickles of other ops, which run the same user code.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from penstock.errors import RequestError, text_of
from penstock.executors.processes.channel import receive
from penstock.executors.processes.slabs import WorkerSlabs
from penstock.executors.processes.status_page import StatusPage
from penstock.executors.seats.child import SeatedChild
from penstock.executors.transport.frames import Frame, Kind, header
from penstock.executors.transport.marshalling import batches_in, outcomes_out
from penstock.executors.transport.values import Blob, Decoder, encode
from penstock.executors.work import BoundOp
from penstock.executors.workers.child import UNOPENED, Child
from penstock.ops.failures import HOOK_FAULTS, cannot_send
from penstock.request import Batch, Outcome, Sample

_AT_ONCE: Final = 256 << 10
_MOST_DESCRIPTORS: Final = 16


class ProcessChild(Child):
    """See the module, and Child."""

    _progress: StatusPage
    _seats: SeatedChild | None = None

    def _prepare(self) -> None:
        self._descriptors: deque[int] = deque()
        self._granted: int | None = None
        self._shared = self._slabs = WorkerSlabs(self._need)
        self._decoder = Decoder(self._slabs.fetch, self._open)

    def _begin(self) -> None:
        self._event = self._descriptors.popleft()
        self._progress = StatusPage(self._descriptors.popleft())
        self._progress.take_stacks()

    def _prepare_for(self, op: BoundOp, outside: str | None) -> None:
        self._outside = outside
        self._pickle = _pickled if outside is None else None

    def _serve_seats(self, op: BoundOp) -> None:
        self._seats = SeatedChild(op, self, self._progress)
        while self._queue:  # read while it started
            self._seats.frame_received(self._queue.popleft())
        self._seats.serve()

    def sample_of(self, op: BoundOp, frame: Frame) -> tuple[Sample, RequestError | None]:
        """See Link."""
        self._unopened = None
        *value, _ = self._decoder.decode(frame.body)
        ((sample,),) = batches_in(value, monotonic())
        why = self._unopened
        return sample, None if why is None else cannot_send(op.name, why, [sample], op.label)

    def done_frame(self, number: int, batch: Batch, outcome: Outcome) -> list[bytes | memoryview]:
        """See Link."""
        body = encode(outcomes_out(batch, [outcome]))
        return [header(Kind.DONE, number, sum(map(len, body))), *body]

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """See Link."""
        self._send(pieces)
        self._wake()

    def has_cancelled(self, number: int) -> bool | None:
        """See Child; the engine writes it on the status page."""
        return self._progress.cancelled == number

    def _need(self, nbytes: int) -> int:
        """Request shared memory for an output, and wait: sending it through the socket takes far
        longer.
        """
        self._granted = None
        self._send([header(Kind.NEED, nbytes, 0)])
        self._wake()
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
            return UNOPENED

    def _wake(self) -> None:
        os.eventfd_write(self._event, 1)

    def _receive(self) -> bytes:
        data, descriptors, lost = receive(self._link, _AT_ONCE, _MOST_DESCRIPTORS)
        self._descriptors.extend(descriptors)
        if lost:
            raise OSError("a descriptor from the engine was lost: this process has too many")
        return data

    def _frame_received(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.RUN | Kind.CREDIT | Kind.CANCEL | Kind.HANDLED if self._seats is not None:
                self._seats.frame_received(frame)
            case Kind.SLAB:
                self._slabs.accept(frame.number, self._descriptors.popleft())
            case Kind.DROP:
                self._slabs.drop(frame.number)
            case Kind.GRANT:
                self._granted = frame.number
            case _:
                super()._frame_received(frame)


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
