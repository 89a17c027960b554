"""Decoding in pieces gives the values that a parser of the whole gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RequestError
from penstock.protocols import json_values, paddle_json
from penstock.protocols.json_values import Span
from tests.fuzz.paddle_json import SEEDS


@pytest.fixture(autouse=True, params=[16, 1 << 16])
def _small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "_BLOCK", request.param)
    monkeypatch.setattr(json_values, "_EDGE", 3)
    monkeypatch.setattr(paddle_json, "LARGE", 0)


def decoded(span: Span) -> Any:
    if span.kind == "a list":
        return [*map(decoded, span.items(1000, "it"))]
    if span.kind == "an object":
        return {name: decoded(value) for name, value in span.members(1000, "it")}
    return span.scalar()


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e300, 1e300) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=30,
)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_any_value_is_decoded_to_the_same(value: Any, plain: bool, indent: int | None) -> None:
    document = json.dumps(value, ensure_ascii=plain, indent=indent)
    try:
        body = document.encode()
    except UnicodeEncodeError:
        return
    if "\\ud" in document:
        return
    assert decoded(Span(body, 0, len(body))) == value


@given(st.lists(st.integers(-(2**31), 2**31) | st.floats(allow_nan=False, allow_infinity=False)))
def test_a_flat_list_is_decoded_in_pieces(numbers: list[float]) -> None:
    body = json.dumps(numbers).encode()
    span = Span(body, 0, len(body))
    assert [number for piece in span.pieces("it") for number in piece] == numbers
    assert span.count() == len(numbers)


@pytest.mark.parametrize(
    "text",
    ["\\ud83d\\ude00" * 20, "é" * 30, "😀" * 20, "\\\\" * 33, '\\"' * 33, "x" * 15 + "\\n" * 9],
)
def test_a_long_text_is_split_between_characters(text: str) -> None:
    body = f'"{text}"'.encode()
    assert Span(body, 0, len(body)).scalar() == json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        b"[1,2",
        b"[1,2]]",
        b'["a]',
        b'["a\\"]',
        b"[1],2]",
        b'{"a":1}}',
        b'{"a" 1}',
        b"{1:2}",
        b"[1,,2]",
        b"[1,]",
        b"[,]",
        b"[1}",
        b"  ",
        b'["\\ud800 and so on, and so on"]',
        b'["\xff and so on, and so on, and on"]',
        b"[" * 65 + b"]" * 65,
    ],
)
def test_invalid_json_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        decoded(Span(body, 0, len(body)))


@pytest.mark.parametrize(
    "body", [b"[1,2,]", b"[1,,2]", b"[,]", b"[1 2]", b"[1" + b"0" * 2000 + b"]"]
)
def test_an_invalid_list_of_numbers_is_refused_by_pieces(body: bytes) -> None:
    with pytest.raises(RequestError):
        [*Span(body, 0, len(body)).pieces("it")]


def result(body: bytes) -> Any:
    try:
        call = paddle_json.decode(body, name="n", method="m")
    except RequestError as error:
        return type(error)
    return call.message()


@pytest.mark.parametrize("seed", [*SEEDS, b'{"tensors":[{"bool_data":[true]}],"x":[[]]}'])
def test_a_body_decoded_in_pieces_is_the_same_call(
    seed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for body in (seed, seed[:-1], seed.replace(b"[", b"{"), seed.replace(b"]", b",null]")):
        in_pieces = result(body)
        with monkeypatch.context() as patched:
            patched.setattr(paddle_json, "LARGE", 1 << 20)
            assert result(body) == in_pieces
