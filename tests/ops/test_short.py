"""Models and functions as ops, without classes and without configuration."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock import Caller, FunctionOp, Model, Op, Service, op
from penstock.errors import ConfigError, GraphError, HookError, InputMismatch, StartupError
from penstock.ops.ends import RequestOp, ResponseOp
from tests.kit.onnx_models import save, scale
from tests.service.in_process import blueprint_of, pairs, service_of


def response_op_of(last: Op) -> ResponseOp:
    """A Service's whole graph, to run in the test process."""
    return ResponseOp(input_ops=[Service("s", last).get_pipeline_response(RequestOp())])


async def call(last: Op, **feed: Any) -> Any:
    async with service_of(response_op_of(last)) as service:
        return await service.call(**feed)


# Functions


async def test_a_single_function_of_the_request_is_a_graph() -> None:
    @op()
    def shout(request: Any) -> Any:
        return {"loud": request["text"].upper()}

    assert pairs(await call(shout, text="hello")) == {"loud": "HELLO"}


async def test_functions_get_the_dicts_of_their_inputs_in_order() -> None:
    @op()
    def first(request: Any) -> Any:
        return {"v": request["text"] + "1"}

    @op()
    def second(request: Any) -> Any:
        return {"v": request["text"] + "2"}

    @op(second, first, name="both")
    def join(a: Any, b: Any) -> Any:
        return {"v": a["v"] + b["v"]}

    assert join.name == "both"
    assert pairs(await call(join, text="x")) == {"v": "x2x1"}


def both_kinds(function: Any) -> tuple[Any, Any]:
    """A function, and a coroutine function that does the same."""

    @functools.wraps(function)
    async def as_coroutine(*args: Any) -> Any:
        return function(*args)

    return function, as_coroutine


@pytest.mark.parametrize("function", both_kinds(lambda request: {}))
def test_a_function_gets_one_request_at_a_time_and_refuses_a_batch_size(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"op 'f': batch_size must be 1, got 4: .* a function"):
        blueprint_of(response_op_of(op(name="f", batch_size=4)(function)))
    with pytest.raises(ConfigError, match=r"op 'f': batch_size must be 1, got 3: .* a function"):
        blueprint_of(response_op_of(op(name="f")(function)), {"op": {"f": {"batch_size": 3}}})


@pytest.mark.parametrize("function", both_kinds(lambda request: ({}, 51, "no cat")))
async def test_a_function_may_declare_a_product_error(function: Any) -> None:
    reply = await call(op()(function), text="x")
    assert (reply.err_no, reply.err_msg) == (51, "no cat")


@pytest.mark.parametrize("function", both_kinds(lambda request: 5))
async def test_a_function_that_returns_no_dict_is_an_error_with_its_name(function: Any) -> None:
    reply = await call(op(name="n")(function), text="x")
    assert reply.err_no == 10000
    assert "n must return a dict, got int" in reply.err_msg


async def test_a_join_that_misses_an_input_is_an_error_with_the_present_ones() -> None:
    @op()
    def left(request: Any) -> Any:
        return {"v": "1"}

    @op()
    def right(request: Any) -> Any:
        return {"v": "2"}

    @op(left, right)
    def join(a: Any, b: Any = None) -> Any:
        return {"v": "joined"}

    # Inline, so that the first op to finish is the first in the list.
    inline = {name: {"executor": "inline"} for name in ("left", "right")}
    first = {"dag": {"channel_recv_frist_arrive": True}, "op": inline}
    async with service_of(response_op_of(join), first) as service:
        reply = await service.call(text="x")
    assert reply.err_no == 3000
    assert "op 'join' got the dict of left only" in reply.err_msg


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(GraphError, match=r"^op 'f': unexpected option time_out; did you mean time"):
        op(name="f", time_out=3)(lambda request: {})
    with pytest.raises(GraphError, match=r"^op 'm': unexpected option batchsize; did you mean bat"):
        Model("m.onnx", batchsize=3)
    with pytest.raises(GraphError, match=r"unexpected option xyz: they are .*, workers, timeout, "):
        op(xyz=3)(lambda request: {})
    with pytest.raises(GraphError, match=r"unexpected option input_ops: the ops before it are gi"):
        op(input_ops=[])(lambda request: {})


def test_a_decorated_function_can_be_called() -> None:
    @op()
    def double(request: Any) -> Any:
        return request * 2

    assert isinstance(double, FunctionOp)
    assert double(3) == 6


@pytest.mark.parametrize("function", [lambda: {"a": 1}, lambda a, b: {}, lambda a, *, must: {}])
def test_a_function_with_other_arguments_is_refused_at_decoration(function: Any) -> None:
    with pytest.raises(HookError, match="op 'f': the function gets one dict, that of the req"):
        op(name="f")(function)


