"""gzip, unpacked within bounds. Pure; safe from any thread, and lets other threads run."""

from __future__ import annotations

import zlib
from typing import Final

from penstock.errors import TooLarge, Undecodable

WINDOW: Final = 16 + zlib.MAX_WBITS
"""With gzip's header and checksum."""
FREE: Final = 1 << 20
MOST_RATIO: Final = 200
"""How many times its size a packed body may unpack to, beyond ``FREE`` bytes. Texts and numbers
that mean something are packed 2 to 20 times."""


def unpack(data: bytes, most: int) -> bytes:
    """The bytes in one gzip member.

    Args:
        data: packed.
        most: bytes that they may unpack to; the work is bounded by it.

    Raises:
        Undecodable: corrupt, cut short, or with bytes behind its end.
        TooLarge: they are more than ``most``, or too many times the packed ones.
    """
    stream = zlib.decompressobj(WINDOW)
    try:
        plain = stream.decompress(data, most_of(data, most) + 1)
    except zlib.error as error:
        raise Undecodable("the data is not gzip") from error
    check_size(len(plain), data, most)
    if not stream.eof:
        raise Undecodable("the gzip data is cut short")
    if stream.unused_data:
        raise Undecodable("the gzip data has bytes behind its end")
    return plain


def most_of(data: bytes, most: int) -> int:
    """Bytes that packed data may unpack to, where no body may have more than ``most``."""
    return min(most, max(FREE, MOST_RATIO * len(data)))


def check_size(size: int, data: bytes, most: int) -> None:
    """Refuse what has unpacked to more bytes than that."""
    bound = most_of(data, most)
    if size > bound:
        if bound == most:
            raise TooLarge(f"expands beyond the limit of {most} bytes")
        raise TooLarge(f"expands to more than {MOST_RATIO} times its {len(data)} bytes")
