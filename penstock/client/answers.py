"""What a server's answer means: its message, or the failure that it tells. Pure.

A server is not trusted: whatever it says becomes a message or a ``CallFailed``. Sources: the gRPC
HTTP/2 protocol (statuses, trailers, codes of RST_STREAM) and its table of HTTP statuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from penstock.client.errors import CallFailed
from penstock.protocols.grpc import GrpcError, code_of_http, read_status
from penstock.protocols.heads import ResponseHead
from penstock.protocols.http2 import ErrorCode
from penstock.protocols.status import GrpcCode

Outcome: TypeAlias = bytes | CallFailed
"""A call's reply, as the bytes of its message, or why there is none."""

RETRYABLE = frozenset({GrpcCode.UNAVAILABLE, GrpcCode.DEADLINE_EXCEEDED, GrpcCode.ABORTED})
_PUSH_BACK = b"grpc-retry-pushback-ms"

_CODE_OF_RESET: dict[int, GrpcCode] = {
    ErrorCode.REFUSED_STREAM: GrpcCode.UNAVAILABLE,
    ErrorCode.CANCEL: GrpcCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: GrpcCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: GrpcCode.PERMISSION_DENIED,
}
_MORE_OF_RESET: dict[int, str] = {
    ErrorCode.ENHANCE_YOUR_CALM: "the quota or bandwidth that it allows is exceeded",
    ErrorCode.INADEQUATE_SECURITY: "the connection is not secure enough for it",
}


def failure(code: GrpcCode, text: str, *, sent: bool = True) -> CallFailed:
    """A failure whose code says whether to come back."""
    return CallFailed(code, text, retryable=code in RETRYABLE, sent=sent)


def of_head(head: ResponseHead) -> CallFailed | None:
    """Why the head of a response that goes on cannot begin a reply; None when it can."""
    if head.status == 200:
        kind = head.fields.get(b"content-type", b"")
        if kind.startswith(b"application/grpc"):
            return None
        return failure(GrpcCode.UNKNOWN, f"not gRPC but {_text(kind) or 'no content-type'}")
    if b"grpc-status" in head.fields:
        told = of_end(head.fields, None)
        if isinstance(told, CallFailed):
            return told
    return failure(code_of_http(head.status), f"HTTP status {head.status} instead of a gRPC answer")


def of_whole_head(head: ResponseHead) -> CallFailed:
    """The failure in a response that is nothing but a head."""
    if b"grpc-status" in head.fields:
        told = of_end(head.fields, None)
        assert isinstance(told, CallFailed)  # there is no message
        return told
    return of_head(head) or failure(GrpcCode.UNKNOWN, "the answer has no grpc-status")


def of_end(fields: Mapping[bytes, bytes], message: bytes | None) -> Outcome:
    """The outcome that the trailers ``fields`` tell of a call that has brought ``message``."""
    told = read_status(fields)
    if told is None:
        return failure(GrpcCode.UNKNOWN, "the answer has no grpc-status")
    code, text = told
    if code is not GrpcCode.OK:
        retryable = code in RETRYABLE or _pushed_back(fields)
        return CallFailed(code, text or "no reason given", retryable=retryable)
    if message is None:
        return failure(GrpcCode.INTERNAL, "OK without a message")
    return message


def of_reset(code: int, text: str, *, by_peer: bool) -> CallFailed:
    """The failure of a stream that ended before its time."""
    if not by_peer:
        return failure(GrpcCode.INTERNAL, f"the server broke the protocol: {text}")
    ours = _CODE_OF_RESET.get(code, GrpcCode.INTERNAL)
    more = _MORE_OF_RESET.get(code)
    return failure(
        ours,
        f"the server ended the call with code {code}" + (f": {more}" if more else ""),
        sent=code != ErrorCode.REFUSED_STREAM,
    )


def of_bad_message(error: GrpcError, encoding: bytes = b"identity") -> CallFailed:
    """The failure of a reply that is framed wrongly, too large, or compressed though unasked.

    Args:
        error: what is wrong with it.
        encoding: what the answer's head said of it.
    """
    if error.code is GrpcCode.RESOURCE_EXHAUSTED:
        return failure(GrpcCode.RESOURCE_EXHAUSTED, f"the reply is too large: {error}")
    if encoding != b"identity":
        text = f"the reply is encoded as {_text(encoding)!r}, and only 'identity' can be read"
        return failure(GrpcCode.INTERNAL, text)
    return failure(GrpcCode.INTERNAL, f"the reply cannot be read: {error}")


def _pushed_back(fields: Mapping[bytes, bytes]) -> bool:
    """Whether the server said after how long to come back; anything but digits says never."""
    return fields.get(_PUSH_BACK, b"").isdigit()


def _text(raw: bytes) -> str:
    return raw[:200].decode("ascii", "replace")
