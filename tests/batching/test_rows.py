"""What the user and a signature say about row axes."""

from typing import Any

import numpy as np
import pytest

from penstock.batching.decision import decide
from penstock.batching.joining import Joining
from penstock.batching.probe import Found
from penstock.batching.rows import Declared, Hints, Rows, fixed_rows, read_hints
from penstock.tensor import TensorSpec


def spec(name: str, *axes: str | int | None, known: bool = True, lod: bool = False) -> TensorSpec:
    """A float32 tensor; a text is the name of a variable axis, None one without a name."""
    shape = tuple(axis if isinstance(axis, int) else None for axis in axes)
    names = tuple(axis if isinstance(axis, str) else None for axis in axes)
    return TensorSpec(
        name=f"real_{name}",
        alias=name,
        dtype=np.dtype("f4"),
        shape=shape if known else None,
        axes=names if any(names) else (),
        is_lod=lod,
    )


def hints(
    inputs: list[TensorSpec],
    outputs: list[TensorSpec],
    declared: Declared | None = None,
    shared: tuple[str, ...] = (),
) -> Hints:
    return read_hints(inputs, outputs, declared, shared)


def test_a_signature_of_one_name_determines_the_rows() -> None:
    found = hints([spec("x", "n", 2), spec("s"), spec("k", 3)], [spec("y", "n", 1)])
    assert found.certain == Rows(
        inputs={"x": 0, "real_x": 0, "s": None, "real_s": None, "k": None, "real_k": None},
        outputs={"y": 0, "real_y": 0},
    )
    assert found.why == "its signature names the axis 'n'"


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        ([spec("x", None, 2)], [spec("y", None)], "first axis of input 'x' has no name"),
        ([spec("x", "n", 2)], [spec("y", "k")], "of output 'y' is 'k', and that of the inputs 'n'"),
        ([spec("x", "n", 2)], [spec("y", 2)], "of output 'y' has the fixed size 2"),
        ([spec("x", "n", 2)], [spec("y")], "of output 'y' does not exist"),
        ([spec("x", "n", 2)], [spec("y", known=False)], "of output 'y' is unknown"),
        ([spec("x", "n"), spec("s", "k")], [spec("y", "n")], "'x' is 'n', and that of 's' 'k'"),
        ([spec("x", 4, 2)], [spec("y", 4)], "no input has a first axis that varies"),
    ],
)
def test_what_a_signature_leaves_open_is_not_certain(
    inputs: list[TensorSpec], outputs: list[TensorSpec], why: str
) -> None:
    found = hints(inputs, outputs)
    assert found.certain is None
    assert why in found.why


@pytest.mark.parametrize(
    ("inputs", "declared", "rows"),
    [
        ([spec("x", 3, None)], None, 3),
        ([spec("x", 3, None)], "first", 3),
        ([spec("x", 3, None)], {"x": 1, "y": 1}, None),
        ([spec("x", None, 4)], {"x": 1}, 4),
        ([spec("x", None, 4)], {"y": 0}, None),
        ([spec("x", 4, 2), spec("s", 2)], None, None),
        ([spec("x", 4, 2), spec("s", 2)], {"x": 0, "s": None}, 4),
        ([spec("x", 4, 2), spec("s", 4)], {"x": 0}, None),
        ([spec("x", 4, 2), spec("s")], None, None),
        ([spec("x", 4)], {"x": 1}, None),
        ([spec("x", known=False)], None, None),
        ([], None, None),
    ],
)
def test_a_fixed_number_of_rows_is_that_of_the_declared_axes(
    inputs: list[TensorSpec], declared: Declared | None, rows: int | None
) -> None:
    assert fixed_rows(inputs, declared) == rows


def test_the_user_s_word_determines_the_rows() -> None:
    inputs, outputs = [spec("x", None, 2), spec("s", None)], [spec("y", None), spec("names", 3)]
    found = hints(inputs, outputs, {"x": 0, "s": None, "y": 0}, ("real_names",))
    assert found.certain is not None
    assert found.certain.inputs["s"] is None
    assert found.certain.shared == {"names", "real_names"}
    first = hints(inputs, outputs[:1], "first").certain
    assert first is not None
    assert first.inputs["s"] == first.outputs["y"] == 0
    partly = hints(inputs, outputs[:1], {"s": None})
    assert partly.certain is None
    assert [dict(each) for each in partly.candidates] == [{"s": None, "x": 0}]


def test_an_output_that_the_user_says_has_no_rows_must_be_shared() -> None:
    inputs, outputs = [spec("x", "n")], [spec("y", "n")]
    assert hints(inputs, outputs, {"y": None}).certain is None
    assert hints(inputs, outputs, {"y": None}, ("y",)).certain is not None


