from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InferenceFailed, InputMismatch, ModelError, WrongType
from penstock.runtimes.model import Model, read_model_conf
from penstock.runtimes.prototxt import parse_model_conf
from penstock.runtimes.runtime import ModelOptions
from penstock.tensor import TensorSpec
from tests.kit.python_session import PythonSession

CONF = """
feed_var { name: "x" alias_name: "features" feed_type: 1 shape: 13 }
fetch_var { name: "price" alias_name: "cost" fetch_type: 1 shape: 1 }
"""


def spec(name: str, dtype=np.float32, shape=(None, 2), *, is_lod: bool = False) -> TensorSpec:
    return TensorSpec(name=name, alias=name, dtype=np.dtype(dtype), shape=shape, is_lod=is_lod)


def opened(path: Path, *fetch: str, **options) -> Model:
    return Model.open(ModelOptions(path=str(path), fetch_list=fetch or None, **options))


def doubler(*, is_lod: bool = False, extra: tuple[TensorSpec, ...] = ()) -> Model:
    """``y = 2 x`` by rows, ``n`` the number of rows."""
    return Model(
        PythonSession(
            lambda feeds: {"y": feeds["x"] * 2, "n": np.array(len(feeds["x"]))},
            [spec("x"), *extra],
            [spec("y", is_lod=is_lod), spec("n", shape=(), is_lod=is_lod)],
        )
    )


@pytest.fixture
def aliased(regression) -> Path:
    folder = regression().parent
    (folder / "serving_server_conf.prototxt").write_text(CONF)
    return folder


def test_a_run_returns_every_output_by_name(two_inputs) -> None:
    model = opened(two_inputs)
    assert model.feed_names == ("a", "ids")
    assert model.fetch_names == ("sum", "twice")
    got = model.run({"ids": np.array([[1, 2]]), "a": np.array([[0.5, 0.5]], np.float32)})
    assert list(got) == ["sum", "twice"]
    assert got["sum"].tolist() == [[1.5, 2.5]]
    assert got["twice"].tolist() == [[1, 1]]


def test_float64_arrays_of_deployed_ops_are_accepted(regression) -> None:
    model = opened(regression())
    feed = {"x": np.ones((3, 13))}
    got = model.run(feed)
    assert got["price"].tolist() == [[13.5]] * 3
    assert feed["x"].dtype == np.float64


def test_a_model_runs_batches_of_any_size(regression) -> None:
    model = opened(regression())
    for rows in (0, 1, 7):
        assert model.run({"x": np.ones((rows, 13), np.float32)})["price"].shape == (rows, 1)


def test_the_fetch_list_selects_and_orders_outputs(two_inputs) -> None:
    feed = {"a": np.ones((1, 2), np.float32), "ids": np.ones((1, 2), np.int64)}
    assert list(opened(two_inputs, "twice").run(feed)) == ["twice"]
    assert list(opened(two_inputs, "twice", "sum").run(feed)) == ["twice", "sum"]


def test_an_empty_fetch_list_returns_no_outputs(two_inputs) -> None:
    model = Model.open(ModelOptions(path=str(two_inputs), fetch_list=()))
    assert model.run({"a": np.ones((1, 2)), "ids": np.ones((1, 2), np.int64)}) == {}
    with pytest.raises(InputMismatch):
        model.run({})


