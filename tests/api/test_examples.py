"""Examples of requests: run before the service is ready, and by the deep health check."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from penstock import App, op
from penstock.api.application import Example
from penstock.api.examples import same
from penstock.api.http import Http
from penstock.engine.engine import Engine
from penstock.engine.graph import ServedGraph
from penstock.engine.submission import Submission
from penstock.errors import HookError, StartupError
from penstock.request import Feed
from penstock.testing import client
from tests.services.process import ServiceFailed, running


class Item(BaseModel):
    model_config = {"json_schema_extra": {"examples": [{"x": 1}, {"x": 2}]}}
    x: int


def add_one(x: float) -> float:
    return x + 1


def app_with(examples: list[Any], function: Any = add_one, **options: Any) -> App:
    app = App("tests")
    app.route("/it", examples=examples, **options)(function)
    return app


def test_each_worker_runs_the_examples_before_the_service_is_ready() -> None:
    arrived = threading.Barrier(3, timeout=20)  # passed only by three concurrent calls
    calls = []

    def wait(x: int) -> int:
        arrived.wait()
        calls.append((threading.get_ident(), x))
        return x

    with client(app_with([{"x": 1}, ({"x": 2}, 2)], wait, workers=3)):
        assert sorted(x for _, x in calls) == [1, 1, 1, 2, 2, 2]
        assert len({ident for ident, _ in calls}) == 3


def test_a_model_s_own_examples_are_run_if_the_route_has_none() -> None:
    runs = []

    def record(item: Item) -> int:
        runs.append(item.x)
        return item.x

    with client(app_with([], record)) as http:
        assert runs == [1, 2]
        report = http.get("/health/deep").json()
        assert [(each["example"], each["state"]) for each in report["checked"]] == [
            (1, "ok"),
            (2, "ok"),
        ]
        assert runs == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("example", "why"),
    [
        ({"x": "one"}, "x: Input should be a valid number"),
        (({"x": 1}, 3.0), "3.0 is expected, the answer is 2.0"),
        (({"x": 1}, None), None),
        (({"x": 1}, 2), None),
    ],
)
def test_an_example_that_fails_is_an_error_at_start(example: Any, why: str | None) -> None:
    app = app_with([{"x": 5}, example])
    if why is None:
        with client(app) as http:
            assert http.get("/health/deep").json()["ok"]
        return
    with pytest.raises(StartupError, match="route /it: example 2 fails: ") as raised, client(app):
        pass
    assert why in str(raised.value)
    assert not [each for each in threading.enumerate() if each.name.startswith("it")]


class Halving:
    """A plugin's application: ``POST /half`` takes and returns texts such as ``x=4``."""

    def __init__(self, wanted: Any, _: Engine) -> None:
        self._wanted = wanted

    def routes(self) -> Iterable[Http]:
        return [Http("POST", "/half", lambda call, _: call.reply(200, (), b""), graph="half")]

    def example_requests(self) -> Iterable[Example]:
        def ask(graph: ServedGraph, timeout: float, log_id: int) -> Submission:
            return Submission(graph, {"x": int(b"x=4"[2:])}, timeout, log_id)

        def answer(_: Submission, value: Feed) -> tuple[bytes, str]:
            return f"x={value['x']}".encode(), "text/plain"

        yield Example(
            path="/half", graph="half", number=1, submission=ask, answer=answer, wanted=self._wanted
        )


def test_an_application_of_a_plugin_may_have_examples() -> None:
    @op()
    def half(request: dict[str, Any]) -> dict[str, Any]:
        return {"x": request["x"] / 2}

    def app(wanted: Any) -> App:
        found = App("tests", applications=[partial(Halving, wanted)])
        found.graph("/by-name", half, name="half")
        return found

    with client(app("x=2.0")) as http:
        (one,) = http.get("/health/deep").json()["checked"]
        assert (one["route"], one["example"], one["state"]) == ("/half", 1, "ok")
    with pytest.raises(StartupError, match=r'route /half: example 1 fails: "x=3" is .* "x=2.0"'):
        client(app("x=3")).__enter__()


class Sum(BaseModel):
    sum: int


def graph_with(examples: list[Any], runs: list[int], request: Any = None) -> App:
    @op(workers=2)
    def keep(request: dict[str, Any]) -> dict[str, Any]:
        runs.append(request["x"])
        return request

    @op(keep)
    def total(kept: dict[str, Any]) -> dict[str, Any]:
        return {"sum": kept["x"] + 1}

    app = App("tests")
    app.graph("/total", total, request=request, response=Sum, examples=examples)
    return app


