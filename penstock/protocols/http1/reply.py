"""An answer's bytes. What does not change from one answer to the next is written once."""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

from penstock.protocols.heads import Headers
from penstock.protocols.http1.lines import TOKEN

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE: Final = b"connection: close\r\n"
KEEP_ALIVE: Final = b"connection: keep-alive\r\n"

_NAME = re.compile(rb"%b++" % TOKEN)
_VALUE = re.compile(rb"[\t -~\x80-\xff]*+")
_FRAMING = (b"connection", b"content-length", b"transfer-encoding")
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_NO_BODY = (204, 304)


class ReplyHead(NamedTuple):
    """The part of a head that depends on the application alone.

    Attributes:
        start: the status line and the fields.
        closes: the application asks for the connection's end.
        has_body: False for a status that never has one.
    """

    start: bytes
    closes: bool
    has_body: bool


@lru_cache(maxsize=512)
def reply_head(status: int, headers: Headers) -> ReplyHead:
    """The head of a final answer; fields that frame it are left out, for they are the connection's.

    Raises:
        ValueError: the status is not final, or a field would break the framing.
    """
    if not 200 <= status <= 999:
        raise ValueError(f"{status} is not the status of an answer")
    line = b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b""))
    fields = tuple((name, value) for name, value in headers if name not in _FRAMING)
    closes = (b"connection", b"close") in headers
    return ReplyHead(line + field_lines(fields), closes, status not in _NO_BODY)


@lru_cache(maxsize=1024)
def whole_head(status: int, headers: Headers, length: int) -> bytes | None:
    """The whole head of the usual answer: it has a body, and the connection stays.

    None where the status or the application says otherwise.

    Raises:
        ValueError: as ``reply_head``.
    """
    start, closes, has_body = reply_head(status, headers)
    if closes or not has_body:
        return None
    return b"%bcontent-length: %d\r\n\r\n" % (start, length)


def field_lines(headers: Headers) -> bytes:
    """The fields as they are sent.

    Raises:
        ValueError: a name is no token, or a value has control characters in it.
    """
    for name, value in headers:
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise ValueError(f"the header {name!r} cannot be sent")
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])
