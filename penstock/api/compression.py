"""Compresses answers as the caller accepts: zstd or gzip, from a few KiB on.

Source: RFC 9110, sections 8.4 and 12.5.3.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import Final

from penstock.api.http import HttpCall
from penstock.api.threads import run_aside
from penstock.protocols import gzip, zstd
from penstock.protocols.heads import Headers

_WORTH: Final = 4 << 10
"""Bytes below which compression saves fewer than three packets."""
_ASIDE: Final = 32 << 10
"""Bytes from which on a thread compresses; it takes a third of a millisecond."""

_CODING: Final = re.compile(r"\s*([a-z0-9*-]+)\s*(?:;\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*)?")


def send_packed(
    call: HttpCall, status: int, headers: Headers, body: bytes, worth: int = _WORTH
) -> None:
    """Send the whole answer, compressed if the caller accepts that and it has ``worth`` bytes."""
    accepted = call.exchange.head.fields.get(b"accept-encoding")
    if accepted is None or len(body) < worth:
        call.reply(status, headers, body)
        return
    coding = choose(accepted)
    if coding is None:
        call.reply(status, (*headers, _VARY), body)
    elif len(body) < _ASIDE:
        _send(call, status, headers, coding, pack(body, coding))
    else:
        call.aside(_pack_aside(call, status, headers, coding, body))


async def _pack_aside(
    call: HttpCall, status: int, headers: Headers, coding: bytes, body: bytes
) -> None:
    packed = await run_aside(call.shared.threads, pack, body, coding)
    _send(call, status, headers, coding, packed)


def _send(call: HttpCall, status: int, headers: Headers, coding: bytes, packed: bytes) -> None:
    if any(name == b"etag" for name, _ in headers):
        # Of other bytes than the answer without a coding: equal in meaning only.
        headers = tuple(
            (name, b"W/" + value if name == b"etag" and value[:1] == b'"' else value)
            for name, value in headers
        )
    more = ((b"content-encoding", coding), _VARY)
    call.reply(status, (*headers, *more), packed)


_VARY: Final = (b"vary", b"accept-encoding")


@lru_cache(maxsize=64)
def choose(accepted: bytes) -> bytes | None:
    """``zstd`` or ``gzip``, if Accept-Encoding allows one of them; None otherwise."""
    weights: dict[str, float] = {}
    for part in accepted.decode("latin-1").lower().split(","):
        found = _CODING.fullmatch(part)
        if found is not None:
            weights[found[1]] = 1.0 if found[2] is None else float(found[2])
    other = weights.get("*", 0.0)
    codings = [(weights.get(name, other), name) for name in ("zstd", "gzip")]
    weight, name = max(codings, key=lambda each: each[0])
    return name.encode() if weight > 0 else None


def pack(body: bytes, coding: bytes) -> bytes:
    """Compress the body with a coding of ``choose``. Any thread; releases the GIL."""
    if coding == b"zstd":
        return zstd.pack(body)
    return zlib.compress(body, 1, gzip.WINDOW)
