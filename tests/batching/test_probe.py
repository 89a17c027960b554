"""The probe tells models whose answers batches change, here as functions on arrays."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.batching.padding import Padding
from penstock.batching.probe import Answer, Found, TimeIsUp, probe
from penstock.batching.rows import read_hints
from penstock.errors import InferenceFailed
from penstock.request import Feed
from penstock.tensor import TensorSpec
from tests.batching.test_rows import spec

Function = Callable[[Feed], Feed]


def run(
    function: Function,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    padding: Padding | None = None,
    examples: Sequence[Feed] = (),
    most: int = 1000,
) -> Found:
    """Probe a function; after ``most`` runs the time is up."""
    hints = read_hints(inputs, outputs)
    probing = probe(inputs, outputs, hints, padding and padding.of_model(inputs, outputs), examples)
    runs = 0
    try:
        feed = next(probing)
        while True:
            runs += 1
            feed = probing.send(answer(function, feed) if runs <= most else TimeIsUp())
    except StopIteration as end:
        found: Found = end.value
        return found


def answer(function: Function, feed: Feed) -> Answer:
    try:
        return function(feed)
    except (ValueError, IndexError) as error:
        return InferenceFailed(str(error))


X, Y = spec("x", None, 2), spec("y", None)


def test_rows_that_are_independent_are_found() -> None:
    found = run(lambda feed: {"y": feed["x"].sum(1)}, [X], [Y])
    assert found.rows is not None
    assert (found.rows.inputs["x"], found.rows.outputs["y"]) == (0, 0)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x.mean(0), "no row axis"),
        (lambda x: x[:, 0] - x[:, 0].mean(), "output 'y' has"),
        (lambda x: np.sort(x[:, 0]), "output 'y' has"),
        (lambda x: x[x[:, 0] > 0][:, 0], "output 'y'"),
        (lambda x: x.ravel(), "no row axis"),
        (lambda x: np.squeeze(x[:, :1]), "shape"),
        (lambda x: x[:, 0] / np.abs(x).max(), "output 'y' has"),
        (lambda x: np.argsort(x[:, 0]), "output 'y' has"),
    ],
)
def test_rows_that_depend_on_each_other_are_refuted(
    function: Callable[[Any], Any], text: str
) -> None:
    found = run(lambda feed: {"y": function(feed["x"])}, [X], [Y])
    assert found.rows is None
    assert text in str(found.refuted)


def test_only_a_very_different_neighbour_shows_a_common_scale() -> None:
    def coarse(feed: Feed) -> Feed:
        step = np.float32(1 if np.abs(feed["x"]).max() < 100 else 8)
        return {"y": np.round(feed["x"][:, 0] * 100 / step) * step}

    assert "in a batch" in str(run(coarse, [X], [Y]).refuted)


def test_an_output_that_is_equal_for_all_is_shared() -> None:
    names = np.array(["cat", "dog"], object)
    found = run(lambda feed: {"y": feed["x"][:, 0], "k": names}, [X], [Y, spec("k", 2)])
    assert found.rows is not None
    assert "k" in found.rows.shared


@pytest.mark.parametrize("of_all", [np.max, np.min, np.any])
def test_integers_that_are_equal_by_chance_are_not_shared(of_all: Callable[[Any], Any]) -> None:
    x = replace(spec("x", None, 8), dtype=np.dtype("int64"))
    found = run(lambda feed: {"y": feed["x"], "z": of_all(feed["x"])}, [x], [Y, spec("z")])
    assert str(found.refuted).startswith("output 'z' has ")
    assert "np." not in str(found.refuted)


def test_pixels_that_are_far_larger_show_a_common_scale() -> None:
    x = replace(spec("x", None, 8, 8), dtype=np.dtype("uint8"))
    found = run(lambda feed: {"y": feed["x"] / (feed["x"].max() + 0.5)}, [x], [Y])
    assert "output 'y'" in str(found.refuted)


def test_an_input_that_has_no_rows_is_found() -> None:
    found = run(lambda feed: {"y": feed["x"] * feed["s"]}, [X, spec("s", None)], [X_LIKE])
    assert found.rows is not None
    assert (found.rows.inputs["x"], found.rows.inputs["s"]) == (0, None)


X_LIKE = spec("y", None, 2)


def test_sizes_are_tried_until_the_model_runs() -> None:
    def strided(feed: Feed) -> Feed:
        if feed["x"].shape[1] % 64:
            raise ValueError("a width below the stride")
        return {"y": feed["x"].sum(1)}

    assert run(strided, [spec("x", None, None)], [Y]).rows is not None


def test_large_sizes_are_not_tried_on_many_axes() -> None:
    most = 0

    def fails(feed: Feed) -> Feed:
        nonlocal most
        most = max(most, feed["x"].size)
        raise ValueError("no")

    found = run(fails, [spec("x", None, None, None, None)], [Y])
    assert "fails on generated inputs" in str(found.unable)
    assert most <= 2**20


def test_a_model_that_runs_on_no_generated_input_needs_examples() -> None:
    def chosen(feed: Feed) -> Feed:
        if not (feed["x"] == 7).all():
            raise ValueError("only sevens")
        return {"y": feed["x"][:, 0]}

    assert "only sevens" in str(run(chosen, [X], [Y]).unable)
    sevens = {"x": np.full((1, 2), 7, "f4")}
    assert run(chosen, [X], [Y], examples=[sevens]).rows is not None


def test_a_model_that_differs_from_itself_is_not_judged() -> None:
    rng = np.random.default_rng(1)
    found = run(lambda feed: {"y": rng.random(len(feed["x"]))}, [X], [Y])
    assert (found.rows, found.refuted) == (None, None)
    assert "two runs" in str(found.unable)


def test_a_model_that_fails_on_a_batch_is_refuted() -> None:
    def one_row(feed: Feed) -> Feed:
        if len(feed["x"]) > 2:
            raise ValueError("too many")
        return {"y": feed["x"][:, 0]}

    assert "too many" in str(run(one_row, [X], [Y]).refuted)


@pytest.mark.parametrize(("most", "known"), [(0, False), (2, False), (3, True)])
def test_after_the_main_comparison_the_time_may_be_up(most: int, known: bool) -> None:
    found = run(lambda feed: {"y": feed["x"][:, 0]}, [X], [Y], most=most)
    assert (found.rows is not None) == known
    assert (found.unable is None) == known


def test_sequences_are_generated_with_a_lod_and_split_by_it() -> None:
    words = replace(spec("words", None, 1, lod=True), dtype=np.dtype("i8"))

    def sums(feed: Feed) -> Feed:
        ends = feed["words.lod"]
        return {"y": np.add.reduceat(feed["words"][:, 0], ends[:-1])}

    def total(feed: Feed) -> Feed:
        return {"y": sums(feed)["y"] + len(feed["words"])}

    assert run(sums, [words], [Y]).rows is not None
    assert run(total, [words], [Y]).rows is None


@pytest.mark.parametrize(
    ("function", "pads"),
    [
        (lambda x: x * 2, True),
        (lambda x: x - x.mean(1, keepdims=True), False),
        (lambda x: np.cumsum(x, 1), True),
        (lambda x: np.cumsum(x[:, ::-1], 1), False),
        (lambda x: x + x.max(1, keepdims=True), False),
        (lambda x: x + x.min(1, keepdims=True), False),
        (lambda x: x + np.maximum(x, 0).max(1, keepdims=True), True),
    ],
)
def test_padding_is_verified(function: Callable[[Any], Any], pads: bool) -> None:
    inputs, outputs = [spec("x", "n", "t")], [spec("y", "n", "t")]
    found = run(lambda feed: {"y": function(feed["x"])}, inputs, outputs, Padding())
    assert found.rows is not None
    assert found.pads == pads
    assert (found.unpadded is None) == pads


def test_every_dtype_can_be_generated() -> None:
    for dtype in ("?", "i1", "u1", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "O"):
        x, y = (replace(spec(name, "n", "t"), dtype=np.dtype(dtype)) for name in "xy")
        assert run(lambda feed: {"y": feed["x"]}, [x], [y]).rows is not None, dtype
