"""Equal inputs have one digest, and others have others."""

from typing import Any

import numpy as np
import pytest

from penstock.engine.digest import OUTLINE, digest_of, outline_of

ALIKE: list[tuple[Any, Any]] = [
    ("text", "te" + "xt"),
    (b"bytes", b"bytes"),
    ([1, 2.0, None, True], [1, 2.0, None, True]),
    (np.arange(6).reshape(2, 3)[:, ::2], np.array([[0, 2], [3, 5]])),
    (np.float32(1.5), np.float32(1.5)),
    ("\udc80", "\udc80"),
    (np.array(["a", "bc"], object), np.array(["a", "b" + "c"], object)),
]
UNLIKE: list[tuple[Any, Any]] = [
    ("text", "texts"),
    ("1", b"1"),
    ("1", 1),
    (1, 1.0),
    (1, True),
    ([1, 2], (1, 2)),
    ([1, 2], [2, 1]),
    (["ab", "c"], ["a", "bc"]),
    ([["a"], "b"], [["a", "b"]]),
    ({"a": "b"}, ["a", "b"]),
    (np.zeros(4), np.zeros((2, 2))),
    (np.zeros(2, "i4"), np.zeros(2, "f4")),
    (np.zeros(2, "i4"), np.zeros(1, "i8")),
    (np.array(5), np.int64(5)),
    (np.array(["a"]), np.array([b"a"])),
    (0.0, -0.0),
    (np.array(["a", "b"], object), np.array(["b", "a"], object)),
    (np.array(["a", "b"], object), np.array([["a", "b"]], object)),
    (np.zeros(1, [("a", "i4")]), np.zeros(1, [("b", "i4")])),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_like_inputs_have_one_digest(one: Any, other: Any) -> None:
    assert digest_of({"op": {"x": one}}) == digest_of({"op": {"x": other}}) is not None


@pytest.mark.parametrize(("one", "other"), UNLIKE)
def test_unlike_inputs_have_several(one: Any, other: Any) -> None:
    assert digest_of({"op": {"x": one}}) != digest_of({"op": {"x": other}})


def test_names_and_predecessors_count() -> None:
    assert digest_of({"op": {"x": 1}}) != digest_of({"op": {"y": 1}})
    assert digest_of({"op": {"x": 1}}) != digest_of({"po": {"x": 1}})


@pytest.mark.parametrize("odd", [object(), {1, 2}, np.array([{1}]), lambda: None])
def test_objects_have_no_digest(odd: Any) -> None:
    assert digest_of({"op": {"x": [odd]}}) is None


def test_what_contains_itself_has_no_digest() -> None:
    knot: list[Any] = []
    knot.append(knot)
    assert digest_of({"op": {"x": knot}}) is None


LARGE: list[tuple[Any, Any]] = [
    (bytes(5000), bytes(2500) + b"x" + bytes(2499)),
    ("a" * 5000, "a" * 2500 + "b" + "a" * 2499),
    (np.zeros(5000), np.concatenate([np.zeros(2500), np.ones(1), np.zeros(2499)])),
]


@pytest.mark.parametrize(("one", "other"), LARGE)
def test_the_outline_of_large_parts_tells_their_ends_and_the_digest_all(
    one: Any, other: Any
) -> None:
    names = [digest_of({"op": {"x": each}}) for each in (one, other)]
    outlines = [outline_of({"op": {"x": each}}) for each in (one, other)]
    assert names[0] is not None
    assert names[1] is not None
    assert names[0] != names[1]
    assert outlines[0] == outlines[1] == names[0][:OUTLINE] == names[1][:OUTLINE]


@pytest.mark.parametrize(("one", "_other"), LARGE)
def test_outlines_tell_lengths_and_ends(one: Any, _other: Any) -> None:
    whole, longer, begun = (
        outline_of({"op": {"x": each}}) for each in (one, changed(one, 0), changed(one, -1))
    )
    assert len({whole, longer, begun, outline_of({"op": {"x": one[:-1]}})}) == 4


def changed(value: Any, at: int) -> Any:
    if isinstance(value, np.ndarray):
        made = value.copy()
        made[at] = 7
        return made
    one = b"z" if isinstance(value, bytes) else "z"
    return one + value[1:] if at == 0 else value[:-1] + one


def test_an_array_is_told_whatever_its_order_in_memory() -> None:
    large = np.arange(40_000).reshape(200, 200)
    other = np.asfortranarray(large)
    assert digest_of({"op": {"x": large}}) == digest_of({"op": {"x": other}})
    assert digest_of({"op": {"x": large}}) != digest_of({"op": {"x": large.T}})
