"""One request and its answer: the interface between door and applications, for every protocol.

The door makes an exchange when a request's head has arrived and hands it to the application. The
application answers with ``reply`` (everything at once), or with ``start``, ``send`` and ``finish``,
at once or later. All of it happens on the door's loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from penstock.door.budget import ByteBudget, Reservation
from penstock.protocols.heads import Headers, RequestHead

STOPPING: Final = "the service is shutting down"
"""The answer to requests that are incomplete when the door closes."""

WRITABLE: Final = 64 << 10
"""Maximum unsent bytes at which ``on_writable`` lets a streamed answer continue."""


class Limit(Enum):
    """Limits of the door that only an application can check."""

    BODY = auto()
    """Bytes of a body or a message."""
    BUDGET = auto()
    """Bytes in flight, of all requests."""
    CALLS = auto()
    """Requests open at once."""
    CALLER = auto()
    """What the caller may do."""


class HttpReply(NamedTuple):
    """A whole answer. ``close``: an HTTP/1.1 connection is closed after it."""

    status: int
    headers: Headers
    body: bytes = b""
    close: bool = False


Failure: TypeAlias = Callable[[RequestHead | None, int, str], HttpReply]
"""Makes the door's own answers from the request's head (None if it is unknown), a status, and a
text for the client."""


def plain_failure(_head: RequestHead | None, status: int, text: str) -> HttpReply:
    """Make an error answer in plain text."""
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
        """Receive the next piece; the last one has ``ended``, and may be empty.

        Not called after the answer is complete or the client has disconnected.
        """

    def late(self, exchange: Exchange) -> None:
        """Answer, in the application's format (408, DEADLINE_EXCEEDED), that the body is late.

        Called instead of any further ``data``.
        """


class Application(Protocol):
    """Answers requests."""

    def begin(self, exchange: Exchange) -> Receiver | None:
        """Handle a request whose head has arrived.

        Returns the receiver of the body, or None if the request has been answered; the rest of the
        request is then discarded.
        """


class Exchange(Reservation, ABC):
    """A request and its answer.

    It is a reservation of budget for what the application keeps: the body and its decoded value.
    The door releases it when the answer is complete or the client has disconnected, and counts
    unsent output itself.

    Attributes:
        head: the request's head.
        began: monotonic seconds when the head, and often the body, had arrived.
        status: status of the answer that was begun; 0 before.
        whole: the request's body, if it had arrived with the head; else None. The receiver gets the
            body in either case.
        over_limit: more requests are open than the door allows: refuse all but probes.
        on_gone: set by the application; called once when the client disconnects, or is cut off by a
            limit, before the answer is complete. Later output is dropped without an error.
        on_over: called once when the answer is complete or the client has disconnected.
        body_deadline: monotonic time at which the rest of the body is late; arriving bytes extend
            it. Infinity for callers that may be silent between messages.
        deadline: set by an application when it begins, if the caller has given a timeout: at this
            time an incomplete body is late.
        on_writable: set by a streaming application; called when ``unsent`` falls to 64 KiB or less.
        on_half_closed: set by a streaming application; called when the client has closed its
            sending half after the answer has begun, or is gone: it should write something, or
            abort the answer.
        state: the receiver's state between pieces.
        over: the answer is complete, or the client has disconnected.
        record: the recorder's; see ``ExchangeInfo``.
        refused: why the application refused its caller, as in ``count_refusal``; else empty.
        caller: who makes the request, as the service's admission of callers says; None without one.
        added: fields that the head of the answer gets besides those that it is given.
    """

    __slots__ = (
        "added",
        "began",
        "body_deadline",
        "caller",
        "deadline",
        "head",
        "on_gone",
        "on_half_closed",
        "on_over",
        "on_writable",
        "over",
        "over_limit",
        "record",
        "refused",
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
        self.on_over: Callable[[], object] | None = None
        self.on_writable: Callable[[], object] | None = None
        self.on_half_closed: Callable[[], object] | None = None
        self.state: Any = None
        self.over = False
        self.record: Any = None
        self.caller: Any = None
        self.refused = ""
        self.added: Headers = ()

    def count_refusal(self, limit: Limit, reason: str = "") -> None:
        """Count a request that the application refuses because of this limit; that of a caller with
        a reason, one of a few.
        """

    def count_error(self, code: str) -> None:
        """Count an answer with this error code. HTTP statuses are counted without this call."""

    @property
    @abstractmethod
    def peer(self) -> Peer:
        """The other end of the connection."""

    @property
    def is_secure(self) -> bool:
        """Whether the caller uses TLS."""
        return False

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
        """Send the whole answer.

        ``content-length`` is added, except over HTTP/2 if the answer has trailers or no body. With
        trailers an answer over HTTP/1.1 is chunked. ``close`` closes the connection after the
        answer (HTTP/1.1 only). The rest of an incomplete body is discarded.
        """

    @abstractmethod
    def start(self, status: int, headers: Headers) -> None:
        """Begin an answer of unknown length."""

    @abstractmethod
    def send(self, piece: bytes) -> None:
        """Send the next piece of a started answer. It is held in memory until the client reads."""

    @abstractmethod
    def finish(self, trailers: Headers = ()) -> None:
        """End a started answer."""

    @abstractmethod
    def abort(self) -> None:
        """Abort an answer: with RST_STREAM, or by closing the HTTP/1.1 connection."""

    @property
    @abstractmethod
    def unsent(self) -> int:
        """Bytes of the answer that have not been sent, because the client does not read."""

    @abstractmethod
    def pause(self) -> None:
        """Pause the sender: its body is not read beyond the flow-control window."""

    @abstractmethod
    def resume(self) -> None:
        """Let the sender continue."""
