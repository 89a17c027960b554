"""Arrays and objects are counted without decoding."""

from __future__ import annotations

from typing import Any

import orjson
import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.structures import cost, cost_of_json, cost_of_msgpack

MOST = 1 << 40
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
    | st.text(max_size=300) | st.text("[]{}\"\\", max_size=9)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20)
    ),
)


def counted(value: Any) -> tuple[int, int]:
    if isinstance(value, dict):
        inner, own = value.values(), (0, 1)
    elif isinstance(value, list):
        inner, own = value, (1, 0)
    else:
        return 0, 0
    for each in map(counted, inner):
        own = own[0] + each[0], own[1] + each[1]
    return own


@given(value=VALUES, width=st.integers(0, 20))
def test_the_cost_is_that_of_the_decoded_value(value: Any, width: int) -> None:
    expected = cost(*counted(value), width)
    for most in (expected - 1, expected, MOST):
        assert (cost_of_json(orjson.dumps(value), width, most) <= most) == (expected <= most)
        assert (cost_of_msgpack(ormsgpack.packb(value), width, most) <= most) == (expected <= most)


@pytest.mark.parametrize(
    "packed",
    [
        b"\xc4\x03\x90\x90\x90",
        b"\xc5\x00\x03\x90\x90\x90",
        b"\xc6\x00\x00\x00\x03\x90\x90\x90",
        b"\xdb\x00\x00\x00\x03\x90\x90\x90",
        b"\xc7\x03\x01\x90\x90\x90",
        b"\xc8\x00\x03\x01\x90\x90\x90",
        b"\xc9\x00\x00\x00\x03\x01\x90\x90\x90",
        *[bytes((0xD4 + n, 1)) + b"\x90" * (1 << n) for n in range(5)],
        b"\xc1\x90",
        b"\xc6\xff\xff\xff\xff\x90",
        b"\xcb\x90\x90",
    ],
)
def test_bytes_extensions_and_the_rest_of_broken_msgpack_are_not_counted(packed: bytes) -> None:
    assert cost_of_msgpack(b"\x93" + packed, 0, 1) == 1


def test_large_arrays_and_objects_are_counted() -> None:
    for head in (b"\xdc\x00\x00", b"\xdd\x00\x00\x00\x00"):
        assert cost_of_msgpack(head * 9, 0, 8) == 9
    for head in (b"\xde\x00\x00", b"\xdf\x00\x00\x00\x00"):
        assert cost_of_msgpack(head * 9, 8, 50) == 54
