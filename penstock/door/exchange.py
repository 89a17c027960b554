"""One request and its answer: the interface between door and applications, for every protocol.

The door makes an exchange when a request's head has arrived and hands it to the application. The
application answers with ``reply`` (everything at once), or with ``start``, ``send`` and ``finish``,
at once or later. All of it happens on the door's loop.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from penstock.door.budget import ByteBudget, Reservation
from penstock.protocols.heads import Headers, RequestHead

if TYPE_CHECKING:
    from penstock.door.state import DoorState

_log = logging.getLogger(__name__)

STOPPING: Final = "the service is shutting down"
"""The answer to requests that are incomplete when the door closes."""

WRITABLE: Final = 64 << 10
"""Bytes; a streamed answer continues when no more than this is unsent."""


class Limit(Enum):
    """Limits of the door that only an application can check."""

    BODY = auto()
    """Bytes of a body or a message."""
    BUDGET = auto()
    """Bytes in flight, of all requests."""
    CALLS = auto()
    """Requests open at once."""


class HttpReply(NamedTuple):
    """A whole answer. ``close``: an HTTP/1.1 connection ends with it."""

    status: int
    headers: Headers
    body: bytes = b""
    close: bool = False


Failure: TypeAlias = Callable[[RequestHead | None, int, str], HttpReply]
"""Makes the answers that the door gives itself: of the request's head (None while there is none), a
status and a text for the client."""


def plain_failure(_head: RequestHead | None, status: int, text: str) -> HttpReply:
    """A failure as plain text."""
    kind = (b"content-type", b"text/plain; charset=utf-8")
    return HttpReply(status, (kind,), text.encode() + b"\n", close=True)


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection.

    Attributes:
        address: its IP address; empty over a Unix socket.
        port: its port; 0 over a Unix socket.
        certificate: the client's certificate as ``ssl.SSLSocket.getpeercert`` gives it; None when
            there is none, or it was not verified.
    """

    address: str
    port: int
    certificate: Mapping[str, Any] | None


class Receiver(Protocol):
    """Receives a request's body."""

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """The next piece; the last one has ``ended``, and may be empty. Not called after an answer
        is complete or the client has gone.
        """

    def late(self, exchange: Exchange) -> None:
        """The rest of the body did not arrive in time. Called instead of any further ``data``.

        It answers in the application's own format (408, DEADLINE_EXCEEDED).
        """


class Application(Protocol):
    """Answers requests."""

    def begin(self, exchange: Exchange) -> Receiver | None:
        """A head has arrived. Returns who takes the body, or None when the request has been
        answered: then the rest of the request is thrown away.
        """


class Exchange(Reservation, ABC):
    """A request and its answer.

    It is its own reservation, which counts what the application keeps for this request: its body
    and what that decodes to. The door releases it when the answer is complete or the client has
    gone, and counts by itself what clients have not read.

    Attributes:
        head: the request's.
        began: monotonic seconds when the head, and often the body, had come.
        status: of the answer that was begun; 0 before.
        whole: the request's body, if all of it was there when the application began; None when it
            is still to come. It is given to the receiver in either case.
        over_limit: more requests are open than the door allows: refuse all but probes.
        on_gone: set by the application; called once when the client leaves, or is cut off by a
            limit, before the answer is complete. What is sent afterwards goes nowhere, without an
            error.
        body_deadline: when the rest of the body is late, by ``time.monotonic``; moved on by what
            arrives. An application whose callers may be silent between messages sets it to
            infinity.
        deadline: set by an application when it begins, where the caller has given a timeout: a body
            is late at this time, whatever has arrived of it.
        on_writable: set by the application that streams; called when ``unsent`` has fallen to 64
            KiB or less after it was above.
        state: for the receiver: what it keeps between pieces.
    """

    __slots__ = (
        "began",
        "body_deadline",
        "deadline",
        "head",
        "on_gone",
        "on_writable",
        "over_limit",
        "state",
        "status",
        "whole",
    )

    def __init__(self, head: RequestHead, budget: ByteBudget) -> None:
        super().__init__(budget)
        self.head = head
        self.began = monotonic()
        self.status = 0
        self.whole: bytes | None = None
        self.over_limit = False
        self.body_deadline = inf
        self.deadline = inf
        self.on_gone: Callable[[], object] | None = None
        self.on_writable: Callable[[], object] | None = None
        self.state: Any = None

    def count_refusal(self, limit: Limit) -> None:
        """The application refuses the request for this reason; for the door's statistics."""

    def count_error(self, code: str) -> None:
        """The answer tells of an error; for the same. HTTP statuses count by themselves."""

    @property
    @abstractmethod
    def peer(self) -> Peer:
        """The other end of the connection."""

    @abstractmethod
    def reply(
        self,
        status: int,
        headers: Headers,
        body: bytes = b"",
        trailers: Headers = (),
        *,
        close: bool = False,
    ) -> None:
        """Give the whole answer.

        ``content-length`` is added, except over HTTP/2 where the answer has trailers or no body.
        With trailers an answer over HTTP/1.1 is chunked. ``close`` ends the connection after it
        (HTTP/1.1 only). A body that is still coming is thrown away.
        """

    @abstractmethod
    def start(self, status: int, headers: Headers) -> None:
        """Begin an answer of unknown length."""

    @abstractmethod
    def send(self, piece: bytes) -> None:
        """Send the next piece of an answer that was started; it waits in memory for the reader."""

    @abstractmethod
    def finish(self, trailers: Headers = ()) -> None:
        """End an answer that was started."""

    @abstractmethod
    def abort(self) -> None:
        """Abort an answer: RST_STREAM, or an HTTP/1.1 connection closed in the middle."""

    @property
    @abstractmethod
    def unsent(self) -> int:
        """Bytes of the answer that wait for the client to read."""

    @abstractmethod
    def pause(self) -> None:
        """Pause the sender: its body is not read beyond the flow-control window."""

    @abstractmethod
    def resume(self) -> None:
        """Let the sender continue."""


