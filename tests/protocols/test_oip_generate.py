"""Triton's generate extension: members of JSON as tensors, and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from penstock.errors import InputMismatch, PackageError, RequestError, Undecodable
from penstock.protocols import oip, oip_generate
from penstock.protocols.json_values import LARGE
from penstock.protocols.oip import InferRequest, OutTensor
from penstock.tensor import Signature

SIGNATURE = Signature(
    inputs={
        "text": ("BYTES", [1]),
        "n": ("INT32", [-1]),
        "x": ("FP16", [-1, 2, -1, 3]),
        "on": ("BOOL", [1, 1]),
        "any": ("FP64", None),
    },
    outputs={"t": ("BYTES", [1]), "y": ("INT64", [-1])},
)


def decoded(body: Any) -> InferRequest:
    return oip_generate.decode(json.dumps(body).encode(), SIGNATURE)


def test_members_are_the_inputs_with_their_names() -> None:
    request = decoded(
        {"text": "ä", "n": [1, 2, 3], "x": [*range(12)], "on": True, "any": 1.5, "id": "7"}
    )
    assert request.id == "7"
    assert request.datatypes == {
        "text": "BYTES",
        "n": "INT32",
        "x": "FP16",
        "on": "BOOL",
        "any": "FP64",
    }
    feed = request.feed
    assert feed["text"].tolist() == ["ä"]
    assert (feed["n"].dtype, feed["n"].tolist()) == (np.int32, [1, 2, 3])
    assert (feed["x"].dtype, feed["x"].shape) == (np.float16, (1, 2, 2, 3))
    assert feed["on"].tolist() == [[True]]
    assert feed["any"].tolist() == [1.5]


def test_an_element_is_a_list_of_one() -> None:
    one, many = decoded({"n": 5, "text": ["a"]}), decoded({"n": [5], "text": "a"})
    assert one.feed.keys() == many.feed.keys()
    for name, array in one.feed.items():
        np.testing.assert_array_equal(array, many.feed[name])


def test_members_of_the_parameters_are_like_others() -> None:
    request = decoded({"text": "a", "parameters": {"n": [1], "temperature": 0.5, "priority": 2}})
    assert request.feed["n"].tolist() == [1]
    assert request.priority == 2
    assert decoded({"parameters": None, "text": None}).feed == {}


def test_elements_that_mean_nothing_here_are_left_alone() -> None:
    request = decoded({"text": "a", "stream": True, "stop": "x", "top_p": 0.9, "seed": None})
    assert [*request.feed] == ["text"]


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"text": 1}, Undecodable, "text must be a text, got a number"),
        ({"text": {"a": 1}}, Undecodable, "text must be a text, got an object"),
        ({"text": ["a", 1]}, Undecodable, r"text\[1\] must be a text"),
        ({"n": "many"}, Undecodable, "whole number"),
        ({"n": [[1]]}, Undecodable, r"n\[0\]"),
        ({"n": 2**31}, Undecodable, "whole number"),
        ({"on": 1}, Undecodable, "true or false"),
        ({"on": {}}, Undecodable, "true or false, got an object"),
        ({"text": ["a", "b"]}, InputMismatch, "2 elements do not fit"),
        ({"x": [1, 2]}, InputMismatch, "2 elements do not fit"),
        ({"other": [1]}, Undecodable, "the model has no such input, got a list"),
        ({"parameters": {"other": {}}}, Undecodable, r"parameters\.other must be"),
        ({"parameters": 1}, Undecodable, "parameters must be an object"),
        ({"n": 1, "parameters": {"n": 2}}, PackageError, "two inputs are called 'n'"),
        ({"sequence_id": 1}, PackageError, "a sequence of requests is not available"),
        ({"priority": -1}, Undecodable, "priority must be a whole number"),
        ([], Undecodable, "the body must be an object"),
    ],
)
def test_what_does_not_fit_is_refused(body: Any, kind: type[RequestError], text: str) -> None:
    with pytest.raises(kind, match=text):
        decoded(body)


def test_a_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(Undecodable, match="not a JSON document"):
        oip_generate.decode(b"{", SIGNATURE)


def test_a_large_body_is_decoded_to_the_same() -> None:
    numbers = [*range(LARGE // 4)]
    body = {"text": "ä" * 10, "n": numbers, "on": [False], "top_k": 1, "parameters": {"any": [1]}}
    encoded = json.dumps(body).encode()
    assert len(encoded) > LARGE
    feed = oip_generate.decode(encoded, SIGNATURE).feed
    assert feed["text"].tolist() == ["ä" * 10]
    assert feed["n"].tolist() == numbers
    assert feed["on"].tolist() == [[False]]
    assert feed["any"].tolist() == [1.0]
    with pytest.raises(Undecodable, match="no such input"):
        oip_generate.decode(json.dumps({"other": numbers}).encode(), SIGNATURE)


def outputs(text: Any, *numbers: int) -> list[OutTensor]:
    value = {"t": np.array([text], object), "y": np.array(numbers, np.int64)}
    return oip.answered(InferRequest(), SIGNATURE, value)


def test_a_response_has_the_only_element_or_a_flat_list() -> None:
    body = oip_generate.encode(InferRequest(id="7"), "m", "1", outputs("ä", 1))
    assert json.loads(body) == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
        "t": "ä",
        "y": 1,
    }
    grid = OutTensor("z", "FP32", np.array([[1, np.nan], [np.inf, 2]], np.float32))
    body = oip_generate.encode(InferRequest(), "m", "1", [*outputs("a"), grid])
    found = json.loads(body)
    assert (found["y"], found["z"]) == ([], [1.0, None, "Infinity", 2.0])
    assert b"\n" not in body


def joined(*pieces: list[OutTensor]) -> Any:
    return json.loads(oip_generate.encode_joined(InferRequest(), "m", "1", SIGNATURE, pieces))


def test_texts_of_pieces_are_joined_and_other_outputs_are_lists() -> None:
    found = joined(outputs("é", 1), outputs("", 2, 3), outputs("x"))
    assert (found["t"], found["y"]) == ("éx", [1, [2, 3], []])
    assert joined(outputs("a", 1))["y"] == [1]
    none = joined()
    assert (none["t"], none["y"]) == ("", [])


def test_a_character_may_be_divided_between_pieces() -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    assert joined(outputs(first), outputs(second), outputs("!"))["t"] == "é!"


def test_several_texts_in_a_piece_stay_apart() -> None:
    pair = OutTensor("t", "BYTES", np.array(["a", "b"], object))
    y = OutTensor("y", "INT64", np.array([1]))
    assert joined([pair, y], [pair, y])["t"] == [["a", "b"], ["a", "b"]]


def test_pieces_with_different_outputs_are_refused() -> None:
    with pytest.raises(InputMismatch, match="have the outputs"):
        joined(outputs("a", 1), outputs("a", 1)[:1])
