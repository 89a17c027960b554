"""Lifespans: their value for functions and classes, their start and end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import App
from penstock.errors import HookError, StartupError
from penstock.testing import client
from penstock.typed.lifespan import Lifespan
from tests.service.scripts import PENSTOCK
from tests.services.process import running


class Pool:
    pass


class Cache:
    pass


def service(events: list[str]) -> App:
    app = App("lifespans")

    @app.lifespan
    def first() -> Iterator[Pool]:
        events.append("first begins")
        yield Pool()
        events.append("first ends")

    @app.lifespan
    def second() -> Iterator[None]:
        events.append("second begins")
        yield
        events.append("second ends")

    @app.get("/function", workers=3)
    def function(pool: Pool, x: int = 1) -> list[int]:
        return [id(pool), x]

    @app.post("/coroutine")
    async def coroutine(x: int, pool: Pool) -> list[int]:
        return [id(pool), x]

    @app.post("/batch/{x}", batch=4)
    def batch(pool: Pool, x: list[int]) -> list[list[int]]:
        return [[id(pool), each] for each in x]

    @app.post("/class")
    class Served:
        def __init__(self, pool: Pool) -> None:
            self.pool = pool

        def predict(self, x: int) -> list[int]:
            return [id(self.pool), x]

        def close(self) -> None:
            assert "first ends" not in events
            events.append("class closes")

    return app


def test_all_functions_of_a_process_have_one_value_from_the_start_to_the_end() -> None:
    events: list[str] = []
    app = service(events)
    for _ in range(2):
        events.clear()
        with client(app) as http:
            assert events == ["first begins", "second begins"]
            answers = [
                http.get("/function?x=2").json(),
                http.post("/coroutine", json={"x": 2}).json(),
                http.post("/batch/2").json(),
                http.post("/class", json={"x": 2}).json(),
            ]
            assert answers == [answers[0]] * 4
            parameters = http.get("/openapi.json").json()["paths"]["/function"]["get"]["parameters"]
            assert [each["name"] for each in parameters] == ["x"]
            assert http.get("/function?pool=1").status_code == 422
        assert events[2:] == ["class closes", "second ends", "first ends"]


def test_a_lifespan_that_raises_fails_the_start_and_ends_those_before() -> None:
    app, events = App("raises"), []

    @app.lifespan
    def good() -> Iterator[None]:
        yield
        events.append("ended")

    @app.lifespan
    def bad() -> Iterator[None]:
        raise ValueError("no database")
        yield

    @app.get("/x")
    def x() -> int:
        return 1

    with pytest.raises(StartupError, match=r"bad.*no database"), client(app):
        pass
    assert events == ["ended"]


@asynccontextmanager
async def decorated() -> AsyncIterator[Pool]:
    yield Pool()


async def asynchronous() -> AsyncIterator[Pool]:
    yield Pool()


def without_yield() -> Iterator[Pool]:
    return iter([Pool()])


def with_parameter(app: App) -> Iterator[Pool]:
    yield Pool()


def without_iterator() -> Pool:  # type: ignore[misc]
    yield Pool()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (asynchronous, "write def instead of async def: .* is made at the first request"),
        (without_yield, "has no yield"),
        (with_parameter, "must have no parameters: yield what"),
        (decorated, "decorated: remove the decorator between it and @app.lifespan"),
        (without_iterator, "annotated with -> Iterator"),
    ],
)
def test_another_function_is_an_error(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(HookError, match=words):
        Lifespan(function)


def test_two_values_of_one_type_are_an_error() -> None:
    app = App("two")

    def one() -> Iterator[Pool]:
        yield Pool()

    app.lifespan(one)
    with pytest.raises(HookError, match="two lifespans of two have values of the type"):
        app.lifespan(one)


SCRIPT = """
import os
from collections.abc import Iterator
from penstock import App

app = App("processes")

class Pool:
    pass

@app.lifespan
def pool() -> Iterator[Pool]:
    with open(f"{os.getpid()}.txt", "a") as file:
        file.write("begins ")
    yield Pool()
    with open(f"{os.getpid()}.txt", "a") as file:
        file.write("ends ")

@app.get("/thread")
def thread(pool: Pool) -> int:
    return os.getpid()

@app.get("/process", executor="process", workers=2)
def process(pool: Pool) -> int:
    return os.getpid()
"""


@pytest.mark.real
def test_each_process_that_runs_a_route_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SCRIPT)
    with running(tmp_path / "app.py", command=PENSTOCK, cwd=tmp_path) as server:
        pids = {httpx.get(f"{server.http_url}/{each}").json() for each in ("thread", "process")}
        assert server.stop() == 0
    found = {int(each.stem): each.read_text() for each in tmp_path.glob("*.txt")}
    assert len(found) == 3
    assert pids < set(found)
    assert set(found.values()) == {"begins ends "}
