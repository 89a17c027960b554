"""What a typed op accepts as its function or class, and how it is started."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from penstock import App, Response
from penstock.errors import HookError
from penstock.testing import client
from penstock.typed.op import TypedOp


class Item(BaseModel):
    x: int


def add(x: int, y: int = 1) -> int:
    """Adds."""
    return x + y


async def wait(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1


def scaled(by: int, item: Item) -> int:
    return by * item.x


def only_keyword(*, item: Item) -> int:
    return item.x + 1


def around(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        return function(*args, **more)

    return call


def unnamed(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        raise AssertionError

    return call


class Adder:
    def __call__(self, x: int) -> int:
        return x + 1


class Waiter:
    async def __call__(self, x: int) -> int:
        return x + 1


class Methods:
    @staticmethod
    def static(x: int) -> int:
        return x + 1

    @classmethod
    def of_class(cls, x: int) -> int:
        return x + 1

    def method(self, x: int, y: int = 1) -> int:
        return x + y

    partial = functools.partialmethod(method, y=1)


class Static:
    @staticmethod
    def predict(x: int) -> int:
        return x + 1


class OfClass:
    @classmethod
    def predict(cls, x: int) -> int:
        return x + 1


class Partial:
    def _add(self, x: int, y: int) -> int:
        return x + y

    predict = functools.partialmethod(_add, y=1)


class Member:
    predict = Adder()


class StaticSteps:
    @staticmethod
    def preprocess(x: int) -> int:
        return 10 * x

    def inference(self, x: int) -> int:
        return x + 10

    @classmethod
    def postprocess(cls, y: int) -> int:
        return y // 10


class Loaded:
    async def load(self) -> None:
        await asyncio.sleep(0)
        self.by = 1

    def predict(self, x: int) -> int:
        return x + self.by


class LoadedAround:
    def __init__(self) -> None:
        self.load = around(self._load)

    async def _load(self) -> None:
        self.by = 1

    async def predict(self, x: int) -> int:
        return x + self.by


@pytest.mark.parametrize(
    "target",
    [
        functools.partial(add, y=1),
        functools.partial(add, 1),
        functools.partial(functools.partial(scaled, by=2)),
        functools.partial(wait),
        around(add),
        functools.lru_cache(add),
        only_keyword,
        Adder(),
        Waiter(),
        Methods.static,
        Methods.of_class,
        Methods().method,
        Methods().partial,
        Methods.__dict__["static"],
        Static,
        OfClass,
        Partial,
        Member,
        StaticSteps,
        Loaded,
        LoadedAround,
    ],
)
def test_functions_and_classes_of_every_form_are_served(target: Any) -> None:
    app = App("forms")
    app.route("/it")(target)
    with client(app) as http:
        member = "y" if getattr(target, "args", None) else "x"  # of a partial that gives x
        answer = http.post("/it", json={member: 1})
        assert (answer.status_code, answer.json()) == (200, 2)
        assert http.post("/it", json={"x": "text", "y": "text"}).status_code == 422


class Unbound:
    def method(self, x: int) -> int:
        return x

    @classmethod
    def of_class(cls, x: int) -> int:
        return x


class WaitsBefore:
    async def preprocess(self, x: int) -> int:
        return x

    def predict(self, x: int) -> int:
        return x


class WaitsAfter:
    def predict(self, x: int) -> int:
        return x

    async def postprocess(self, x: int) -> int:
        return x


class YieldsBefore:
    def preprocess(self, x: int) -> Iterator[int]:
        yield x

    def predict(self, x: int) -> int:
        return x


class Called:
    def __call__(self, x: int) -> int:
        return x


class NoMethod:
    @property
    def predict(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            Unbound.method,
            r"Unbound.method is a method without its object: .*\(Unbound\(\).method\)",
        ),
        (Unbound.__dict__["of_class"], "Unbound.of_class is a class method without its class"),
        (unnamed(add), "instead of .args.*; a decorator keeps those of its function"),
        (Unbound(), "an object of Unbound cannot be called: give"),
        (WaitsBefore, "WaitsBefore.preprocess returns a coroutine, .*: write def preprocess"),
        (WaitsAfter, "WaitsAfter.postprocess returns a coroutine, .*: write def postprocess"),
        (YieldsBefore, "YieldsBefore.preprocess is a generator: write return"),
        (Called, "Called has no method inference or predict: .*; rename __call__ to predict"),
        (NoMethod, "NoMethod.predict is a property, no method"),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start_with_the_fix(
    target: Any, words: str
) -> None:
    with pytest.raises(HookError, match=words):
        TypedOp(target, batched=False)


class Deceptive:
    """Returns coroutines from plain functions."""

    def preprocess(self, step: str) -> Any:
        return wait(1) if step == "preprocess" else step

    def predict(self, step: str) -> Any:
        return wait(1) if step == "predict" else step

    def postprocess(self, step: str) -> Any:
        return wait(1) if step == "postprocess" else step


@pytest.mark.parametrize("step", ["preprocess", "predict", "postprocess"])
def test_a_coroutine_from_a_plain_function_is_an_error_with_the_method(
    step: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("deceptive")
    app.route("/it")(Deceptive)
    with client(app) as http:
        assert http.post("/it", json={"step": step}).status_code == 500
    assert f"Deceptive.{step} return" in str(caplog.records[-1].exc_info)


def test_a_coroutine_function_in_a_plain_decorator_gets_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("wrapped")
    app.route("/it")(around(wait))
    with client(app):
        assert "op 'wait' is a coroutine inside a plain function" in caplog.text


def reserved(
    _private: int, model_config: int, json: str, copy: bool = False, self: int = 5
) -> list[Any]:
    return [_private, model_config, json, copy, self]


def test_names_that_pydantic_reserves_can_be_parameters() -> None:
    app = App("reserved")
    app.route("/it")(reserved)
    with client(app) as http:
        body = {"_private": 1, "model_config": 2, "json": "a"}
        assert http.post("/it", json=body).json() == [1, 2, "a", False, 5]
        assert http.post("/it", json={**body, "copy": True, "self": 6}).json()[3:] == [True, 6]
        missing = http.post("/it", json={"_private": 1, "model_config": "x"}).json()
        places = [each["loc"] for each in missing["details"]]
        assert places == [["body", "model_config"], ["body", "json"]]
        schema = http.get("/openapi.json").json()["components"]["schemas"]["ReservedRequest"]
        assert list(schema["properties"]) == ["_private", "model_config", "json", "copy", "self"]
        assert schema["required"] == ["_private", "model_config", "json"]


def yields_bare(x: int) -> Iterator:  # type: ignore[type-arg]
    yield x


def yields_int(x: int) -> int:  # type: ignore[misc]
    yield x


def yields_files(x: int) -> Iterator[Response[int]]:
    yield Response(x)


def yields_numbers(x: int) -> Iterator[int]:
    yield x


def returns_an_iterator(x: int) -> Iterator[int]:
    return iter([x])


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (yields_bare, {}, "yields_bare is a generator: write -> Iterator"),
        (yields_int, {}, "yields_int is a generator: write -> Iterator"),
        (yields_files, {}, "cannot be a Response or a File"),
        (returns_an_iterator, {}, "write yield from it"),
        (yields_numbers, {"batched": True}, "leave out batch"),
        (yields_numbers, {"status": 204}, "an answer with 204 has no body"),
    ],
)
def test_a_generator_that_cannot_be_served_is_refused_at_the_start(
    target: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(HookError, match=words):
        TypedOp(target, **{"batched": False, **options})


def test_a_response_among_pieces_is_refused_when_it_is_yielded() -> None:
    def spell(x: int):  # type: ignore[no-untyped-def]
        yield Response(x, headers={"x-lost": "1"})

    op = TypedOp(spell, batched=False)
    op.init_op()
    feed = op.preprocess({"@": {"x": 1}})
    (piece,) = op.process([feed], 0)
    with pytest.raises(TypeError, match="it yielded a Response"):
        op.postprocess({"@": {"x": 1}}, piece)
