"""One request and its answer, whichever HTTP carries them: the port between door and applications.

The door makes an exchange when a head has arrived, and asks the application to begin it. The
application answers with ``reply`` (the whole), or with ``start``, ``send`` and ``finish``, at once
or later, from the loop's thread. Everything here runs on that loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from math import inf
from typing import Any, Protocol

from penstock.door.budget import ByteBudget, Reservation
from penstock.protocols.heads import Headers, RequestHead


class Limit(Enum):
    """What the door bounds and an application finds exceeded, because it knows the message."""

    BODY = auto()
    """Bytes of a body or a message."""
    ROOM = auto()
    """Bytes in flight, of all requests."""
    CALLS = auto()
    """Requests open at once."""


class Receiver(Protocol):
    """Takes a request's body."""

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """The next piece; the last one has ``ended``, and may be empty. Not called after an answer
        is complete or the client has gone.
        """

    def late(self, exchange: Exchange) -> None:
        """The rest of the body did not come in time. Called instead of any further ``data``.

        It answers in the application's own form (408, DEADLINE_EXCEEDED).
        """


class Application(Protocol):
    """Answers requests."""

    def begin(self, exchange: Exchange) -> Receiver | None:
        """A head has arrived. Gives who takes the body, or None when the answer has been given
        already: then the rest of the request is thrown away.
        """


class Exchange(Reservation, ABC):
    """A request and its answer.

    It is its own reservation, which counts what the application keeps for this request: its body,
    what it decodes to. The door gives it back when the answer is complete or the client has gone,
    and counts by itself what clients have not read.

    Attributes:
        head: the request's.
        excess: more requests are open than the door is to bear: refuse all but probes.
        on_gone: set by the application; called once when the client leaves, or is cut off by a
            limit, before the answer is complete. What is sent afterwards goes nowhere, without an
            error.
        late_at: when the rest of the body is late, by ``time.monotonic``; moved on by what arrives.
            An application whose callers may be silent between messages sets it to infinity.
        on_room: set by the application that streams; called when ``unsent`` has fallen to 64 KiB or
            less after it was above.
        state: for the receiver: what it keeps between pieces.
    """

    __slots__ = ("excess", "head", "late_at", "on_gone", "on_room", "state")

    def __init__(self, head: RequestHead, budget: ByteBudget) -> None:
        super().__init__(budget)
        self.head = head
        self.excess = False
        self.late_at = inf
        self.on_gone: Callable[[], object] | None = None
        self.on_room: Callable[[], object] | None = None
        self.state: Any = None

    def beyond(self, limit: Limit) -> None:
        """The application refuses the request for this; whoever keeps statistics counts it."""

    @abstractmethod
    def reply(
        self, status: int, headers: Headers, body: bytes = b"", *, close: bool = False
    ) -> None:
        """Give the whole answer; ``content-length`` is added.

        ``close`` ends the connection after it (HTTP/1.1 only). A body that is still coming is
        thrown away.
        """

    @abstractmethod
    def start(self, status: int, headers: Headers) -> None:
        """Begin an answer whose length is not known."""

    @abstractmethod
    def send(self, piece: bytes) -> None:
        """Send the next piece of an answer that was started; it waits in memory for the reader."""

    @abstractmethod
    def finish(self, trailers: Headers = ()) -> None:
        """End an answer that was started."""

    @abstractmethod
    def abort(self) -> None:
        """Break an answer off: RST_STREAM, or an HTTP/1.1 connection closed in the middle."""

    @property
    @abstractmethod
    def unsent(self) -> int:
        """Bytes of the answer that wait for the client to read."""

    @abstractmethod
    def pause(self) -> None:
        """Stop the sender: its body is not read any further than flow control has allowed."""

    @abstractmethod
    def resume(self) -> None:
        """Let the sender go on."""
