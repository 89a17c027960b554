"""One call, from its request to its outcome, and the interpretation of a server's answer. Pure.

A server is not trusted: every answer becomes a message or a ``CallFailed``. Sources: the gRPC
HTTP/2 protocol (statuses, trailers, codes of RST_STREAM) and its table of HTTP statuses.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from penstock.client.errors import CallFailed
from penstock.client.messages import MAX_MESSAGE_BYTES
from penstock.protocols.grpc import (
    GrpcError,
    MessageReader,
    code_of_http,
    read_status,
    unary_message,
)
from penstock.protocols.heads import ResponseHead
from penstock.protocols.http2 import ErrorCode
from penstock.protocols.status import GrpcCode

Outcome: TypeAlias = bytes | CallFailed
"""The bytes of a call's reply message, or its failure."""

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"

RETRYABLE = frozenset({GrpcCode.UNAVAILABLE, GrpcCode.DEADLINE_EXCEEDED, GrpcCode.ABORTED})

OF_PROXIES = frozenset({400, 401, 403, 408, 413, 414, 415, 429, 431})
"""HTTP statuses of answers that are none of the service, and yet are about the call."""

_PUSH_BACK = b"grpc-retry-pushback-ms"

_MEANING_OF_RESET: dict[int, tuple[GrpcCode, str]] = {
    ErrorCode.REFUSED_STREAM: (GrpcCode.UNAVAILABLE, ""),
    ErrorCode.CANCEL: (GrpcCode.CANCELLED, ""),
    ErrorCode.ENHANCE_YOUR_CALM: (
        GrpcCode.RESOURCE_EXHAUSTED,
        ": the quota or bandwidth that it allows is exceeded",
    ),
    ErrorCode.INADEQUATE_SECURITY: (
        GrpcCode.PERMISSION_DENIED,
        ": the connection is not secure enough for it",
    ),
}


class Carrier(Protocol):
    """A connection, for the calls that were sent on it."""

    def leave(self, call: Call) -> None:
        """Cancel a call on this connection."""

    def consumed(self, call: Call, count: int) -> None:
        """Return bytes of a call's answer, which were held, to the server's window."""


class Sender(Protocol):
    """An endpoint, for the calls that it could be sent to."""

    def start(self, call: Call) -> None:
        """Send a call, or queue it until a connection accepts it."""


class Call:
    """One call. The event loop's thread only, but for ``ended``.

    Attributes:
        request: the message, framed by the protocol; empty once the call has ended.
        deadline: monotonic seconds; None means no limit.
        timer: ends the call at its deadline.
        attempts: how often it was sent.
        method: the path of the called method.
        fields: a header block of further fields, such as a trace context.
        encoding: the ``grpc-encoding`` in the answer's head.
        on_head: called with the fields of each answer's head, those of one name joined; None for
            nothing.
        connection: the connection that it was sent on; None while it is queued, and once it has
            ended.
        stream: its HTTP/2 stream, or its correlation id; None while it is queued.
        untried: other endpoints, the next one last, for a call that no server can have processed.
        ended: whether the outcome is known.
    """

    __slots__ = (
        "_message",
        "_on_outcome",
        "_reader",
        "attempts",
        "connection",
        "deadline",
        "encoding",
        "ended",
        "fields",
        "method",
        "on_head",
        "request",
        "stream",
        "timer",
        "untried",
    )

    def __init__(
        self,
        request: bytes,
        deadline: float | None,
        on_outcome: Callable[[Outcome], object],
        method: str = METHOD,
        fields: bytes = b"",
    ) -> None:
        self.request = request
        self.method = method
        self.fields = fields
        self.deadline = deadline
        self.timer: TimerHandle | None = None
        self.attempts = 0
        self.connection: Carrier | None = None
        self.stream: Any = None
        self.untried: Sequence[Sender] = ()
        self.ended = False
        self.encoding = b"identity"
        self.on_head: Callable[[Mapping[bytes, bytes]], object] | None = None
        self._message: bytes | None = None  # the reply's message, if complete
        self._reader: MessageReader | None = None  # for a message in several pieces
        self._on_outcome: Callable[[Outcome], object] | None = on_outcome

    def receive(self, data: bytes) -> CallFailed | None:
        """Process a piece of the reply's body. Returns a failure if it is invalid."""
        if self._reader is None and self._message is None:
            self._message = unary_message(data, MAX_MESSAGE_BYTES)
            if self._message is not None:
                return None
        if self._reader is None:
            self._reader = MessageReader(MAX_MESSAGE_BYTES)
        try:
            for message in self._reader.feed(data):
                if self._message is not None:
                    return nonsense("more than one message for one call")
                self._message = message
        except GrpcError as error:
            return of_bad_message(error, self.encoding)
        return None

    def outcome(self, trailers: Mapping[bytes, bytes]) -> Outcome:
        """Return the outcome from trailers and the received message."""
        if self._reader is not None:
            try:
                self._reader.finish()
            except GrpcError as error:
                return of_bad_message(error)
        return of_end(trailers, self._message)

    def detach(self) -> None:
        """Drop the connection and the received data, to queue the call again."""
        self.connection = self.stream = self._reader = self._message = None

    def end(self, outcome: Outcome) -> None:
        """Report the outcome, once; later ones are dropped.

        If no server can have processed the call, a failure sends it to the next endpoint instead.
        """
        on_outcome = self._on_outcome
        if on_outcome is None:
            return
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.detach()
        if self.untried and isinstance(outcome, CallFailed) and not outcome.sent:
            self.attempts = 0
            *self.untried, following = self.untried
            following.start(self)
            return
        self.ended = True
        # A cancelled timer or a late frame may still refer to this call, so drop its references.
        self._on_outcome = None
        self.untried = ()
        self.request = b""
        on_outcome(outcome)

    def abandon(self, failed: CallFailed) -> None:
        """Abort it; if it was sent, the server gets RST_STREAM."""
        if not self.ended:
            self.untried = ()
            if self.connection is not None:
                self.connection.leave(self)
            self.end(failed)


