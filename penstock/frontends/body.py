"""Request bodies that arrive compressed: gzip and identity, bounded after decompression too."""

from __future__ import annotations

import zlib

from penstock.errors import TooLarge, Undecodable, UnknownEncoding

_GZIP = 16 + zlib.MAX_WBITS


def decompress(encoding: bytes, body: bytes | bytearray, most: int) -> bytes | bytearray:
    """The body in plain.

    Args:
        encoding: the value of ``Content-Encoding``.
        body: as received.
        most: bytes it may expand to; the work is bounded by it.

    Raises:
        UnknownEncoding: only ``gzip`` and ``identity`` are known.
        Undecodable: corrupt, cut short, or with bytes behind its end.
        TooLarge: it expands beyond ``most``.
    """
    name = encoding.strip().lower()
    if name == b"identity":
        return body
    if name not in (b"gzip", b"x-gzip"):
        raise UnknownEncoding("content-encoding must be gzip or identity")
    stream = zlib.decompressobj(_GZIP)
    try:
        plain = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise Undecodable("the body is not gzip") from error
    if len(plain) > most:
        raise TooLarge(f"the body expands beyond {most} bytes")
    if not stream.eof or stream.unused_data:
        raise Undecodable("the gzip body is cut short or has bytes behind its end")
    return plain
