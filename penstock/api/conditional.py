"""Sends an answer with header fields of its own, or, as the caller asks, 304 or a part of it.

Source: RFC 9110, sections 13.2.2, 14.2, 15.4.5 and 15.5.17.
"""

from __future__ import annotations

from typing import Final

from penstock.api.compression import send_packed
from penstock.api.http import HttpCall
from penstock.protocols.conditional import is_unchanged, part_of
from penstock.protocols.heads import Headers

NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
_OF_THE_BODY: Final = frozenset((
    b"accept-ranges", b"content-encoding", b"content-language", b"content-type",
    b"content-disposition", b"last-modified",
))  # fmt: skip
"""Fields that 304 does not repeat; Last-Modified is needed only without an ETag."""


def send(
    call: HttpCall, status: int, headers: Headers, body: bytes, kind: str, *, as_it_is: bool
) -> None:
    """Send the answer to a call, whose head is evaluated only for a GET that succeeded.

    Args:
        call: the call.
        status: of the answer.
        headers: its fields, without Content-Type.
        body: the body; empty for a status that has none.
        kind: the body's media type; empty for an answer without a body.
        as_it_is: the body is a file, which is not compressed.
    """
    asked = call.exchange.head
    if status == 200 and asked.method in ("GET", "HEAD") and headers:
        own = dict(headers)
        if is_unchanged(asked.fields, own):
            dropped = _OF_THE_BODY if b"etag" in own else _OF_THE_BODY - {b"last-modified"}
            kept = tuple(pair for pair in headers if pair[0] not in dropped)
            call.reply(304, kept, b"")
            return
        if b"range" in asked.fields and own.get(b"accept-ranges") == b"bytes":
            part = part_of(asked.fields, own, len(body))
            if part is not None:
                size = len(body)
                if part.begin >= part.end:
                    status, extent, body = 416, b"*", b""
                else:
                    extent = b"%d-%d" % (part.begin, part.end - 1)
                    status, body = 206, body[part.begin : part.end]
                headers = (*headers, (b"content-range", b"bytes %b/%d" % (extent, size)))
    if kind and status != 416:
        headers = ((b"content-type", kind.encode("latin-1")), *headers)
    if as_it_is or not body or any(name == b"content-encoding" for name, _ in headers):
        call.reply(status, (*headers, NO_SNIFFING) if as_it_is else headers, body)
    else:
        send_packed(call, status, headers, body)
