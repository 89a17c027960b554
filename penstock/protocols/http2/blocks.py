"""Header blocks: fields to bytes, and bytes to fields, as RFC 7541 has it.

Blocks that we send refer to the static table only, so that a block made once is valid on every
connection. The decoder keeps the peer's dynamic table right even through a list that is larger than
we take: what is too much is read and thrown away, and the connection can go on. Only what is beyond
all bounds ends it.

Tables and Huffman codes come from the package ``hpack``; its own decoder gives up in the middle of
a large list, after which the connection is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeAlias

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from penstock.protocols.http2.codes import ConnectionFault, ErrorCode, HeadersTooLarge
from penstock.protocols.http2.limits import Http2Limits
from penstock.protocols.http2.settings import DEFAULT_TABLE_SIZE

Fields: TypeAlias = list[tuple[bytes, bytes]]

FIELD_OVERHEAD: Final = 32
"""Added to name and value, in the sizes of the table and of header lists."""

HARD_FACTOR: Final = 8
"""A list of this many times the allowed size, or a block of so many bytes, is no mistake, and
decoding it for the table's sake is work for nothing. Smaller ones are refused on their stream."""

_STATIC: Final = ((b"", b""), *HeaderTable.STATIC_TABLE)
_FIRST_DYNAMIC: Final = len(_STATIC)
_INDEX_OF: Final = HeaderTable.STATIC_TABLE_MAPPING
_NEVER_INDEXED: Final = frozenset({b"authorization", b"proxy-authorization", b"cookie"})
_LONGEST_INTEGER: Final = 4 * 7
_LONGEST_CACHED: Final = 64

_short_huffman = lru_cache(maxsize=1024)(decode_huffman)


class FieldDecoder:
    """The peer's dynamic table, and what its blocks mean with it.

    Attributes:
        changes: of the table; equal blocks mean equal fields while this stays the same.
    """

    __slots__ = ("_allowed", "_entries", "_limits", "_most", "_size", "changes")

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._entries: deque[tuple[bytes, bytes]] = deque()
        self._size = 0
        self._most = DEFAULT_TABLE_SIZE
        # The peer may use a larger table as soon as it has read our settings, but need not use a
        # smaller one before it has acknowledged them.
        self._allowed = max(limits.header_table_size, DEFAULT_TABLE_SIZE)
        self.changes = 0

    def settings_acknowledged(self) -> None:
        """The peer knows our HEADER_TABLE_SIZE: from now on it must keep to it."""
        self._allowed = self._limits.header_table_size

    def decode(self, block: bytes) -> tuple[Fields, int]:
        """The fields of a block in their order, and the size of the list.

        Raises:
            ConnectionFault: the block cannot be decoded, or is beyond all bounds.
            HeadersTooLarge: over a limit of ours; the table is right nevertheless.
        """
        try:
            return self._decode(block)
        except (IndexError, HPACKError) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "broken header block") from error

    def _decode(self, block: bytes) -> tuple[Fields, int]:
        fields: Fields = []
        most_field = self._limits.max_header_field
        most_fields = self._limits.max_header_fields
        large = False
        most = self._limits.max_header_bytes
        total = 0
        at = 0
        while at < len(block):
            octet = block[at]
            at += 1
            if octet >= 0x80:
                index = octet & 0x7F
                if index == 0x7F:
                    index, at = _read_integer(block, at, 0x7F)
                field = self._entry(index)
            elif octet & 0x60 == 0x20:
                if total:
                    raise HPACKError("a change of the table's size behind a field")
                size, at = _read_integer(block, at, 0x1F) if octet == 0x3F else (octet & 0x1F, at)
                self._resize(size)
                continue
            else:
                prefix = 0x3F if octet >= 0x40 else 0x0F
                index = octet & prefix
                if index == prefix:
                    index, at = _read_integer(block, at, prefix)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _read_string(block, at)
                value, at = _read_string(block, at)
                field = (name, value)
                if octet >= 0x40:
                    self._add(field)
            size = len(field[0]) + len(field[1])
            total += size + FIELD_OVERHEAD
            if total > most * HARD_FACTOR:
                text = "header list beyond all bounds"
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, "header")
            if size > most_field:
                large = True
            elif len(fields) <= most_fields:
                fields.append(field)
        if self._most > self._allowed:
            raise HPACKError("the table was not made smaller")
        if large or total > most or len(fields) > most_fields:
            raise HeadersTooLarge("header list too large", total // most)
        return fields, total

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if index >= _FIRST_DYNAMIC:
            return self._entries[index - _FIRST_DYNAMIC]
        if not index:
            raise HPACKError("an index of zero")
        return _STATIC[index]

    def _add(self, field: tuple[bytes, bytes]) -> None:
        """RFC 7541, section 4.4: room is made first, and what does not fit empties the table."""
        self.changes += 1
        size = len(field[0]) + len(field[1]) + FIELD_OVERHEAD
        self._evict(self._most - size)
        if size <= self._most:
            self._entries.appendleft(field)
            self._size += size

    def _resize(self, most: int) -> None:
        if most > self._allowed:
            raise HPACKError("a table larger than allowed")
        self.changes += 1
        self._most = most
        self._evict(most)

    def _evict(self, most: int) -> None:
        entries = self._entries
        while entries and self._size > most:
            name, value = entries.pop()
            self._size -= len(name) + len(value) + FIELD_OVERHEAD


def encode_block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Fields as a block that is valid on every connection: no dynamic table, no Huffman codes.

    Args:
        headers: names in lower case, pseudo-headers first.
    """
    out = bytearray()
    for name, value in headers:
        index, values = _INDEX_OF.get(name, (0, {}))
        exact = values.get(value)
        if exact is not None:
            out += _integer(0x80, 0x7F, exact)
            continue
        out += _integer(0x10 if name in _NEVER_INDEXED else 0x00, 0x0F, index)
        if not index:
            out += _integer(0, 0x7F, len(name)) + name
        out += _integer(0, 0x7F, len(value)) + value
    return bytes(out)


def _integer(first: int, prefix: int, value: int) -> bytes:
    """An integer behind the upper bits of ``first``; RFC 7541, section 5.1."""
    if value < prefix:
        return bytes((first | value,))
    out = bytearray((first | prefix,))
    value -= prefix
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """The rest of an integer whose prefix was full, and where it ends."""
    shift = 0
    while True:
        octet = block[at]
        at += 1
        value += (octet & 0x7F) << shift
        if octet < 0x80:
            return value, at
        shift += 7
        if shift > _LONGEST_INTEGER:
            raise HPACKError("an integer that is too long")


def _read_string(block: bytes, at: int) -> tuple[bytes, int]:
    octet = block[at]
    at += 1
    size = octet & 0x7F
    if size == 0x7F:
        size, at = _read_integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise HPACKError("a string that is cut off")
    string = block[at:end]
    if octet >= 0x80:
        string = _short_huffman(string) if size <= _LONGEST_CACHED else decode_huffman(string)
    return string, end
