"""HPACK: header fields to bytes, and bytes to checked fields, as RFC 7541 has it.

Blocks that we send refer to the static table only, so that a block made once is valid on every
connection. The decoder keeps the peer's dynamic table right even through a list that is larger than
we take: what is too much is read and thrown away, and the connection can go on. Only what is beyond
all bounds ends it. Entries of the table are checked when they are decoded: a field that is sent by
its index costs one look into a list.

The static table comes from the package ``hpack``, Huffman codes from ``pylsqpack``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from hpack import HPACKError
from hpack.table import HeaderTable
from pylsqpack import Decoder, DecompressionFailed

from penstock.protocols.http2.codes import ConnectionFault, ErrorCode, HeadersTooLarge
from penstock.protocols.http2.frames import DEFAULT_TABLE_SIZE
from penstock.protocols.http2.limits import Http2Limits
from penstock.protocols.http2.messages import Field, check_field, names

FIELD_OVERHEAD: Final = 32
"""Added to name and value, in the sizes of the table and of header lists."""

HARD_FACTOR: Final = 8
"""A list of this many times the allowed size, or a block of so many bytes, is no mistake, and
decoding it for the table's sake is work for nothing. Smaller ones are refused on their stream."""

_LONGEST_KEPT: Final = 1024
"""Bytes of a block that is kept, for a client that sends the same one again and again."""

_INDEX_OF: Final = HeaderTable.STATIC_TABLE_MAPPING
_NEVER_INDEXED: Final = frozenset({b"authorization", b"proxy-authorization", b"cookie"})
_LONGEST_INTEGER: Final = 4 * 7

_LONGEST_CODED: Final = 40_000
"""Octets of a Huffman-coded string. A symbol takes five bits or more, and pylsqpack gives no more
than 65,534 of them."""

_VISIBLE: Final = bytes(range(0x21, 0x7F))

_INDEXED: Final = 0x80
_STATIC: Final = [check_field(name, value) for name, value in HeaderTable.STATIC_TABLE]
_FIRST_DYNAMIC: Final = _INDEXED + 1 + len(_STATIC)
_INDEXED_OCTETS: Final = bytes(range(0x81, 0xFF))
"""Each of them is a field that is indexed; 0xFF goes on in the next octet."""


