"""An external worker: connects to a service's socket, runs its batches, and reconnects.

The worker survives restarts of the service: it reconnects at once, then with back-off. When it is
stopped, it answers its current batch and announces its end to the service, so that no request is
lost.
"""

from __future__ import annotations

import logging
import math
import os
import random
import select
import socket
import time
from collections import deque
from typing import Any, Final

import orjson

from penstock.errors import Cancelled, NumberedError, RequestError
from penstock.executors.external.jobs import is_callers, refusal_body
from penstock.executors.streaming import run_stream
from penstock.executors.work import BoundOp, run_batch
from penstock.executors.workers.child_stream import ChildStream
from penstock.ops.failures import without_sentence
from penstock.protocols.worker_frames import (
    MOST_BYTES,
    READY,
    Answer,
    FrameError,
    FrameReader,
    answer_frame,
    read_batch,
    read_told,
)
from penstock.request import REQUEST_OP_NAME, Batch, CloseReason, Feed, Sample
from penstock.typed.op import ANSWER, BODY, HEAD, KIND

_log = logging.getLogger(__name__)

_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 2.0  # an attempt is cheap: the socket is on this machine
_DISCONNECT_TIMEOUT: Final = (
    2.0  # seconds for a service that knows ``leaving`` to disconnect; a guess
)
_SEND_TIMEOUT: Final = 60.0  # seconds within which the service must read some of an answer; a guess
_AT_ONCE: Final = 256 << 10  # bytes of one read


