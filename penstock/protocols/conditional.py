"""Conditional and partial requests: whether a GET gets 304, or a part of the answer.

Source: RFC 9110, sections 8.8, 13 and 14.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

_TAG: Final = re.compile(rb'(?:W/)?("[!#-~\x80-\xff]*")')
_RANGE: Final = re.compile(rb"bytes[ \t]*=[ \t]*(\d{0,18})[ \t]*-[ \t]*(\d{0,18})", re.IGNORECASE)


def is_unchanged(asked: Mapping[bytes, bytes], answer: Mapping[bytes, bytes]) -> bool:
    """Whether the caller of a GET has this answer already, and gets 304.

    Args:
        asked: the fields of the request. ``If-None-Match`` decides; without it
            ``If-Modified-Since``.
        answer: the fields of the answer with 200.
    """
    tags = asked.get(b"if-none-match")
    if tags is not None:
        own = _TAG.fullmatch(answer.get(b"etag", b""))
        return own is not None and (tags.strip() == b"*" or own[1] in _TAG.findall(tags))
    since = _time(asked.get(b"if-modified-since"))
    changed = _time(answer.get(b"last-modified"))
    return since is not None and changed is not None and changed <= since


class Part(NamedTuple):
    """The part of a body from ``begin`` to before ``end``."""

    begin: int
    end: int


def part_of(asked: Mapping[bytes, bytes], answer: Mapping[bytes, bytes], size: int) -> Part | None:
    """The part of a body that a GET asks for.

    None for the whole body: several parts, and malformed ranges, are ignored, and so is a range of
    another version of the answer (``If-Range``). A part with ``begin >= end`` cannot be satisfied.

    Args:
        asked: the fields of the request.
        answer: the fields of the answer with 200.
        size: bytes of the body.
    """
    found = _RANGE.fullmatch(asked.get(b"range", b"").strip(b" \t"))
    if found is None or found[1] == found[2] == b"":
        return None
    condition = asked.get(b"if-range")
    if condition is not None and (
        condition.startswith(b"W/")
        or condition not in (answer.get(b"etag"), answer.get(b"last-modified"))
    ):
        return None
    if not found[1]:
        return Part(max(0, size - int(found[2])), size)
    begin = int(found[1])
    if found[2] and int(found[2]) < begin:
        return None
    return Part(begin, min(size, int(found[2]) + 1) if found[2] else size)


def _time(field: bytes | None) -> datetime | None:
    """A time in a field; None without one, or if it is malformed."""
    if field is None:
        return None
    try:
        found = parsedate_to_datetime(field.decode("latin-1"))
    except (ValueError, TypeError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