def test_a_function_of_several_ops_is_refused_with_the_number_of_dicts() -> None:
    words = "op 'f': the function gets 2 dicts, those of a and b, but does not accept that"
    with pytest.raises(HookError, match=words):
        op(Op("a"), Op("b"), name="f")(lambda a: {})


def test_a_generator_of_batches_is_refused_at_decoration() -> None:
    def count(request: Any) -> Any:
        yield {}

    with pytest.raises(HookError, match=r"op 'f': the function is a generator.*leave out batch"):
        op(name="f", batch=4)(count)


def test_calls_of_an_asynchronous_generator_share_the_loop() -> None:
    async def count(request: Any) -> Any:
        yield {}

    (options,) = blueprint_of(response_op_of(op(name="f")(count))).options
    assert options.concurrency == 64


def test_a_decorator_without_brackets_is_refused_with_the_fix() -> None:
    with pytest.raises(GraphError, match=r"write @op\(\), with brackets"):

        @op  # type: ignore[arg-type]
        def forgotten(request: Any) -> Any:
            return request


async def test_a_function_accepts_the_options_of_an_op() -> None:
    @op(timeout=0.03, retry=2, workers=2)
    async def slow(request: Any) -> Any:
        await asyncio.Event().wait()

    assert (slow.timeout, slow.retry, slow.concurrency) == (30, 2, 2)
    assert (await call(slow, text="x")).err_no == 6000


@pytest.mark.parametrize("executor", ["thread", "inline"])
async def test_arrays_of_several_requests_are_not_joined_for_a_function(executor: str) -> None:
    @op(workers=1)
    def rows(request: Any) -> Any:
        return {"rows": str(len(request["x"]))}

    async with service_of(
        response_op_of(rows), {"op": {"rows": {"executor": executor}}}
    ) as service:
        asks = [service.call(x=np.ones((1, 2), dtype=np.float32)) for _ in range(8)]
        replies = await asyncio.gather(*asks)
    assert [pairs(reply) for reply in replies] == [{"rows": "1"}] * 8


# Classes


class Counter:
    """Counts its calls, from where ``load`` begins."""

    made: ClassVar[list[Counter]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.closed = False

    async def load(self) -> None:
        await asyncio.sleep(0)
        self.count = 100

    def predict(self, request: Any) -> Any:
        self.count += 1
        return {"count": str(self.count)}

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def no_counters() -> None:
    Counter.made.clear()


async def test_a_class_is_an_op_whose_object_is_loaded_once_and_closed() -> None:
    count = op()(Counter)
    assert count.name == "Counter"
    async with service_of(response_op_of(count)) as service:
        replies = [pairs(await service.call(text="x")) for _ in range(2)]
    assert replies == [{"count": "101"}, {"count": "102"}]
    (made,) = Counter.made
    assert made.closed


async def test_each_worker_has_an_object_of_its_own() -> None:
    async with service_of(response_op_of(op(workers=3)(Counter))):
        assert len(Counter.made) == 3
    assert [each.closed for each in Counter.made] == [True] * 3


class Batches:
    def predict(self, left: Any, right: Any) -> Any:
        return [{"v": a["v"] + b["v"]} for a, b in zip(left, right, strict=True)]


class BatchesAsync:
    async def inference(self, left: Any, right: Any) -> Any:
        return Batches().predict(left, right)


class Static:
    @staticmethod
    def predict(left: Any, right: Any) -> Any:
        return Batches().predict(left, right)


@pytest.mark.parametrize("kind", [Batches, BatchesAsync, Static])
async def test_a_class_may_take_batches_of_several_ops(kind: Any) -> None:
    left = op(name="left")(lambda request: {"v": request["text"] + "1"})
    right = op(name="right")(lambda request: {"v": request["text"] + "2"})
    joined = op(left, right, batch=1)(kind)
    assert pairs(await call(joined, text="x")) == {"v": "x1x2"}


class ForCaller:
    def predict(self, request: Any, caller: Caller | None) -> Any:
        return {"caller": repr(caller)}


async def test_a_class_may_ask_for_the_caller() -> None:
    assert pairs(await call(op()(ForCaller), text="x")) == {"caller": "None"}


class Fails(Counter):
    def predict(self, request: Any) -> Any:
        raise ValueError("no")


async def test_an_error_names_class_and_method(caplog: pytest.LogCaptureFixture) -> None:
    assert (await call(op()(Fails), text="x")).err_no == 10000
    assert "Fails.predict raised" in caplog.text


class FailsToLoad:
    def load(self) -> None:
        raise ValueError("no weights")

    def predict(self, request: Any) -> Any:
        return request


async def test_a_failure_at_the_start_names_the_step() -> None:
    text = r"op 'FailsToLoad': FailsToLoad\.load failed: .*no weights"
    with pytest.raises(StartupError, match=text):
        await call(op()(FailsToLoad))


class Around:
    def preprocess(self, request: Any) -> Any:
        return request

    def predict(self, request: Any) -> Any:
        return request


class Nothing:
    def __call__(self, request: Any) -> Any:
        return request


class TakesTwo:
    def predict(self, a: Any, b: Any) -> Any:
        return a


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Around, r"Around\.preprocess would not run: make an op of its own of it, or call it in"),
        (Nothing, "Nothing has no method inference or predict: .*; rename __call__ to predict"),
        (TakesTwo, r"op 'TakesTwo': TakesTwo\.predict gets one dict, that of the request, but do"),
    ],
)
def test_a_class_that_is_no_op_is_refused_at_decoration(kind: Any, words: str) -> None:
    with pytest.raises(HookError, match=words):
        op()(kind)


