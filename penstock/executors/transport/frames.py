"""Frames between an engine and its workers: a short header and a body. Pure.

Guarantees: the frames do not depend on how the bytes are split; at most one incomplete frame is
buffered; a body over the limit is refused when its header has arrived.

    magic "PF" | version, 1 octet | kind, 1 octet | length of the body, 4 octets | number, 8 octets

All numbers are little-endian. ``number`` is the batch's, or 0.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

HEADER_BYTES: Final = 16
VERSION: Final = 6

_MAGIC: Final = b"PF"
_HEADER: Final = Struct("<2sBBIQ")
CREDIT: Final = Struct("<Q")
"""The body of a CREDIT frame."""


class FrameError(Exception):
    """Bytes that are no frame or value, or a value that cannot be encoded.

    The sender is broken or hostile, and must be ended. ``str(error)`` contains no data.
    """


class Kind(IntEnum):
    """The type of a frame."""

    HELLO = 1
    """Engine, first frame. ``number`` is 1 if the worker decides how requests are batched, and
    reports it; else 0. To a worker process it carries the descriptors of the eventfd and of the
    status page."""
    READY = 2
    """Worker: it is ready; what it has loaded."""
    FAILED = 3
    """Worker: it could not start; the reason."""
    RUN = 4
    """Engine: batches to run; ``number`` is the first one's."""
    DONE = 5
    """Worker: a batch's outcomes."""
    REST = 6
    """Worker: the batches from this number on were not begun, because earlier ones took long."""
    SLAB = 7
    """Engine: a slab of shared memory; carries its descriptor."""
    DROP = 8
    """Engine: a slab that will not be used again."""
    KEPT = 9
    """Worker: the op still holds arrays in this slab, which now belongs to the worker."""
    STOP = 10
    """Engine: end after the current batches."""
    NEED = 11
    """Worker: requests this many bytes of shared memory for outputs, beyond the granted slab."""
    GRANT = 12
    """Engine: the slab for these; 0 is none."""
    STEP = 13
    """Worker: the current step of its start, as text."""
    BATCHING = 14
    """Engine: how another worker decided that requests are batched."""
    CALL = 15
    """Worker without a status page: a ``process`` call of the batch begins; only if the op has a
    ``timeout``."""
    PIECE = 16
    """Worker: a piece of the answer to the batch's one sample, or a list of pieces."""
    CREDIT = 17
    """Engine: the number of the batch's pieces, from its first one on, that the caller has got, as
    8 octets."""
    CANCEL = 18
    """Engine: no further piece of the batch is wanted."""
    HANDLED = 19
    """Engine, to a worker with seats: so many of its batches are settled, and what waited for their
    seats has been sent."""


class Frame(NamedTuple):
    """One frame; ``body`` is immutable."""

    kind: Kind
    number: int
    body: bytes | memoryview


_KINDS: Final = {int(kind): kind for kind in Kind}


def header(kind: Kind, number: int, length: int) -> bytes:
    """The header of a frame whose body has ``length`` bytes.

    Raises:
        FrameError: the body, or the number, is too large for a header.
    """
    try:
        return _HEADER.pack(_MAGIC, VERSION, kind, length, number)
    except StructError as error:
        raise FrameError(f"no frame can have {length} bytes and the number {number}") from error


class FrameReader:
    """Bytes to frames.

    Args:
        limit: the largest body that is taken, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()  # of the incomplete frame
        self._wanted = 0  # its length in bytes, as far as known

    def receive(self, data: bytes) -> list[Frame]:
        """Process the next bytes, split anywhere.

        Returns:
            The frames that are now complete.

        Raises:
            FrameError: the bytes are no frames; the stream cannot be read any further.
        """
        frames: list[Frame] = []
        if self._buffer:
            data = self._complete(data, frames)
        at, size = 0, len(data)
        while size - at >= HEADER_BYTES:
            kind, number, length = self._read_header(data, at)
            start = at + HEADER_BYTES
            end = start + length
            if end > size:
                self._wanted = HEADER_BYTES + length
                break
            frames.append(Frame(kind, number, data[start:end]))
            at = end
        if at < size:
            self._buffer += data[at:]  # grows with the input, not with the announced length
        return frames

    def _complete(self, data: bytes, frames: list[Frame]) -> bytes:
        """Complete the incomplete frame with the start of the data; returns the rest."""
        buffer = self._buffer
        missing = (self._wanted or HEADER_BYTES) - len(buffer)
        buffer += data[:missing]
        data = data[missing:]
        if not self._wanted and len(buffer) == HEADER_BYTES:
            _, _, length = self._read_header(buffer, 0)
            self._wanted = HEADER_BYTES + length
            buffer += data[:length]
            data = data[length:]
        if len(buffer) == self._wanted:
            kind, number, _ = self._read_header(buffer, 0)
            # Not copied: a second copy of many MiB would double the cost.
            body = memoryview(buffer).toreadonly()[HEADER_BYTES:]
            frames.append(Frame(kind, number, body))
            self._buffer = bytearray()
            self._wanted = 0
        return data

    def _read_header(self, data: bytes | bytearray, at: int) -> tuple[Kind, int, int]:
        magic, version, code, length, number = _HEADER.unpack_from(data, at)
        kind = _KINDS.get(code)
        if magic != _MAGIC or version != VERSION or kind is None:
            raise FrameError("the bytes are no frame")
        if length > self.limit:
            raise FrameError(f"a frame has {length} bytes, over the {self.limit} allowed here")
        return kind, number, length
