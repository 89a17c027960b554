from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.grpc import GrpcError, encode_timeout, parse_timeout
from penstock.protocols.status import GrpcCode


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"3S", 3),
        (b"100m", 0.1),
        (b"5u", 5e-6),
        (b"7n", 7e-9),
        (b"0S", 0),
        (b"99999999H", 99999999 * 3600),
    ],
)
def test_a_timeout_is_read_in_seconds(raw: bytes, seconds: float) -> None:
    assert parse_timeout(raw) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "raw",
    [b"", b"S", b"1", b"1s", b"123456789S", b"-1S", b"+1S", b"1.5S", b" 1S", b"1S ", b"1_0S"],
)
def test_a_malformed_timeout_is_an_invalid_argument(raw: bytes) -> None:
    with pytest.raises(GrpcError) as caught:
        parse_timeout(raw)
    assert caught.value.code is GrpcCode.INVALID_ARGUMENT


@given(st.floats(1e-6, 1e11))
def test_an_encoded_timeout_is_decoded_to_nearly_the_same(seconds: float) -> None:
    raw = encode_timeout(seconds)
    assert len(raw) <= 9
    assert math.isclose(parse_timeout(raw), seconds, rel_tol=1e-3)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-12])
def test_a_timeout_of_zero_or_less_is_encoded_as_the_shortest(seconds: float) -> None:
    assert encode_timeout(seconds) == b"1n"


@pytest.mark.parametrize("seconds", [1e15, math.inf])
def test_a_timeout_beyond_the_limit_is_encoded_as_the_longest(seconds: float) -> None:
    assert encode_timeout(seconds) == b"99999999H"
