"""HPACK (RFC 7541): encodes header fields, and decodes them to validated fields.

Blocks that we send use the static table only, so that an encoded block is valid on every
connection. The decoder keeps the peer's dynamic table consistent even if a header list exceeds our
limit: the excess is decoded and dropped, and the connection stays open, up to a hard limit. Fields
are validated when they enter the table: an indexed field costs one list access.

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
"""Overhead of each field in the sizes of the table and of header lists."""

HARD_FACTOR: Final = 8
"""A header list or block of more than this many times the allowed size ends the connection. Smaller
ones only reset their stream."""

_LONGEST_KEPT: Final = 1024
"""Maximum bytes of a block that is cached, for a client that repeats its block."""

_INDEX_OF: Final = HeaderTable.STATIC_TABLE_MAPPING
_NEVER_INDEXED: Final = frozenset({b"authorization", b"proxy-authorization", b"cookie"})
_LONGEST_INTEGER: Final = 4 * 7

_LONGEST_CODED: Final = 40_000
"""Maximum octets of a Huffman-coded string: a symbol has at least five bits, and pylsqpack returns
at most 65,534 symbols."""

_kind_of: Final = names.get  # bound once, not for each field

_VISIBLE: Final = bytes(range(0x21, 0x7F))

_INDEXED: Final = 0x80
_STATIC: Final = [check_field(name, value) for name, value in HeaderTable.STATIC_TABLE]
_FULL_PREFIX: Final = _INDEXED + 0x3F
"""The place of a name whose index continues in the next octet, which is added."""
_FIRST_DYNAMIC: Final = _INDEXED + 1 + len(_STATIC)
_INDEXED_OCTETS: Final = bytes(range(0x81, 0xFF))
"""Octets that are a whole indexed field; 0xFF continues in the next octet."""


class FieldDecoder:
    """Decodes the peer's header blocks, with its dynamic table."""

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
        # Both tables, indexed by the first octet of an indexed field: padding, the static table,
        # and the dynamic table, newest first.
        self._table: list[Field] = [(b"", b"")] * (_INDEXED + 1) + _STATIC
        self._costs: deque[int] = deque()  # bytes of the dynamic table's entries, oldest first
        self._most_fields = limits.max_header_bytes * HARD_FACTOR // FIELD_OVERHEAD
        # The last block and its fields, unless the table has changed since.
        self._block: bytes | None = None
        self._fields: list[Field] = []
        self._largest = 100  # maximum bytes of an entry since the dynamic table was empty
        self._most = self._free = DEFAULT_TABLE_SIZE
        # A larger table is valid as soon as the peer has read our settings; a smaller one only when
        # it has acknowledged them.
        self._allowed = max(limits.header_table_size, DEFAULT_TABLE_SIZE)

    @property
    def entries(self) -> list[Field]:
        """Return the dynamic table, newest first."""
        return self._table[_FIRST_DYNAMIC:]

    def settings_acknowledged(self) -> None:
        """Enforce our HEADER_TABLE_SIZE: the peer has acknowledged it."""
        self._allowed = self._limits.header_table_size
        self._block = None

    def decode(self, block: bytes) -> list[Field]:
        """Decode a block to validated fields (see ``messages``), in order.

        Returns the same list object if the block equals the last one and the table has not changed.

        Raises:
            ConnectionFault: the block cannot be decoded, or exceeds the hard limit.
            HeadersTooLarge: the list exceeds our limit; the table is consistent nevertheless.
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
        dropped = 0  # bytes of fields beyond the limit
        at = 0
        size = len(block)
        while at < size and block[at] & 0xE0 == 0x20:
            at = self._resize(block, at)
        free = self._free
        if not at and size <= most_fields:
            # Most blocks begin with indexed fields: the loop below, in a fifth of the time.
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
            if octet == 0x7F and (more := block[at]) < 0x80:
                name = table[_FULL_PREFIX + more][0]
                at += 1
            elif 0x40 < octet < 0x7F:
                name = table[_INDEXED - 0x40 + octet][0]
            else:
                name, at = self._read_name(octet, block, at)
            first = block[at]
            end = at + first - 0x7F
            if 0x80 <= first < 0xFF and end <= size:
                # ``_read_string`` of a short string, inlined.
                value = _decode_fields(0, _ONE_LITERAL + block[at:end])[1][0][1]
                at = end
            else:
                value, at = _read_string(block, at)
            if _kind_of(name, True) is None and (
                value.replace(b"-", b"").isalnum() or not value.translate(None, _VISIBLE)
            ):
                field: Field = (name, value)  # the usual case: no validation needed
            else:
                field = check_field(name, value)
            length = len(name) + len(value)
            if octet >= 0x40:
                # RFC 7541, section 4.4: evict first; an entry that is too large empties the table.
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
        # Usually this upper bound shows that no limit is exceeded.
        bound = len(fields) * self._largest + 2 * size
        if dropped or bound > limits.max_header_bytes or len(fields) > limits.max_header_fields:
            self._check_size(fields, dropped)
        return fields

    def _read_name(self, octet: int, block: bytes, at: int) -> tuple[bytes, int]:
        """Read the name of a field with this first octet; return it and where it ends."""
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
        """Read a change of the table's size; return where it ends."""
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
        """Evict the oldest entries while ``free``, the number of free bytes, is negative.

        Returns:
            The free bytes; negative if the table is empty and still too small.
        """
        costs = self._costs
        while free < 0 and costs:
            del self._table[-1]
            free += costs.popleft()
        return free


def encode_block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode fields as a block that is valid on every connection: no dynamic table, no Huffman.

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
    """Encode an integer after the upper bits of ``first``; RFC 7541, section 5.1."""
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
    """Read the rest of an integer whose prefix was full; return it and where it ends."""
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
    """Read a string; return it and where it ends."""
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


# QPACK encodes strings in the same way, with the same Huffman code: a string is decoded as the
# value of a QPACK block of one field, whose name is in the static table. Blocks leave no state.
_decode_fields: Final = Decoder(0, 0).feed_header
_ONE_LITERAL: Final = b"\0\0\x50"
