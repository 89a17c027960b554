"""The protobuf wire format, read and written without message objects.

A message object takes up to a hundred times the memory of its bytes, and the library holds the GIL
while it parses. ``Walker`` creates no objects: it yields the position of each field. Packed numbers
are decoded to numpy arrays block by block, so that other threads can run.

Source: the protocol buffers encoding guide. Pure; safe from any thread.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Buffer: TypeAlias = bytes | memoryview

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
_GROUP, _END_GROUP = 3, 4
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
_MOST_GROUPS = 100
_MOST_BYTES = 10
"""Maximum bytes of a varint."""
_FEW = 256
"""Maximum bytes of packed varints, or numbers, for which Python is faster than numpy."""
_MOST_FEW = 2**31 - 1
_UTF_8 = codecs.getincrementaldecoder("utf-8")
_COPIED = 1 << 20
_BLOCK = 64 << 10
"""Bytes, or numbers, that are processed in one step, in about a millisecond."""


class TooManyFields(ValueError):
    """A message has more fields than its reader allows."""


class Walker:
    """Iterates over the fields of one message and of its inner messages.

    Args:
        data: the bytes of the outermost message.
        most: maximum fields, including those of inner messages and unknown fields.
    """

    __slots__ = ("_left", "data")

    def __init__(self, data: bytes, most: int) -> None:
        self.data = data
        self._left = most

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, wire type and content of each field between two positions.

        The content of a varint is its value and where it ends; that of any other field is where it
        starts and ends. Groups, which no known client sends, are skipped.

        Raises:
            ValueError: the bytes are not a message.
            TooManyFields: there are too many fields.
        """
        data = self.data
        groups: list[int] = []
        at = start
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise TooManyFields("there are too many fields")
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = read_varint(data, at - 1)
            number, wire_type = tag >> 3, tag & 7
            if not 0 < number < 2**29:
                raise ValueError("a field number is out of range")
            if wire_type == LENGTH:
                size, begin = read_varint(data, at)
                at = begin + size
            elif wire_type == VARINT:
                begin, at = read_varint(data, at)
            elif wire_type == _GROUP:
                groups.append(number)
                if len(groups) > _MOST_GROUPS:
                    raise ValueError("groups are nested too deep")
                continue
            elif wire_type == _END_GROUP:
                if not groups or groups.pop() != number:
                    raise ValueError("a group ends that has not begun")
                continue
            else:
                begin = at
                at += _FIXED_SIZES.get(wire_type, end)
            if at > end:
                raise ValueError("the message is cut off")
            if not groups:
                yield number, wire_type, begin, at
        if groups:
            raise ValueError("the message is cut off")


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint below 2**64; return it and where it ends.

    Raises:
        ValueError: it is truncated, or longer than ten bytes.
    """
    number = 0
    for shift in range(0, 7 * _MOST_BYTES, 7):
        if at >= len(data):
            raise ValueError("the message is cut off")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (2**64 - 1), at
    raise ValueError("a number is longer than ten bytes")


def join_bytes(pieces: Iterable[Buffer]) -> bytes:
    """Join pieces, copying no more than a megabyte at a time."""
    if isinstance(pieces, list) and sum(map(len, pieces)) <= _COPIED:
        return b"".join(pieces)
    whole = io.BytesIO()
    for piece in pieces:
        if len(piece) <= _COPIED:
            whole.write(piece)
        else:
            view = memoryview(piece)
            for at in range(0, len(view), _COPIED):
                whole.write(view[at : at + _COPIED])
    return whole.getvalue()


def encode_text(text: str) -> Iterator[bytes]:
    """Encode a text as UTF-8, in pieces.

    Raises:
        UnicodeEncodeError: the text is not valid Unicode.
    """
    return (text[at : at + _BLOCK].encode() for at in range(0, len(text), _BLOCK))


def decode_text(data: bytes, start: int, end: int) -> str:
    """Decode the UTF-8 text between two positions, a long one in pieces.

    Raises:
        UnicodeDecodeError: the text is not UTF-8.
        ValueError: it extends past the end of the data.
    """
    if end > len(data):
        raise ValueError("the message is cut off")
    if end - start <= _BLOCK:
        return data[start:end].decode()
    decoder = _UTF_8()
    return join_text(
        decoder.decode(data[at : min(end, at + _BLOCK)], at + _BLOCK >= end)
        for at in range(start, end, _BLOCK)
    )


def join_text(pieces: Iterable[str]) -> str:
    """Join pieces by appending in place; copies only if a later piece has wider characters."""
    whole = ""
    # CPython 3.11 appends in place only in specialised code, and specialises only `for` loops.
    for piece in pieces:
        whole += piece
    return whole


def varint(number: int) -> bytes:
    """Encode a number from 0 to 2**64 - 1."""
    if number < 0x80:
        return bytes((number,))
    if number < 1 << 14:
        return bytes((number & 0x7F | 0x80, number >> 7))
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def few_varints(data: bytes, start: int, end: int) -> list[int] | None:
    """Decode a few packed varints below 2**31, such as a shape's; None for any others."""
    if end - start > _FEW:
        return None
    numbers: list[int] = []
    number = shift = 0
    for byte in data[start:end]:
        if byte < 0x80:
            number |= byte << shift
            if number > _MOST_FEW:
                return None
            numbers.append(number)
            number = shift = 0
        else:
            number |= (byte & 0x7F) << shift
            shift += 7
    return numbers if not shift else None


