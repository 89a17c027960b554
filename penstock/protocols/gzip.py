"""Bounded gzip, zlib and deflate decompression. Pure; thread-safe; releases the GIL."""

from __future__ import annotations

import zlib
from typing import Final

from penstock.errors import TooLarge, Undecodable

WINDOW: Final = 16 + zlib.MAX_WBITS
"""Window parameter for gzip's header and checksum."""
ZLIB_WINDOW: Final = zlib.MAX_WBITS
"""Window parameter for zlib's header and checksum."""
_RAW_WINDOW: Final = -zlib.MAX_WBITS
FREE: Final = 1 << 20
MOST_RATIO: Final = 200
"""Maximum ratio of decompressed to compressed size, beyond ``FREE`` bytes. Real texts and numbers
have ratios of 2 to 20."""


def unpack(data: bytes, most: int, window: int = WINDOW) -> bytes:
    """Decompress one gzip member, or one zlib or deflate stream.

    Args:
        data: the compressed bytes.
        most: maximum bytes of the result; also bounds the work.
        window: ``ZLIB_WINDOW`` for zlib; another one for deflate without a header.

    Raises:
        Undecodable: the data is corrupt, truncated, or has bytes behind its end.
        TooLarge: the result is larger than ``most``, or too many times the size of ``data``.
    """
    stream = zlib.decompressobj(window)
    name = {WINDOW: "gzip", ZLIB_WINDOW: "zlib"}.get(window, "deflate")
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


def unpack_deflate(data: bytes, most: int) -> bytes:
    """Decompress a body of HTTP's coding ``deflate``: zlib's format, or, as some clients send it,
    deflate without a header; errors as in ``unpack``.
    """
    if len(data) > 1 and data[0] & 0x0F == zlib.DEFLATED and (data[0] << 8 | data[1]) % 31 == 0:
        return unpack(data, most, ZLIB_WINDOW)
    return unpack(data, most, _RAW_WINDOW)


def most_of(data: bytes, most: int) -> int:
    """Return the maximum decompressed size of data, if bodies are limited to ``most`` bytes."""
    return min(most, max(FREE, MOST_RATIO * len(data)))


def check_size(size: int, data: bytes, most: int) -> None:
    """Raise TooLarge if ``size`` exceeds the limit or the maximum ratio."""
    bound = most_of(data, most)
    if size > bound:
        if bound == most:
            raise TooLarge(f"expands beyond the limit of {most} bytes")
        raise TooLarge(f"expands to more than {MOST_RATIO} times its {len(data)} bytes")
