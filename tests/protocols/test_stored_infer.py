"""Requests with values in an external store: encoding, and what their mark covers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from penstock.errors import Undecodable
from penstock.protocols import oip_message
from penstock.protocols.oip import MAX_TENSORS, OutTensor, to_raw
from penstock.protocols.stored_infer import (
    Place,
    Raw,
    StoredResponse,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    whole_request,
)

SECRET = b"0123456789abcdef"
PLACE = Place("penstock:svc:7:op:ab", 3, 5_000_000_000)


def plain(raws: Sequence[Raw]) -> list[Any]:
    return [each if isinstance(each, Place) else bytes(each) for each in raws]


def test_a_request_comes_back() -> None:
    data = encode_request(SECRET, b"message", [b"raw", PLACE, b""], "answer:key", 1 << 20)
    found = decode_request(data)
    assert (found.message, plain(found.raws)) == (b"message", [b"raw", PLACE, b""])
    assert (found.answer, found.least, found.places) == ("answer:key", 1 << 20, [PLACE])
    assert found.is_marked(SECRET)


def test_a_response_comes_back() -> None:
    given = StoredResponse(message=b"message", raws=[PLACE, b"raw"])
    found = decode_response(encode_response(given))
    assert (found.message, plain(found.raws), found.refusal) == (b"message", [PLACE, b"raw"], "")
    refused = StoredResponse(refusal="its store is full")
    assert decode_response(encode_response(refused)).refusal == "its store is full"


@pytest.mark.parametrize(
    ("message", "raws", "answer"),
    [
        (b"messagE", [b"raw", PLACE], "answer"),
        (b"message", [b"raw", PLACE], "other"),
        (b"message", [b"raw", PLACE], ""),
        (b"message", [b"raw", PLACE._replace(key="another")], "answer"),
        (b"message", [b"raw", PLACE._replace(number=4)], "answer"),
        (b"message", [b"raw", PLACE._replace(nbytes=4)], "answer"),
        (b"message", [PLACE, b"raw"], "answer"),
        (b"message", [b"raw", PLACE, PLACE], "answer"),
        (b"message", [PLACE], "answer"),
    ],
)
def test_the_mark_covers_what_is_read_and_written(
    message: bytes, raws: list[Raw], answer: str
) -> None:
    good = decode_request(encode_request(SECRET, b"message", [b"raw", PLACE], "answer"))
    other = encode_request(b"another secret of", message, raws, answer)
    found = decode_request(other)
    object.__setattr__(found, "mark", good.mark)
    assert good.is_marked(SECRET)
    assert not good.is_marked(b"another secret of")
    assert not found.is_marked(SECRET)


def test_parts_of_a_request_cannot_be_taken_for_one_another() -> None:
    one = decode_request(encode_request(SECRET, b"m", [Place("ab", 1, 2)], "c"))
    for raws, answer in (([Place("a", 1, 2)], "cb"), ([Place("ab1", 1, 2)], "c")):
        other = decode_request(encode_request(SECRET, b"m", raws, answer))
        assert other.mark != one.mark


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\x0a\x05abc",
        b"\x12\x00",  # neither raw bytes nor a key
        b"\x12\x05\x0a\x00\x12\x01k",  # both
        b"\x1a\x01\xff",  # no text
        b"\x12\x02\x0a\x00" * (MAX_TENSORS + 1),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Undecodable, match="no request of"):
        decode_request(data)
    with pytest.raises(Undecodable, match="no response of"):
        decode_response(data)


def test_a_message_and_its_raw_bytes_are_the_usual_request() -> None:
    tensors = [
        OutTensor("x", "FP32", np.arange(6, dtype=np.float32).reshape(2, 3)),
        OutTensor("names", "BYTES", np.array([b"a", b"bc"], object)),
    ]
    usual = oip_message.encode_request("7", "model", tensors, ["y"])
    message = oip_message.encode_request_apart("7", "model", tensors, ["y"])
    whole = whole_request(message, map(to_raw, tensors))
    assert whole == usual


def test_the_outputs_of_an_answer_are_described() -> None:
    tensors = [
        OutTensor("y", "FP64", np.zeros((2, 0, 3))),
        OutTensor("z", "INT8", np.int8(3)[None]),
    ]
    head = oip_message.head_of("7", "model", "1")
    found = oip_message.decode_response_apart(oip_message.encode_response_apart(head, tensors))
    assert found == [("y", "FP64", (2, 0, 3)), ("z", "INT8", (1,))]
    with pytest.raises(Undecodable):
        oip_message.decode_response_apart(b"\xff")