def cancel(call: Call) -> None:
    """Cancel a call on behalf of its caller."""
    call.abandon(failure(GrpcCode.CANCELLED, "cancelled by the caller"))


def failure(code: GrpcCode, text: str, *, sent: bool = True) -> CallFailed:
    """Make a failure; its code determines whether it is retryable."""
    return CallFailed(code, text, retryable=code in RETRYABLE, sent=sent)


def nonsense(text: str, code: GrpcCode = GrpcCode.INTERNAL) -> CallFailed:
    """The failure of an answer that is none in the protocol: another server may do better."""
    return CallFailed(code, text, retryable=True)


def of_head(head: ResponseHead) -> CallFailed | None:
    """Return the failure of a response's head that is no valid head of a reply; else None."""
    if head.status == 200:
        kind = head.fields.get(b"content-type", b"")
        if kind.startswith(b"application/grpc"):
            return None
        text = f"not gRPC but {_text(kind) or 'no content-type'}"
        return nonsense(text, GrpcCode.UNKNOWN)
    if b"grpc-status" in head.fields:
        outcome = of_end(head.fields, None)
        if isinstance(outcome, CallFailed):
            return outcome
    text = f"HTTP status {head.status} instead of a gRPC answer"
    code = code_of_http(head.status)
    return failure(code, text) if head.status in OF_PROXIES else nonsense(text, code)


def of_whole_head(head: ResponseHead) -> CallFailed:
    """Return the failure of a response that consists of a head only."""
    if b"grpc-status" in head.fields:
        outcome = of_end(head.fields, None)
        assert isinstance(outcome, CallFailed)  # there is no message
        return outcome
    return of_head(head) or nonsense("the answer has no grpc-status", GrpcCode.UNKNOWN)


def of_end(fields: Mapping[bytes, bytes], message: bytes | None) -> Outcome:
    """Return the outcome of a call that has received ``message`` and ends with these fields."""
    status = read_status(fields)
    if status is None:
        return nonsense("the answer has no grpc-status", GrpcCode.UNKNOWN)
    code, text = status
    if code is not GrpcCode.OK:
        # grpc-retry-pushback-ms: a number allows a retry, any other value forbids it.
        pause = fields.get(_PUSH_BACK, b"")
        after = int(pause) / 1000 if pause.isdigit() and len(pause) < 10 else None
        retryable = code in RETRYABLE or after is not None
        text = text or "no reason given"
        return CallFailed(code, text, retryable=retryable, retry_after=after)
    if message is None:
        return nonsense("OK without a message")
    return message


def of_reset(code: int, text: str, *, by_peer: bool) -> CallFailed:
    """Return the failure of a stream that was reset; ``text`` is the rule that the server broke."""
    if not by_peer:
        return nonsense(f"the server broke the protocol: {text}")
    meaning, more = _MEANING_OF_RESET.get(code, (GrpcCode.INTERNAL, ""))
    sent = code != ErrorCode.REFUSED_STREAM
    return failure(meaning, f"the server ended the call with code {code}{more}", sent=sent)


def of_bad_message(error: GrpcError, encoding: bytes = b"identity") -> CallFailed:
    """Return the failure of a reply that is malformed, too large, or wrongly compressed."""
    if error.code is GrpcCode.RESOURCE_EXHAUSTED:
        return failure(GrpcCode.RESOURCE_EXHAUSTED, f"the reply is too large: {error}")
    if encoding != b"identity":
        text = f"the reply is encoded as {_text(encoding)!r}, and only 'identity' can be read"
        return nonsense(text)
    return nonsense(f"the reply cannot be read: {error}")


def _text(raw: bytes) -> str:
    return raw[:200].decode("ascii", "replace")
