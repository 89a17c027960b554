"""HPACK: sequences of header blocks, compared with the package hpack, in both directions."""

from __future__ import annotations

from collections.abc import Hashable

import hpack

from penstock.protocols.http2 import Http2Limits, encode_block
from penstock.protocols.http2.codes import ConnectionFault, ErrorCode, HeadersTooLarge
from penstock.protocols.http2.hpack import FieldDecoder
from tests.fuzz.choices import Choices
from tests.kit import frames as wire

LIMITS = Http2Limits(max_header_bytes=8192, max_header_fields=50, max_header_field=4096)
THEIR_MOST = 1 << 20


class Pair:
    """Both decoders with the same blocks."""

    def __init__(self, acknowledged: bool) -> None:
        self.ours = FieldDecoder(LIMITS)
        self.theirs = hpack.Decoder(THEIR_MOST)
        if acknowledged:
            self.ours.settings_acknowledged()
        self.signature: set[Hashable] = set()

    def agree(self, block: bytes) -> bool:
        """Decode one block with both; whether the connection continues."""
        theirs: list[tuple[bytes, bytes]] | None
        try:
            theirs = [(bytes(k), bytes(v)) for k, v in self.theirs.decode(block, raw=True)]
        except hpack.HPACKError:
            theirs = None
        fault: Exception | None = None
        fields: list[tuple[bytes, bytes]] = []
        try:
            fields = self.ours.decode(block)
        except (HeadersTooLarge, ConnectionFault) as raised:
            fault = raised
        if isinstance(fault, HeadersTooLarge):
            self.signature.add("large")
            assert theirs is not None, "too large for us, broken for them"
            return True
        if isinstance(fault, ConnectionFault):
            self.signature.add((fault.code, str(fault.__cause__)[:20]))
            assert theirs is None or fault.code == ErrorCode.ENHANCE_YOUR_CALM or is_long(fault)
            return False
        self.signature.add(len(fields))
        assert fields == theirs
        assert hpack.Decoder(THEIR_MOST).decode(encode_block(fields), raw=True) == fields
        return True


def is_long(fault: ConnectionFault) -> bool:
    """Whether the fault is about a long integer, whose octets hpack counts differently."""
    return "integer that is too long" in str(fault.__cause__)


def run(data: bytes) -> Hashable:
    choices = Choices(data)
    pair = Pair(bool(choices.octet() & 1))
    while choices:
        size = choices.octet()
        if not pair.agree(choices.some(size) if size < 0xFF else choices.rest()):
            break
    return frozenset(pair.signature)


def seed(*blocks: bytes) -> bytes:
    return b"\x01" + b"".join(bytes([len(block)]) + block for block in blocks)


_ENCODER = hpack.Encoder()
_HUFFMAN = [
    _ENCODER.encode([(b"x-a", b"some words"), (b"cookie", b"a=b"), (b":path", b"/%d" % turn)])
    for turn in range(4)
]
SEEDS = [
    seed(*_HUFFMAN),
    seed(wire.block(wire.GET), wire.block(wire.POST)),
    seed(wire.literal(b"x-a", b"1", kind=0x40), b"\xbe", b"\x7e\x012"),
    seed(b"\x20" + wire.block(wire.OK), b"\x3f\xe1\x1f\x82", b"\xbe"),
    seed(b"\x3f\xff\xff\xff\xff\x7f"),
    seed(wire.literal(b"x", b"v" * 90, kind=0x40) * 2, b"\xbf" * 200),
    seed(b"\x0f\x01\x01a", b"\x1f\x00\x83\x1c\x64\x51"),
    b"\x00\xff" + wire.literal(b"big", b"v" * 5000),
    b"\x00\xff" + wire.literal(b"big", b"v" * 3000, kind=0x40) + b"\xbe" * 20,
]
WORDS = [
    *_HUFFMAN,
    b"\x3f\xe1\x1f",
    b"\x20",
    b"\xbe",
    b"\xbf",
    b"\x7f\x00",
    b"\xff\x80\x80\x80\x80",
    wire.literal(b"x-a", b"1", kind=0x40),
    wire.literal(b"x-a", b"1", kind=0x10),
]
