"""The padding rule with examples, and its effect on arrays."""

from fractions import Fraction
from math import prod
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batching import minibatch
from penstock.batching.joining import Joined, Joining
from penstock.batching.padding import Padding, filled_in
from penstock.batching.stack import concatenated, stack
from penstock.errors import InferenceFailed, InputMismatch
from penstock.request import Feed
from penstock.tensor import TensorSpec

SHAPES = st.lists(st.integers(0, 50), min_size=2, max_size=2).map(tuple)


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        ((500, 500), (400, 400), (500, 500)),
        ((1, 1), (2, 2), (2, 2)),
        ((3, 320, 320), (3, 960, 960), None),
        ((500, 400), (400, 500), (500, 500)),
        ((1025,), (1,), (1025,)),
        ((1026,), (1,), None),
        ((4000,), (2000,), (4000,)),
        ((4000,), (1999,), None),
        ((0, 5), (9, 0), (9, 5)),
    ],
)
def test_examples_of_the_padding_rule_and_its_boundaries(one: Any, other: Any, joined: Any) -> None:
    for left, right in ((one, other), (other, one)):
        assert Padding().join([left], [right]) == (None if joined is None else [joined])


def test_every_input_must_satisfy_the_rule() -> None:
    join = Padding(max_elements=0).join
    assert join([(4,), (8,)], [(3,), (8,)]) == [(4,), (8,)]
    assert join([(4,), (8,)], [(3,), (1,)]) is None


@given(SHAPES, SHAPES, st.integers(0, 2000), st.fractions(0, 1))
def test_the_rule_equals_one_with_exact_fractions(
    one: tuple[int, ...], other: tuple[int, ...], most: int, similar: Fraction
) -> None:
    padding = Padding(max_elements=most, min_similarity=similar)
    target = tuple(map(max, one, other))
    p, a, b = prod(target), prod(one), prod(other)
    absolute = p - a <= most and p - b <= most
    relative = p == 0 or (Fraction(a, p) >= similar and Fraction(b, p) >= similar)
    expected = one == other or absolute or relative
    assert (padding.join([one], [other]) is not None) == expected


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)), min_size=1),
    st.sampled_from([None, 4, (3, 5)]),
    st.floats(-9, 9, width=32),
)
def test_scatter_undoes_padding(shapes: list[Any], sizes: Any, value: float) -> None:
    axes = (None, "h", "w")
    padding = Padding(inputs={"x": axes}, outputs={"y": axes}, values={"x": value}, sizes=sizes)
    joining = Joining(True, padding)
    feeds = [{"x": np.random.default_rng(0).random(shape, np.float32)} for shape in shapes]
    (group,) = joining.groups(joining.layouts(feeds))
    joined = joining.stack(feeds)
    assert group == list(range(len(feeds)))
    parts = joining.scatter({"y": joined.feed["x"]}, joined, feeds, ())
    for part, feed in zip(parts, feeds, strict=True):
        np.testing.assert_array_equal(part["y"], feed["x"])
    rows, *target = joined.feed["x"].shape
    assert rows == sum(shape[0] for shape in shapes)
    layouts = [joining.layout(feed) for feed in feeds]
    elements, filler = filled_in([(x.shapes, x.rows, x.elements) for x in layouts if x])
    if joined.padded:
        assert elements == rows * prod(target)
        assert np.count_nonzero(joined.feed["x"] == np.float32(value)) >= filler


def test_sizes_are_rounded_up_for_a_single_feed_too() -> None:
    joining = Joining(True, Padding(inputs={"x": (None, None, "w")}, sizes=(8, 16)))
    for size, rounded in ((3, 8), (9, 16), (17, 17)):
        joined = joining.stack([{"x": np.ones((1, 3, size))}])
        assert joined.feed["x"].shape == (1, 3, rounded)


def test_axes_come_from_the_model_and_outputs_use_axes_of_equal_names() -> None:
    def spec(name: str, shape: Any, axes: Any = ()) -> TensorSpec:
        return TensorSpec(
            name=name, alias=name.upper(), dtype=np.dtype("f4"), shape=shape, axes=axes
        )

    image = spec("image", (None, 3, None, None), ("n", None, "h", "w"))
    mask = spec("mask", (None, 1, None, None), ("n", None, "h", "w"))
    other = spec("other", (None, None))
    padding = Padding().of_model([image, other], [mask])
    assert padding.inputs == {
        "image": (None, None, "h", "w"),
        "IMAGE": (None, None, "h", "w"),
        "other": (None, "other.1"),
        "OTHER": (None, "other.1"),
    }
    assert padding.outputs["MASK"] == (None, None, "h", "w")
    assert padding.kept() == []
    unnamed, half = spec("unnamed", (None, None)), spec("half", (None, None), ("n", "h//2"))
    assert {"UNNAMED", "HALF"} < {*Padding().of_model([image], [mask, unnamed, half]).kept()}
    with pytest.raises(ValueError, match=r"pad.inputs: the model has no 'nope', only \['IMAGE'\]"):
        Padding(inputs={"nope": (None, "h")}).of_model([image], [mask])
    numbers = TensorSpec(name="k", alias="k", dtype=np.dtype("u1"), shape=(None, None))
    for value in (256, -1, 0.5):
        with pytest.raises(ValueError, match=r"pad.values.k: .* is no uint8"):
            Padding(values={"k": value}).of_model([numbers], [])


