"""The engine's connection to one external worker.

A worker has one batch at a time. Its input is not trusted: a violation of the protocol is a
FrameError, which ends the connection. Reads and writes do not block the loop, and are bounded per
turn.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from struct import Struct
from typing import Final, Protocol, TypeAlias

from penstock.errors import RequestError
from penstock.executors.executor import Finished, Work
from penstock.executors.external.jobs import (
    body_of,
    heads_of,
    no_answer,
    outcome_of,
    refusal_of,
)
from penstock.executors.external.pieces import PiecesFrom
from penstock.ops.failures import broke_protocol, log_fault, worker_died
from penstock.protocols.worker_frames import (
    Answer,
    FrameError,
    FrameReader,
    Told,
    batch_frame,
    read_answer,
    told_frame,
)
from penstock.request import Batch, Outcome, Sample

_log = logging.getLogger(__name__)

ANSWER_BYTES: Final = 1 << 30
"""Most bytes of an answer; as for a worker process."""
BATCH_BYTES: Final = 256 << 20
"""Most bytes of bodies in a frame; a larger batch is sent in several frames, each after the answer
to the one before."""

_UNASKED_BYTES: Final = 1 << 10  # of input from a worker without a batch
_AT_ONCE: Final = 256 << 10  # bytes of one read
_READS_AT_ONCE: Final = 16
"""Most reads in one turn of the loop, a few milliseconds; the rest waits for the next turn."""

_PEER: Final = Struct("3i")  # Linux: pid, uid and gid of the peer


class Owner(Protocol):
    """Receives the events of a connection."""

    def arrived(self, connection: Connection) -> None:
        """The worker is ready."""

    def done(self, connection: Connection, work: Work, finished: Finished) -> None:
        """The worker has answered its batch."""

    def ended(self, connection: Connection, why: str | None) -> None:
        """The connection is closed; ``why`` is the worker's fault, None if it left in order."""


_DECODED_AT_ONCE: Final = 256 << 10
"""Bytes of an answer that are decoded on the loop: about a millisecond; more in a thread."""

_Decoded: TypeAlias = tuple[dict[Sample, Outcome], list[tuple[Sample, RequestError]]]


