"""Recognises a call by its request headers, and validates them."""

from __future__ import annotations

from typing import Final

from penstock.protocols.grpc.messages import ENCODINGS, IDENTITY
from penstock.protocols.grpc.metadata import decode_metadata
from penstock.protocols.grpc.status import GrpcError
from penstock.protocols.grpc.timeout import parse_timeout
from penstock.protocols.heads import HTTP_2, RequestHead
from penstock.protocols.status import GrpcCode

ACCEPTED: Final = (b"grpc-accept-encoding", b",".join(ENCODINGS))
_KINDS = frozenset({b"application/grpc", b"application/grpc+proto"})
_BLANKS = b" \t"
_GRPC = b"application/grpc"


def is_grpc(head: RequestHead) -> bool:
    """Whether the request is a gRPC call; ``application/grpc-web`` is another protocol."""
    kind = head.fields.get(b"content-type")
    return (
        kind is not None
        and kind.startswith(_GRPC)
        and (kind == _GRPC or kind[len(_GRPC) : len(_GRPC) + 1] in b"+; ")
        and head.version == HTTP_2
    )


def check_request(head: RequestHead) -> tuple[float | None, bytes | None]:
    """Validate the head of a call; return its timeout in seconds, and the encoding of its messages.

    Either is None if the head does not have it.

    Raises:
        GrpcError: the request is not a valid call. ``http`` is 405 or 415 if it is not gRPC;
            ``headers`` has what is accepted instead.
    """
    fields = head.fields
    if head.method != "POST":
        text = "gRPC calls are made with POST"
        headers = ((b"allow", b"POST"),)
        raise GrpcError(GrpcCode.UNIMPLEMENTED, text, http=405, headers=headers)
    kind = fields.get(b"content-type", b"")
    if kind not in _KINDS and kind.partition(b";")[0].rstrip(_BLANKS).lower() not in _KINDS:
        text = "the content-type of gRPC calls is application/grpc"
        raise GrpcError(GrpcCode.INVALID_ARGUMENT, text, http=415)
    te = fields.get(b"te", b"")
    if te != b"trailers" and te.lower() != b"trailers":
        # A proxy that drops this header would also drop the trailers, which have the status.
        raise GrpcError(GrpcCode.INTERNAL, "the header te: trailers is missing")
    if b" ".join(fields).find(b"-bin") >= 0:  # ``in`` takes several times as long
        decode_metadata(head.headers)
    timeout = fields.get(b"grpc-timeout")
    encoding = fields.get(b"grpc-encoding")
    return (
        None if timeout is None else parse_timeout(timeout),
        None if encoding is None else _encoding(encoding),
    )


def _encoding(raw: bytes) -> bytes | None:
    name = raw.lower()
    if name == IDENTITY:
        return None
    if name not in ENCODINGS:
        text = f"the grpc-encoding is unknown; accepted are {ACCEPTED[1].decode()}"
        raise GrpcError(GrpcCode.UNIMPLEMENTED, text, headers=(ACCEPTED,))
    return name
