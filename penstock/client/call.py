"""One call as the event loop sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.client import answers
from penstock.client.answers import Outcome
from penstock.client.errors import CallFailed
from penstock.client.packing import MAX_MESSAGE_BYTES
from penstock.protocols.grpc import GrpcError, MessageReader, unary_message
from penstock.protocols.status import GrpcCode

if TYPE_CHECKING:
    from penstock.client.connection import Connection
    from penstock.protocols.http2 import Stream


class Call:
    """One call, from its start to its outcome. The loop's thread only, but for ``ended``.

    Attributes:
        request: the message with its prefix; empty once the call has ended.
        deadline: monotonic seconds; None means no limit.
        tries: how often it was put on a connection.
        encoding: what the head of the answer says of its message.
        connection: where it is now; None while it waits, and once it has ended.
        stream: its stream on that connection.
        ended: the outcome is known.
    """

    __slots__ = (
        "_heard",
        "_message",
        "_reader",
        "connection",
        "deadline",
        "encoding",
        "ended",
        "request",
        "stream",
        "tries",
    )

    def __init__(
        self, request: bytes, deadline: float | None, heard: Callable[[Outcome], None]
    ) -> None:
        self.request = request
        self.deadline = deadline
        self.tries = 0
        self.connection: Connection | None = None
        self.stream: Stream | None = None
        self.ended = False
        self.encoding = b"identity"
        self._message: bytes | None = None  # the reply's, when all of it is there
        self._reader: MessageReader | None = None  # for a message that does not come in one piece
        self._heard: Callable[[Outcome], None] | None = heard

    def take(self, data: bytes) -> CallFailed | None:
        """A piece of the reply's body; gives the reason when it can be none."""
        if self._reader is None and self._message is None:
            self._message = unary_message(data, MAX_MESSAGE_BYTES)
            if self._message is not None:
                return None
        if self._reader is None:
            self._reader = MessageReader(MAX_MESSAGE_BYTES)
        try:
            for message in self._reader.feed(data):
                if self._message is not None:
                    return answers.failure(GrpcCode.INTERNAL, "more than one message for one call")
                self._message = message
        except GrpcError as error:
            return answers.of_bad_message(error, self.encoding)
        return None

    def outcome(self, trailers: Mapping[bytes, bytes]) -> Outcome:
        """What the fields behind the body make of it."""
        if self._reader is not None:
            try:
                self._reader.finish()
            except GrpcError as error:
                return answers.of_bad_message(error)
        return answers.of_end(trailers, self._message)

    def back_to_waiting(self) -> None:
        """Forget the connection and what came from it."""
        self.connection = self.stream = self._reader = self._message = None

    def end(self, outcome: Outcome) -> None:
        """Tell the outcome, once; whatever comes later is dropped."""
        heard = self._heard
        if heard is None:
            return
        self.ended = True
        # A deadline's entry or a late frame may keep this object; it must keep nothing else.
        self._heard = self.connection = self.stream = self._reader = self._message = None
        self.request = b""
        heard(outcome)

    def abandon(self, failure: CallFailed) -> None:
        """End it from our side; a server that works on it is told."""
        if not self.ended:
            if self.connection is not None:
                self.connection.leave(self)
            self.end(failure)

    def __repr__(self) -> str:
        where = "ended" if self.ended else "waiting" if self.stream is None else "sent"
        return f"<Call {where}, {self.tries} tries>"
