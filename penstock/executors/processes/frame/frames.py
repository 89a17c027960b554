"""Frames: each a short header and a body.

Decides what is a frame and what is not; knows neither sockets nor what a body means (its values
are read and written beside this module). Guarantees: however the bytes are cut, the same frames
come out; no more is kept than one frame that is not yet whole; a body over the limit, or a large
one that nobody expects, is refused when its header is there, before room is made for it.

    magic "PF" | version, 1 octet | kind, 1 octet | length of the body, 4 octets | number, 8 octets

All numbers are little-endian. ``number`` is the batch's, and 0 where a frame is about none.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, NoReturn

HEADER_BYTES = 16
VERSION = 1
UNASKED_BYTES = 64 << 10
"""The largest body of a frame that nobody expects: more than the words of a start that failed."""

_MAGIC = b"PF"
_HEADER = Struct("<2sBBIQ")
_HEADER_AND_LENGTH = Struct("<2sBBIQI")
_HEADER_IN_WORDS = Struct("<IIQ")
"""The same octets; magic, version and kind together, as one number that is right or wrong."""


class FrameError(Exception):
    """Bytes that are no frame or no value, or a value that cannot travel.

    Whoever sent such bytes is broken or hostile, and is to be ended. ``str(error)`` names no
    content.
    """


class OnlyPickledError(FrameError):
    """A value that travels as a pickle alone, where none may go."""


class Kind(IntEnum):
    """What a frame is about."""

    READY = 1
    """Worker: it can work."""
    FAILED = 2
    """Worker: it could not start."""
    RUN = 3
    """Engine: batches to be run, the first of which has the number."""
    SLAB = 4
    """Either: memory for large arrays, our own or lent; its descriptor comes along."""
    DONE = 5
    """Worker: a batch's outcomes."""
    SKIP = 6
    """Engine: nobody waits for a batch any more."""
    FREE = 7
    """Either: slabs of the other side that are no longer read."""
    STOP = 8
    """Engine: end when what is at hand is done."""
    ANSWERS = 9
    """Worker: outcomes are there to be read, over the socket for them."""
    STDERR = 10
    """Engine, first of all: what is to be standard error; its descriptor comes along."""
    RECALL = 11
    """Engine: memory that was lent, and is read no longer, is not lent again."""
    SEVERAL = 12
    """Worker: the outcomes of batches in a row, as a list; the first of them has the number."""


class Frame(NamedTuple):
    """One frame; ``body`` belongs to the receiver and never changes."""

    kind: Kind
    number: int
    body: bytes | memoryview


_frame = tuple.__new__  # without the call that Frame(...) makes of it
_KINDS = {int(kind): kind for kind in Kind}
_KNOWN = {
    _HEADER_IN_WORDS.unpack(_HEADER.pack(_MAGIC, VERSION, kind, 0, 0))[0]: kind for kind in Kind
}


def header(kind: Kind, number: int, length: int) -> bytes:
    """The header of a frame whose body has ``length`` bytes.

    Raises:
        FrameError: the body, or the number, is too large for a header.
    """
    try:
        return _HEADER.pack(_MAGIC, VERSION, kind, length, number)
    except StructError as error:
        raise FrameError(f"no frame can have {length} bytes and the number {number}") from error


def framed(kind: Kind, number: int, plain: bytes) -> bytes:
    """A frame whose body is a value with a plain part only."""
    length = len(plain)
    return _HEADER_AND_LENGTH.pack(_MAGIC, VERSION, kind, 4 + length, number, length) + plain


class FrameReader:
    """Bytes to frames.

    Args:
        max_body: the largest body that is taken, in bytes.
        expects: asked for each body above ``UNASKED_BYTES`` whether such a one may come.
    """

    __slots__ = (
        "_body",
        "_error",
        "_expects",
        "_frame",
        "_head",
        "_length",
        "_max_body",
        "_unasked",
    )

    def __init__(self, max_body: int, expects: Callable[[], bool] | None = None) -> None:
        self._max_body = max_body
        self._unasked = min(max_body, UNASKED_BYTES)
        self._expects = expects
        self._head = b""  # the header's bytes while they are not all there
        self._frame: tuple[Kind, int] | None = None  # what the header said, while its body comes
        self._length = 0
        self._body = bytearray()
        self._error: FrameError | None = None

    def __repr__(self) -> str:
        held = len(self._head) + len(self._body)
        return f"<FrameReader {held} bytes of {self._frame and self._frame[0].name}>"

    def receive(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Take the next bytes, cut anywhere; ``data`` may be changed afterwards.

        Returns:
            The frames that are whole now.

        Raises:
            FrameError: the bytes are no frames. Nothing more can be read from this sender: every
                further call raises too.
        """
        if self._error is not None:
            raise self._error
        frames: list[Frame] = []
        at = self._finish(data, frames) if self._head or self._frame else 0
        if type(data) is not bytes:
            data = bytes(data)  # of which slices are bodies
        unpack, known, unasked = _HEADER_IN_WORDS.unpack_from, _KNOWN, self._unasked
        size = len(data)
        last = size - HEADER_BYTES
        while at <= last:
            word, length, number = unpack(data, at)
            kind = known.get(word)
            if kind is None or length > unasked:
                kind, number, length = self._read_header(data, at)
            start = at + HEADER_BYTES
            at = start + length
            if at > size:
                self._frame, self._length = (kind, number), length
                # Grows with what arrives: a promise of many bytes costs nothing.
                self._body = bytearray(data[start:])
                return frames
            frames.append(_frame(Frame, (kind, number, data[start:at])))
        if at < size:
            self._head = data[at:]
        return frames

    def _finish(self, data: bytes | bytearray | memoryview, frames: list[Frame]) -> int:
        """Complete what an earlier call began; tells how many bytes of ``data`` that took."""
        at = 0
        if self._frame is None:
            at = HEADER_BYTES - len(self._head)
            head = self._head + bytes(data[:at])
            if len(head) < HEADER_BYTES:
                self._head = head
                return len(data)
            kind, number, self._length = self._read_header(head, 0)
            self._head = b""
            self._frame = (kind, number)
        missing = self._length - len(self._body)
        piece = memoryview(data)[at : at + missing]
        self._body += piece
        if len(piece) == missing:
            # Handed over as it is: a second copy of many MiB would double their cost.
            frames.append(Frame(*self._frame, memoryview(self._body).toreadonly()))
            self._frame = None
            self._body = bytearray()
        return at + len(piece)

    def _read_header(self, data: bytes | bytearray | memoryview, at: int) -> tuple[Kind, int, int]:
        magic, version, code, length, number = _HEADER.unpack_from(data, at)
        if magic != _MAGIC:
            self._refuse("the bytes are no frame")
        if version != VERSION:
            self._refuse(f"the frame is of version {version}, not {VERSION}")
        kind = _KINDS.get(code)
        if kind is None:
            self._refuse(f"frames of kind {code} are not known")
        if length > self._max_body:
            self._refuse(f"the frame has {length} bytes, over the {self._max_body} allowed")
        if length > UNASKED_BYTES and self._expects is not None and not self._expects():
            self._refuse(f"the frame has {length} bytes, and none of that size is expected")
        return kind, number, length

    def _refuse(self, text: str) -> NoReturn:
        self._error = FrameError(text)
        self._body = bytearray()
        raise self._error
