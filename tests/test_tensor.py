"""Signatures: whether the callers of one can call another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.tensor import Signature, difference

X: dict[str, Any] = {"x": ("FP32", [-1, 3])}
Y: dict[str, Any] = {"y": ("FP32", [-1, 3])}


def optional(name: str) -> Signature:
    base = Signature(inputs={**X, name: ("FP32", [1])}, outputs=Y)
    first, more = base.inputs
    return Signature(inputs=(first, replace(more, optional=True)), outputs=base.outputs)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ((X, Y), (X, Y), None),
        (({"x": ("FP32", [1, 3])}, Y), (X, Y), None),
        (
            (X, Y),
            ({"x": ("FP32", [1, 3])}, Y),
            "input 'x' is float32 [1, 3], and was float32 [?, 3]",
        ),
        ((X, Y), (X, {"y": ("FP32", [1, 3])}), None),
        ((X, Y), (X, {"y": ("FP32", None)}), "output 'y' is float32 [?], and was float32 [?, 3]"),
        ((X, Y), ({"x": ("FP32", None)}, Y), None),
        ((X, Y), ({"x": ("FP64", [-1, 3])}, Y), "input 'x' is float64 [?, 3], and was float32"),
        ((X, Y), ({"x": ("BYTES", [-1])}, Y), r"input 'x' is text [?]"),
        ((X, Y), ({"z": ("FP32", [-1, 3])}, Y), "it has no input 'x'"),
        ((X, Y), ({**X, "z": ("FP32", [1])}, Y), "input 'z' is new"),
        ((X, Y), (X, {}), "it has no output 'y'"),
        ((X, Y), (X, {**Y, "z": ("FP32", [1])}), "output 'z' is new"),
    ],
)
def test_every_request_and_answer_of_a_signature_must_be_good_with_its_successor(
    old: Any, new: Any, why: str | None
) -> None:
    first, second = (Signature(inputs=x, outputs=y) for x, y in (old, new))
    found = difference(first, second)
    assert found is None if why is None else found is not None and found.startswith(why)


def test_an_input_that_may_be_left_out_may_be_added_and_not_removed() -> None:
    plain = Signature(inputs=X, outputs=Y)
    assert difference(plain, optional("z")) is None
    assert difference(optional("z"), plain) == "it has no input 'z'"


def test_a_signature_that_is_not_known_has_no_callers_to_break() -> None:
    assert difference(None, Signature(inputs=X)) is None
    assert difference(Signature(inputs=X), None) == "it declares no inputs"
