"""HPACK: header fields to bytes, and bytes to checked fields, as RFC 7541 has it.

Blocks that we send refer to the static table only, so that a block made once is valid on every
connection. The decoder keeps the peer's dynamic table right even through a list that is larger than
we take: what is too much is read and thrown away, and the connection can go on. Only what is beyond
all bounds ends it. Entries of the table are checked when they are decoded: a field that is sent by
its index costs one look into a list.

Tables and Huffman codes come from the package ``hpack``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from hpack import HPACKError
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable

from penstock.protocols.heads import is_trimmed_value
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

_INDEXED: Final = 0x80
_STATIC: Final = [check_field(name, value) for name, value in HeaderTable.STATIC_TABLE]
_FIRST_DYNAMIC: Final = _INDEXED + 1 + len(_STATIC)


class FieldDecoder:
    """The peer's dynamic table, and what its blocks mean with it."""

    __slots__ = ("_allowed", "_block", "_fields", "_largest", "_limits", "_most", "_size", "_table")

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        # Both tables as the first octet of an indexed field counts: the dynamic one, newest first,
        # stands behind the static one, and what is before them is never looked at.
        self._table: list[Field] = [(b"", b"")] * (_INDEXED + 1) + _STATIC
        # The last block, unless the table has changed since, and its fields.
        self._block: bytes | None = None
        self._fields: list[Field] = []
        self._size = 0
        self._largest = 100  # bytes of an entry at most, since the dynamic table was empty
        self._most = DEFAULT_TABLE_SIZE
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
        except (IndexError, HPACKError) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "broken header block") from error
        if self._block is not None:
            self._fields = fields
        return fields

    def _decode(self, block: bytes) -> list[Field]:
        limits = self._limits
        table = self._table
        most_fields = limits.max_header_bytes * HARD_FACTOR // FIELD_OVERHEAD
        fields: list[Field] = []
        dropped = 0  # bytes of fields that are too large to be kept
        at = 0
        size = len(block)
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
            if octet & 0xE0 == 0x20:
                if fields or dropped:
                    raise HPACKError("a change of the table's size behind a field")
                most, at = _read_integer(block, at, 0x1F) if octet == 0x3F else (octet & 0x1F, at)
                self._resize(most)
                continue
            if octet == _INDEXED:
                raise HPACKError("an index of zero")
            prefix = 0x3F if octet >= 0x40 else 0x0F
            index = octet & prefix
            if index == prefix:
                index, at = _read_integer(block, at, prefix)
            if index:
                name = table[_INDEXED + index][0]
            else:
                name, at = _read_string(block, at)
            # As _read_string does it, without the call.
            first = block[at]
            at += 1
            length = first & 0x7F
            if length == 0x7F:
                length, at = _read_integer(block, at, 0x7F)
            value = block[at : at + length]
            at += length
            if at > size:
                raise HPACKError("a string that is cut off")
            if first >= 0x80:
                # What enters the table does not come as a string again.
                value = _decode_huffman(value) if octet >= 0x40 else _remembered(value)
            if names.get(name, True) is None and (value.isalnum() or is_trimmed_value(value)):
                field: Field = (name, value)
            else:
                field = check_field(name, value)
            length = len(name) + len(value)
            if octet >= 0x40:
                self._add(field, length + FIELD_OVERHEAD)
            if length <= limits.max_header_field:
                fields.append(field)
            else:
                dropped += length + FIELD_OVERHEAD
        if self._most > self._allowed:
            raise HPACKError("the table was not made smaller")
        # Mostly a look at the numbers shows that no limit is reached.
        bound = len(fields) * self._largest + 2 * size
        if dropped or bound > limits.max_header_bytes or len(fields) > limits.max_header_fields:
            self._check_size(fields, dropped)
        return fields

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

    def _add(self, field: Field, size: int) -> None:
        """RFC 7541, section 4.4: room is made first, and what does not fit empties the table."""
        self._block = None
        most = self._most - size
        if self._size > most:
            self._evict(most)
        if most >= 0:
            self._table.insert(_FIRST_DYNAMIC, field)
            self._size += size
            if size > self._largest:
                self._largest = size

    def _resize(self, most: int) -> None:
        if most > self._allowed:
            raise HPACKError("a table larger than allowed")
        self._block = None
        self._most = most
        self._evict(most)

    def _evict(self, most: int) -> None:
        table = self._table
        size = self._size
        while size > most and size:
            name, value = table.pop()
            size -= len(name) + len(value) + FIELD_OVERHEAD
        self._size = size


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
        string = _remembered(string)
    return string, end


# Huffman codes, octet by octet. A state is the bits of a symbol that is not complete yet: a list
# with an entry for each octet (the symbols that it completes, as Latin-1 because text is joined in
# place, and the state behind it), made when the octet first comes in this state. There are at most
# 256 states.

_State: TypeAlias = list[Any]
_BITS: Final = 256  # where a state has its bits, and
_IS_PADDING: Final = 257  # whether a string may end with them
_END: Final = 256
_SYMBOLS: Final = {
    f"{code:0{length}b}": symbol
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True))
}
_states: Final[dict[str, _State]] = {}

_decoded: Final[dict[bytes, bytes]] = {}
_MOST_DECODED: Final = 1024
_LONGEST_DECODED: Final = 64
"""Short strings that enter no table are remembered: they come again as they are."""


def _state(bits: str) -> _State:
    state = _states.get(bits)
    if state is None:
        state = _states[bits] = [None] * 256 + [bits, len(bits) < 8 and "0" not in bits]
    return state


_start: Final = _state("")


def _remembered(string: bytes) -> bytes:
    text = _decoded.get(string)
    if text is None:
        text = _decode_huffman(string)
        if len(string) <= _LONGEST_DECODED:
            if len(_decoded) >= _MOST_DECODED:
                _decoded.clear()
            _decoded[string] = text
    return text


def _decode_huffman(string: bytes) -> bytes:
    state = _start
    text = ""
    try:
        for octet in string:
            some, state = state[octet]
            text += some
    except TypeError:  # an entry is None
        _make_entries(string)
        return _decode_huffman(string)
    if not state[_IS_PADDING]:
        raise HPACKError("wrong padding behind a string")
    return text.encode("latin-1")


def _make_entries(string: bytes) -> None:
    state = _start
    for octet in string:
        if state[octet] is None:
            bits = state[_BITS]
            symbols = ""
            for bit in f"{octet:08b}":
                bits += bit
                symbol = _SYMBOLS.get(bits)
                if symbol == _END:
                    raise HPACKError("the end of a string inside it")
                if symbol is not None:
                    symbols += chr(symbol)
                    bits = ""
            state[octet] = symbols, _state(bits)
        state = state[octet][1]
