"""A submission: one request to a graph, from its decoding to its one answer, for every protocol.

A protocol decodes a request, makes a Submission of it, starts it, and encodes the outcome in its
callback. The engine does everything in between: deadline, admission, cancellation, and exactly one
answer. The end of a request is an event of its own, which anyone may wait for (``at_end``).

Thread: the engine's loop only. Source: ``docs/compatibility.md`` (deadlines, ids, capacity).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

from penstock.engine.deadlines import Due
from penstock.engine.gathered import Gathered
from penstock.engine.graph import OnAnswer, ServedGraph
from penstock.errors import RequestError
from penstock.executors.stream import Stream
from penstock.graph.flight import Flight
from penstock.request import Feed, Outcome, Sample

_log = logging.getLogger(__name__)

NO_ID = -1
"""The data id of a request that was not admitted."""


class Submission(Flight):
    """See the module.

    A protocol that needs more than ``context`` for a request makes a subclass with slots.

    Args:
        graph: the graph that runs it.
        feed: the request's dict; the first ops own it, and may change it. It may be set later,
            before ``start``.
        timeout: the caller's timeout in seconds from now; it may lower the engine's limit, never
            raise it. None if the caller sets none.
        log_id: the caller's trace id (int64), not unique.
        context: the protocol's own object for the request.

    Attributes:
        deadline: monotonic seconds; nothing of the request is dispatched later.
        deadline_by_client: whether the caller set that deadline itself.
        own_deadline: that of the caller, if it is later than ``deadline``: it holds once the answer
            has begun. None: there is none.
        call: the call from the door; None if it did not come over a connection.
        endings: called when the request ends; None if nobody waits for that. See ``at_end``.
        data_id: its id in this engine; NO_ID before the admission, and after a refusal.
        level: its priority level; 0 is the highest. Set when it is submitted.
        over: answered, refused or cancelled.
        asked: the version or label that its caller named, and in which it runs or is refused; None
            if it named none: then another default version may run it.
        due: the bucket of deadlines that has it; set when it is admitted.
        admitted_at: monotonic seconds; set when it is admitted.
        samples: its samples that are queued or running; set when it is admitted.
        sizes: those of its inputs' named axes; set when it begins, if its graph has a promise.
        queue_timeout: the most seconds that it may wait in the queue of an op, as its caller asks;
            counts only if the service limits that time.
        steps: for the recorder; see ``RequestInfo``.
        stream: from which its answer's pieces come, if its graph's answers come in pieces; None
            before the first one.
        gathered: pieces that are not passed on; see ``piece``.
    """

    __slots__ = (
        "admitted_at",
        "asked",
        "call",
        "context",
        "data_id",
        "deadline",
        "deadline_by_client",
        "due",
        "endings",
        "feed",
        "gathered",
        "graph",
        "level",
        "log_id",
        "on_answer",
        "over",
        "own_deadline",
        "queue_timeout",
        "samples",
        "sizes",
        "steps",
        "stream",
    )

    admitted_at: float
    due: Due[Submission]
    on_answer: OnAnswer
    samples: list[Sample]
    sizes: dict[str, int]
    stream: Stream | None
    gathered: Gathered

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
        self._feed = self._joins = self.call = self.endings = self.steps = self.asked = None
        self.own_deadline = None
        self.ended = self.over = False
        self.graph = graph
        self.feed = feed
        self.log_id = log_id
        self.context = context
        self.data_id = NO_ID
        self.level = 0
        self.queue_timeout: float | None = None
        if timeout is not None and timeout <= graph.time_limit:
            self.deadline = graph.now() + timeout
            self.deadline_by_client = True
        else:
            self.deadline = graph.now() + graph.time_limit
            self.deadline_by_client = False
            if timeout is not None:
                self.own_deadline = graph.now() + timeout

    own_deadline: float | None
    copied: ClassVar[bool] = False
    """Whether it is a copy of another request, which nobody waits for: callers' requests are
    counted without it."""
    asked: str | None
    call: Any
    endings: list[Callable[[], object]] | None
    steps: Any

    @property
    def caller(self) -> Any:
        """Who makes the request, as the service's admission of callers says; None without one."""
        return getattr(self.call, "caller", None)

    @property
    def priority(self) -> int:
        """The priority that the request's message names; 0 for none."""
        return 0

    @property
    def refused(self) -> bool:
        """Whether the engine refused it; then nothing of it has run."""
        return self.over and self.data_id == NO_ID

    def start(self, on_answer: OnAnswer) -> None:
        """Submit it to the engine. A submission that was cancelled before is dropped.

        Args:
            on_answer: called once, unless it is cancelled first: now with a refusal, or later with
                the outcome.
        """
        if self.over:
            return
        try:
            self.graph.engine.submit(self, on_answer)
        except RequestError as refusal:
            self.over = True
            try:
                on_answer(self, Outcome(None, refusal))
            finally:
                self.run_endings()

    def cancel(self) -> None:
        """Cancel it, because its caller has disconnected: no further work, no callback."""
        self.graph.engine.cancel(self)

    def at_end(self, call: Callable[[], object]) -> None:
        """Call a function when the request ends: once, after the callback for the answer if there
        is one.

        However it ends: answered, refused, cancelled before or after its start, or by the end of
        the engine. Functions are called in the order in which they were added; one that raises is
        logged, and the others are called. After the end a function is called at once.

        Args:
            call: must be quick, and must not block.
        """
        if self.endings is not None:
            self.endings.append(call)
        elif self.over:
            _guarded(call, self)
        else:
            self.endings = [call]

    def piece(self, piece: Feed) -> bool:
        """Take a piece of the answer, which has begun; by default it is kept for ``whole``.

        Returns:
            whether the next ones may come; if not, they come after ``resume``, but for some that
            are on their way.

        Raises:
            RequestError: it cannot be taken; ends the request.
        """
        self.gathered.add(piece)
        return True

    def pieces(self, pieces: list[Feed]) -> bool:
        """Take the pieces that have arrived together, one or more; as ``piece`` otherwise."""
        wants_more = True
        for each in pieces:
            wants_more = self.piece(each)
            if self.over:
                return False
        return wants_more

    def resume(self) -> None:
        """Let the next pieces come."""
        if self.stream is not None and not self.over:
            self.stream.credit()

    def complete(self) -> None:
        """Answer it now, as if its op had ended: the caller needs no further piece."""
        self.graph.engine.complete(self)

    def whole(self, outcome: Outcome) -> Outcome:
        """The outcome of a request whose answer has come in pieces; by default a list of them,
        under ``result``.
        """
        if outcome.error is not None:
            return outcome
        return Outcome(self.gathered.whole())

    def run_endings(self) -> None:
        """The request has ended: call what was added by ``at_end``."""
        if self.endings is not None:
            for call in self.endings:  # one may add others
                _guarded(call, self)
            self.endings = None


def _guarded(call: Callable[[], object], submission: Submission) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 - of whoever added it; the others are called
        ids = submission.data_id, submission.log_id
        _log.exception("a function for the end of a request raised (data_id=%s log_id=%s)", *ids)
