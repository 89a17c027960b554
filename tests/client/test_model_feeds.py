"""Conversion of feeds and answers by a client of a model server, by its configuration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.client.model_feeds import ModelFeeds
from penstock.errors import InputMismatch, WrongType
from penstock.protocols.general_model import GeneralResponse, Output
from penstock.protocols.oip import OutTensor
from penstock.runtimes.prototxt import parse_model_conf

CONF = """
feed_var { name: "x_in" alias_name: "x" feed_type: 1 shape: 2 shape: 3 }
feed_var { name: "words" feed_type: 0 is_lod_tensor: true shape: -1 }
feed_var { name: "text" feed_type: 20 shape: 1 }
feed_var { name: "pixels" feed_type: 7 shape: 3 }
feed_var { name: "any" feed_type: -1 shape: 1 }
fetch_var { name: "fc.tmp" alias_name: "price" fetch_type: 1 shape: 1 }
"""
FEEDS = ModelFeeds(parse_model_conf(CONF))
GOOD: dict[str, Any] = {
    "x": np.ones((4, 2, 3), np.float32),
    "words": np.arange(3),
    "words.lod": [0, 2, 3],
    "text": "ä",
    "pixels": np.zeros((4, 3), np.uint8),
    "any": np.float64([[1.5]]),
}


def tensors(changed: dict[str, Any] | None = None, *, batch: bool = True) -> dict[str, Output]:
    found = FEEDS.inputs({**GOOD, **(changed or {})}, batch=batch)
    return {each.tensor.name: each for each in found}


def test_a_feed_becomes_tensors_with_both_names_and_stays_unchanged() -> None:
    before = {name: np.array(value) for name, value in GOOD.items()}
    found = tensors()
    assert [each.name for each in found.values()] == ["x_in", "words", "text", "pixels", "any"]
    assert found["x"].tensor == OutTensor("x", "FP32", GOOD["x"])
    assert found["words"].lod == [0, 2, 3]
    assert found["text"].tensor.array.tolist() == ["ä"]
    assert [each.tensor.datatype for each in found.values()] == [
        *("FP32", "INT64", "BYTES", "UINT8", "FP64")
    ]
    for name, value in before.items():
        np.testing.assert_array_equal(GOOD[name], value)


def test_without_a_batch_axis_one_is_added_to_numbers_of_four_bytes_or_more() -> None:
    found = tensors(batch=False)
    shapes = {name: each.tensor.array.shape for name, each in found.items()}
    assert shapes == {
        "x": (1, 4, 2, 3),
        "words": (1, 3),
        "text": (1,),
        "pixels": (4, 3),
        "any": (1, 1),
    }


@pytest.mark.parametrize(
    ("value", "batch", "shape"),
    [
        ([1, 2, 3, 4, 5, 6], False, (1, 2, 3)),
        ([[1, 2, 3], [4, 5, 6]], False, (1, 2, 3)),
        ([[1, 2, 3, 4, 5, 6]] * 4, True, (4, 2, 3)),
        ((1.0, 2.0), False, (1, 2)),
        (7, False, (1, 1)),
        (np.float32(7), True, (1,)),
        ([], True, (0, 2, 3)),
    ],
)
def test_lists_with_the_configured_size_get_the_configured_shape(
    value: Any, batch: bool, shape: tuple[int, ...]
) -> None:
    array = tensors({"x": value}, batch=batch)["x"].tensor.array
    assert (array.dtype, array.shape) == (np.float32, shape)


def test_safe_casts_are_done_and_others_refused() -> None:
    assert tensors({"x": np.ones((1, 2, 3))})["x"].tensor.array.dtype == np.float32
    assert tensors({"words": np.int8([1, 2, 3])})["words"].tensor.array.dtype == np.int64
    with pytest.raises(InputMismatch, match=r"input 'words' expected int64 .*, got float64\[3\]"):
        tensors({"words": np.ones(3)})
    with pytest.raises(InputMismatch, match="input 'x' expected float32"):
        tensors({"x": ["a"]})


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"y": 1}, InputMismatch, "Wrong feed name: y"),
        ({"y.lod": [0, 1]}, InputMismatch, r"Wrong feed name: y\.lod"),
        ({"words.lod": [1, 3]}, InputMismatch, r"words\.lod: a lod starts at 0"),
        ({"words.lod": "no"}, InputMismatch, r"words\.lod"),
        ({"x": [[1], [2, 3]]}, WrongType, "input 'x' is no array"),
    ],
)
def test_an_error_in_a_feed_names_its_key(
    changed: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        tensors(changed)


def test_missing_inputs_are_named() -> None:
    with pytest.raises(InputMismatch, match=r"the feed lacks \['words', 'text', 'pixels', 'any'\]"):
        FEEDS.inputs({"x": 1}, batch=True)


def test_outputs_have_the_clients_aliases() -> None:
    value = np.ones((2, 1), np.float32)
    outputs = {
        "a": [Output(name="fc.tmp", tensor=OutTensor("cost", "FP32", value), lod=[0, 2])],
        "b": [Output(name="other", tensor=OutTensor("other", "FP32", value), lod=[])],
    }
    found = FEEDS.outputs(GeneralResponse(outputs=outputs))
    assert [*found["a"]] == ["price", "price.lod"]
    assert found["a"]["price.lod"].tolist() == [0, 2]
    assert found["b"] == {"other": value}