def test_fixed_axes_dtypes_and_an_axis_name_with_two_sizes_are_not_padded() -> None:
    joining = Joining(True, Padding(inputs={"x": (None, None, "s", "s")}))
    feeds = [
        {"x": np.ones(shape, dtype)}
        for shape, dtype in [
            ((1, 3, 4, 4), "f4"),
            ((1, 1, 4, 4), "f4"),
            ((1, 3, 5, 5), "f8"),
            ((1, 3, 4, 5), "f4"),
            ((1, 3, 5, 5), "f4"),
            ((1, 3, 4, 5), "f4"),
        ]
    ]
    assert joining.groups(joining.layouts(feeds)) == [[0, 4], [1], [2], [3, 5]]


def test_an_output_whose_size_differs_from_its_input_s_is_an_error() -> None:
    axes = (None, "w")
    joining = Joining(True, Padding(inputs={"x": axes}, outputs={"y": axes}))
    feeds = [{"x": np.ones((1, 4))}, {"x": np.ones((1, 6))}]
    joined = joining.stack(feeds)
    with pytest.raises(InferenceFailed, match=r"output 'y': axis 1 \('w'\) has the size 3"):
        joining.scatter({"y": np.ones((2, 3))}, joined, feeds, ())


def test_arrays_shared_by_all_rows_are_joined_only_if_equal() -> None:
    joining = Joining(True)
    scale, other = np.array([[2.0]]), np.array([[3.0]])
    feeds = [
        {"x": np.ones((3, 2)), "scale": scale},
        {"x": np.ones((2, 2)), "scale": scale.copy()},
        {"x": np.ones((2, 2)), "scale": other},
        {"x": np.ones((1, 2)), "scale": other},
        {"x": np.ones((2, 2)), "scale": np.ones((3, 1))},
    ]
    assert joining.groups(joining.layouts(feeds)) == [[0, 1], [2], [3], [4]]
    joined = joining.stack(feeds[:2])
    assert (joined.rows, joined.feed["x"].shape) == ([3, 2], (5, 2))
    assert joined.feed["scale"] is scale
    parts = joining.scatter({"y": np.arange(5), "k": np.ones(1)}, joined, feeds[:2], ())
    assert [(p["y"].tolist(), p["k"].tolist()) for p in parts] == [
        ([0, 1, 2], [1]),
        ([3, 4], [1]),
    ]
    with pytest.raises(InferenceFailed, match="output 'y' has 4 rows where the batch has 5"):
        joining.scatter({"y": np.ones(4)}, joined, feeds[:2], ())


@given(st.integers(1, 20), st.integers(1, 7), st.booleans())
def test_joined_pieces_equal_the_whole(rows: int, most: int, lod: bool) -> None:
    offsets = [0, *np.cumsum(np.arange(rows) % 3).tolist()]
    feed: dict[str, Any] = {"x": np.arange(rows * 2).reshape(rows, 2), "k": 7}
    if lod:
        feed |= {"s": np.arange(offsets[-1]), "s.lod": np.array(offsets)}
    pieces = Joining().pieces_of(feed, rows, most)
    counts = [len(piece["x"]) for piece in pieces]
    assert sum(counts) == rows
    assert max(counts) <= most
    whole = Joining().put_together(pieces, counts, ("k",))
    assert whole.keys() == feed.keys()
    for name, value in feed.items():
        np.testing.assert_array_equal(whole[name], value)


def test_a_piece_with_a_wrong_number_of_rows_is_an_error() -> None:
    with pytest.raises(InferenceFailed, match="output 'y' has 3 rows where the batch has 2"):
        Joining().put_together([{"y": np.ones(2)}, {"y": np.ones(3)}], [2, 2], ())


def test_a_single_feed_is_passed_through() -> None:
    feed = {"x": np.ones((3, 2)), "y": np.ones((2, 2))}
    assert Joining(True).layout(feed) is None
    assert Joining(True).stack([feed]) == Joined(feed, [0], {})


@st.composite
def _feeds(draw: st.DrawFn) -> list[Feed]:
    """Feeds that mostly have the same names, dtypes and rows."""
    names = draw(st.lists(st.sampled_from(["x", "y", "x.lod"]), min_size=1, unique=True))
    feeds: list[Feed] = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(0, 3))
        feed: Feed = {}
        for name in draw(st.permutations(names)):
            odd = draw(st.integers(0, 9))
            shape = {0: (), 1: (rows, 3), 2: (1, 2)}.get(odd, (rows, 2))
            dtype = np.int64 if odd == 3 else np.float32
            feed[name] = "text" if odd == 4 else np.full(shape, draw(st.integers(0, 9)), dtype)
        feeds.append(feed)
    return feeds


@given(_feeds())
def test_the_fast_path_for_similar_feeds_gives_the_same_calls(feeds: list[Feed]) -> None:
    for joining in (Joining(True), Joining(False), None):
        calls = _joined(joining, feeds)
        with mock.patch.object(minibatch, "rows_alike", return_value=None):
            assert calls == _joined(joining, feeds)


def _joined(joining: Joining | None, feeds: list[Feed]) -> list[Any]:
    """The members of each call, its feed, and the rows of each member."""
    calls: list[Any] = []
    for call in minibatch.plan_calls(feeds, joining):
        members = [feeds[member] for member in call.members]
        feed: Any
        try:
            if len(members) == 1:
                feed, rows = members[0], []
            elif call.rows is not None:
                feed, rows = concatenated(members), call.rows
            else:
                feed, rows = joining.stack(members)[:2] if joining else stack(members)
        except InputMismatch as error:
            feed, rows = {"error": str(error)}, []
        plain = {
            name: repr((each.dtype, each.tolist())) if isinstance(each, np.ndarray) else each
            for name, each in feed.items()
        }
        calls.append((call.members, plain, rows))
    return calls
