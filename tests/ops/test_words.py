"""One set of words for the options of ops in the short form."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from penstock import App, Model, Op, PipelineServer, ResponseOp, op
from penstock.config.op import OpConfig
from penstock.config.section import keys_of
from penstock.errors import ConfigError, GraphError
from penstock.ops import words
from penstock.service.blueprint import Blueprint
from tests.service.in_process import blueprint_of, root


def test_the_words_cover_all_options_of_ops() -> None:
    parameters = {*inspect.signature(Op).parameters} - {"name", "input_ops"}
    assert {*words.PARAMETERS} == parameters
    assert {*words.FURTHER} == {*keys_of(OpConfig)} - parameters
    assert {*words.WORDS} <= parameters


SAME: dict[str, Any] = {"batch": 8, "wait": 5, "workers": 2, "timeout": 0.25, "retry": 3}
OLD = {"batch_size": 8, "auto_batching_timeout": 5, "concurrency": 2}


def of_function(**options: Any) -> Blueprint:
    made = op(name="x", **options)(lambda requests: requests)
    made.set_input_ops([root()])
    return blueprint_of(made)


def of_model(**options: Any) -> Blueprint:
    return blueprint_of(Model("m.onnx", root(), name="x", **options))


def of_route(**options: Any) -> Blueprint:
    app = App("a")
    app.route("/x", **options)(echo)
    (service,) = app.services
    service.prepare_beside({})
    return service.blueprint()


def echo(x: list[int]) -> list[int]:
    return x


FORMS = pytest.mark.parametrize("form", [of_function, of_route])


@FORMS
def test_every_form_has_the_same_words_with_the_same_units(form: Any) -> None:
    made = form(**SAME, executor="process", max_batches=7)
    (found,) = made.options
    assert (found.batch_size, found.window, found.concurrency) == (8, 0.005, 2)
    assert (found.timeout, found.retry) == (0.25, 3)
    assert (found.executor.name, found.max_batches) == ("process", 7)
    assert made.warnings == ()


def test_a_model_has_them_too() -> None:
    made = Model("m.onnx", **SAME, executor="process", pad={"enabled": True})
    assert made.given is not None
    assert made.given.parameters == {**OLD, "timeout": 250, "retry": 3}
    assert made.given.keys == {"executor": "process", "pad": {"enabled": True}}


@pytest.mark.parametrize("key", OLD)
@FORMS
def test_an_old_word_is_accepted_with_a_hint(form: Any, key: str) -> None:
    options = {"batch": 2, key: OLD[key]} if key != "batch_size" else {key: 1}
    made = form(**options)
    word = words.WORDS[key]
    (hint,) = (each for each in made.warnings if "is called" in each)
    assert hint.endswith(f": {key} is called {word} here: write {word}={options[key]}")
    assert made.options[0].concurrency == options.get("concurrency", 1)


@pytest.mark.parametrize(
    ("options", "file", "workers"),
    [
        ({}, {}, 64),
        ({"workers": 3}, {}, 3),
        ({}, {"concurrency": 5}, 5),
        ({"batch": 8}, {}, 1),
        ({"executor": "external", "socket": "s"}, {}, 1),
        ({}, {"executor": "external", "socket": "s"}, 1),
    ],
)
def test_an_async_function_of_one_request_has_many_calls_in_flight_by_default(
    options: dict[str, Any], file: dict[str, Any], workers: int
) -> None:
    async def waits(request: Any) -> Any:
        return request

    made = op(name="x", **options)(waits)
    made.set_input_ops([root()])
    drawn = blueprint_of(made, {"op": {"x": file}})
    assert drawn.options[0].concurrency == workers
    assert drawn.warnings == ()


def test_a_class_with_an_async_method_has_one_worker_by_default() -> None:
    class Waits:
        async def predict(self, request: Any) -> Any:
            return request

    made = op()(Waits)
    made.set_input_ops([root()])
    assert blueprint_of(made).options[0].concurrency == 1


@FORMS
def test_a_wait_that_was_meant_in_seconds_has_a_hint(form: Any) -> None:
    (hint,) = form(batch=2, wait=0.05).warnings
    assert hint.endswith("wait is in milliseconds: 0.05 s would be wait=50")
    assert form(batch=2, wait=0.5).warnings == ()


def test_a_word_beside_its_old_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="op 'm': workers and concurrency are one option: leave"):
        Model("m.onnx", workers=2, concurrency=2)
    with pytest.raises(ConfigError, match=r"route\('/x'\): batch and batch_size are one option"):
        App("a").route("/x", batch=2, batch_size=2)


@pytest.mark.parametrize("timeout", ["1", True, float("inf"), float("nan")])
@FORMS
def test_a_timeout_that_is_no_number_of_seconds_is_refused(form: Any, timeout: Any) -> None:
    with pytest.raises(ConfigError, match=r"timeout is a number of seconds, such as 0\.5, not"):
        form(timeout=timeout)


@pytest.mark.parametrize(
    ("timeout", "limit"),
    [
        (0, None),
        (-1, None),
        (0.0001, 0.001),
        (1.5, 1.5),
        (99, 99.0),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
    ],
)
def test_a_timeout_is_in_seconds_and_a_short_one_is_still_a_limit(
    timeout: float, limit: float | None
) -> None:
    made = of_function(batch=1, timeout=timeout)
    assert made.options[0].timeout == limit
    assert made.warnings == ()


@FORMS
def test_a_timeout_that_was_meant_in_milliseconds_has_a_hint(form: Any) -> None:
    made = form(batch=1, timeout=500)
    assert made.options[0].timeout == 500
    (hint,) = made.warnings
    assert hint.endswith("timeout is in seconds here: 500 ms would be timeout=0.5")


def test_a_timeout_that_is_no_number_is_refused() -> None:
    for timeout in (10**400, 1e308, float("nan"), True, "1"):
        with pytest.raises(ConfigError, match="timeout is a number of seconds"):
            of_function(timeout=timeout)


def test_a_wrong_value_within_a_key_is_reported_where_the_key_was_given() -> None:
    with pytest.raises(ConfigError) as caught:
        of_route(pad={"inputs": {"x": "n"}})
    (problem,) = caught.value.problems
    assert problem.startswith("route('/x'): pad.inputs.x: ")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch": 0}, "batch: must be at least 1, got 0"),
        ({"workers": 0}, "workers: must be at least 1, got 0"),
    ],
)
def test_a_wrong_value_is_refused_by_its_word(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of_function(**options)
    assert caught.value.problems == [f"op 'x': {problem}"]
    with pytest.raises(ConfigError) as caught:
        of_route(**options)
    assert caught.value.problems == [f"route('/x'): {problem}"]


def test_code_overrides_a_file_and_a_flag_overrides_both() -> None:
    made = op(name="x", executor="process", workers=2)(lambda request: request)
    made.set_input_ops([root()])
    file = {"op": {"x": {"executor": "inline", "concurrency": 3}}}
    (found,) = blueprint_of(made, file).options
    assert (found.executor.name, found.concurrency) == ("process", 2)
    (found,) = blueprint_of(made, file, {"op.x.executor": "thread", "op.x.concurrency": 4}).options
    assert (found.executor.name, found.concurrency) == ("thread", 4)


def test_a_route_and_its_app_may_both_configure_an_op() -> None:
    app = App("a", op={"echo": {"max_batches": 5, "executor": "process", "concurrency": 3}})
    app.route("/x", workers=2, memory_limit_mib=64)(echo)
    (service,) = app.services
    service.prepare_beside({})
    (found,) = service.blueprint().options
    assert (found.max_batches, found.memory_limit, found.concurrency) == (5, 64 << 20, 2)


@pytest.mark.parametrize("form", [of_function, of_route])
def test_a_function_of_one_request_refuses_a_larger_batch_size(form: Any) -> None:
    text = "batch_size must be 1, got 4: the op is a function, which runs for one request at a time"
    with pytest.raises(ConfigError, match=f"{text}: write batch=4 above it"):
        form(batch_size=4)


def test_a_warning_about_an_option_names_the_word_that_was_written() -> None:
    made = of_function(batch=1, wait=5)
    assert made.warnings == ("op 'x' has a batch of 1: its wait of 5 ms has no effect",)


def test_a_graph_whose_ops_have_keys_is_given_before_its_configuration_is_loaded() -> None:
    made = op(name="x", executor="process")(lambda request: request)
    made.set_input_ops([root()])
    server = PipelineServer("s")
    server._load(None, {"rpc_port": 0})
    with pytest.raises(GraphError, match="call set_response_op before prepare_server"):
        server.set_response_op(ResponseOp(input_ops=[made]))
