"""Messages of baidu_std, however they are split into reads, and compressed payloads."""

from __future__ import annotations

import re
import zlib
from collections.abc import Hashable

from penstock.errors import RequestError
from penstock.protocols.baidu_std import Compression as Kind
from penstock.protocols.baidu_std import (
    MessageBegun,
    Meta,
    ProtocolBroken,
    Reader,
    compress,
    decompress,
)
from tests.fuzz.choices import Choices, pieces
from tests.kit import baidu_std as kit

NUMBERS = re.compile("[0-9]+")
MOST = 3 << 20


def messages_of(parts: list[bytes]) -> tuple[list[tuple[Meta, bytes]], str]:
    reader = Reader()
    found: list[tuple[Meta, bytes]] = []
    try:
        for part in parts:
            reader.receive(part)
            while (event := reader.next_event()) is not None:
                if isinstance(event, MessageBegun):
                    found.append((event.meta, event.payload or b""))
                else:
                    meta, payload = found[-1]
                    found[-1] = meta, payload + event.data
            assert reader.begun == len(found)
    except ProtocolBroken as error:
        return found, str(error)
    return found, ""


def of_messages(choices: Choices) -> Hashable:
    pattern = choices.octet()
    data = choices.rest()
    found, problem = messages_of([data])
    assert (found, problem) == messages_of(pieces(data, pattern))
    kinds = [
        (meta.call is None, meta.result is None, meta.is_chunk, bool(meta.attachment_bytes))
        for meta, _ in found
    ]
    return NUMBERS.sub("", problem)[:40], *kinds[:2]


def of_payloads(choices: Choices) -> Hashable:
    kind = choices.octet() % 6
    data = choices.rest()
    try:
        plain = decompress(kind, data, MOST)
    except RequestError as error:
        return type(error).__name__, NUMBERS.sub("", str(error))[:30]
    assert len(plain) <= MOST
    assert decompress(kind, compress(Kind(kind), plain), MOST) == plain
    return kind, len(plain) > len(data)


PARTS = (of_messages, of_payloads)


def run(data: bytes) -> Hashable:
    choices = Choices(data)
    part = choices.of(PARTS)
    return part.__name__, part(choices)


WHOLE = kit.request(b"payload", log_id=1, timeout_ms=500, compress=2, attachment=3)
SEEDS = [
    b"\0\0" + WHOLE,
    b"\0\1" + WHOLE + kit.answer(1, b"payload"),
    b"\0\2" + kit.answer(2, b"", 1001, "no") + kit.request(more=kit.field(6, b"")),
    b"\0\3" + kit.frame(b"", b"x") + WHOLE[:20],
    b"\1\2" + zlib.compress(b"a" * 100, wbits=31),
    b"\1\3" + zlib.compress(b"a" * 100),
    b"\1\0plain",
]
WORDS = [b"PRPC", b"PRPC\0\0\0\2\0\0\0\2", b"\x0a", b"\x12\x02\x08\0", b"\xff" * 9 + b"\1"]
