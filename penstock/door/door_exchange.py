"""The base class of a door's exchanges, for all protocols.

A session makes an exchange when a request's head has arrived, and passes it to the application and
the request's body to the application's receiver. An application that raises fails one request.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

from penstock.door.exchange import WRITABLE, Exchange, Limit, Receiver
from penstock.door.state import DoorState
from penstock.protocols.heads import RequestHead

_log = logging.getLogger(__name__)


class DoorExchange(Exchange):
    """The base class of the exchanges of all protocols.

    Attributes:
        shared: the door's state.
        started: a part of the answer has been sent.
        paused: the application has paused the sender.
        receiver: receives the body, or None.
    """

    __slots__ = ("paused", "receiver", "shared", "started")

    shared: DoorState
    receiver: Receiver | None
    started: bool
    paused: bool

    # ``begin`` sets the attributes: for every request that costs less than a chain of ``__init__``.
    __init__ = object.__init__

    def begin(self, shared: DoorState, head: RequestHead, whole: bytes | None) -> None:
        """Begin: a request's head has arrived, with the whole body or, if it is None, not yet."""
        shared.counters.requests += 1
        shared.calls += 1
        self.shared = shared
        self._budget = shared.budget
        self.taken = self.to_come = 0
        self.head = head
        self.whole = whole
        self.began = monotonic()
        self.status = 0
        self.over_limit = shared.calls > shared.max_calls
        self.body_deadline = inf if whole is not None else shared.sweeper.now + shared.body_time
        self.deadline = inf
        self.receiver = self.on_gone = self.on_writable = self.state = self.record = None
        self.on_half_closed = None
        self.caller = self.on_over = None
        self.added = ()
        self.over = self.started = self.paused = False
        self.refused = ""

    def serve(self) -> None:
        """Pass the request to the application, with its body if that has arrived."""
        try:
            receiver = self.shared.application.begin(self)
            if receiver is None or self.over:
                return
            self.receiver = receiver
            if self.whole is not None:
                receiver.data(self, self.whole, True)
            else:
                self.body_deadline = min(self.body_deadline, self.deadline)
        except Exception:  # noqa: BLE001 - only this request fails
            self.fail()

    def deliver(self, piece: bytes, ended: bool) -> None:
        """Pass the next piece of the body to the application, if it still wants the body."""
        receiver = self.receiver
        if receiver is not None:
            try:
                receiver.data(self, piece, ended)
            except Exception:  # noqa: BLE001 - only this request fails
                self.fail()

    def count_refusal(self, limit: Limit, reason: str = "") -> None:
        counters = self.shared.counters
        if limit is Limit.BODY:
            counters.bodies_too_large += 1
        elif limit is Limit.BUDGET:
            counters.bodies_refused += 1
        elif limit is Limit.CALLS:
            counters.calls_refused += 1
        else:
            counters.callers_refused += 1
            refusals = counters.caller_refusals
            refusals[reason] = refusals.get(reason, 0) + 1

    def count_error(self, code: str) -> None:
        answers = self.shared.counters.error_answers
        answers[code] = answers.get(code, 0) + 1

    def arrived(self, count: int) -> None:
        """Extend the body's deadline: a part of the body has arrived."""
        if self.body_deadline < inf:
            later = self.body_deadline + count / self.shared.limits.body_pace
            self.body_deadline = min(later, self.deadline)

    @property
    def awaits_body(self) -> bool:
        """Whether the application waits for more of the request, with a timeout.

        Stays true when the request is complete; the session knows that.
        """
        return not (
            self.receiver is None or self.paused or self.started or self.body_deadline == inf
        )

    @abstractmethod
    def refuse(self, status: int, text: str) -> None:
        """Answer with this error, or abort an answer that was begun; notify the application."""

    def fail(self) -> None:
        """End this exchange because of the exception that is being handled."""
        log_fault()
        self.shared.counters.errors += 1
        if not self.over:
            self.refuse(500, "internal error")

    def end_late(self) -> None:
        """End this exchange because the rest of the body did not arrive in time."""
        self.shared.counters.bodies_late += 1
        if self.receiver is not None:
            guarded(self.receiver.late, self)
        if not self.over:
            self.refuse(408, "the request took too long to arrive")

    def resume(self) -> None:
        """A paused sender was not late."""
        self.paused = False
        if not self.over:
            later = self.shared.sweeper.after(self.shared.limits.body_timeout)
            self.body_deadline = max(self.body_deadline, later)

    def close(self) -> None:
        """End this exchange: the answer is complete. Drops callbacks that may refer to it."""
        self.over = True
        shared = self.shared
        shared.calls -= 1
        if not (shared.calls or shared.polling_wanted):
            shared.start_polling()
        self.receiver = self.on_gone = self.on_writable = self.state = None
        self.on_half_closed = None
        if self.taken:
            self.release()
        if self.on_over is not None:
            guarded(self.on_over)
            self.on_over = None
        notify = shared.instruments.exchange_ended
        if notify is not None:
            notify(self, self.status, monotonic())

    def leave(self, status: int = 0) -> None:
        """Notify the application, once, that the client has disconnected.

        Args:
            status: status of the door's own answer; 0 for none.
        """
        if not self.over:
            on_gone = self.on_gone
            self.status = status
            self.close()
            if on_gone is not None:
                guarded(on_gone)

    def check_writable(self) -> None:
        """Call ``on_writable`` if the client has read enough."""
        if self.on_writable is not None and self.unsent <= WRITABLE:
            guarded(self.on_writable)


def guarded(call: Callable[..., Any], *arguments: Any) -> None:
    """Call the application; its exceptions are logged here and have no further effect."""
    try:
        call(*arguments)
    except Exception:  # noqa: BLE001 - applications must not raise here
        log_fault()


def log_fault() -> None:
    """Log the exception that is being handled: it failed one request."""
    _log.exception("a request failed inside penstock; please report this")
