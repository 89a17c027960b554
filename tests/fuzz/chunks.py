"""Bodies in chunks: cut anywhere, and beside a reader that has the whole body at once."""

from __future__ import annotations

import re
from collections.abc import Hashable

from penstock.protocols.http1 import Http1Limits
from penstock.protocols.http1.chunks import ChunkedBody
from penstock.protocols.http1.limits import BrokenRule
from tests.fuzz.choices import Choices, pieces

LIMITS = Http1Limits(max_chunks=6, max_trailer_bytes=60, max_header_fields=3)
SIZE = re.compile(rb"([0-9A-Fa-f]+)(;[^\r\n]*)?\r\n")
TRAILERS = re.compile(rb"([^\r\n:]+:[^\r\n]*\r\n)*\r\n")


def told(parts: list[bytes]) -> tuple[bytes, int, bool, str]:
    """The data of a body, how many bytes it took (or the status), whether and why it ended."""
    body = ChunkedBody(LIMITS)
    found: list[bytes] = []
    buffer, at, before = b"", 0, 0
    for part in parts:
        buffer += part
        try:
            at = body.take(buffer, at, found)
        except BrokenRule as rule:
            return b"".join(found), rule.status, False, rule.text
        assert before <= at <= len(buffer)
        before = at
    return b"".join(found), at if body.ended else 0, body.ended, ""


def whole(data: bytes) -> tuple[bytes, int] | None:
    """The data of a complete body and its length, by the grammar alone."""
    found, at = b"", 0
    while (line := SIZE.match(data, at)) is not None:
        size, at = int(line[1], 16), line.end()
        if not size:
            end = TRAILERS.match(data, at)
            return None if end is None else (found, end.end())
        found += data[at : at + size]
        at += size + 2
        if data[at - 2 : at] != b"\r\n":
            return None
    return None


def run(data: bytes) -> Hashable:
    choices = Choices(data)
    pattern = choices.octet()
    stream = choices.rest()
    once = told([stream])
    assert once == told(pieces(stream, pattern)), "it depends on how the bytes are cut"
    assert len(once[0]) <= len(stream)
    body, length, ended, text = once
    assert not text or length == 400
    if ended:
        assert whole(stream) == (body, length), "we take what the grammar does not give"
    elif not text:
        assert whole(stream) is None, "a complete body is not taken"
    return ended, text, len(body) > 0


SEEDS = [
    b"\x000\r\n\r\n",
    b"\x013\r\nabc\r\n0\r\n\r\nmore",
    b"\x025;a=b\r\nhello\r\n0;x\r\nt: 1\r\nu: 2\r\n\r\n",
    b"\x03A\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n",
    b"\x041\r\na\r\n" + b"1\r\nb\r\n" * 6 + b"0\r\n\r\n",
    b"\x05fffffffffffffffff\r\n",
    b"\x060\r\nt: " + b"v" * 80 + b"\r\n\r\n",
    b"\x071\nab",
]
WORDS = [
    b"\r\n",
    b"0\r\n\r\n",
    b"1\r\na\r\n",
    b";a=b",
    b"\n",
    b"t: 1\r\n",
    b"ffffffffffffffff",
    b"00",
]
