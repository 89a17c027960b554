"""Which parameter of a function or hook gets who calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import pytest

from penstock import App, Caller, Op, op
from penstock.errors import ConfigError, HookError, StartupError
from penstock.ops.callers import CallerParameter, caller_parameter
from penstock.ops.hooks import HookWithCaller, asks_caller, bind
from penstock.security.keys import line_of, new_key
from penstock.service import flags
from penstock.service.external_worker import bound_op
from penstock.testing import client
from tests.service.in_process import root

if TYPE_CHECKING:
    from elsewhere import Unknown  # type: ignore[import-not-found]

ANN = Caller(name="ann", how="key")


def needs(x: int, caller: Caller) -> str:
    return caller.name


def may(x: Unknown, who: Caller | None = None) -> None: ...


def written_as_of_old(x: int, who: Optional[Caller]) -> None: ...  # noqa: UP045


def batched(x: list[int], callers: list[Caller | None]) -> list[int]:
    return x


def without(caller: str, x: Unknown) -> Caller:
    return ANN


@pytest.mark.parametrize(
    ("function", "name", "required"),
    [(needs, "caller", True), (may, "who", False), (written_as_of_old, "who", False)],
)
def test_the_annotation_says_it(function: Callable[..., Any], name: str, required: bool) -> None:
    assert caller_parameter(function) == CallerParameter(name, required)


def test_other_functions_do_not_ask() -> None:
    assert caller_parameter(without) is None
    assert caller_parameter(partial(needs, caller=ANN)) is None
    assert caller_parameter(len) is None


def test_with_batch_it_is_a_list() -> None:
    assert caller_parameter(batched, batched=True) == CallerParameter("callers", False)
    with pytest.raises(HookError, match="the parameter caller must be list"):
        caller_parameter(needs, batched=True)
    with pytest.raises(HookError, match="the parameter callers must be Caller"):
        caller_parameter(batched)


def test_there_is_one_at_most() -> None:
    def two(a: Caller, b: Caller | None) -> None: ...

    with pytest.raises(HookError, match="a and b are both the caller"):
        caller_parameter(two)


class First(Op):
    def preprocess(self, input_dicts: Any, caller: Caller) -> Any:  # type: ignore[override]
        return input_dicts, caller


class Last(Op):
    def postprocess(  # type: ignore[override]
        self, input_data: Any, fetch_data: Any, log_id: int, *, who: Caller | None
    ) -> Any:
        return log_id, who


def test_hooks_of_every_generation_may_ask() -> None:
    first, last = First("first", input_ops=[root()]), Last("last", input_ops=[root()])
    assert (asks_caller(first), asks_caller(last)) == ("required", "optional")
    assert asks_caller(Op("quiet", input_ops=[root()])) is None
    hook = bind(first, "preprocess")
    assert type(hook) is HookWithCaller
    assert hook("i", 1, 2, caller=ANN) == ("i", ANN)
    assert bind(last, "postprocess")("i", "f", 1, 2, caller=ANN) == (2, ANN)


class Middle(Op):
    def preprocess(  # type: ignore[override]
        self, input_dicts: Any, caller: Caller, data_id: int = 0
    ) -> Any: ...


class InProcess(Op):
    def process(self, feed_batch: Any, caller: Caller) -> Any: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("kind", "hook", "why"),
    [
        (Middle, "preprocess", "write the parameter caller last"),
        (InProcess, "process", "take it in preprocess or postprocess"),
    ],
)
def test_other_places_are_refused(kind: type[Op], hook: str, why: str) -> None:
    with pytest.raises(HookError, match=why):
        bind(kind("wrong", input_ops=[root()]), hook)


def test_a_function_of_the_short_form_has_it_after_its_inputs() -> None:
    with pytest.raises(HookError, match="write the parameter caller last"):

        @op()
        def wrong(caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
            return request


class LateInClass:
    def preprocess(self, x: int) -> int:
        return x

    def predict(self, x: int, caller: Caller) -> int:
        return x


def test_a_class_takes_it_in_its_first_step() -> None:
    with pytest.raises(HookError, match=r"LateInClass.predict cannot ask .* take it in preprocess"):
        App("late").route("/x")(LateInClass)


def test_a_service_that_admits_everybody_has_none() -> None:
    app = App("everybody")

    @app.route("/who")
    def who(x: int, caller: Caller | None) -> str:
        return str(caller)

    with client(app) as http:
        assert http.post("/who", json={"x": 1}).json() == "None"


def test_an_op_that_needs_it_does_not_start_there() -> None:
    app = App("everybody")
    app.route("/needs")(needs)
    with (
        pytest.raises(StartupError, match=r"op 'needs' needs to know who calls.*`security`"),
        client(app),
    ):
        pass


@pytest.mark.parametrize(
    ("more", "good"),
    [({}, False), ({"security": {"keys_env": "KEYS"}}, True)],
    ids=["everybody", "with keys"],
)
def test_the_check_says_so_too(
    more: dict[str, Any], good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYS", line_of("ann", new_key(), ()))
    app = App("closed", **more)
    app.route("/needs")(needs)
    with flags.using(flags.Flags(check_only=True)) as now:
        if good:
            app.run()
            assert "are good" in now.reports[0]
        else:
            with pytest.raises(StartupError, match=r"op 'needs' needs to know who calls"):
                app.run()


def test_external_workers_do_not_get_it() -> None:
    with pytest.raises(HookError, match="an external worker does not get the Caller"):
        bound_op(needs)
    app = App("external")
    app.route("/x", batch=4, executor="external", socket="/tmp/never")(batched)
    with (
        pytest.raises(ConfigError, match="external workers do not get the Caller"),
        client(app),
    ):
        pass
