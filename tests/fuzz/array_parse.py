"""Texts of arrays: a ValueError, or an array no larger than its text."""

from __future__ import annotations

from collections.abc import Hashable

from penstock.protocols.array_parse import parse_array
from penstock.protocols.array_text import format_array

MOST = 500


def run(data: bytes) -> Hashable:
    text = data.decode("utf-8", "surrogateescape")
    try:
        array = parse_array(text, max_elements=MOST)
    except ValueError as error:
        return str(error)[:32]
    assert array.size <= min(MOST, len(text))
    assert array.dtype.kind in "biufc"
    assert parse_array(format_array(array)).shape == array.shape
    return array.dtype.str, array.ndim


SEEDS = [
    b"array([[1., 2.], [3., 4.]], dtype=float32)",
    b"[1 2 3]",
    b"[1, 2, 3]",
    b"array([], shape=(0, 3), dtype=int64)",
    b"array(True)",
    b"[[1e5 nan]\n [-inf 2.]]",
    b"array([ True, False])",
]
WORDS = [
    b"array(",
    b"dtype=",
    b"float32",
    b"int8",
    b"shape=(",
    b"nan",
    b"inf",
    b"1e999",
    b"True",
    b"[[",
    b"]]",
    b"_1",
    "\u0661".encode(),
]
