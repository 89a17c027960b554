"""An op's options, its model's signature and the probe together decide how it is batched."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import Op, op
from penstock.batching.decision import Batching
from penstock.config.op import OpConfig
from penstock.config.resolve import CONSTRUCTOR, OpOptions, resolve_op
from penstock.errors import ModelError
from penstock.executors.kinds import EXTERNAL, THREAD
from penstock.runtimes.model import Model
from penstock.service.batches import batched, batching_of, sized
from penstock.tensor import TensorSpec
from tests.batching.test_rows import spec
from tests.kit.python_session import PythonSession


def options_of(made: Op, executor: Any, **entry: Any) -> OpOptions:
    arguments = {key: getattr(made, key) for key in CONSTRUCTOR}
    return resolve_op(made.name, arguments, OpConfig.model_validate(entry), executor)


def decided(made: Op, model: Model | None = None, executor: Any = THREAD, **entry: Any) -> Batching:
    return batching_of(made, options_of(made, executor, **entry), model)


def model_of(function: Any, *inputs: TensorSpec, output: TensorSpec | None = None) -> Model:
    """A model that calls a function with its inputs' arrays, for the output y."""
    output = output or spec("y", None)

    def run(feed: Any) -> Any:
        return {output.name: function(*[feed[each.name] for each in inputs])}

    return Model(PythonSession(run, inputs, [output]))


X = spec("x", None, 2)


class Alike(Op):
    pass


class Own(Op):
    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        return feed_batch[0]


def test_a_model_op_is_batched_by_what_the_probe_finds() -> None:
    assert decided(Alike("a"), model_of(lambda x: x[:, 0], X), batch_size=4).by == "rows"
    mean = decided(Alike("a"), model_of(lambda x: x.mean(0), X), batch_size=4)
    assert mean.by is None
    assert "output 'y' has no row axis" in str(mean.warning)
    options = batched(options_of(Alike("a"), THREAD, batch_size=4), mean)
    assert (options.batch_size, options.joining, options.splits) == (1, None, False)


def test_without_batches_there_is_no_probe() -> None:
    def never(x: Any) -> Any:
        raise AssertionError("it ran")

    assert decided(Alike("a"), model_of(never, X)).why == "its batch_size is 1"


@pytest.mark.parametrize(
    ("made", "executor", "by"),
    [
        (Own("a", batch_size=4), THREAD, "first axes"),
        (op(name="f", batch=4)(lambda feeds: feeds), THREAD, "requests"),
        (Own("a", batch_size=4), EXTERNAL, "requests"),
        (Alike("a", batch_size=4, server_endpoints=["127.0.0.1:9"]), THREAD, "first axes"),
    ],
)
def test_code_of_the_author_and_other_servers_are_batched_by_their_word(
    made: Op, executor: Any, by: str
) -> None:
    assert decided(made, None, executor).by == by


def test_strict_verification_ends_the_start() -> None:
    model = model_of(lambda x: x[:, 0] - x.mean(), X)
    with pytest.raises(ModelError, match="op 'a': batches change its answers: output 'y' has"):
        decided(Alike("a"), model, batch_size=4, verify_batches="strict")
    assert decided(Alike("a"), model, batch_size=4, verify_batches="off").by == "rows"


def test_options_that_name_no_tensor_end_the_start() -> None:
    model = model_of(lambda x: x[:, 0], X)
    with pytest.raises(ModelError, match="op 'a': rows: the model has no 'z'"):
        decided(Alike("a"), model, batch_size=4, rows={"z": 0})


