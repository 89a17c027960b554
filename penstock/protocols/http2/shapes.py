"""Reads of several whole requests: where everything stands in one, if it is like one before.

A client that asks again and again sends frames of the same lengths in the same order. Then one call
takes a read apart, and one comparison each finds whether all types, all flags and all identifiers
are what they were expected to be.

Source: RFC 9113, section 4.1.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final

from penstock.protocols.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    FRAME_HEAD_SIZE,
    HEADERS,
)

FEWEST_REQUESTS: Final = 3
MOST_REQUESTS: Final = 8
"""Requests of one shape. For fewer it gains nothing, and shapes of more would be large."""

_HEAD_MARK: Final = (HEADERS, END_HEADERS)
_BODY_MARK: Final = (DATA, END_STREAM)


class ReadShape:
    """The shape of a read: several heads, each with its whole body behind it, or behind all.

    Attributes:
        unpack: gives mark, identifier and payload of each frame, in one row.
        marks: where the marks stand in that row.
        right: what they are: length, type and flags of every frame.
        head_ids: where the heads' identifiers stand.
        blocks: where their blocks stand.
        body_ids: where the bodies' identifiers stand.
        bodies: where the bodies stand.
        count: of requests.
        length: bytes of each body; -1 when they differ.
        longest: bytes of the longest body.
        total: bytes of all bodies.
    """

    __slots__ = (
        "blocks",
        "bodies",
        "body_ids",
        "count",
        "head_ids",
        "length",
        "longest",
        "marks",
        "right",
        "total",
        "unpack",
    )

    def __init__(self, lengths: tuple[int, ...], mixed: bool) -> None:
        """The shape of these frames; each body is right behind its head, if they are mixed."""
        count = self.count = len(lengths) // 2
        kinds = (
            (_HEAD_MARK, _BODY_MARK) * count
            if mixed
            else (_HEAD_MARK,) * count + (_BODY_MARK,) * count
        )
        sizes = lengths[1::2] if mixed else lengths[count:]
        self.unpack = Struct(">" + "".join(f"5sI{length}s" for length in lengths)).unpack
        self.marks = slice(0, None, 3)
        self.right = tuple(
            FRAME_HEAD.pack(length << 8 | kind, flags, 0)[:5]
            for length, (kind, flags) in zip(lengths, kinds, strict=True)
        )
        heads, bodies, step = (0, 3, 6) if mixed else (0, 3 * count, 3)
        until = None if mixed else bodies
        self.head_ids = slice(heads + 1, until, step)
        self.blocks = slice(heads + 2, until, step)
        self.body_ids = slice(bodies + 1, None, step)
        self.bodies = slice(bodies + 2, None, step)
        self.length = sizes[0] if len(set(sizes)) == 1 else -1
        self.longest = max(sizes)
        self.total = sum(sizes)

    def __repr__(self) -> str:
        return f"<ReadShape of {self.count} requests with {self.total} bytes>"


def shape_of(data: bytes) -> ReadShape | None:
    """The shape of a read; None when it is anything but several whole requests with equal heads."""
    lengths: list[int] = []
    kinds: list[tuple[int, int]] = []
    blocks: set[bytes] = set()
    at, size = 0, len(data)
    while at <= size - FRAME_HEAD_SIZE and len(lengths) < 2 * MOST_REQUESTS:
        word, flags, _ = FRAME_HEAD.unpack_from(data, at)
        length, kind = word >> 8, (word & 0xFF, flags)
        start = at + FRAME_HEAD_SIZE
        at = start + length
        if not length or kind not in (_HEAD_MARK, _BODY_MARK):
            return None
        if kind == _HEAD_MARK:
            blocks.add(data[start:at])
        lengths.append(length)
        kinds.append(kind)
    count = len(lengths) // 2
    if at != size or count < FEWEST_REQUESTS or len(blocks) > 1:
        return None
    mixed = kinds == [_HEAD_MARK, _BODY_MARK] * count
    if not mixed and kinds != [_HEAD_MARK] * count + [_BODY_MARK] * count:
        return None
    return _shape(tuple(lengths), mixed)


@lru_cache(maxsize=64)
def _shape(lengths: tuple[int, ...], mixed: bool) -> ReadShape:
    return ReadShape(lengths, mixed)