def count_varints(data: bytes, start: int, end: int) -> int:
    """Count the packed varints between two positions."""
    return sum(
        int(np.count_nonzero(np.frombuffer(data, np.int8, min(_BLOCK, end - at), at) >= 0))
        for at in range(start, end, _BLOCK)
    )


def read_varints(data: bytes, start: int, end: int, into: Array) -> None:
    """Decode packed varints, truncated to the width of the array's integers.

    Args:
        data: the message.
        start: where the packed numbers start.
        end: where they end.
        into: the array to fill; its size is ``count_varints``.

    Raises:
        ValueError: the last one is truncated, or one is longer than ten bytes.
    """
    done = 0
    while start < end:
        block = np.frombuffer(data, np.uint8, min(_BLOCK, end - start), start)
        lasts = np.flatnonzero(block < 0x80)
        if not lasts.size:
            raise ValueError("a packed number is cut off, or longer than ten bytes")
        size = int(lasts[-1]) + 1
        if lasts.size == size:  # numbers of one byte each
            into[done : done + size] = block[:size]
            done += size
            start += size
            continue
        firsts = np.concatenate(([0], lasts[:-1] + 1))
        longest = int((lasts - firsts).max()) + 1
        if longest > _MOST_BYTES:
            raise ValueError("a number is longer than ten bytes")
        values = (block[firsts] & 0x7F).astype(np.uint64)
        for index in range(1, longest):
            long = np.flatnonzero(lasts - firsts >= index)
            septets = (block[firsts[long] + index] & 0x7F).astype(np.uint64)
            values[long] |= septets << np.uint64(7 * index)
        into[done : done + values.size] = (
            values if into.dtype == np.bool_ else values.view(np.int64)
        )
        done += values.size
        start += size


def pack_varints(array: Array) -> list[bytes]:
    """Encode integers or truth values as varints, in pieces; negative ones take ten bytes."""
    pieces: list[bytes] = []
    flat = array.reshape(-1)
    if flat.size <= _FEW:
        return [varint(number % 2**64) for number in map(int, flat.tolist())]
    for at in range(0, flat.size, _BLOCK):
        values = flat[at : at + _BLOCK].astype(np.int64).view(np.uint64)
        if values.max() < 0x80:
            pieces.append(values.astype(np.uint8).tobytes())
            continue
        sizes = np.ones(values.size, np.intp)
        for index in range(1, _MOST_BYTES):
            sizes += values >= np.uint64(1 << 7 * index)
        ends = np.cumsum(sizes)
        starts = ends - sizes
        octets = np.empty(int(ends[-1]), np.uint8)
        for index in range(int(sizes.max())):
            long = np.flatnonzero(sizes > index)
            septets = (values[long] >> np.uint64(7 * index)).astype(np.uint8) & 0x7F
            octets[starts[long] + index] = septets | (sizes[long] > index + 1) * np.uint8(0x80)
        pieces.append(octets.tobytes())
    return pieces


_TAGS: Final = [varint(number << 3 | LENGTH) for number in range(128)]


def encode_field(number: int, content: Sequence[Buffer]) -> list[Buffer]:
    """Encode a field of bytes, text, packed numbers, or of a message, in pieces.

    Args:
        number: the field's number, below 128.
        content: its bytes, in pieces.
    """
    size = len(content[0]) if len(content) == 1 else sum(map(len, content))
    return [_TAGS[number], varint(size), *content]


def pack_numbers(numbers: Array, dtype: np.dtype[Any]) -> Sequence[Buffer]:
    """Encode numbers for a packed field with this dtype in memory, in pieces.

    Args:
        numbers: a flat array; a large one is not copied if its memory equals the encoding.
        dtype: of floats or truth values: little-endian; of integers: any.
    """
    if dtype.kind in "fb":  # packed floats and bools equal the array's memory
        array = np.ascontiguousarray(numbers, dtype)
        return [array.tobytes() if array.size <= _FEW else array.view(np.uint8).data]
    return pack_varints(numbers)
