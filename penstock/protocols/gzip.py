"""Bounded gzip and zlib decompression. Pure; any thread; releases the GIL."""

from __future__ import annotations

import zlib
from typing import Final

from penstock.errors import TooLarge, Undecodable

WINDOW: Final = 16 + zlib.MAX_WBITS
"""With gzip's header and checksum."""
ZLIB_WINDOW: Final = zlib.MAX_WBITS
"""With those of zlib."""
FREE: Final = 1 << 20
MOST_RATIO: Final = 200
"""How many times its size a packed body may unpack to, beyond ``FREE`` bytes. Texts and numbers
that mean something are packed 2 to 20 times."""


def unpack(data: bytes, most: int, window: int = WINDOW) -> bytes:
    """The bytes in one gzip member, or one zlib stream.

    Args:
        data: packed.
        most: bytes that they may unpack to; the work is bounded by it.
        window: ``ZLIB_WINDOW`` for zlib.

    Raises:
        Undecodable: corrupt, cut short, or with bytes behind its end.
        TooLarge: they are more than ``most``, or too many times the packed ones.
    """
    stream = zlib.decompressobj(window)
    name = "gzip" if window == WINDOW else "zlib"
    try:
        plain = stream.decompress(data, most_of(data, most) + 1)
    except zlib.error as error:
        raise Undecodable(f"the data is not {name}") from error
    check_size(len(plain), data, most)
    if not stream.eof:
        raise Undecodable(f"the {name} data is cut short")
    if stream.unused_data:
        raise Undecodable(f"the {name} data has bytes behind its end")
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
