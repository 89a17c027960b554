"""Receives request bodies and decompresses them.

Compressed ones may be gzip, deflate or zstd, and are bounded after decompression too.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable
from typing import Final

from penstock.errors import TooLarge, UnknownEncoding
from penstock.protocols import gzip, zstd

SMALL = 16 << 10
"""Bytes of a body, or a message, up to which its decoded form is not counted separately."""

LARGE = 256 << 10
"""Bytes of a body, or a message, from which on a thread decodes it."""
SMALL_PACKED = 4 << 10
"""Compressed bytes that are decompressed on the loop: at most a megabyte of output."""
_MAPPED = 128 << 10
"""Bytes from which on a body is stored in a separate mapping: that costs system calls, but does not
fragment the heap."""
_SPARE = 16 << 20
"""Bytes of mappings that are kept for reuse: getting fresh pages from the system takes ten times as
long as writing to them."""

_PIECE = 1 << 20
"""Bytes; whole pages of any system."""


class _Mappings:
    """A pool of mappings for large bodies.

    Thread:
        any.
    """

    def __init__(self) -> None:
        self._spare: list[mmap.mmap] = []

    def take(self, size: int) -> mmap.mmap:
        """A mapping of at least ``size`` bytes."""
        try:
            spare = self._spare.pop()
        except IndexError:
            return _mapped(size)
        if len(spare) < size:
            spare.resize(size)
        return spare

    def give_back(self, mapped: mmap.mmap) -> None:
        """Return a mapping to the pool."""
        if len(mapped) + sum(map(len, self._spare)) <= _SPARE:
            self._spare.append(mapped)
        else:
            mapped.close()


_MAPPINGS = _Mappings()


class PartialBody:
    """A body, or a message, while it arrives.

    A large one has its own mapping, which mostly returns to the system at the end. In the heap, the
    pieces of many bodies would cause fragmentation: with a hundred at once the process would need
    twice their size.

    Attributes:
        size: bytes.
    """

    __slots__ = ("_large", "_small", "size")

    def __init__(self) -> None:
        self._small = bytearray()
        self._large: mmap.mmap | None = None
        self.size = 0

    def add(self, piece: bytes) -> None:
        """Append a piece."""
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
            large.resize(2 * self.size)  # nothing is copied, and unused pages use no memory
        large[start : self.size] = piece

    def join(self) -> bytes:
        """The whole body, which is then released."""
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
    # Otherwise a few bytes could occupy two megabytes, uncounted.
    mapped.madvise(mmap.MADV_NOHUGEPAGE)
    return mapped


def _moved(mapped: mmap.mmap, size: int) -> bytes:
    """Its bytes; at most one piece at a time exists twice."""
    whole = io.BytesIO(bytes(size))  # it never grows, and uses no memory before it is written
    with memoryview(mapped) as view:
        for start in range(0, size, _PIECE):
            whole.write(view[start : min(size, start + _PIECE)])
            mapped.madvise(mmap.MADV_DONTNEED, start, _PIECE)
    mapped.close()
    return whole.getvalue()


def decompress(encoding: bytes, body: bytes, most: int) -> bytes:
    """Decompress a body.

    Args:
        encoding: the value of ``Content-Encoding``.
        body: as received.
        most: bytes it may expand to; the work is bounded by it.

    Raises:
        UnknownEncoding: only ``gzip``, ``deflate``, ``zstd`` and ``identity`` are known.
        Undecodable: corrupt, truncated, or with trailing bytes.
        TooLarge: it expands beyond ``most``, or too many times its size.
    """
    name = encoding.strip().lower()
    if name == b"identity":
        return body
    unpack = _CODINGS.get(name)
    if unpack is None:
        raise UnknownEncoding("content-encoding must be gzip, deflate, zstd or identity")
    try:
        return unpack(body, most)
    except TooLarge as error:
        raise TooLarge(f"the body {error}") from None


_CODINGS: Final[dict[bytes, Callable[[bytes, int], bytes]]] = {
    b"gzip": gzip.unpack,
    b"x-gzip": gzip.unpack,
    b"deflate": gzip.unpack_deflate,
    b"zstd": zstd.unpack,
}
