"""What the exchanges of both kinds of connection have."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import Any, Final

from penstock.door.exchange import Exchange, Limit, Receiver
from penstock.door.state import DoorState

_log = logging.getLogger(__name__)

STOPPING: Final = "the service is shutting down"
"""Told to whose request is not whole when the door closes."""

ROOM: Final = 64 << 10
"""An answer that is streamed goes on when no more than this waits."""


class DoorExchange(Exchange):
    """One request and its answer.

    Attributes:
        shared: of the door.
        over: the answer is complete, or nobody waits for it any more.
        started: a part of the answer has been given.
        paused: the application has stopped the sender.
        receiver: takes the body; None when nobody does.
    """

    __slots__ = ("over", "paused", "receiver", "shared", "started")

    shared: DoorState
    receiver: Receiver | None
    over: bool
    started: bool
    paused: bool

    def beyond(self, limit: Limit) -> None:
        """See ``Exchange``."""
        counters = self.shared.counters
        if limit is Limit.BODY:
            counters.bodies_too_large += 1
        elif limit is Limit.ROOM:
            counters.bodies_refused += 1
        else:
            counters.calls_refused += 1

    @property
    def awaited(self) -> bool:
        """Whether nothing happens before more of the request has come, for which there is a limit.

        Holds on when the request has ended; its session knows of that.
        """
        return not (self.receiver is None or self.paused or self.started or self.late_at == inf)

    def close(self) -> None:
        """The answer is complete. Lets go of the application, which may hold this exchange."""
        self.over = True
        shared = self.shared
        shared.calls -= 1
        if not shared.calls:
            shared.rest()
        self.receiver = self.on_gone = self.on_room = self.state = None
        if self.taken:
            self.release()

    def leave(self) -> None:
        """Nobody waits for the answer any more: tell the application, once."""
        if self.over:
            return
        on_gone = self.on_gone
        self.over = True
        shared = self.shared
        shared.calls -= 1
        if not shared.calls:
            shared.rest()
        self.receiver = self.on_gone = self.on_room = self.state = None
        if on_gone is not None:
            guarded(on_gone)
        self.release()

    def check_room(self) -> None:
        """Tell the application when its reader has caught up."""
        if self.on_room is not None and self.unsent <= ROOM:
            guarded(self.on_room)


def guarded(call: Callable[..., Any], *arguments: Any) -> bool:
    """Call the application; its exceptions are logged here and end nothing else.

    Returns:
        whether it returned.
    """
    try:
        call(*arguments)
    except Exception:  # noqa: BLE001 - a promise is broken; the caller gets no traceback
        log_fault()
        return False
    return True


def log_fault() -> None:
    """Log the exception that is being handled, by which one request failed."""
    _log.exception("a request failed inside penstock; please report this")
