"""Classes with seats as typed routes: their types, and what is refused at the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Optional, Union

import pytest
from pydantic import Field

from penstock import App, Done, File
from penstock.errors import ConfigError, HookError
from penstock.typed.op import TypedOp
from penstock.typed.signature import response_of_step


@dataclass
class Token:
    text: str
    n: int


Result = str | Done | None


@pytest.mark.parametrize(
    ("returns", "schema"),
    [
        (list[str | Done | Exception | None], {"type": "string"}),
        (list[Result], {"type": "string"}),
        (list[str], {"type": "string"}),
        (list[Optional[Union[str, Done, ValueError]]], {"type": "string"}),  # noqa: UP007, UP045
        (list[int | str | Done], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (list[Annotated[str, Field(max_length=3)] | Done], {"type": "string", "maxLength": 3}),
        (list[Any], {}),
        (Any, {}),
    ],
)
def test_pieces_have_the_type_that_is_left_of_the_results_of_step(
    returns: Any, schema: dict[str, Any]
) -> None:
    def step(running: list[Any]) -> Any: ...

    step.__annotations__["return"] = returns
    assert response_of_step(step, "G.step").describe(refs="{model}") == schema


def test_pieces_may_be_models() -> None:
    def step(running: list[Any]) -> list[Token | Done | None]:
        return [None for _ in running]

    described = response_of_step(step, "G.step").describe(refs="{model}")
    assert [*described["properties"]] == ["text", "n"]


@pytest.mark.parametrize(
    ("returns", "words"),
    [
        (str, r"G.step returns a list .* write -> list\[str \| Done \| None\]"),
        (dict[str, str], "G.step returns a list"),
        (list[Done | None], "has no type of pieces"),
        (list[File | Done], "cannot be a Response or a File"),
    ],
)
def test_a_step_that_returns_no_list_of_pieces_is_refused(returns: Any, words: str) -> None:
    def step(running: list[Any]) -> Any: ...

    step.__annotations__["return"] = returns
    with pytest.raises(HookError, match=words):
        response_of_step(step, "G.step")


class Generate:
    def join(self, prompt: str, max_tokens: int = 64) -> Any:
        return prompt

    def step(self, running: list[Any]) -> list[str | Done]:
        return [Done("x") for _ in running]


def test_the_methods_have_their_own_names_in_messages() -> None:
    app = App("seats")
    app.post("/generate", seats=4)(Generate)
    (op,) = app._ops
    assert isinstance(op, TypedOp)
    assert op.hook_name("join") == "Generate.join"
    assert op.hook_name("process") == op.hook_name("step") == "Generate.step"


def blueprint_of(app: App) -> Any:
    (service,) = app.services
    service.prepare_beside({})
    return service.blueprint()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "Generate has join and step, which are for seats: write seats=8"),
        ({"seats": 4, "batch": 4}, "has seats, and batch: leave out batch"),
    ],
)
def test_seats_are_needed_and_exclude_batches(options: dict[str, Any], words: str) -> None:
    with pytest.raises(HookError, match=words):
        App("seats").post("/generate", **options)(Generate)


class WithPostprocess(Generate):
    def postprocess(self, piece: str) -> str:
        return piece


def test_a_method_that_would_not_run_is_refused() -> None:
    with pytest.raises(HookError, match=r"WithPostprocess.postprocess would not run"):
        App("seats").post("/generate", seats=4)(WithPostprocess)


def echo(text: str) -> str:
    return text


def test_seats_of_a_function_are_refused() -> None:
    with pytest.raises(HookError, match="echo has seats, and is no class"):
        App("seats").post("/echo", seats=4)(echo)


@pytest.mark.parametrize("seats", [0, 1.5, "many"])
def test_a_number_of_seats_is_a_whole_number(seats: Any) -> None:
    app = App("seats")
    app.post("/generate", seats=seats)(Generate)
    with pytest.raises(ConfigError, match="seats"):
        blueprint_of(app)


def test_seats_in_the_configuration_of_another_op_are_refused() -> None:
    app = App("seats", op={"echo": {"seats": 4}})
    app.post("/echo")(echo)
    with pytest.raises(ConfigError, match="seats are for a class with join and step"):
        blueprint_of(app)


@pytest.mark.parametrize("executor", ["inline", "external"])
def test_executors_without_seats_are_refused(executor: str) -> None:
    app = App("seats")
    more = {"socket": "x.sock"} if executor == "external" else {}
    app.post("/generate", seats=4, executor=executor, **more)(Generate)
    with pytest.raises(ConfigError, match=f"with the executor '{executor}' it cannot run"):
        blueprint_of(app)