class Connection:
    """See the module. Belongs to the engine's loop.

    Args:
        index: the worker's number within the op.
        link: the socket; closed with this.
        kind: the media type of the bodies.
        owner: receives the events, each at most once.
        streams: whether the answers of its op come in pieces; then a batch has one request.

    Attributes:
        pid: the worker's process id, from the system; 0 if it is in another namespace.
        ready: whether the worker has sent its ready frame.
        leaving: whether the worker has announced its end.
        work: the Work that it runs now.
    """

    def __init__(
        self,
        op: str,
        index: int,
        link: socket.socket,
        kind: str,
        loop: asyncio.AbstractEventLoop,
        owner: Owner,
        *,
        streams: bool = False,
    ) -> None:
        link.setblocking(False)
        self.index = index
        self.pid = _pid_of(link)
        self.ready = self.leaving = False
        self.work: Work | None = None
        self._op = op
        self._link = link
        self._kind = kind
        self._loop = loop
        self._owner = owner
        self._reader = FrameReader(_UNASKED_BYTES)
        self._unsent: deque[memoryview] = deque()
        self._sent = False  # whether any byte of the batch was sent
        self._closed = self._blocked = self._at_fault = self._has_ended = False
        self._decoding: asyncio.Future[_Decoded] | None = None  # an answer, in a thread
        # Ids are never reused, so that an answer cannot be mistaken for a later batch's.
        self._first_part = str(uuid.uuid4())[:24]
        self._ids = 0
        self._finished: Finished | None = None
        self._jobs: dict[str, Sample] = {}  # sent, not answered
        self._rest: Iterator[dict[str, bytes]] = iter(())  # bodies for later frames
        self._waiting: dict[str, Sample] = {}  # samples of the batch not answered, by id
        self._outcomes: dict[Sample, Outcome] = {}
        self._streams = streams
        self._pieces = PiecesFrom(self._tell)
        loop.add_reader(link, self._read)

    def __repr__(self) -> str:
        return f"<Connection {self._op!r} worker={self.index} jobs={len(self._waiting)}>"

    def run(self, work: Work, finished: Finished) -> None:
        """Send the Work's one batch; ``Owner.done`` may be called before this returns."""
        self.work, self._finished, self._sent = work, finished, False
        batch = work.begin_next()
        if batch is None:  # it has been taken back
            self._done()
            return
        now = time.monotonic()
        batch.worker, batch.began, batch.started = self.index, now, now
        bodies: dict[str, bytes] = {}
        for sample in batch.samples:
            try:
                body = body_of(sample, self._kind, now)
            except RequestError as error:
                self._outcomes[sample] = Outcome(None, error)
                continue
            self._ids += 1
            key = f"{self._first_part}{self._ids:012x}"
            bodies[key] = body
            self._waiting[key] = sample
            if self._streams:
                self._pieces.begin(key, sample.stream, batch)
        self._rest = _parts(bodies)
        batch.prepared = time.monotonic() - now
        self._send_next(batch)

    def close(self) -> None:
        """Close the connection without notifying the owner."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._link)
        self._loop.remove_writer(self._link)
        self._link.close()
        self._unsent.clear()

    def release(self) -> tuple[Work, Finished, Batch | None] | None:
        """After the end of the connection: return its Work, with the outcomes of a lost batch.

        A batch of which no byte was sent is pending again.

        Returns:
            Its Work, and the lost batch; None if it was idle.
        """
        work, finished = self.work, self._finished
        self.work = self._finished = None
        self._pieces.end()
        if work is None or finished is None:
            return None
        batch = work.current
        if batch is not None and not self._sent:
            batch.started = None
            work.pending.appendleft(batch)
            batch = None
        elif batch is not None:
            batch.started = None
            made = broke_protocol if self._at_fault else worker_died
            error = made(self._op, self.index)
            work.add_result(batch, [Outcome(None, error) for _ in batch.samples])
        return work, finished, batch

    def _send_next(self, batch: Batch) -> None:
        """Send the next part of the batch, or end it."""
        part = next(self._rest, None)
        if part is None:
            self._end_of(batch)
            return
        self._jobs = {key: self._waiting[key] for key in part}
        self._reader.limit = ANSWER_BYTES
        self._unsent.extend(map(memoryview, batch_frame(part)))
        self._write()

    def _end_of(self, batch: Batch) -> None:
        outcomes = self._outcomes
        assert batch.began is not None
        batch.ran = time.monotonic() - batch.began
        batch.processed = batch.ran - batch.prepared
        batch.started = None
        assert self.work is not None
        self.work.add_result(batch, [outcomes[sample] for sample in batch.samples])
        self._done()

    def _done(self) -> None:
        work, finished = self.work, self._finished
        assert work is not None
        assert finished is not None
        self.work = self._finished = None
        self._pieces.end()
        self._outcomes, self._waiting, self._jobs = {}, {}, {}
        self._reader.limit = _UNASKED_BYTES
        self._owner.done(self, work, finished)

    def _read(self) -> None:
        for _ in range(_READS_AT_ONCE):
            try:
                data = self._link.recv(_AT_ONCE)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._has_ended = True
                if self._decoding is None:
                    self._end_of_connection()
                else:  # its last answer is complete
                    self._loop.remove_reader(self._link)
                return
            try:
                for payload in self._reader.receive(data):
                    self._frame_received(payload)
                    if self._closed:
                        return
            except FrameError as error:
                self._at_fault = True
                self._end(str(error))
                return
            if len(data) < _AT_ONCE:
                return

    def _end_of_connection(self) -> None:
        at_work = self._reader or (self.work is not None and self._sent)
        self._end("its connection ended" if at_work else None)

    def _frame_received(self, payload: bytes) -> None:
        if not payload:
            if self._jobs:
                raise FrameError("it reports ready while it has a batch")
            if not self.ready:
                self.ready = True
                self._owner.arrived(self)
            return
        answer = read_answer(payload, len(self._jobs))
        self.leaving = self.leaving or answer.leaving
        if answer.leaving and not answer.bodies and not answer.ended:
            # The worker was idle when it sent this; it still answers a batch that crossed it.
            if self.work is None:
                self._end(None)
            return
        if not self._jobs:
            raise FrameError("it sends an answer without a batch")
        self._take(answer)

    def _take(self, answer: Answer) -> None:
        jobs, bodies, kind = self._jobs, answer.bodies, self._kind
        if not (bodies.keys() <= jobs.keys() >= answer.refused | answer.ended):
            raise FrameError("its answer has ids that it was not sent")
        if self._streams:
            if self._take_piece(answer):
                return
        elif answer.more or answer.ended:
            raise FrameError("it sends pieces of an answer that is whole")
        decode = partial(_outcomes_of, self._op, jobs, answer, kind)
        if sum(map(len, bodies.values())) <= _DECODED_AT_ONCE:
            self._take_outcomes(decode())
            return
        self._jobs = {}
        self._decoding = self._loop.run_in_executor(None, decode)
        self._decoding.add_done_callback(partial(self._decoded, self.work))

    def _take_piece(self, answer: Answer) -> bool:
        """Take a piece, or the end of an answer in pieces; returns False for an error, or a request
        that is left out.
        """
        ((key, sample),) = self._jobs.items()
        body = answer.bodies.get(key)
        if body is not None and key not in answer.refused:
            self._pieces.take(outcome_of(sample, body, self._kind), len(body))
            if key in answer.more:
                return True
        elif key not in answer.ended:
            return False
        fault = self._pieces.fault
        if fault is not None:
            log_fault(self._op, "an external worker", sample, fault)
        self._take_outcomes(({sample: Outcome({} if fault is None else None, fault)}, []))
        return True

    def _tell(self, told: Told) -> None:
        """Tell the worker about its answer in pieces."""
        if self._closed:
            return
        self._unsent.extend(map(memoryview, told_frame(told)))
        self._write()

    def _decoded(self, work: Work | None, decoding: asyncio.Future[_Decoded]) -> None:
        """A large answer has been decoded in a thread."""
        self._decoding = None
        if self._closed or self.work is not work:
            return
        self._take_outcomes(decoding.result())
        if self._has_ended:
            self._end_of_connection()

    def _take_outcomes(self, decoded: _Decoded) -> None:
        outcomes, faults = decoded
        self._outcomes |= outcomes
        for sample, fault in faults:
            log_fault(self._op, "an external worker", sample, fault)
        assert self.work is not None
        assert self.work.current is not None
        self._send_next(self.work.current)

    def _write(self) -> None:
        unsent = self._unsent
        while unsent:
            try:
                sent = self._link.sendmsg(unsent)
            except (BlockingIOError, InterruptedError):
                self._blocked = True
                self._loop.add_writer(self._link, self._write)
                return
            except OSError:  # it has ended, which the reader detects
                unsent.clear()
                break
            self._sent = True
            while unsent and sent >= len(unsent[0]):
                sent -= len(unsent.popleft())
            if sent:
                unsent[0] = unsent[0][sent:]
        if self._blocked:
            self._blocked = False
            self._loop.remove_writer(self._link)

    def _end(self, why: str | None) -> None:
        if not self._closed:
            self.close()
            self._owner.ended(self, why)


def _outcomes_of(op: str, jobs: Mapping[str, Sample], answer: Answer, kind: str) -> _Decoded:
    """The outcomes of the samples in an answer, and the errors to be logged. Any thread."""
    outcomes: dict[Sample, Outcome] = {}
    faults: list[tuple[Sample, RequestError]] = []
    heads = heads_of(answer.heads)
    for key, sample in jobs.items():
        body = answer.bodies.get(key)
        if key in answer.refused:
            failed = key in answer.failed
            error = refusal_of(op, sample, body or b"", kind, failed=failed)
            outcomes[sample] = Outcome(None, error)
        elif body is None:
            outcomes[sample] = Outcome(None, no_answer(op, sample))
        else:
            outcomes[sample] = outcome = outcome_of(sample, body, kind, heads.get(key))
            if outcome.error is not None:
                faults.append((sample, outcome.error))
    return outcomes, faults


def _parts(bodies: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Split the bodies into parts of at most ``BATCH_BYTES``, or of one larger body."""
    if sum(map(len, bodies.values())) <= BATCH_BYTES:
        if bodies:
            yield bodies
        return
    part: dict[str, bytes] = {}
    size = 0
    for key, body in bodies.items():
        if part and size + len(body) > BATCH_BYTES:
            yield part
            part, size = {}, 0
        part[key] = body
        size += len(body)
    yield part


def _pid_of(link: socket.socket) -> int:
    pid, _, _ = _PEER.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(pid)
