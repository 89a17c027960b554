"""Scattering undoes stacking; feeds that must not be joined stay separate."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.batching.minibatch import Call, in_turn, plan_calls
from penstock.batching.stack import group, rows_of, scatter, signature, stack
from penstock.errors import InferenceFailed, InputMismatch
from penstock.request import Feed


@st.composite
def like_feeds(draw: st.DrawFn) -> list[Feed]:
    """Feeds of one signature: a plain array, and a sequence with its lod."""
    tail = draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
    feeds: list[Feed] = []
    for _ in range(draw(st.integers(1, 5))):
        rows = draw(st.integers(0, 4))
        lengths = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
        offsets = np.cumsum([0, *lengths])
        feeds.append(
            {
                "x": draw(hnp.arrays(np.float32, (rows, *tail), elements=st.integers(-9, 9))),
                "words": draw(hnp.arrays(np.int64, (int(offsets[-1]), 1))),
                "words.lod": offsets,
            }
        )
    if any(rows_of(feed) == 0 for feed in feeds):  # a lod has at least one sequence
        feeds = [{"x": feed["x"]} for feed in feeds]
    return feeds


def same(left: Any, right: Any) -> bool:
    return left.dtype == right.dtype and np.array_equal(left, right)


@given(feeds=like_feeds())
def test_scatter_undoes_stack(feeds: list[Feed]) -> None:
    joined, rows = stack(feeds)
    parts = scatter(joined, rows)
    assert len(parts) == len(feeds)
    for part, feed in zip(parts, feeds, strict=True):
        assert part.keys() == feed.keys()
        assert all(same(part[name], feed[name]) for name in feed)


@given(feeds=like_feeds(), order=st.randoms())
def test_similar_feeds_form_one_group_and_others_their_own(feeds: list[Feed], order: Any) -> None:
    odd: Feed = {"x": np.zeros((1, 9, 9, 9), np.float32)}
    mixed = [*feeds, odd]
    order.shuffle(mixed)
    groups = group(mixed)
    assert sorted(i for members in groups for i in members) == list(range(len(mixed)))
    filled = sum(rows_of(feed) > 0 for feed in feeds)  # those without rows run alone
    alone = len(feeds) - filled + 1
    assert sorted(map(len, groups)) == sorted([1] * alone + [filled] * (filled > 0))


def test_a_single_feed_is_passed_through_unchanged() -> None:
    feed: Feed = {"x": np.zeros(3), "text": "hello"}
    joined, rows = stack([feed])
    assert joined is feed
    (part,) = scatter(feed, rows)
    assert part is feed


def test_lod_offsets_are_shifted_when_sequences_are_joined() -> None:
    one = {"w": np.arange(3).reshape(3, 1), "w.lod": [0, 1, 3]}
    two = {"w": np.arange(2).reshape(2, 1), "w.lod": [0, 2]}
    joined, rows = stack([one, two])
    assert joined["w.lod"] == [0, 1, 3, 5]
    assert rows == [2, 1], "the rows of sequences are sequences"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"x": np.zeros((1, 2))}, {"x": np.zeros((1, 3))}),
        ({"x": np.zeros((1, 2))}, {"x": np.zeros((1, 2), np.float32)}),
        ({"x": np.zeros((1, 2))}, {"y": np.zeros((1, 2))}),
        ({"x": np.zeros((1, 2))}, {"x": np.zeros((1, 2)), "y": np.zeros(1)}),
        ({"x": "one"}, {"x": "two"}),
        ({"x": np.array(1)}, {"x": np.array(2)}),
        ({"x": ["a", "b"]}, {"x": ["a", "c"]}),
        ({"x": [1, [2]]}, {"x": [1, [2]]}),
        ({"x": 1}, {"x": True}),
    ],
)
def test_feeds_with_different_signatures_are_not_joined(left: Feed, right: Feed) -> None:
    assert signature(left) != signature(right)


def test_the_order_of_names_is_ignored() -> None:
    left = {"x": np.zeros((1, 2)), "y": np.zeros((2, 2))}
    right = {"y": np.zeros((5, 2)), "x": np.zeros((7, 2))}
    assert signature(left) == signature(right)


def test_the_number_of_rows_is_that_of_the_first_value() -> None:
    assert rows_of({"x": np.zeros((4, 2)), "y": np.zeros((9, 2))}) == 4
    assert rows_of({"x": "text"}) == 1
    assert rows_of({"x": ["a", "b"]}) == 2
    assert rows_of({}) == 1


def test_an_output_without_the_batch_s_rows_is_an_error_with_the_fix() -> None:
    with pytest.raises(InferenceFailed, match=r"'total' has 1 rows .* 5; .* shared_outputs"):
        scatter({"y": np.zeros((5, 1)), "total": np.zeros(1)}, [2, 3])
    with pytest.raises(InferenceFailed, match="'note' has no batch axis"):
        scatter({"note": "text"}, [1, 1])


def test_a_shared_output_is_passed_whole_to_every_sample() -> None:
    total = np.zeros(7)
    parts = scatter({"y": np.arange(2), "total": total}, [1, 1], shared=["total"])
    assert all(part["total"] is total for part in parts)


def test_an_output_with_a_lod_is_split_by_sequences_with_new_offsets() -> None:
    result = {"y": np.arange(6), "y.lod": np.array([0, 2, 3, 6], np.int32)}
    first, second = scatter(result, [2, 1])
    assert (first["y"].tolist(), first["y.lod"].tolist()) == ([0, 1, 2], [0, 2, 3])
    assert (second["y"].tolist(), second["y.lod"].tolist()) == ([3, 4, 5], [0, 3])
    assert second["y.lod"].dtype == np.int32


@pytest.mark.parametrize("lod", [[1, 2], [0], [0, 3, 2]])
def test_a_malformed_lod_is_an_input_mismatch(lod: list[int]) -> None:
    with pytest.raises(InputMismatch):
        stack([{"w": np.zeros((3, 1)), "w.lod": lod}] * 2)


def test_feeds_that_can_be_joined_are_one_call() -> None:
    one, other, none = ({"x": np.zeros(shape)} for shape in ((1, 2), (1, 3), (0, 2)))
    assert plan_calls([one, other, one, none]) == [Call((0, 2)), Call((1,)), Call((3,))]
    assert plan_calls([one, other], joined=False) == [Call((0, 1))]


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [([], []), ([1, 1, 1], [3]), ([1] * 5, [4, 1]), ([3, 3], [1, 1]), ([9, 1], [1, 1])],
)
def test_the_feeds_of_mini_batches_are_divided_by_the_size_of_a_batch(
    sizes: list[int], parts: list[int]
) -> None:
    assert [len(sizes[part]) for part in in_turn(sizes, 4)] == parts


@pytest.mark.parametrize(
    "feed",
    [
        {"text": "hello"},
        {"texts": ["a", "b"]},
        {"x": np.zeros((2, 1)), "texts": ["a", "b"]},
        {"x": np.zeros((2, 1)), "y": np.zeros((3, 1))},
        {"w": np.zeros((5, 1)), "w.lod": [0, 2, 4]},
        {"x": np.float32(1.0)},
        {},
        {0: np.zeros((1, 2))},
        {"view": memoryview(bytearray(3))},
    ],
)
def test_feeds_without_a_common_batch_axis_run_alone_even_if_equal(feed: Feed) -> None:
    groups = group([dict(feed), dict(feed)])
    expected = [[0, 1]] if 0 in feed else [[0], [1]]
    assert groups == expected