class FieldDecoder:
    """The peer's dynamic table, and what its blocks mean with it."""

    __slots__ = (
        "_allowed",
        "_block",
        "_costs",
        "_fields",
        "_free",
        "_largest",
        "_limits",
        "_most",
        "_most_fields",
        "_table",
    )

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        # Both tables as the first octet of an indexed field counts: the dynamic one, newest first,
        # stands behind the static one, and what is before them is never looked at.
        self._table: list[Field] = [(b"", b"")] * (_INDEXED + 1) + _STATIC
        self._costs: deque[int] = deque()  # bytes of the dynamic table's entries, oldest first
        self._most_fields = limits.max_header_bytes * HARD_FACTOR // FIELD_OVERHEAD
        # The last block, unless the table has changed since, and its fields.
        self._block: bytes | None = None
        self._fields: list[Field] = []
        self._largest = 100  # bytes of an entry at most, since the dynamic table was empty
        self._most = self._free = DEFAULT_TABLE_SIZE
        # The peer may use a larger table as soon as it has read our settings, but need not use a
        # smaller one before it has acknowledged them.
        self._allowed = max(limits.header_table_size, DEFAULT_TABLE_SIZE)

    @property
    def entries(self) -> list[Field]:
        """The dynamic table, newest first."""
        return self._table[_FIRST_DYNAMIC:]

    def settings_acknowledged(self) -> None:
        """The peer knows our HEADER_TABLE_SIZE: from now on it must keep to it."""
        self._allowed = self._limits.header_table_size
        self._block = None

    def decode(self, block: bytes) -> list[Field]:
        """The fields of a block in their order, each checked (see ``messages``).

        The list is the same object where the block is the last one again and means the same.

        Raises:
            ConnectionFault: the block cannot be decoded, or is beyond all bounds.
            HeadersTooLarge: over a limit of ours; the table is right nevertheless.
        """
        if block == self._block:
            return self._fields
        self._block = block if len(block) <= _LONGEST_KEPT else None
        try:
            fields = self._decode(block)
        except HeadersTooLarge:
            self._block = None
            raise
        except (IndexError, HPACKError, DecompressionFailed) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "broken header block") from error
        if self._block is not None:
            self._fields = fields
        return fields

    def _decode(self, block: bytes) -> list[Field]:
        limits = self._limits
        table = self._table
        costs = self._costs
        most_fields = self._most_fields
        most_length = limits.max_header_field
        fields: list[Field] = []
        dropped = 0  # bytes of fields that are too large to be kept
        at = 0
        size = len(block)
        while at < size and block[at] & 0xE0 == 0x20:
            at = self._resize(block, at)
        free = self._free
        if not at and size <= most_fields:
            # Most blocks begin with fields that are indexed: as below, in a fifth of the time.
            at = size - len(block.lstrip(_INDEXED_OCTETS))
            fields += map(table.__getitem__, block[:at])
        while at < size:
            octet = block[at]
            at += 1
            if octet > _INDEXED:
                if octet == 0xFF:
                    octet, at = _read_integer(block, at, 0xFF)
                fields.append(table[octet])
                if at > most_fields and len(fields) > most_fields:
                    break
                continue
            if 0x40 < octet < 0x7F:
                name = table[octet + _INDEXED - 0x40][0]
            elif octet == 0x7F and block[at] < 0x80:
                name = table[_INDEXED + 0x3F + block[at]][0]
                at += 1
            else:
                name, at = self._read_name(octet, block, at)
            first = block[at]
            end = at + first - 0x7F
            if 0x80 <= first < 0xFF and end <= size:
                # As _read_string decodes a short string, without the call.
                value = _decode_fields(0, _ONE_LITERAL + block[at:end])[1][0][1]
                at = end
            else:
                value, at = _read_string(block, at)
            if names.get(name, True) is None and (
                value.isalnum() or not value.translate(None, _VISIBLE)
            ):
                field: Field = (name, value)  # most are so, and right
            else:
                field = check_field(name, value)
            length = len(name) + len(value)
            if octet >= 0x40:
                # RFC 7541, section 4.4: room is made first; what does not fit empties the table.
                self._block = None
                cost = length + FIELD_OVERHEAD
                free -= cost
                while free < 0 and costs:
                    del table[-1]
                    free += costs.popleft()
                if free >= 0:
                    table.insert(_FIRST_DYNAMIC, field)
                    costs.append(cost)
                    if cost > self._largest:
                        self._largest = cost
                else:
                    free += cost
            if length <= most_length:
                fields.append(field)
            else:
                dropped += length + FIELD_OVERHEAD
        self._free = free
        if self._most > self._allowed:
            raise HPACKError("the table was not made smaller")
        # Mostly a look at the numbers shows that no limit is reached.
        bound = len(fields) * self._largest + 2 * size
        if dropped or bound > limits.max_header_bytes or len(fields) > limits.max_header_fields:
            self._check_size(fields, dropped)
        return fields

    def _read_name(self, octet: int, block: bytes, at: int) -> tuple[bytes, int]:
        """The name of a field whose first octet is this one, and where it ends."""
        if octet == _INDEXED:
            raise HPACKError("an index of zero")
        if 0x20 <= octet < 0x40:
            raise HPACKError("a change of the table's size behind a field")
        prefix = 0x3F if octet >= 0x40 else 0x0F
        index = octet & prefix
        if index == prefix:
            index, at = _read_integer(block, at, prefix)
        if index:
            return self._table[_INDEXED + index][0], at
        return _read_string(block, at)

    def _check_size(self, fields: list[Field], dropped: int) -> None:
        limits = self._limits
        most = limits.max_header_bytes
        total = dropped + sum([len(name) + len(value) for name, value in fields])
        total += FIELD_OVERHEAD * len(fields)
        if total > most * HARD_FACTOR:
            text = "header list beyond all bounds"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, "header")
        if dropped or total > most or len(fields) > limits.max_header_fields:
            del fields[limits.max_header_fields :]
            raise HeadersTooLarge("header list too large", total // most, fields)

    def _resize(self, block: bytes, at: int) -> int:
        """A change of the table's size, and where it ends."""
        most = block[at] & 0x1F
        at += 1
        if most == 0x1F:
            most, at = _read_integer(block, at, most)
        if most > self._allowed:
            raise HPACKError("a table larger than allowed")
        self._block = None
        free = self._free + most - self._most
        self._most = most
        self._free = self._evict(free)
        return at

    def _evict(self, free: int) -> int:
        """Drop the oldest entries until no byte is missing; a negative number says how many are.

        Returns:
            the bytes that are free then; negative when the table is empty and some are missing.
        """
        costs = self._costs
        while free < 0 and costs:
            del self._table[-1]
            free += costs.popleft()
        return free


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
    """A name or a value, and where it ends."""
    begin = at
    octet = block[at]
    at += 1
    size = octet & 0x7F
    if size == 0x7F:
        size, at = _read_integer(block, at, size)
    end = at + size
    if end > len(block):
        raise HPACKError("a string that is cut off")
    if octet < 0x80:
        return block[at:end], end
    if size > _LONGEST_CODED:
        text = "a string beyond all bounds"
        raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text, "header")
    return _decode_fields(0, _ONE_LITERAL + block[begin:end])[1][0][1], end


# QPACK writes a string in the same way, with the same Huffman code: so it is decoded as the value
# of a QPACK block of one field, whose name is in its static table. Nothing is kept between blocks.
_decode_fields: Final = Decoder(0, 0).feed_header
_ONE_LITERAL: Final = b"\0\0\x50"
