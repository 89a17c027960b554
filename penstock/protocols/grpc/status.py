"""The status of a call: a code and a text, as exceptions here and as trailers on the wire."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from penstock.protocols.heads import Headers
from penstock.protocols.status import GrpcCode

_MOST_TEXT = 4096  # encoded bytes; peers take 8 KiB of trailers, and other fields need room too
_UNSAFE = re.compile(rb"[^ -$&-~]")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_CODES = {b"%d" % code: code for code in GrpcCode}

# Of a server, or of a proxy before it, that answers without a gRPC status.
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
"""Before the messages of an answer."""

OK_TRAILERS: Final[Headers] = ((b"grpc-status", b"0"),)
"""Behind the messages of a call that succeeds."""


class GrpcError(Exception):
    """Ends one call with this status.

    Attributes:
        code: never OK.
        text: may be told to the peer.
        http: the status of the HTTP response. With another than 200 the caller does not speak gRPC,
            and is to be answered as any client of HTTP.
        headers: that go with the status.
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
    """The fields that tell how a call ended; without any message they stand in the head.

    Args:
        code: how it ended.
        text: for the caller; left out when it is empty.
        metadata: fields as they go over the wire; see ``encode_metadata``.
    """
    status = (b"grpc-status", b"%d" % code)
    if not text:
        return (status, *metadata)
    return (status, (b"grpc-message", encode_status_message(text)), *metadata)


def encode_status_message(text: str) -> bytes:
    """A text as ``grpc-message``: UTF-8, percent-encoded, cut when it is very long."""
    text = text[:_MOST_TEXT]
    encoded = _percent_encoded(text)
    if len(encoded) <= _MOST_TEXT:
        return encoded
    letters: list[bytes] = []
    left = _MOST_TEXT
    for letter in map(_percent_encoded, text):
        left -= len(letter)
        if left < 0:
            break  # between letters, so that what is left can be read
        letters.append(letter)
    return b"".join(letters)


def _percent_encoded(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    return _UNSAFE.sub(lambda found: b"%%%02X" % ord(found[0]), raw)


def decode_status_message(raw: bytes) -> str:
    """The text of a ``grpc-message``. Never fails: what is no escape or no UTF-8 stays visible."""
    plain = _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), raw)
    return plain.decode("utf-8", "replace")


def read_status(fields: Mapping[bytes, bytes]) -> tuple[GrpcCode, str] | None:
    """What trailers, or a head that is all there is, tell of a call's end.

    Returns:
        The code, UNKNOWN for one that nobody knows, and the text; None without a ``grpc-status``.
    """
    raw = fields.get(b"grpc-status")
    if raw is None:
        return None
    text = fields.get(b"grpc-message")
    return _CODES.get(raw, GrpcCode.UNKNOWN), "" if text is None else decode_status_message(text)


def code_of_http(status: int) -> GrpcCode:
    """What a client takes an HTTP status for when the answer has no ``grpc-status``."""
    return _CODE_OF_HTTP.get(status, GrpcCode.UNKNOWN)