def test_examples_come_from_files_or_the_op(tmp_path: Path) -> None:
    def sevens(x: Any) -> Any:
        if not (x == 7).all():
            raise ValueError("only sevens")
        return x[:, 0]

    np.savez(tmp_path / "a.npz", x=np.full((1, 2), 7, "f4"))
    model = model_of(sevens, X)
    entry = {"batch_size": 4, "examples": [str(tmp_path / "a.npz")]}
    assert decided(Alike("a"), model, **entry).by == "rows"
    made = Alike("a")
    made.examples = [{"x": np.full((3, 2), 7, "f4")}]
    assert decided(made, model, batch_size=4).by == "rows"
    alone = decided(Alike("a"), model, batch_size=4)
    assert "only sevens" in str(alone.warning)
    with pytest.raises(ModelError, match=r"examples: .*none.npz cannot be read"):
        decided(Alike("a"), model, batch_size=4, examples=[str(tmp_path / "none.npz")])
    np.save(tmp_path / "one.npy", np.zeros(3, "f4"))
    with pytest.raises(ModelError, match=r"one.npy is one array.*numpy.savez"):
        decided(Alike("a"), model, batch_size=4, examples=[str(tmp_path / "one.npy")])


def test_a_model_of_a_fixed_number_of_rows_is_split_where_its_outputs_have_them_too() -> None:
    fixed = spec("x", 2, 3)
    follows = model_of(lambda x: x[:, 0], fixed, output=spec("y", 2))
    assert decided(Alike("a"), follows, batch_size=2, batch_rows=True).by == "rows"
    boxes = model_of(lambda x: x[:, 0], fixed, output=spec("y", None))
    found = decided(Alike("a"), boxes, batch_size=2, batch_rows=True)
    assert found.by is None
    assert "its requests are not split" in str(found.warning)
    said = decided(Alike("a"), boxes, batch_size=2, batch_rows=True, rows="first")
    assert said.by == "rows"


@pytest.mark.parametrize(
    ("entry", "by", "most", "number"),
    [
        ({"batch_size": 8}, None, 1, 1),
        ({"batch_size": 8, "batch_rows": True}, "rows", 2, 2),
        ({"batch_size": 1}, None, 1, None),
        ({"batch_size": 2, "batch_rows": True}, "rows", 2, None),
    ],
)
def test_another_batch_size_than_a_model_s_fixed_number_of_rows_is_a_warning(
    entry: dict[str, Any], by: str | None, most: int, number: int | None
) -> None:
    model = model_of(lambda x: x[:, 0], spec("x", 2, 3), output=spec("y", 2))
    made = Alike("a")
    found = decided(made, model, **entry)
    options = batched(sized(made, options_of(made, THREAD, **entry), model.inputs), found)
    assert (found.by, options.batch_size) == (by, most)
    text = (
        f"batch_size: 8 has no effect, since its model takes exactly 2 rows a run: write {number}"
    )
    assert found.warning == (None if number is None else text)
    if number is not None:
        with pytest.raises(ModelError, match="op 'a': batch_size: 8 has no effect"):
            decided(made, model, verify_batches="strict", **entry)
    made.batch_gives_way = True
    assert decided(made, model, **entry).warning is None


def test_padding_that_the_probe_refutes_is_left_out() -> None:
    x, y = spec("x", "n", "t"), spec("y", "n", "t")
    double = model_of(lambda x: 2 * x, x, output=y)
    centred = model_of(lambda x: x - x.mean(1, keepdims=True), x, output=y)
    entry = {"batch_size": 4, "pad": {"enabled": True}}
    assert decided(Alike("a"), double, **entry).padding is not None
    found = decided(Alike("a"), centred, **entry)
    assert (found.by, found.padding) == ("rows", None)
    assert "its requests are not padded: output 'y'" in str(found.warning)


def test_a_decision_reaches_another_process_as_plain_values() -> None:
    x, y = spec("x", "n", "t"), spec("y", "n", "t")
    model = model_of(lambda x: 2 * x, x, output=y)
    made, entry = Alike("a"), {"batch_size": 4, "pad": {"enabled": True}}
    found = decided(made, model, **entry)
    joining = options_of(made, THREAD, **entry).joining
    assert joining is not None
    assert Batching.of_plain(found.plain(), joining.padding) == found
