"""The same networks in the form of every library give the same results."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InferenceFailed, InputMismatch, WrongType
from penstock.runtimes.model import Model
from penstock.runtimes.runtime import ModelOptions
from tests.models.networks import NETWORKS, answers, feed_of
from tests.runtimes.forms import every_form

TOLERANCE = 1e-5
"""For results near 1 in float32, with a precision of 1e-7; libraries sum in different orders."""

forms = pytest.mark.parametrize(("runtime", "form"), every_form())
both = pytest.mark.parametrize("network", NETWORKS)


def opened(root: Path, network: str, form: str, **options) -> Model:
    options.setdefault("thread_num", 1)
    return Model.open(ModelOptions(path=str(root / network / form), **options))


def assert_right(network: str, feed: dict, got: dict) -> None:
    expected = answers(network, feed)
    assert list(got) == list(NETWORKS[network].outputs)
    for name, value in expected.items():
        assert got[name].dtype == np.float32
        np.testing.assert_allclose(got[name], value, rtol=0, atol=TOLERANCE)


@forms
@both
def test_results_are_right_for_any_number_of_rows_and_words(
    networks: Path, network: str, runtime: str, form: str
) -> None:
    model = opened(networks, network, form)
    for rows, length in ((1, 7), (3, 7), (17, 2), (2, 19), (1, 1)):
        feed = feed_of(network, rows, length)
        assert_right(network, feed, model.run(feed))


@forms
@both
def test_a_batch_gives_the_results_of_its_single_rows(
    networks: Path, network: str, runtime: str, form: str
) -> None:
    model = opened(networks, network, form)
    feed = feed_of(network, 8)
    together = model.run(feed)
    for row in range(8):
        alone = model.run({name: value[row : row + 1] for name, value in feed.items()})
        for name, value in alone.items():
            np.testing.assert_allclose(value[0], together[name][row], rtol=0, atol=TOLERANCE)


@forms
@both
def test_clones_run_in_several_threads_at_once(
    networks: Path, network: str, runtime: str, form: str
) -> None:
    model = opened(networks, network, form)

    def work(seed: int, own: Model) -> None:
        for turn in range(20):
            feed = feed_of(network, 1 + turn % 5, 3 + turn, seed)
            assert_right(network, feed, own.run(feed))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed, model.clone()) for seed in range(4)]:
            done.result()


@forms
@pytest.mark.parametrize("dropped", ["first", "clone"])
def test_a_session_works_after_its_clone_or_original_was_dropped(
    networks: Path, dropped: str, runtime: str, form: str
) -> None:
    model = opened(networks, "sequence", form)
    the_clone = model.clone()
    feed = feed_of("sequence", 2)
    for each in (model, the_clone):
        assert_right("sequence", feed, each.run(feed))
    if dropped == "first":
        model = the_clone
    del the_clone, each
    for each in (model, model.clone()):
        assert_right("sequence", feed, each.run(feed))


@forms
def test_signatures_have_dtypes_and_unknown_dimensions(
    networks: Path, runtime: str, form: str
) -> None:
    model = opened(networks, "sequence", form)
    words, scale = model.inputs
    assert (words.alias, words.dtype, words.shape) == ("words", np.int64, (None, None))
    assert (scale.alias, scale.dtype, scale.shape) == ("scale", np.float32, (None, 1))
    scores = model.outputs[0]
    if runtime == "paddle":  # its programs do not declare axes
        assert words.axes == scores.axes == ()
    else:
        assert words.axes[1] is not None
        assert scores.axes[1:] == (words.axes[1], None)


@forms
def test_results_are_not_overwritten_by_later_runs_and_inputs_stay_unchanged(
    networks: Path, runtime: str, form: str
) -> None:
    model = opened(networks, "regression", form)
    feed = feed_of("regression", 4)
    before = feed["x"].copy()
    first = model.run(feed)["price"]
    kept = first.copy()
    model.run(feed_of("regression", 4, seed=1))
    np.testing.assert_array_equal(first, kept)
    first += 1  # the caller may change it
    np.testing.assert_array_equal(feed["x"], before)
    assert_right("regression", feed, model.run(feed))


@forms
def test_strided_read_only_and_float64_arrays_are_accepted(
    networks: Path, runtime: str, form: str
) -> None:
    model = opened(networks, "regression", form)
    x = feed_of("regression", 6)["x"]
    read_only = x.copy()
    read_only.flags.writeable = False
    for value in (np.repeat(x, 2, axis=1)[:, ::2], np.asfortranarray(x), read_only, x[::-1][::-1]):
        assert_right("regression", {"x": x}, model.run({"x": value}))
    assert_right("regression", {"x": x}, model.run({"x": x.astype(np.float64)}))


@forms
def test_another_rank_is_refused_except_with_paddle(
    networks: Path, runtime: str, form: str
) -> None:
    model = opened(networks, "regression", form)
    row = feed_of("regression", 1)["x"]
    if runtime == "paddle":
        got = model.run({"x": row[np.newaxis]})["price"]  # its rank differs by program
        assert_right("regression", {"x": row}, {"price": got.reshape(1, 1)})
    else:
        with pytest.raises(InputMismatch, match=r"expected the shape \[\?, 13\], got \[13"):
            model.run({"x": row[0]})
    good = feed_of("regression", 2)
    assert_right("regression", good, model.run(good))


@forms
@pytest.mark.parametrize(
    ("feed", "error", "pattern"),
    [
        ({"x": np.ones((2, 12), np.float32)}, InputMismatch, r"\[\?, 13\], got \[2, 12\]"),
        ({"x": np.array([["a"] * 13])}, InputMismatch, r"expected float32\[\?, 13\], got str"),
        ({"x": np.ones((1, 13), np.complex64)}, InputMismatch, "got complex64"),
        ({"x": 1.5}, WrongType, "feed_batch must be npdata"),
        ({}, InputMismatch, r"the model takes \['x'\], got \[\]"),
        ({"y": np.ones((1, 13), np.float32)}, InputMismatch, r"takes \['x'\], got \['y'\]"),
    ],
)
def test_invalid_inputs_are_refused_and_the_next_run_is_right(
    networks: Path, runtime: str, form: str, feed: dict, error: type, pattern: str
) -> None:
    model = opened(networks, "regression", form)
    with pytest.raises(error, match=pattern):
        model.run(feed)
    good = feed_of("regression", 2)
    assert_right("regression", good, model.run(good))


@forms
def test_inputs_refused_by_the_library_raise_input_mismatch(
    networks: Path, runtime: str, form: str
) -> None:
    session = opened(networks, "regression", form).session
    (name,) = (spec.name for spec in session.inputs)
    (price,) = (spec.name for spec in session.outputs)
    with pytest.raises(InputMismatch):
        session.run({}, [price])
    with pytest.raises(InputMismatch):
        session.run({name: np.ones((2, 3, 5), np.float32)}, [price])
    (good,) = session.run({name: np.ones((2, 13), np.float32)}, [price])
    assert good.shape == (2, 1)


@forms
def test_inconsistent_inputs_fail_and_do_not_affect_later_runs(
    networks: Path, runtime: str, form: str
) -> None:
    model = opened(networks, "sequence", form)
    the_clone = model.clone()
    for rows in (4, 3, 4):
        feed = feed_of("sequence", rows)
        for each in (model, the_clone):
            assert_right("sequence", feed, each.run(feed))
        for wrong in (2, rows + 1):
            with pytest.raises((InputMismatch, InferenceFailed)):
                model.run(feed | {"scale": np.ones((wrong, 1), np.float32)})
            for each in (model, the_clone):
                assert_right("sequence", feed, each.run(feed))


@forms
@both
def test_a_batch_without_rows_gives_results_without_rows(
    networks: Path, network: str, runtime: str, form: str
) -> None:
    model = opened(networks, network, form)
    for rows in (0, 3, 0):
        feed = feed_of(network, rows)
        assert_right(network, feed, model.run(feed))


@forms
def test_outputs_can_be_fetched_in_any_order(networks: Path, runtime: str, form: str) -> None:
    model = opened(networks, "sequence", form)
    feed = feed_of("sequence", 2)
    assert list(model.run(feed, ["best"])) == ["best"]
    assert list(model.run(feed, ["best", "scores"])) == ["best", "scores"]
    np.testing.assert_allclose(
        model.run(feed, ["best"])["best"], answers("sequence", feed)["best"], atol=TOLERANCE
    )


@forms
def test_the_library_prints_nothing(
    networks: Path, runtime: str, form: str, capfd: pytest.CaptureFixture
) -> None:
    model = opened(networks, "sequence", form)
    model.run(feed_of("sequence", 2))
    with pytest.raises((InputMismatch, WrongType)):
        model.run({"words": 1})
    assert capfd.readouterr() == ("", "")