class _Received:
    """What the service has sent over one connection.

    Attributes:
        payloads: of frames that were not handled.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._reader = FrameReader(MOST_BYTES)
        self.payloads: deque[bytes] = deque()
        self._readable = select.poll()
        self._readable.register(link, select.POLLIN)

    @property
    def partial(self) -> bool:
        """Whether a frame has begun to arrive."""
        return bool(self._reader)

    def read(self) -> bool:
        """Read what has arrived; returns False when the service has disconnected."""
        data = self._link.recv(_AT_ONCE)
        self.payloads.extend(self._reader.receive(data))
        return bool(data)

    def follow(self, key: str, stream: ChildStream, *, wait: bool) -> bool:
        """Handle what the service says about an answer in pieces.

        Args:
            key: the id of its request.
            stream: its stream.
            wait: whether to wait for a frame.

        Returns:
            False when the service has disconnected.
        """
        if self._readable.poll(None if wait else 0) and not self.read():
            return False
        while self.payloads:
            told = read_told(self.payloads[0])
            if told is None:  # a batch, which waits for its turn
                break
            self.payloads.popleft()
            if key in told.credit:
                stream.credit(told.credit[key])
            if key in told.cancelled:
                stream.cancelled = True
        return True


class WorkerProgram:
    """See the module.

    ``op`` is a typed function's or class's, its model open; ``kind`` the media type of bodies.
    """

    def __init__(self, op: BoundOp, path: str, kind: str) -> None:
        self._op = op
        self._path = path
        self._kind = kind
        self._stopped = False
        self._announced = False  # ``leaving`` was sent on this connection
        self._requests = 0
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def stop(self) -> None:
        """Make ``run`` return after the current batch. From any thread, or a signal handler."""
        self._stopped = True
        try:
            self._waker.send(b"\0")
        except OSError:  # the pipe is full, or ``run`` has returned
            return

    def run(self) -> None:
        """Serve until ``stop``; once only."""
        wait, warned = _FIRST_WAIT, False
        while not self._stopped:
            before = self._requests
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                    link.settimeout(_SEND_TIMEOUT)
                    link.connect(self._path)
                    _log.info("connected to %s", self._path)
                    warned = False
                    self._serve(link)
                why = "the service closed the connection"
            except FrameError as error:
                why = f"the service broke the protocol: {error}"
            except OSError as error:
                why = error.strerror or str(error)
            if not self._stopped:
                if not warned:
                    _log.warning("%s: %s; reconnecting until it succeeds", self._path, why)
                    warned = True
                wait = _FIRST_WAIT if self._requests > before else min(2 * wait, _LONGEST_WAIT)
                self._pause(wait * random.uniform(0.5, 1.0))  # noqa: S311 - so that not all come at once
        self._woken.close()
        self._waker.close()
        self._op.close()

    def _serve(self, link: socket.socket) -> None:
        """Answer the batches of one connection, until it ends.

        Raises:
            OSError, FrameError: it ended with an error.
        """
        self._announced = False
        link.sendall(READY)
        received = _Received(link)
        while True:
            if self._stopped and not self._announced and not received.partial:
                self._send(link, Answer({}, leaving=True))
            readable = self._wait(link)
            if not readable:
                return
            if link.fileno() not in readable:  # only woken by ``stop``
                continue
            if not received.read():
                return
            while received.payloads:
                payload = received.payloads.popleft()
                if not payload or read_told(payload) is not None:  # of an answer that has ended
                    continue
                jobs = read_batch(payload)
                if self._op.streams:
                    answer = self._answer_in_pieces(link, received, jobs)
                else:
                    answer = self._answer(jobs)
                self._send(link, answer)

    def _send(self, link: socket.socket, answer: Answer) -> None:
        if self._stopped and not self._announced:
            self._announced = True
            answer = answer._replace(leaving=True)
        for piece in answer_frame(answer):
            link.sendall(piece)

    def _wait(self, link: socket.socket) -> list[int]:
        """Wait for input, or for ``stop``; returns what is readable. Empty if the service does not
        disconnect after ``leaving``, because it does not know that key.
        """
        poll = select.poll()
        poll.register(link, select.POLLIN)
        if not self._announced:
            poll.register(self._woken, select.POLLIN)
        return [fd for fd, _ in poll.poll(_DISCONNECT_TIMEOUT * 1000 if self._announced else None)]

    def _pause(self, seconds: float) -> None:
        if not self._stopped:
            select.select([self._woken], [], [], seconds)

    def _sample(self, body: bytes) -> Sample:
        self._requests += 1
        feed = {BODY: body, KIND: self._kind, ANSWER: self._kind}
        return Sample(self._requests, {REQUEST_OP_NAME: feed}, math.inf)

    def _answer_in_pieces(
        self, link: socket.socket, received: _Received, jobs: dict[str, bytes]
    ) -> Answer:
        """Run a batch of an op that streams, one request after the other; returns its end."""
        ended: set[str] = set()
        bodies: dict[str, bytes] = {}
        failed: set[str] = set()
        for key, body in jobs.items():
            sample = self._sample(body)
            error = self._run_stream(link, received, key, sample)
            if error is None or isinstance(error, Cancelled):
                ended.add(key)
                continue
            if not is_callers(error):
                failed.add(key)
            bodies[key] = self._refusal(sample, error)
        return Answer(bodies, frozenset(bodies), frozenset(failed), ended=frozenset(ended))

    def _run_stream(
        self, link: socket.socket, received: _Received, key: str, sample: Sample
    ) -> RequestError | None:
        """Send the pieces of one answer; returns its error, if any."""

        def send(_: int, piece: Feed) -> None:
            self._send(link, Answer({key: piece[BODY]}, more=frozenset((key,))))

        def read(wait: bool) -> bool:
            return received.follow(key, stream, wait=wait)

        sample.stream = stream = ChildStream(sample.data_id, send, read)
        batch = Batch([sample], CloseReason.FULL, time.monotonic())
        (outcome,) = run_stream(self._op, batch)
        return outcome.error

    def _answer(self, jobs: dict[str, bytes]) -> Answer:
        """Run a batch."""
        samples = [self._sample(body) for body in jobs.values()]
        if not samples:
            return Answer({})
        outcomes = run_batch(self._op, Batch(samples, CloseReason.FULL, time.monotonic()))
        bodies: dict[str, bytes] = {}
        refused, failed = set(), set()
        heads: dict[str, Any] = {}
        for key, sample, outcome in zip(jobs, samples, outcomes, strict=True):
            if outcome.error is None:
                assert outcome.value is not None
                bodies[key] = outcome.value[BODY]
                if HEAD in outcome.value:
                    heads[key] = [outcome.value[KIND], *outcome.value[HEAD]]
                continue
            refused.add(key)
            if not is_callers(outcome.error):
                failed.add(key)
            bodies[key] = self._refusal(sample, outcome.error)
        packed = orjson.dumps(heads) if heads else b""
        return Answer(bodies, frozenset(refused), frozenset(failed), heads=packed)

    def _refusal(self, sample: Sample, error: RequestError) -> bytes:
        text = without_sentence(str(error), names_op=not isinstance(error, NumberedError))
        if not is_callers(error):  # the caller does not see errors of the worker
            text = f"the log of process {os.getpid()} has the reason, for data_id {sample.data_id}"
        return refusal_body(error, text, self._kind)