@pytest.mark.parametrize(
    ("fetch", "text"),
    [(("price2",), r"\['price'\], requested \['price2'\]"), (("price",) * 2, "twice")],
)
def test_a_model_does_not_open_with_an_invalid_fetch_list(regression, fetch, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        opened(regression(), *fetch)


def test_fetching_an_unknown_output_raises_input_mismatch(regression) -> None:
    model = opened(regression())
    feed = {"x": np.ones((1, 13))}
    with pytest.raises(InputMismatch, match=r"invalid arg list.*'price'.*'cost'"):
        model.run(feed, ["cost"])
    with pytest.raises(InputMismatch, match="twice"):
        model.run(feed, ["price", "price"])


@pytest.mark.parametrize(
    ("feed", "got"),
    [
        ({}, r"\[\]"),
        ({"a": 1}, None),
        ({"a": np.ones((1, 2))}, r"\['a'\]"),
        ({"a": np.ones((1, 2)), "idz": np.ones((1, 2))}, r"\['a', 'idz'\]"),
        ({"a": np.ones((1, 2)), "ids": np.ones((1, 2), int), "b": 1}, r"\['a', 'b', 'ids'\]"),
        ({"a": np.ones((1, 2)), "ids": np.ones((1, 2), int), 5: 1}, r"\['5', 'a', 'ids'\]"),
        ({"a": np.ones((1, 2)), "lod": np.ones((1, 2))}, r"\['a', 'lod'\]"),
        ({"a": np.ones((1, 2)), "ids.lod": [0, 1]}, r"\['a'\]"),
    ],
)
def test_the_error_for_wrong_names_lists_expected_and_received_names(two_inputs, feed, got) -> None:
    if got is None:
        with pytest.raises(WrongType):
            opened(two_inputs).run(feed)
        return
    with pytest.raises(
        InputMismatch, match=r"^invalid arg list: the model takes \['a', 'ids'\], got " + got
    ):
        opened(two_inputs).run(feed)


def test_the_error_for_many_wrong_names_is_shortened(two_inputs) -> None:
    feed = {"k" * 200 + str(number): 1 for number in range(1000)}
    with pytest.raises(InputMismatch, match="and 984 more") as caught:
        opened(two_inputs).run(feed)
    assert len(str(caught.value)) < 2000


def test_a_value_that_is_not_an_array_raises_wrong_type(regression) -> None:
    model = opened(regression())
    for value in ([0.5] * 13, [], "text", None):
        with pytest.raises(WrongType, match=r"^feed_batch must be npdata"):
            model.run({"x": value})


def test_a_wrong_shape_is_refused_before_the_library_is_called(regression) -> None:
    model = opened(regression())
    with pytest.raises(InputMismatch, match=r"'x' expected the shape \[\?, 13\], got \[2, 12\]"):
        model.run({"x": np.ones((2, 12))})


def paired(name: str, *axes: str | None) -> TensorSpec:
    return replace(spec(name, shape=(None,) * len(axes)), axes=axes)


@pytest.mark.parametrize(
    ("shape", "raised", "text"),
    [
        ((2, 3), InferenceFailed, "the library failed"),
        (
            (2, 7),
            InputMismatch,
            "the axis 'time' of input 'b' has the size 7, and that of 'a' .* 3",
        ),
    ],
)
def test_a_failure_with_axes_of_one_name_and_two_sizes_is_the_caller_s(
    shape: tuple[int, int], raised: type[Exception], text: str
) -> None:
    def fail(feeds):
        raise InferenceFailed("the library failed")

    inputs = [paired("a", "rows", "time"), paired("b", None, "time")]
    model = Model(PythonSession(fail, inputs, [spec("y")]))
    with pytest.raises(raised, match=text):
        model.run({"a": np.zeros((4, 3), np.float32), "b": np.zeros(shape, np.float32)})


def test_axes_of_one_name_may_differ_where_the_model_can_broadcast() -> None:
    inputs = [paired("a", "rows", "time"), paired("b", "rows", "time")]
    model = Model(PythonSession(lambda feeds: {"y": feeds["a"] * feeds["b"]}, inputs, [spec("y")]))
    got = model.run({"a": np.ones((4, 3), np.float32), "b": np.ones((1, 3), np.float32)})
    assert got["y"].shape == (4, 3)


def test_the_configuration_in_the_folder_sets_aliases(aliased) -> None:
    model = opened(aliased)
    assert model.feed_names == ("features",)
    assert model.fetch_names == ("cost",)
    assert (model.inputs[0].name, model.inputs[0].alias) == ("x", "features")
    assert model.inputs[0].shape == (None, 13)  # the model's own, not the file's


@pytest.mark.parametrize("feed_name", ["features", "x"])
@pytest.mark.parametrize("fetch_name", ["cost", "price"])
def test_alias_and_name_are_both_accepted_and_returned(
    aliased, feed_name: str, fetch_name: str
) -> None:
    feed = {feed_name: np.ones((1, 13))}
    for got in (opened(aliased, fetch_name).run(feed), opened(aliased).run(feed, [fetch_name])):
        assert {name: array.tolist() for name, array in got.items()} == {fetch_name: [[13.5]]}


def test_an_input_given_by_name_and_by_alias_is_refused(aliased) -> None:
    with pytest.raises(InputMismatch, match=r"takes \['features'\], got \['features', 'x'\]"):
        opened(aliased).run({"x": np.ones((1, 13)), "features": np.ones((1, 13))})


def test_an_output_can_be_fetched_by_name_and_by_alias_at_once(aliased) -> None:
    got = opened(aliased, "cost", "price").run({"x": np.ones((1, 13))})
    assert got["cost"].tolist() == got["price"].tolist() == [[13.5]]


def test_an_alias_has_precedence_over_a_name(two_inputs) -> None:
    session = opened(two_inputs).session
    conf = parse_model_conf(
        "feed_var { name: 'a' alias_name: 'ids' } feed_var { name: 'ids' alias_name: 'a' }"
    )
    model = Model(session, conf=conf)
    got = model.run({"ids": np.array([[0.5, 0.5]]), "a": np.array([[1, 2]])}, ["sum"])
    assert got["sum"].tolist() == [[1.5, 2.5]]


def test_outputs_that_the_configuration_omits_can_be_fetched_by_name(two_inputs) -> None:
    session = opened(two_inputs).session
    model = Model(session, conf=parse_model_conf("fetch_var { name: 'twice' alias_name: 't' }"))
    feed = {"a": np.ones((1, 2)), "ids": np.ones((1, 2), np.int64)}
    assert list(model.run(feed)) == ["t"]
    assert list(model.run(feed, ["sum"])) == ["sum"]


@pytest.mark.parametrize(
    ("conf", "text"),
    [
        ('feed_var { name: "z" }', r"feed_var names \['z'\], the model has inputs \['x'\]"),
        ('fetch_var { name: "z" }', r"fetch_var names \['z'\], the model has outputs \['price'\]"),
        ('feed_var{name:"x"} feed_var{name:"x"}', "a duplicate name or alias"),
        ('feed_var {\n oops: "x" }', r"serving_server_conf.prototxt:2: .* has no field"),
        (b"\xff", "cannot be read"),
    ],
)
def test_a_model_does_not_open_with_a_configuration_of_other_names(aliased, conf, text) -> None:
    file = aliased / "serving_server_conf.prototxt"
    file.write_bytes(conf if isinstance(conf, bytes) else conf.encode())
    with pytest.raises(ModelError, match=text):
        opened(aliased)


def test_the_client_configuration_is_used_if_that_of_the_server_is_missing(aliased) -> None:
    (aliased / "serving_server_conf.prototxt").rename(aliased / "serving_client_conf.prototxt")
    assert opened(aliased).feed_names == ("features",)
    assert read_model_conf(aliased / "model.onnx") is None


def test_a_lod_that_the_model_does_not_use_is_ignored() -> None:
    got = doubler().run({"x": np.ones((3, 2), np.float32), "x.lod": np.array([0, 1, 3])})
    assert list(got) == ["y", "n"]


def test_a_lod_output_gets_the_lod_of_an_input_with_as_many_rows() -> None:
    got = doubler(is_lod=True).run({"x": np.ones((3, 2), np.float32), "x.lod": [0, 1, 3]})
    assert list(got) == ["y", "n", "y.lod"]
    assert got["y.lod"].tolist() == [0, 1, 3]
    assert got["y.lod"].dtype == np.int32


def test_a_lod_output_with_another_number_of_rows_has_no_lod() -> None:
    got = doubler(is_lod=True).run({"x": np.ones((3, 2), np.float32), "x.lod": [0, 1, 4]})
    assert list(got) == ["y", "n"]


def test_an_invalid_lod_that_would_be_used_raises_input_mismatch() -> None:
    with pytest.raises(InputMismatch, match=r"x\.lod.*never decreases"):
        doubler(is_lod=True).run({"x": np.ones((3, 2), np.float32), "x.lod": [0, 3, 1]})


def test_a_lod_is_passed_to_the_models_input_for_it() -> None:
    model = doubler(extra=(spec("x.lod", np.int64, (None,)),))
    x = np.ones((3, 2), np.float32)
    assert model.run({"x": x, "x.lod": [0, 1, 3]})["n"] == 3
    with pytest.raises(InputMismatch, match=r"takes \['x', 'x.lod'\], got \['x'\]"):
        model.run({"x": x})


def detector(conf: str = "", **more) -> Model:
    """``found`` has the positive values of ``x``, ``count`` how many those of each row are."""
    return Model(
        PythonSession(
            lambda feeds: {
                "found": feeds["x"][feeds["x"] > 0],
                "count": (feeds["x"] > 0).sum(axis=1, dtype=np.int32),
            },
            [spec("x")],
            [spec("found", shape=(None,)), spec("count", np.int32, (None,))],
        ),
        conf=parse_model_conf(conf) if conf else None,
        **more,
    )


@pytest.mark.parametrize("fetch", [["found"], ["found", "count"], ["count", "found"]])
def test_a_lod_output_gets_its_lod_from_an_output_of_counts(fetch: list[str]) -> None:
    model = detector("fetch_var { name: 'found' is_lod_tensor: true } fetch_var { name: 'count' }")
    got = model.run({"x": np.array([[1, 2], [0, 0], [0, 3]], np.float32)}, fetch)
    assert list(got) == [*fetch, "found.lod"]
    assert got["found.lod"].tolist() == [0, 2, 2, 3]
    assert got["found.lod"].dtype == np.int32
    assert list(model.run({"x": np.ones((1, 2), np.float32)}, ["count"])) == ["count"]


def test_counts_with_another_sum_than_the_rows_make_no_lod() -> None:
    conf = "fetch_var { name: 'y' is_lod_tensor: true } fetch_var { name: 'label' }"
    specs = [spec("y"), spec("label", np.int64, (None,))]
    for labels in ([7, 0], [3, -1]):
        session = PythonSession(
            lambda feeds, labels=labels: {"y": feeds["x"], "label": np.array(labels)},
            [spec("x")],
            specs,
        )
        got = Model(session, conf=parse_model_conf(conf)).run({"x": np.ones((2, 2), np.float32)})
        assert list(got) == ["y", "label"]


@pytest.mark.parametrize(
    ("conf", "fetch", "names"),
    [
        ("fetch_var { name: 'a' } fetch_var { name: 'b' alias_name: 'c' }", None, ["a", "c"]),
        ("fetch_var { name: 'a' }", None, ["a"]),
        ("", ["a", "b"], ["a", "b"]),
        ("fetch_var { name: 'found' alias_name: 'f' }", ["a"], ["a"]),
        ("fetch_var { name: 'a' } fetch_var { name: 'b' }", ["b"], ["b"]),
    ],
)
def test_unknown_output_names_are_matched_by_position_for_paddle_only(
    conf: str, fetch: list[str] | None, names: list[str]
) -> None:
    model = detector(conf, fetch_list=fetch, runtime="paddle")
    (note,) = model.notes
    assert note.removeprefix("fetch_list: ").startswith(
        "the model has no outputs of these names, which are matched by position: "
    )
    assert note.startswith("fetch_list: ") == (fetch in (["a", "b"], ["a"]))
    assert "'a' is 'found'" in note
    assert note.endswith(" (alias 'f')") == ("'f'" in conf)
    got = model.run({"x": np.array([[1, 2], [0, 3]], np.float32)})
    assert list(got) == names
    values = {"a": [1, 2, 3], "b": [2, 1], "c": [2, 1]}
    assert [got[name].tolist() for name in names] == [values[name] for name in names]
    with pytest.raises(ModelError):
        detector(conf, fetch_list=fetch, runtime="onnx")


@pytest.mark.parametrize("fetch", [["found", "a"], ["a", "b", "c"]])
def test_partly_known_or_too_many_output_names_are_refused(fetch: list[str]) -> None:
    with pytest.raises(ModelError, match="requested"):
        detector(fetch_list=fetch, runtime="paddle")


def test_a_clone_shares_a_thread_safe_session(aliased) -> None:
    model = opened(aliased)
    copy = model.clone()
    assert copy is not model
    assert copy.session is model.session
    assert copy.run({"x": np.ones((1, 13))})["cost"].tolist() == [[13.5]]


def test_a_clone_of_a_model_that_is_not_thread_safe_has_another_session() -> None:
    session = PythonSession(lambda feeds: {}, [], [], thread_safe=False)
    model = Model(session)
    assert model.clone().session is not session


def test_a_models_notes_are_those_of_its_session(regression) -> None:
    assert "use_mkldnn" in opened(regression(), use_mkldnn=True).notes[0]


def test_the_repr_of_a_model_has_its_names(aliased) -> None:
    assert repr(opened(aliased)).startswith("<Model ['features'] -> ['cost'] by <OnnxSession")


def image_model(function=lambda feeds: {"y": feeds["x"] * 2}) -> Model:
    """A model as of Paddle, declared for images of 608 x 608."""
    images = spec("x", shape=(None, 3, 608, 608))
    return Model(PythonSession(function, [images], [spec("y", shape=None)]), runtime="paddle")


def test_declared_sizes_of_paddle_s_models_are_a_hint() -> None:
    image = np.ones((1, 3, 640, 640), np.float32)
    assert image_model().run({"x": image})["y"].shape == image.shape
    strict = Model(image_model().session, runtime="onnx")
    with pytest.raises(InputMismatch, match=r"expected the shape \[\?, 3, 608, 608\]"):
        strict.run({"x": image})


@pytest.mark.parametrize("kind", [InferenceFailed, InputMismatch])
def test_a_size_that_fails_in_the_library_is_the_callers_error_with_both_shapes(kind) -> None:
    def fail(feeds):
        raise kind("conv2d: sizes")

    model = image_model(fail)
    both = r"'x' expected the shape \[\?, 3, 608, 608\], got \[1, 3, 7, 7\]: conv2d: sizes"
    with pytest.raises(InputMismatch, match=both):
        model.run({"x": np.ones((1, 3, 7, 7), np.float32)})
    with pytest.raises(kind, match=r"^conv2d: sizes"):
        model.run({"x": np.ones((2, 3, 608, 608), np.float32)})
