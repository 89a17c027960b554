"""Request bodies: while they come in, and unpacked.

Compressed ones may be gzip or zstd, and are bounded after decompression too.
"""

from __future__ import annotations

import io
import mmap

from penstock.errors import TooLarge, UnknownEncoding
from penstock.protocols import gzip, zstd

SMALL = 16 << 10
"""Bytes of a body, or a message, whose decoded form is not counted beside it."""

LARGE = 256 << 10
"""Bytes of a body, or a message, from which on a thread decodes it, and the loop goes on."""
SMALL_PACKED = 4 << 10
"""Packed bytes that are unpacked at once: they are a megabyte at most."""
_MAPPED = 128 << 10
"""Bytes from which on a body has memory of its own: a mapping costs some system calls, and in the
heap remains what smaller ones leave behind."""
_SPARE = 16 << 20
"""Bytes of such memory that are kept for the bodies to come: to be given fresh pages by the system
takes ten times as long as writing to them."""

_PIECE = 1 << 20
"""Bytes; whole pages of any system."""


class _Mappings:
    """Memory for large bodies, of which a little is used again.

    Thread:
        any.
    """

    def __init__(self) -> None:
        self._spare: list[mmap.mmap] = []

    def take(self, size: int) -> mmap.mmap:
        """Some with room for so many bytes."""
        try:
            spare = self._spare.pop()
        except IndexError:
            return _mapped(size)
        if len(spare) < size:
            spare.resize(size)
        return spare

    def give_back(self, mapped: mmap.mmap) -> None:
        """It is not needed any more."""
        if len(mapped) + sum(map(len, self._spare)) <= _SPARE:
            self._spare.append(mapped)
        else:
            mapped.close()


_MAPPINGS = _Mappings()


class PartialBody:
    """A body, or a message, while it comes in.

    A large one has memory that is mapped for it alone, most of which goes back to the system with
    it. In the heap, where the pieces of many bodies lie side by side, what one leaves behind is
    seldom fit for the next: with a hundred at once the process would take twice what they hold.

    Attributes:
        size: bytes.
    """

    __slots__ = ("_large", "_small", "size")

    def __init__(self) -> None:
        self._small = bytearray()
        self._large: mmap.mmap | None = None
        self.size = 0

    def add(self, piece: bytes) -> None:
        """Keep one more piece."""
        start, self.size = self.size, self.size + len(piece)
        large = self._large
        if large is None:
            if self.size < _MAPPED:
                self._small += piece
                return
            large = self._large = _MAPPINGS.take(2 * self.size)
            large[:start] = self._small
            self._small = bytearray()
        elif self.size > len(large):
            large.resize(2 * self.size)  # nothing is copied, and what is not used is not there
        large[start : self.size] = piece

    def join(self) -> bytes:
        """All of it, which is not kept any longer."""
        large, self._large = self._large, None
        if large is None:
            return bytes(self._small)
        if self.size > _SPARE:
            return _moved(large, self.size)
        whole = large[: self.size]
        _MAPPINGS.give_back(large)
        return whole


def _mapped(size: int) -> mmap.mmap:
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Otherwise a few bytes could take two megabytes, which nobody counts.
    mapped.madvise(mmap.MADV_NOHUGEPAGE)
    return mapped


def _moved(mapped: mmap.mmap, size: int) -> bytes:
    """Its bytes, of which no more than a piece is ever there twice."""
    whole = io.BytesIO(bytes(size))  # it never grows, and is not there before it is written
    with memoryview(mapped) as view:
        for start in range(0, size, _PIECE):
            whole.write(view[start : min(size, start + _PIECE)])
            mapped.madvise(mmap.MADV_DONTNEED, start, _PIECE)
    mapped.close()
    return whole.getvalue()


def decompress(encoding: bytes, body: bytes, most: int) -> bytes:
    """The body in plain.

    Args:
        encoding: the value of ``Content-Encoding``.
        body: as received.
        most: bytes it may expand to; the work is bounded by it.

    Raises:
        UnknownEncoding: only ``gzip``, ``zstd`` and ``identity`` are known.
        Undecodable: corrupt, cut short, or with bytes behind its end.
        TooLarge: it expands beyond ``most``, or too many times its size.
    """
    name = encoding.strip().lower()
    if name == b"identity":
        return body
    if name not in (b"gzip", b"x-gzip", b"zstd"):
        raise UnknownEncoding("content-encoding must be gzip, zstd or identity")
    try:
        return zstd.unpack(body, most) if name == b"zstd" else gzip.unpack(body, most)
    except TooLarge as error:
        raise TooLarge(f"the body {error}") from None
