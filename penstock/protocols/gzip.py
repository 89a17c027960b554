"""gzip, unpacked within bounds. Pure; safe from any thread, and lets other threads run."""

from __future__ import annotations

import io
import zlib
from typing import Final

from penstock.errors import TooLarge, Undecodable

WINDOW: Final = 16 + zlib.MAX_WBITS
"""With gzip's header and checksum."""
FREE: Final = 1 << 20
MOST_RATIO: Final = 200
"""How many times its size a packed body may unpack to, beyond ``FREE`` bytes. Texts and numbers
that mean something are packed 2 to 20 times."""

_PIECE = 64 << 10


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
    plain = io.BytesIO()
    bound = min(most, max(FREE, MOST_RATIO * len(data)))
    size = at = 0
    rest = b""
    while not stream.eof:
        if not rest:
            rest = data[at : at + _PIECE]
            at += _PIECE
            if not rest:
                raise Undecodable("the gzip data is cut short")
        try:
            piece = stream.decompress(rest, _PIECE)
        except zlib.error as error:
            raise Undecodable("the data is not gzip") from error
        rest = stream.unconsumed_tail
        size += len(piece)
        if size > bound:
            if bound == most:
                raise TooLarge(f"expands beyond the limit of {most} bytes")
            raise TooLarge(f"expands to more than {MOST_RATIO} times its {len(data)} bytes")
        plain.write(piece)
    if stream.unused_data or at < len(data):
        raise Undecodable("the gzip data has bytes behind its end")
    return plain.getvalue()