@pytest.mark.parametrize(
    ("declared", "shared", "text"),
    [
        ({"z": 0}, (), r"rows: the model has no 'z', only \['x', 'y'\]"),
        ({"x": 2}, (), "rows: 'x' has no axis 2"),
        (None, ("x",), r"shared_outputs: no output is called 'x', only \['y'\]"),
    ],
)
def test_an_option_that_fits_no_tensor_is_an_error(
    declared: Declared | None, shared: tuple[str, ...], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        hints([spec("x", "n", 2)], [spec("y", "n")], declared, shared)


def test_possible_row_axes_are_tried_from_all_inputs_to_single_ones() -> None:
    found = hints([spec("x", "n"), spec("s", "k"), spec("t", "k")], [spec("y", "n")])
    chosen = ["".join(name for name in each if each[name] == 0) for each in found.candidates]
    assert chosen == ["xst", "st", "x", "xt", "xs", "s", "t"]


def test_an_input_with_a_lod_has_its_rows_there() -> None:
    lod = spec("words.lod", None)
    inputs = [spec("words", None, 1, lod=True), lod, spec("x", "n")]
    found = hints([inputs[0], inputs[2]], [spec("y", None)])
    assert found.candidates[0] == {"words": 0, "x": 0}


ROWS = Rows(inputs={"x": 0, "s": None}, outputs={"y": 0})
SURE = hints([spec("x", "n")], [spec("y", "n")])
OPEN = hints([spec("x", None)], [spec("y", None)])
LOST = hints([spec("x", None)], [spec("y", 2)])


@pytest.mark.parametrize(
    ("known", "found", "verify", "by", "why"),
    [
        (SURE, None, "off", "rows", "its signature"),
        (OPEN, None, "off", "rows", "verify_batches is off"),
        (LOST, None, "off", None, "has no name"),
        (OPEN, Found(rows=ROWS), "auto", "rows", "the same answers"),
        (SURE, Found(refuted="y differs"), "auto", None, "y differs"),
        (SURE, Found(unable="it fails"), "auto", "rows", "it fails"),
        (OPEN, Found(unable="it fails"), "auto", None, "it fails, and the first axis"),
    ],
)
def test_the_decision(
    known: Hints, found: Found | None, verify: Any, by: str | None, why: str
) -> None:
    batching = decide(known, found, verify)
    assert (batching.by, why in batching.why) == (by, True)
    assert (batching.rows is not None) == (by == "rows")
    assert (batching.warning is None) == (by is not None)


@pytest.mark.parametrize("found", [Found(refuted="y differs"), Found(unable="it fails")])
def test_strict_verification_refuses_what_it_does_not_see(found: Found) -> None:
    with pytest.raises(ValueError, match=r"y differs|it fails"):
        decide(SURE, found, "strict")


def test_feeds_share_a_batch_only_with_equal_values_of_inputs_without_rows() -> None:
    joining = Joining(rows=ROWS)
    one, other = ({"x": np.ones(2), "s": np.float32([k])} for k in (1, 2))
    assert joining.groups(joining.layouts([one, other, one])) == [[0, 2], [1]]
    joined = joining.stack([one, one])
    assert (joined.feed["x"].shape, joined.feed["s"].shape) == ((4,), (1,))
    texts = [{"x": np.ones(1), "s": np.array([text], object)} for text in ("a", "b", "a")]
    assert joining.groups(joining.layouts(texts)) == [[0, 2], [1]]


def test_a_feed_without_rows_or_with_disagreeing_ones_runs_alone() -> None:
    joining = Joining(rows=Rows(inputs={"x": 0, "z": 0}, outputs={}))
    for feed in (
        {"x": np.ones((0, 2)), "z": np.ones(0)},
        {"x": np.ones((3, 2)), "z": np.ones(1)},
        {"x": np.ones((3, 2)), "unknown": np.ones(3)},
        {"x": np.ones((3, 2)), "z": np.float32(1)},
        {"x": np.ones((3, 2)), "z": [1, 2, 3]},
    ):
        assert joining.layout(feed) is None
        assert joining.groups(joining.layouts([feed, dict(feed)])) == [[0], [1]]


def test_rows_on_another_axis_are_joined_split_and_cut_there() -> None:
    joining = Joining(rows=Rows(inputs={"x": 1}, outputs={"y": 2}))
    feeds = [{"x": np.arange(2.0 * k).reshape(2, k)} for k in (1, 3)]
    joined = joining.stack(feeds)
    result = {"y": joined.feed["x"][np.newaxis]}
    parts = joining.scatter(result, joined, feeds, ())
    assert [
        np.array_equal(part["y"][0], feed["x"]) for part, feed in zip(parts, feeds, strict=True)
    ] == [1, 1]
    pieces = joining.pieces_of(feeds[1], 3, 2)
    assert [piece["x"].shape for piece in pieces] == [(2, 2), (2, 1)]
    whole = joining.put_together([{"y": each["x"][np.newaxis]} for each in pieces], [2, 1], ())
    assert np.array_equal(whole["y"][0], feeds[1]["x"])


def test_an_unknown_name_is_told_each_known_one_once() -> None:
    y = spec("y", None)
    with pytest.raises(ValueError, match=r"no 'q', only \['x', 'y'\]$"):
        read_hints([spec("x", None)], [y], {"q": 0}, unfetched=[y])