def test_the_start_s_report_names_the_load_of_a_class() -> None:
    count = op()(Counter)
    assert (count.loads, count.hook_name("init_op")) == (True, "Counter.__init__ and Counter.load")
    assert not op(Op("a"), Op("b"))(Batches).loads


# Models


async def test_two_models_side_by_side_joined_by_a_function(tmp_path: Path) -> None:
    left, right = Model(scale(tmp_path / "left.onnx", 10)), Model(scale(tmp_path / "r.onnx", 100))

    @op(left, right)
    def combine(left: Any, right: Any) -> Any:
        return {"mean": (left["y"] + right["y"]) / 2}

    assert [left.name, right.name] == ["left", "r"]
    expected = {"mean": "array([[ 55., 110., 165.]], dtype=float32)"}
    assert pairs(await call(combine, x="[[1, 2, 3]]")) == expected
    assert pairs(await call(combine, x=np.array([[1, 2, 3]], dtype=np.float32))) == expected


async def test_a_model_may_read_another_op(tmp_path: Path) -> None:
    @op()
    def ones(request: Any) -> Any:
        return {"x": np.ones((1, 3), dtype=np.float32)}

    model = Model(scale(tmp_path / "m.onnx", 10), ones, name="ten", fetch_list=["twice"])
    assert pairs(await call(model, any="thing")) == {
        "twice": "array([[20., 20., 20.]], dtype=float32)"
    }


async def test_a_model_takes_its_inputs_by_name_from_further_outputs_of_the_model_before_it(
    tmp_path: Path,
) -> None:
    first = Model(scale(tmp_path / "first.onnx", 10))
    text = "(float[n, 3] twice) => (float[n, 3] z) { z = Neg(twice) }"
    save(tmp_path / "second.onnx", text)
    reply = await call(Model(tmp_path / "second.onnx", first), x="[[1, 2, 3]]")
    assert pairs(reply) == {"z": "array([[-20., -40., -60.]], dtype=float32)"}


async def test_a_wrong_input_name_is_an_error_with_the_model_s_names(tmp_path: Path) -> None:
    reply = await call(Model(scale(tmp_path / "m.onnx", 10)), z="[[1, 2, 3]]")
    assert reply.err_no == 5000
    assert "the model takes ['x'], got ['z']" in reply.err_msg


@pytest.mark.parametrize("value", [b"raw", None, {"a": 1}, object()])
def test_a_value_that_is_no_array_is_an_input_mismatch(value: object) -> None:
    with pytest.raises(InputMismatch, match="'x' is no array: it is of type"):
        Model("m.onnx").preprocess({"@DAGExecutor": {"x": value}})


def test_numbers_and_lists_become_arrays() -> None:
    fed = Model("m.onnx").preprocess({"@DAGExecutor": {"x": 3, "y": [[1.5]], "t": ["a"]}})
    assert fed["x"].shape == ()
    assert fed["y"].shape == (1, 1)
    assert fed["t"].tolist() == ["a"]


def test_a_text_that_is_no_array_is_an_input_mismatch_and_is_not_repeated() -> None:
    model = Model("m.onnx")
    with pytest.raises(InputMismatch, match="'x' is no array") as caught:
        model.preprocess({"@DAGExecutor": {"x": "__import__('os')"}})
    assert "import" not in str(caught.value)


def test_a_model_with_two_inputs_is_refused() -> None:
    with pytest.raises(GraphError, match="op 'm': a Model reads one op"):
        Model("m.onnx", [Op("a"), Op("b")])  # type: ignore[arg-type]


# Services


def test_a_service_whose_last_op_is_no_op_is_refused() -> None:
    with pytest.raises(GraphError, match="Service 's' needs the last op of its graph"):
        Service("s", lambda request: request)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("models/double.onnx", "double"),
        ("models/double", "double"),
        ("models/double/12", "double"),
        ("models/double/12.onnx", "12"),
        ("12", "12"),
        ("../12", "12"),
    ],
)
def test_a_model_is_named_by_its_file_or_the_folder_of_its_versions(path: str, name: str) -> None:
    assert Model(path).name == name
