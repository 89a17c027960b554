"""A worker's messages: frames, however they are split into reads, and the values in them."""

from __future__ import annotations

import re
import struct
from collections.abc import Hashable
from datetime import date

import numpy as np

from penstock.executors.transport.frames import Frame, FrameError, FrameReader, Kind, header
from penstock.executors.transport.values import (
    BLOB,
    LARGE,
    OBJECTS,
    SLAB_ARRAY,
    TUPLE,
    Blob,
    Decoder,
    Ref,
    encode,
)
from tests.fuzz.choices import Choices, pieces

MOST = 2000
NUMBERS = re.compile("[0-9]+")
SLAB = bytes(range(256)) * 40
SCALARS = {type(None), bool, int, float, str, bytes}


def frames_of(parts: list[bytes]) -> tuple[list[Frame], str]:
    reader = FrameReader(MOST)
    found: list[Frame] = []
    try:
        for part in parts:
            found += reader.receive(part)
    except FrameError as error:
        return found, str(error)
    return found, ""


def of_frames(choices: Choices) -> Hashable:
    pattern = choices.octet()
    data = choices.rest()
    whole, end = frames_of([data])
    cut, cut_end = frames_of(pieces(data, pattern))
    assert end == cut_end
    assert whole == cut if not end else whole == cut[: len(whole)]
    written = b"".join(header(f.kind, f.number, len(f.body)) + f.body for f in cut)
    assert data.startswith(written)
    return NUMBERS.sub("", end), tuple(frame.kind for frame in cut)[:2]


def fetch(ref: Ref) -> tuple[bytes, int]:
    if ref.slab > 3 or ref.offset + ref.nbytes > len(SLAB):
        raise FrameError("there is no such slab")
    return SLAB, ref.offset


DECODER = Decoder(fetch)


def kinds_of(value: object) -> Hashable:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            assert SCALARS.issuperset(map(type, value.reshape(-1).tolist()))
        return value.dtype.kind, value.ndim
    if isinstance(value, list | tuple):
        return type(value).__name__, *(type(each).__name__ for each in value[:3])
    return type(value).__name__


def of_values(choices: Choices) -> Hashable:
    data = choices.rest()
    try:
        value = DECODER.decode(data)
    except FrameError as error:
        return NUMBERS.sub("", str(error))[:40]
    again = b"".join(encode(value))
    assert b"".join(encode(DECODER.decode(again))) == again
    assert b"".join(encode(DECODER.decode(memoryview(again)))) == again
    return kinds_of(value)


PARTS = (of_values, of_frames)


def run(data: bytes) -> Hashable:
    choices = Choices(data)
    part = choices.of(PARTS)
    return part.__name__, part(choices)


def plain(packed: bytes) -> bytes:
    return struct.pack("<I", len(packed)) + packed


def in_slab(name: bytes, *sizes: int) -> bytes:
    dtype = np.dtype(name.decode())
    head = bytes((len(name),)) + name + struct.pack(f"<B{len(sizes)}Q", len(sizes), *sizes)
    ref = struct.pack("<IQQ", 0, 64, int(np.prod(sizes)) * dtype.itemsize)
    return b"\xc7" + bytes((len(head + ref), SLAB_ARRAY)) + head + ref


VALUES = [
    [1, 2.5, "text", {"op": {"key": np.zeros((2, 3), "f4")}}],
    (None, True, False, b"bytes", 10**30, -1),
    {None: 1, 2: [], 2.5: (), b"": {}},
    [[[[[]]]]],
    np.array(["a", "\u4e2d"]),
    np.array([b"ab"]),
    np.array([True, False]),
    np.array([date(2024, 1, 1)], "M8[D]"),
    np.zeros((0, 3), ">i2"),
    np.zeros((1,) * 12, "c8"),
    np.zeros(LARGE // 16, "u1"),
    np.array([None, "a", 1], object),
    [np.str_("a"), np.bytes_(b"b"), np.float16(1), np.timedelta64(1, ("us", 25))],
    Blob(b"pickle", "pkg.Type"),
    {1: "a", None: (2,)},
]
SEEDS = [
    *(b"\x00" + b"".join(encode(value)) for value in VALUES),
    b"\x00" + plain(b"\x92" + in_slab(b"<f4", 3, 4) + in_slab(b"|u1", 100)),
    # An array whose objects are a string instead of a list.
    b"\x00" + plain(b"\xc7\x05\x02\x92\x90\xd4\x04\x03"),
    b"\x01\x11" + header(Kind.RUN, 7, 3) + b"abc" + header(Kind.STOP, 0, 0),
    b"\x01\x02" + header(Kind.READY, 0, MOST + 1),
    b"\x01\x05" + header(Kind.DONE, 2**64 - 1, 40) + bytes(40) + b"PG",
]
WORDS = [
    *(bytes((0xC7, 0, code)) for code in (TUPLE, OBJECTS)),
    *(bytes((0xD4, code)) for code in range(BLOB + 2)),
    struct.pack("<Q", 2**63),
    struct.pack("<Q", 2**40),
    struct.pack("<Q", 1),
    struct.pack("<IQQ", 0, 64, 4),
    *(
        b"PF\x02~\xdd\xff\xff\xff\xff~\xd9\x02ab~\x81\xa1a~\x92\x93~\xcf~\xcb~"
        b"\x03<f4\x02~\x03|b1\x01~\x03<U1\x00~\x07<M8[ns]\x01"
    ).split(b"~"),
]
