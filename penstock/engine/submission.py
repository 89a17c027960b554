"""One request to a graph, the same for every protocol: from its decoding until its one answer.

A protocol decodes a request, makes a Submission of it, starts it, and encodes the outcome that it
is called with. Everything in between is the engine's: the deadline, admission, cancellation, the
bytes that are reserved for it, and that there is exactly one answer.

Thread: the engine's loop only. Source: ``docs/compatibility.md`` (deadlines, ids, capacity).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from penstock.engine.deadlines import Due
from penstock.errors import RequestError
from penstock.graph.flight import Flight
from penstock.request import Feed, Outcome, Sample

if TYPE_CHECKING:
    from penstock.engine.graph import ServedGraph

NO_ID = -1
"""Stands for the data id of a request that was not admitted."""

OnAnswer: TypeAlias = Callable[[Any, Outcome], None]
"""Takes a submission and its answer; called on the engine's loop, once."""


class Reserved(Protocol):
    """Bytes that are counted as in flight while a request is."""

    def release(self) -> None:
        """They are free again."""


class Submission(Flight):
    """See the module.

    A protocol that has to remember more of a request than ``context`` makes a subclass with slots.

    Args:
        graph: what is to answer it.
        feed: the request's dict; the first ops own it, and may edit it. It may be set later, before
            ``start``.
        timeout: seconds from now that its caller gives it, which may lower the engine's own limit
            and never raises it; None when the caller says nothing.
        log_id: the caller's trace id (int64), not unique.
        context: what the protocol knows the request by.

    Attributes:
        deadline: monotonic seconds after which nothing of it is dispatched.
        deadline_by_client: whether the caller set that deadline itself.
        call: of the door, which brought it; None when none did.
        reservation: bytes that are released when it is over; None when somebody else sees to that.
        data_id: its id in this engine, NO_ID before the admission, and after a refusal.
        over: answered, refused or cancelled.
        due: those whose time is over together with its own; set when it is admitted.
        admitted_at: monotonic seconds; set when it is admitted.
        samples: what of it is queued or running; set when it is admitted.
    """

    __slots__ = (
        "admitted_at",
        "call",
        "context",
        "data_id",
        "deadline",
        "deadline_by_client",
        "due",
        "feed",
        "graph",
        "log_id",
        "on_answer",
        "over",
        "reservation",
        "samples",
    )

    admitted_at: float
    due: Due[Submission]
    on_answer: OnAnswer
    samples: list[Sample]

    def __init__(
        self,
        graph: ServedGraph,
        feed: Feed,
        timeout: float | None = None,
        log_id: int = 0,
        context: Any = None,
    ) -> None:
        # Without super(): this runs for every request.
        self.plan = graph.plan
        self.attempt = 1
        self._feed = self._joins = self.call = self.reservation = None
        self.ended = self.over = False
        self.graph = graph
        self.feed = feed
        self.log_id = log_id
        self.context = context
        self.data_id = NO_ID
        if timeout is not None and timeout <= graph.time_limit:
            self.deadline = graph.now() + timeout
            self.deadline_by_client = True
        else:
            self.deadline = graph.now() + graph.time_limit
            self.deadline_by_client = False

    call: Any
    reservation: Reserved | None

    @property
    def refused(self) -> bool:
        """Whether the engine has not taken it on; nothing of it has run then."""
        return self.over and self.data_id == NO_ID

    def start(self, on_answer: OnAnswer) -> None:
        """Hand it to the engine. What was cancelled before is dropped.

        Args:
            on_answer: called once, unless it is cancelled first: now with the refusal, or later
                with the answer.
        """
        if self.over:
            return
        try:
            self.graph.engine.submit(self, on_answer)
        except RequestError as refusal:
            # Its frames hold the request, and hold the error: together they would outlive the call.
            refusal.__traceback__ = None
            self.over = True
            self.release()
            on_answer(self, Outcome(None, refusal))

    def cancel(self) -> None:
        """The caller went away: nothing more is run for it, and nobody is called."""
        self.graph.engine.cancel(self)

    def release(self) -> None:
        """Give back the bytes that are reserved for it."""
        reservation, self.reservation = self.reservation, None
        if reservation is not None:
            reservation.release()
