"""Middleware around the routes of an App."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from penstock import App, HttpError, Middleware, Response, op
from penstock.api.middleware import Answer, Request
from penstock.errors import GraphError, RequestError, StartupError
from penstock.testing import client


class Recording(Middleware):
    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name = name
        self.seen = seen

    def before(self, request: Request) -> Response[Any] | None:
        request.state[self.name] = 1
        self.seen.append((self.name, "before", request.method, request.route))
        match request.headers.get("x-do"):
            case "answer":
                return Response({"by": self.name}, status=203, headers={"x-by": self.name})
            case "refuse":
                raise HttpError(403, "not you")
            case "redirect":
                return Response(status=302, headers={"location": "/login"})
            case "fail":
                raise KeyError("of the middleware")
        return None

    def after(self, request: Request, answer: Answer) -> None:
        self.seen.append((self.name, "after", answer.status, [*request.state]))
        answer.add_header("x-passed", self.name)
        if request.headers.get("x-do") == "fail after":
            raise KeyError("of the middleware")

    def on_error(self, request: Request, error: RequestError) -> Response[Any] | None:
        self.seen.append((self.name, "error", error.code))
        if request.headers.get("x-do") == "hide":
            return Response("<p>sorry</p>", status=500, media_type="text/html")
        return None


@op()
def shout(request: dict[str, Any]) -> dict[str, Any]:
    return {"text": request["text"].upper()}


@pytest.fixture(scope="module")
def seen() -> list[Any]:
    return []


@pytest.fixture(scope="module")
def http(seen: list[Any]) -> Iterator[httpx.Client]:
    app = App("watched")
    app.middleware(Recording("outer", seen))
    app.middleware(Recording("inner", seen))

    @app.route("/half", batch=4, examples=[({"x": 4}, 2.0)])
    def half(x: list[float]) -> list[float]:
        return [1 / (2 / each) for each in x]

    @app.route("/spell")
    def spell(word: str) -> Iterator[str]:
        for letter in word:
            if letter == "!":
                raise HttpError(418, "no letter")
            yield letter

    app.graph("/shout", shout)
    with client(app) as http:
        yield http


def call(http: httpx.Client, do: str = "", body: Any = None, path: str = "/half") -> httpx.Response:
    return http.post(path, json=body or {"x": 4}, headers={"X-Do": do}, follow_redirects=False)


def test_the_first_is_the_outermost(http: httpx.Client, seen: list[Any]) -> None:
    seen.clear()
    answer = call(http)
    assert (answer.status_code, answer.json()) == (200, 2.0)
    assert (
        answer.headers.get_list("x-passed") == ["inner", "outer"]
        or answer.headers["x-passed"] == "inner, outer"
    )
    assert seen == [
        ("outer", "before", "POST", "/half"),
        ("inner", "before", "POST", "/half"),
        ("inner", "after", 200, ["outer", "inner"]),
        ("outer", "after", 200, ["outer", "inner"]),
    ]
    assert "x-passed" in call(http, body={"text": "a"}, path="/shout").headers


def test_an_answer_in_pieces_is_seen_once_before_its_first_piece(
    http: httpx.Client, seen: list[Any]
) -> None:
    seen.clear()
    answer = call(http, body={"word": "ab"}, path="/spell")
    assert answer.text == 'data: "a"\n\ndata: "b"\n\n'
    assert "x-passed" in answer.headers
    assert [each[1:3] for each in seen] == [
        ("before", "POST"),
        ("before", "POST"),
        ("after", 200),
        ("after", 200),
    ]
    assert call(http, body={"word": "!"}, path="/spell").status_code == 418


def test_before_may_answer_or_refuse(http: httpx.Client, seen: list[Any]) -> None:
    seen.clear()
    answer = call(http, "answer")
    assert (answer.status_code, answer.json(), answer.headers["x-by"]) == (
        203,
        {"by": "outer"},
        "outer",
    )
    assert ("inner", "before", "POST", "/half") not in seen
    answer = call(http, "refuse")
    assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")
    assert "x-passed" in answer.headers
    answer = call(http, "redirect")
    assert (answer.status_code, answer.content) == (302, b"")


@pytest.mark.parametrize(
    ("body", "status", "code"), [({"x": "a"}, 422, "invalid_input"), ({"x": 0}, 500, "hook_failed")]
)
def test_errors_pass_through_it_as_well(
    http: httpx.Client, seen: list[Any], body: Any, status: int, code: str
) -> None:
    seen.clear()
    answer = call(http, body=body)
    assert (answer.status_code, answer.json()["error"]) == (status, code)
    assert "x-passed" in answer.headers
    assert [each for each in seen if each[1] == "error"] == [
        ("inner", "error", code),
        ("outer", "error", code),
    ]
    hidden = call(http, "hide", body=body)
    assert (hidden.status_code, hidden.text) == (500, "<p>sorry</p>")
    assert hidden.headers["content-type"] == "text/html"


def test_a_refusal_before_the_handler_passes_through_it(http: httpx.Client) -> None:
    answer = http.post("/half", content=b"x", headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, "x-passed" in answer.headers) == (400, True)


def test_a_failure_of_its_own_is_logged(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "penstock"):
        assert call(http, "fail").status_code == 500
        assert call(http, "fail after").json() == 2.0
    assert caplog.text.count("Recording.before raised") == 1
    assert caplog.text.count("Recording.after raised") == 2


def test_what_is_no_middleware_is_refused() -> None:
    with pytest.raises(GraphError, match=r"penstock\.Middleware"):
        App("wrong").middleware(Recording)  # type: ignore[arg-type]


def test_examples_are_run_with_middleware_too() -> None:
    app = App("watched")
    app.middleware(Middleware())

    @app.route("/one", examples=[({"x": 1}, 3)])
    def one(x: int) -> int:
        return x

    with pytest.raises((StartupError, RuntimeError), match="example 1 fails"), client(app):
        raise AssertionError("it started")
