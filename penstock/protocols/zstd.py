"""Bounded Zstandard decompression. Pure; any thread; releases the GIL.

Source: RFC 8878; RFC 9659, which limits the window of HTTP bodies to 8 MiB.
"""

from __future__ import annotations

import sys
from typing import Final

from penstock.errors import Undecodable
from penstock.protocols.gzip import check_size, most_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LARGEST_WINDOW: Final = 23  # its logarithm
_OPTIONS: Final[dict[int, int]] = {int(zstd.DecompressionParameter.window_log_max): _LARGEST_WINDOW}
_LEVEL: Final = 1


def unpack(data: bytes, most: int) -> bytes:
    """The bytes in one frame.

    Args:
        data: packed.
        most: bytes that they may unpack to; the work is bounded by it.

    Raises:
        Undecodable: corrupt, cut short, with bytes behind its end, or with too large a window.
        TooLarge: they are more than ``most``, or too many times the packed ones.
    """
    stream = zstd.ZstdDecompressor(options=_OPTIONS)
    try:
        plain = stream.decompress(data, most_of(data, most) + 1)
    except zstd.ZstdError as error:
        raise Undecodable(f"the data is not zstd: {error}") from error
    check_size(len(plain), data, most)
    if not stream.eof:
        raise Undecodable("the zstd data is cut short")
    if stream.unused_data:
        raise Undecodable("the zstd data has bytes behind its end")
    return plain


def pack(data: bytes) -> bytes:
    """The bytes as one frame."""
    return zstd.compress(data, _LEVEL)
