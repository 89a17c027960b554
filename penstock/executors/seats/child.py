"""The worker process's end of an op with seats: reads requests, makes steps, writes pieces.

Single-threaded. What a step makes is sent at its end, in one write; frames of the engine are read
between two steps, and waited for only if no request can run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from penstock.errors import RequestError
from penstock.executors.seats.counts import StepCounts
from penstock.executors.seats.steps import Seated, Steps
from penstock.executors.transport.frames import CREDIT, Frame, Kind
from penstock.executors.work import BoundOp
from penstock.executors.workers.child_stream import ChildStream
from penstock.request import Batch, CloseReason, Feed, Outcome, Sample


class Page(Protocol):
    """Shows the engine what runs; see ``StatusPage``."""

    number: int
    joining: int
    started: float | None
    steps: memoryview


class Link(Protocol):
    """The worker's end of the link."""

    def read_for(self, milliseconds: int | None) -> bool:
        """Read the engine's frames, waiting at most so long, None: for as long as it takes; returns
        False when the engine has ended, or wants this worker to end.
        """

    def sample_of(self, op: BoundOp, frame: Frame) -> tuple[Sample, RequestError | None]:
        """The request of a RUN frame, and the error if its values could not be opened."""

    def piece_frame(
        self, op: BoundOp, number: int, sample: Sample, piece: Feed
    ) -> list[bytes | memoryview]:
        """A piece as a frame.

        Raises:
            RequestError: it cannot be sent.
        """

    def done_frame(self, number: int, batch: Batch, outcome: Outcome) -> list[bytes | memoryview]:
        """The end of a request as a frame."""

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send frames, and wake the engine."""


class SeatedChild:
    """See the module.

    Args:
        op: the worker's copy.
        link: the worker's end of the link.
        page: shows the engine what runs.
    """

    def __init__(self, op: BoundOp, link: Link, page: Page) -> None:
        assert op.options.seats is not None
        self._op = op
        self._link = link
        self._page = page
        counts = StepCounts(page.steps)
        self._steps = Steps(
            op, op.options.seats, self._ended, self._flush, self._called, counts, self._look
        )
        self._seated: dict[int, Seated] = {}
        self._out: list[bytes | memoryview] = []
        self._reported = 0  # ended requests
        self._handled = 0  # those of them that the engine has settled

    def serve(self) -> None:
        """Make steps until the engine sends STOP or closes the link."""
        link, steps = self._link, self._steps
        while link.read_for(0 if steps.has_work else None):
            joined = steps.admit()
            wait = steps.wait_for_others()
            if wait:
                self._let_others_come(wait)
                joined = steps.admit() or joined
            if joined and not link.read_for(0):  # who was cancelled meanwhile must not run
                break
            steps.step()
        with suppress(ConnectionError):  # the engine may have ended
            steps.close()

    def frame_received(self, frame: Frame) -> None:
        """Handle a frame of the engine."""
        kind, number = frame.kind, frame.number
        if kind is Kind.RUN:
            self._take(frame)
        elif kind is Kind.HANDLED:
            self._handled = number
        else:
            one = self._seated.get(number)
            if one is None:  # it has just ended
                return
            stream: ChildStream = one.stream
            if kind is Kind.CREDIT:
                stream.credit(*CREDIT.unpack(frame.body))
            elif kind is Kind.CANCEL:
                stream.cancelled = True

    def _take(self, frame: Frame) -> None:
        number = frame.number
        self._page.number = number  # a crash in reading counts for it
        sample, error = self._link.sample_of(self._op, frame)
        sample.stream = ChildStream(number, self._send, _nothing_to_read)
        one = self._seated[number] = Seated(Batch([sample], CloseReason.FULL, 0.0), number)
        if error is None:
            self._steps.take(one)
        else:
            self._ended(one, Outcome(None, error))

    def _send(self, number: int, piece: Feed) -> None:
        self._out += self._link.piece_frame(self._op, number, self._seated[number].sample, piece)

    def _ended(self, one: Seated, outcome: Outcome) -> None:
        number: int = one.given_by
        del self._seated[number]
        self._reported += 1
        self._out += self._link.done_frame(number, one.batch, outcome)

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._link.write(out)

    def _called(self, started: float | None, joins: Seated | None) -> None:
        page = self._page
        page.joining = 0 if joins is None else joins.given_by
        page.started = started

    def _look(self) -> None:
        """After a ``join``: read what the engine has sent; at its end the loop stops."""
        self._link.read_for(0)

    def _let_others_come(self, wait: float) -> None:
        until = time.monotonic() + wait
        while self._handled < self._reported:
            left = until - time.monotonic()
            if left <= 0.0 or not self._link.read_for(max(1, round(1000 * left))):
                return


def _nothing_to_read(wait: bool) -> bool:
    """For streams: nothing waits for credit here."""
    return True
