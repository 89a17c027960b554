"""Frames, which engine and workers send each other: each a short header and a body. Pure.

Guarantees: however the bytes are cut, the same frames come out; no more is kept than one frame that
is not yet whole; a body over the limit is refused when its header is there.

    magic "PF" | version, 1 octet | kind, 1 octet | length of the body, 4 octets | number, 8 octets

All numbers are little-endian. ``number`` is the batch's, and 0 where a frame is about none.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

HEADER_BYTES: Final = 16
VERSION: Final = 2

_MAGIC: Final = b"PF"
_HEADER: Final = Struct("<2sBBIQ")


class FrameError(Exception):
    """Bytes that are no frame or no value, or a value that cannot travel.

    Whoever sent such bytes is broken or hostile, and is to be ended. ``str(error)`` names no
    content.
    """


class Kind(IntEnum):
    """What a frame is about."""

    HELLO = 1
    """Engine, first of all; the descriptors of the eventfd and of the status page come along."""
    READY = 2
    """Worker: it can work; what it has loaded."""
    FAILED = 3
    """Worker: it could not start; why."""
    RUN = 4
    """Engine: batches to be run, the first of which has the number."""
    DONE = 5
    """Worker: a batch's outcomes."""
    REST = 6
    """Worker: the batches from this number on were not begun, because those before took long."""
    SLAB = 7
    """Engine: shared memory for large arrays; its descriptor comes along."""
    DROP = 8
    """Engine: shared memory that will not be used again."""
    KEPT = 9
    """Worker: the op still holds arrays in this shared memory, which is its own from now on."""
    STOP = 10
    """Engine: end when what is at hand is done."""
    NEED = 11
    """Worker: so many bytes of shared memory are needed for outputs, beyond what was granted."""
    GRANT = 12
    """Engine: the shared memory for these; 0 is none."""
    STEP = 13
    """Worker: what it does before it can work, for people."""


class Frame(NamedTuple):
    """One frame; ``body`` belongs to the receiver and never changes."""

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
        self._buffer = bytearray()  # of the frame that is not whole
        self._wanted = 0  # how many bytes it has, as far as is known

    def receive(self, data: bytes) -> list[Frame]:
        """Take the next bytes, cut anywhere.

        Returns:
            The frames that are whole now.

        Raises:
            FrameError: the bytes are no frames. Nothing more can be read from this sender.
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
            self._buffer += data[at:]  # grows with what arrives: to promise many bytes is no use
        return frames

    def _complete(self, data: bytes, frames: list[Frame]) -> bytes:
        """Put the beginning of the data to the frame that is not whole; gives the rest."""
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
            # Handed over as it is: a second copy of many MiB would double their cost.
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
