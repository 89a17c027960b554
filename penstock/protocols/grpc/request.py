"""What a call's head says, and whether it is a call at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.protocols.grpc.messages import ENCODINGS, IDENTITY
from penstock.protocols.grpc.status import GrpcError
from penstock.protocols.grpc.timeout import parse_timeout
from penstock.protocols.heads import RequestHead
from penstock.protocols.status import GrpcCode

ACCEPTED: Final = (b"grpc-accept-encoding", b",".join(ENCODINGS))
_KINDS = frozenset({b"application/grpc", b"application/grpc+proto"})
_BLANKS = b" \t"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcRequest:
    """A call, as far as its head says. Follows from the head alone, so it may be shared with it.

    Attributes:
        service: such as ``package.Service``.
        method: its name in the service.
        timeout: seconds that the caller gives it; None when it gives none.
        encoding: of compressed messages; None when they must be plain.
        accepts: encodings that the caller can read, ``identity`` always among them.
    """

    service: str
    method: str
    timeout: float | None
    encoding: bytes | None
    accepts: frozenset[bytes]


def check_request(head: RequestHead) -> GrpcRequest:
    """Read the head of a call.

    Raises:
        GrpcError: it is none, or none that can be answered. ``http`` is 405 or 415 when it cannot
            be gRPC; ``headers`` names what is accepted instead.
    """
    fields = head.fields
    if head.method != "POST":
        text = "gRPC calls are made with POST"
        headers = ((b"allow", b"POST"),)
        raise GrpcError(GrpcCode.UNIMPLEMENTED, text, http=405, headers=headers)
    kind = fields.get(b"content-type", b"").partition(b";")[0].rstrip(_BLANKS).lower()
    if kind not in _KINDS:
        text = "the content-type of gRPC calls is application/grpc"
        raise GrpcError(GrpcCode.INVALID_ARGUMENT, text, http=415)
    if fields.get(b"te", b"").lower() != b"trailers":
        # A proxy that does not pass it on would not pass on the status behind the answer either.
        raise GrpcError(GrpcCode.INTERNAL, "the header te: trailers is missing")
    service, method = _path(head.path)
    timeout = fields.get(b"grpc-timeout")
    return GrpcRequest(
        service=service,
        method=method,
        timeout=None if timeout is None else parse_timeout(timeout),
        encoding=_encoding(fields.get(b"grpc-encoding", IDENTITY)),
        accepts=_words(fields.get(b"grpc-accept-encoding", b"")),
    )


def _path(raw: bytes) -> tuple[str, str]:
    """``/package.Service/Method``."""
    try:
        empty, service, method = raw.decode("ascii").split("/")
    except ValueError:  # another number of parts, or letters that no name has
        empty = service = method = ""
    if empty or not service or not method:
        raise GrpcError(GrpcCode.UNIMPLEMENTED, "the path of a call is /Service/Method")
    return service, method


def _encoding(raw: bytes) -> bytes | None:
    name = raw.lower()
    if name == IDENTITY:
        return None
    if name not in ENCODINGS:
        text = f"the grpc-encoding is unknown; accepted are {ACCEPTED[1].decode()}"
        raise GrpcError(GrpcCode.UNIMPLEMENTED, text, headers=(ACCEPTED,))
    return name


def _words(raw: bytes) -> frozenset[bytes]:
    return frozenset({IDENTITY, *(word.strip(_BLANKS).lower() for word in raw.split(b",") if word)})