class DoorExchange(Exchange):
    """What the exchanges of both versions of HTTP have in common.

    Attributes:
        shared: of the door.
        over: the answer is complete, or the client has left.
        started: a part of the answer has been sent.
        paused: the application has paused the sender.
        receiver: receives the body, or None.
    """

    __slots__ = ("over", "paused", "receiver", "shared", "started")

    shared: DoorState
    receiver: Receiver | None
    over: bool
    started: bool
    paused: bool

    def count_refusal(self, limit: Limit) -> None:
        """See ``Exchange``."""
        counters = self.shared.counters
        if limit is Limit.BODY:
            counters.bodies_too_large += 1
        elif limit is Limit.BUDGET:
            counters.bodies_refused += 1
        else:
            counters.calls_refused += 1

    def count_error(self, code: str) -> None:
        """See ``Exchange``."""
        answers = self.shared.counters.error_answers
        answers[code] = answers.get(code, 0) + 1

    def arrived(self, count: int) -> None:
        """A part of the body has arrived, which extends its deadline."""
        if self.body_deadline < inf:
            later = self.body_deadline + count / self.shared.limits.body_pace
            self.body_deadline = min(later, self.deadline)

    @property
    def awaits_body(self) -> bool:
        """Whether nothing happens before more of the request has come, for which there is a limit.

        Stays true when the request has ended; its session knows of that.
        """
        return not (
            self.receiver is None or self.paused or self.started or self.body_deadline == inf
        )

    @abstractmethod
    def refuse(self, status: int, text: str) -> None:
        """End it with this answer, or break off the one that was begun; the application is told."""

    def fail(self) -> None:
        """The exception that is being handled ends this exchange."""
        log_fault()
        self.shared.counters.errors += 1
        if not self.over:
            self.refuse(500, "internal error")

    def end_late(self) -> None:
        """The rest of the body did not come in time."""
        self.shared.counters.bodies_late += 1
        if self.receiver is not None:
            guarded(self.receiver.late, self)
        if not self.over:
            self.refuse(408, "the request took too long to arrive")

    def close(self) -> None:
        """The answer is complete. Drops callbacks that may hold this exchange."""
        self.over = True
        shared = self.shared
        shared.calls -= 1
        if not shared.calls:
            shared.rest()
        self.receiver = self.on_gone = self.on_writable = self.state = None
        if self.taken:
            self.release()
        tell = shared.instruments.exchange_ended
        if tell is not None:
            tell(self, self.status, monotonic())

    def leave(self, status: int = 0) -> None:
        """Notify the application, once, that the client has left.

        Args:
            status: of the door's own answer; 0 for none.
        """
        if not self.over:
            on_gone = self.on_gone
            self.status = status
            self.close()
            if on_gone is not None:
                guarded(on_gone)

    def check_writable(self) -> None:
        """Tell the application when its reader has caught up."""
        if self.on_writable is not None and self.unsent <= WRITABLE:
            guarded(self.on_writable)


def guarded(call: Callable[..., Any], *arguments: Any) -> None:
    """Call the application; its exceptions are logged here and have no further effect."""
    try:
        call(*arguments)
    except Exception:  # noqa: BLE001 - a promise is broken; the caller gets no traceback
        log_fault()


def log_fault() -> None:
    """Log the exception that is being handled, by which one request failed."""
    _log.exception("a request failed inside penstock; please report this")
