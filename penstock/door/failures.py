"""Answers that the door gives itself, without an application: their form and their bytes."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.protocols.heads import Headers
from penstock.protocols.paddle_json import gateway_error
from penstock.protocols.status import GRPC_OF_HTTP, GrpcCode

JSON: Final = (b"content-type", b"application/json")


class HttpReply(NamedTuple):
    """A whole answer. ``close``: an HTTP/1.1 connection ends with it."""

    status: int
    headers: Headers
    body: bytes = b""
    close: bool = False


def failure(status: int, text: str) -> HttpReply:
    """A transport failure in the gateway's form; an HTTP/1.1 connection closes after it."""
    other = GrpcCode.INVALID_ARGUMENT if status < 500 else GrpcCode.UNIMPLEMENTED
    code = GRPC_OF_HTTP.get(status, other)
    return HttpReply(status, (JSON,), gateway_error(code, text), close=True)
