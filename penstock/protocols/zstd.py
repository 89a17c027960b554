"""Bounded Zstandard decompression. Pure; thread-safe; releases the GIL.

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

_LARGEST_WINDOW: Final = 23  # log2 of 8 MiB
_OPTIONS: Final[dict[int, int]] = {int(zstd.DecompressionParameter.window_log_max): _LARGEST_WINDOW}
_LEVEL: Final = 1


def unpack(data: bytes, most: int) -> bytes:
    """Decompress one frame.

    Args:
        data: the compressed bytes.
        most: maximum bytes of the result; also bounds the work.

    Raises:
        Undecodable: the data is corrupt, truncated, has bytes behind its end, or too large a
            window.
        TooLarge: the result is larger than ``most``, or too many times the size of ``data``.
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
    """Compress bytes to one frame."""
    return zstd.compress(data, _LEVEL)
