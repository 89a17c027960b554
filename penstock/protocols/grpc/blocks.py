"""The header blocks of answers. Those of a call that succeeds are made once for all."""

from __future__ import annotations

from typing import Final

from penstock.protocols.grpc.status import encode_status_message
from penstock.protocols.heads import Headers
from penstock.protocols.http2.blocks import encode_block
from penstock.protocols.status import GrpcCode

_HEAD: Headers = ((b":status", b"200"), (b"content-type", b"application/grpc"))

OK_HEAD: Final = encode_block(_HEAD)
"""Before the messages."""

OK_TRAILERS: Final = encode_block([(b"grpc-status", b"0")])
"""Behind the messages."""


def head_block(metadata: Headers) -> bytes:
    """Before the messages, with metadata: fields as they go over the wire."""
    return encode_block([*_HEAD, *metadata])


def trailers_block(code: GrpcCode, text: str, metadata: Headers = ()) -> bytes:
    """The end of an answer that has begun.

    Args:
        code: how the call ended.
        text: for the caller; left out when it is empty.
        metadata: fields as they go over the wire; see ``encode_metadata``.
    """
    return encode_block([*_status(code, text), *metadata])


def trailers_only_block(code: GrpcCode, text: str, metadata: Headers = ()) -> bytes:
    """A whole answer without messages; arguments as for ``trailers_block``."""
    return encode_block([*_HEAD, *_status(code, text), *metadata])


def _status(code: GrpcCode, text: str) -> Headers:
    status = (b"grpc-status", b"%d" % code)
    return (status, (b"grpc-message", encode_status_message(text))) if text else (status,)
