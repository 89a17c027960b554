"""The status of a call, a code and a text: as an exception, and encoded in trailers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from penstock.protocols.heads import Headers
from penstock.protocols.status import GrpcCode

_MOST_TEXT = 4096  # maximum encoded bytes; peers accept 8 KiB of trailers, for all fields
_UNSAFE = re.compile(rb"[^ -$&-~]")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_CODES = {b"%d" % code: code for code in GrpcCode}

# For answers of a server or proxy without a gRPC status.
_CODE_OF_HTTP = {
    400: GrpcCode.INTERNAL,
    401: GrpcCode.UNAUTHENTICATED,
    403: GrpcCode.PERMISSION_DENIED,
    404: GrpcCode.UNIMPLEMENTED,
    429: GrpcCode.UNAVAILABLE,
    502: GrpcCode.UNAVAILABLE,
    503: GrpcCode.UNAVAILABLE,
    504: GrpcCode.UNAVAILABLE,
}


HEAD: Final[Headers] = ((b"content-type", b"application/grpc"),)
"""Header fields of an answer with messages."""

OK_TRAILERS: Final[Headers] = ((b"grpc-status", b"0"),)
"""Trailers of a successful call."""


class GrpcError(Exception):
    """Ends one call with this status.

    Attributes:
        code: never OK.
        text: the reason; may be sent to the peer.
        http: the status of the HTTP response. Other than 200 if the caller does not speak gRPC, and
            gets a plain HTTP response.
        headers: further fields of the response.
    """

    def __init__(
        self, code: GrpcCode, text: str, *, http: int = 200, headers: Headers = ()
    ) -> None:
        self.code = code
        self.text = text
        self.http = http
        self.headers = headers
        super().__init__(text)


def trailers(code: GrpcCode, text: str, metadata: Headers = ()) -> Headers:
    """Encode the trailers of a call. An answer without messages has them in its head.

    Args:
        code: the status code.
        text: the text for the caller; left out if empty.
        metadata: encoded metadata; see ``encode_metadata``.
    """
    status = (b"grpc-status", b"%d" % code)
    if not text:
        return (status, *metadata)
    return (status, (b"grpc-message", encode_status_message(text)), *metadata)


def encode_status_message(text: str) -> bytes:
    """Encode a text as ``grpc-message``: UTF-8, percent-encoded, truncated if very long."""
    text = text[:_MOST_TEXT]
    encoded = _percent_encoded(text)
    if len(encoded) <= _MOST_TEXT:
        return encoded
    letters: list[bytes] = []
    left = _MOST_TEXT
    for letter in map(_percent_encoded, text):
        left -= len(letter)
        if left < 0:
            break  # between characters, so that the rest is valid
        letters.append(letter)
    return b"".join(letters)


def _percent_encoded(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    return _UNSAFE.sub(lambda found: b"%%%02X" % ord(found[0]), raw)


def decode_status_message(raw: bytes) -> str:
    """Decode a ``grpc-message``. Never fails: invalid escapes and invalid UTF-8 stay visible."""
    plain = _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), raw)
    return plain.decode("utf-8", "replace")


def read_status(fields: Mapping[bytes, bytes]) -> tuple[GrpcCode, str] | None:
    """Read the status from trailers, or from the head of an answer without messages.

    Returns:
        The code, UNKNOWN for an unknown number, and the text; None without a ``grpc-status``.
    """
    raw = fields.get(b"grpc-status")
    if raw is None:
        return None
    text = fields.get(b"grpc-message")
    return _CODES.get(raw, GrpcCode.UNKNOWN), "" if text is None else decode_status_message(text)


def code_of_http(status: int) -> GrpcCode:
    """Map the HTTP status of an answer without ``grpc-status`` to a code."""
    return _CODE_OF_HTTP.get(status, GrpcCode.UNKNOWN)