def test_an_example_of_a_graph_that_yields_has_the_list_of_all_pieces() -> None:
    @op()
    def count(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for n in range(request["x"]):
            yield {"n": n}

    app = App("tests")
    app.graph("/count", count, examples=[({"x": 2}, [{"n": 0}, {"n": 1}])])
    with client(app) as http:
        assert http.get("/health/deep").json()["ok"]


def test_a_graph_s_examples_are_run_described_and_checked() -> None:
    runs: list[int] = []
    with client(graph_with([({"x": 1}, {"sum": 2}), {"x": 5}], runs)) as http:
        assert runs == [1, 1, 5, 5]
        report = http.get("/health/deep").json()
        assert [(each["route"], each["state"]) for each in report["checked"]] == [
            ("/total", "ok"),
            ("/total", "ok"),
        ]
        body = http.get("/openapi.json").json()["paths"]["/total"]["post"]["requestBody"]
        shown = body["content"]["application/json"]["examples"]
        assert [each["value"] for each in shown.values()] == [{"x": 1}, {"x": 5}]


def test_a_graph_without_examples_has_those_of_its_request_type() -> None:
    runs: list[int] = []
    with client(graph_with([], runs, Item)):
        assert runs == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("request_type", "example", "why"),
    [
        (None, ({"x": 1}, {"sum": 3}), "is expected, the answer is"),
        (Item, {"x": "one"}, "x: Input should be a valid integer"),
        (None, [1], "Input should be an object"),
        (None, {"x": 0.5}, "the answer cannot be encoded"),
    ],
)
def test_a_graph_s_example_that_fails_is_an_error_at_start(
    request_type: Any, example: Any, why: str
) -> None:
    app = graph_with([example], [], request_type)
    with pytest.raises(StartupError, match="route /total: example 1 fails: ") as raised:
        client(app).__enter__()
    assert why in str(raised.value)


def test_an_example_that_is_no_plain_value_is_an_error_at_its_route() -> None:
    app = App("tests")
    with pytest.raises(HookError, match="an example of /it"):
        app.route("/it", examples=[{"x": object()}])(add_one)
    app.route("/it")(add_one)
    with client(app) as http:
        assert http.post("/it", json={"x": 1}).json() == 2


def test_the_deep_check_names_the_failed_example_without_the_exception_s_text() -> None:
    broken = threading.Event()

    def sometimes(x: int) -> int:
        if broken.is_set():
            raise RuntimeError("the secret of the house")
        return x

    with client(app_with([({"x": 1}, 1)], sometimes)) as http:
        good = http.get("/health/deep")
        assert (good.status_code, good.json()["ok"]) == (200, True)
        assert http.head("/health/deep").status_code == 200
        broken.set()
        bad = http.get("/health/deep")
        assert bad.status_code == 503
        (one,) = bad.json()["checked"]
        assert (one["route"], one["state"], one["error"]) == ("/it", "failed", "hook_failed")
        assert "secret" not in bad.text
        assert one["id"].isdigit()


def test_concurrent_deep_checks_run_the_examples_once_and_may_time_out() -> None:
    released, slow = threading.Event(), threading.Event()
    calls = []

    def wait(x: int) -> int:
        if slow.is_set():
            calls.append(x)
            released.wait(20)
        return x

    with client(app_with([{"x": 1}], wait, workers=4)) as http:
        slow.set()
        for _ in range(3):
            late = http.get("/health/deep", headers={"penstock-timeout": "0.05"})
            assert (late.status_code, late.json()["error"]) == (504, "deadline")
        assert calls == [1]
        released.set()
        assert http.get("/health/deep").status_code == 200


def test_a_busy_service_does_not_fail_the_deep_check() -> None:
    released, slow = threading.Event(), threading.Event()
    running = threading.Semaphore(0)

    def wait(x: int) -> int:
        if slow.is_set():
            running.release()
            released.wait(20)
        return x

    app = App("tests", max_requests=1)
    app.route("/it", examples=[{"x": 1}])(wait)
    with client(app) as http, ThreadPoolExecutor(1) as threads:
        slow.set()
        taken = threads.submit(http.post, "/it", json={"x": 2})
        assert running.acquire(timeout=20)
        report = http.get("/health/deep")
        assert (report.status_code, report.json()["checked"][0]["state"]) == (200, "busy")
        released.set()
        assert taken.result().json() == 2


def test_a_service_without_examples_passes_the_deep_check() -> None:
    with client(app_with([])) as http:
        assert http.get("/health/deep").json() == {"ok": True, "checked": []}


SCRIPT = """
import os
from penstock import App, op

app = App("tests")

@app.route("/who", workers=2, executor="process", examples=[({"x": 1}, EXPECTED)])
def who(x: int) -> int:
    os.write(2, b"ran in %d\\n" % os.getpid())
    return x

app.run()
"""


@pytest.mark.real
def test_worker_processes_run_the_examples_at_start(tmp_path: Path) -> None:
    script = tmp_path / "service.py"
    script.write_text(SCRIPT.replace("EXPECTED", "1"))
    with running(script) as server:
        assert server.log().count("ran in ") == 2
    script.write_text(SCRIPT.replace("EXPECTED", "2"))
    with pytest.raises(ServiceFailed, match=r"route /who: example 1 fails: 2 is .* is 1"):
        with running(script):
            pass


@pytest.mark.parametrize(
    ("found", "wanted", "is_same"),
    [
        (1.0, 1, True),
        (1.0000001, 1.0, True),
        (1.001, 1.0, False),
        (True, 1, False),
        (1, True, False),
        ([1, [2.0]], [1, [2]], True),
        ([1], [1, 2], False),
        ({"a": None}, {"a": None}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ("a", "a", True),
        ("1", 1, False),
    ],
)
def test_expected_and_actual_results_may_differ_in_the_last_digits(
    found: Any, wanted: Any, is_same: bool
) -> None:
    assert same(found, wanted) is is_same
