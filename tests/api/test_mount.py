"""ASGI applications beside the routes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from penstock import App
from penstock.errors import GraphError, StartupError
from penstock.testing import client
from tests.service.scripts import PENSTOCK
from tests.services.process import running

events: list[str] = []


@asynccontextmanager
async def lifespan(_: Any) -> AsyncIterator[dict[str, str]]:
    events.append("start")
    yield {"model": "loaded"}
    events.append("end")


async def seen(request: Request) -> JSONResponse:
    body = await request.body()
    return JSONResponse({
        "method": request.method,
        "path": request.url.path,
        "url": str(request.url_for("seen")),
        "query": str(request.query_params),
        "body": body.decode(),
        "model": request.state.model,
        "client": request.client is not None,
    })  # fmt: skip


async def fails(_: Request) -> Response:
    raise RuntimeError("of the application")


async def breaks(_: Request) -> StreamingResponse:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        raise RuntimeError("of the application")

    return StreamingResponse(pieces())


async def pieces(_: Request) -> StreamingResponse:
    async def lines() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d\n" % number

    return StreamingResponse(lines(), status_code=201, media_type="text/plain")


async def injects(_: Request) -> Response:
    return PlainTextResponse("x", headers={"x-value": "a\r\nset-cookie: b=c"})


def web(folder: Path) -> Starlette:
    every = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
    routes = [
        Route("/seen", seen, methods=every, name="seen"),
        Route("/fails", fails),
        Route("/breaks", breaks),
        Route("/pieces", pieces),
        Route("/injects", injects),
        Mount("/static", StaticFiles(directory=folder)),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


@pytest.fixture
def http(tmp_path: Path) -> Iterator[httpx.Client]:
    (tmp_path / "page.html").write_text("<p>hello</p>")
    app = App("both")

    @app.route("/double")
    def double(x: int) -> int:
        return 2 * x

    @app.route("/web/triple")
    def triple(x: int) -> int:
        return 3 * x

    app.mount("/web", web(tmp_path))
    fast = FastAPI()

    @fast.get("/items/{number}")
    async def item(number: int) -> dict[str, int]:
        return {"number": number}

    app.mount("/web/fast", fast)
    events.clear()
    with client(app) as http:
        yield http


def test_every_request_below_the_path_is_the_applications(http: httpx.Client) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = http.request(method, "/web/seen?a=1", content=b"body" if method != "GET" else b"")
        assert answer.json() == {
            "method": method, "path": "/web/seen", "url": "http://service/web/seen", "query": "a=1",
            "body": "body" if method != "GET" else "", "model": "loaded", "client": True,
        }  # fmt: skip
    assert http.get("/web/none").text == "Not Found"
    assert http.get("/web/fast/items/7").json() == {"number": 7}
    assert http.get("/web/fast/items/x").status_code == 422


def test_routes_come_first_and_other_paths_are_as_before(http: httpx.Client) -> None:
    assert http.post("/double", json={"x": 2}).json() == 4
    assert http.post("/web/triple", json={"x": 2}).json() == 6
    assert http.get("/website").status_code == 404
    assert "/web" not in " ".join(http.get("/openapi.json").json()["paths"]).replace("/web/tri", "")


def test_answers_may_come_in_pieces_and_files_have_their_conditions(http: httpx.Client) -> None:
    answer = http.get("/web/pieces")
    assert (answer.status_code, answer.text) == (201, "0\n1\n2\n")
    page = http.get("/web/static/page.html")
    assert (page.text, page.headers["content-length"]) == ("<p>hello</p>", "12")
    same = http.get("/web/static/page.html", headers={"If-None-Match": page.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    head = http.head("/web/static/page.html")
    assert (head.status_code, head.content) == (200, b"")
    assert http.get("/web/static/..%2f..%2fetc/passwd").status_code == 404


def test_an_application_that_fails_is_500_and_the_log_says_why(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "penstock"):
        assert http.get("/web/fails").status_code == 500
        injected = http.get("/web/injects")
    assert "of the application" in caplog.text
    assert injected.status_code == 500
    assert "set-cookie" not in injected.headers


def test_websockets_are_refused_and_say_why(http: httpx.Client) -> None:
    answer = http.get("/web/seen", headers={"Upgrade": "websocket", "Connection": "Upgrade"})
    assert answer.status_code == 501
    assert "WebSockets are not supported" in answer.json()["message"]


def test_its_lifespan_is_that_of_the_service(tmp_path: Path) -> None:
    app = App("both")
    app.route("/double")(double)
    app.mount("/web", web(tmp_path))
    events.clear()
    with client(app) as http:
        assert events == ["start"]
        assert http.get("/web/seen").json()["model"] == "loaded"
    assert events == ["start", "end"]


def double(x: int) -> int:
    return 2 * x


async def plain(
    scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
) -> None:
    """An application without a lifespan."""
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def cannot(
    scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})


def test_an_application_without_a_lifespan_is_served() -> None:
    app = App("both")
    app.route("/double")(double)
    app.mount("/plain", plain)
    with client(app) as http:
        assert http.get("/plain").status_code == 204


def test_an_application_that_cannot_start_ends_the_start_and_the_others(tmp_path: Path) -> None:
    app = App("both")
    app.route("/double")(double)
    app.mount("/first", web(tmp_path))
    events.clear()
    app.mount("/web", cannot)
    with pytest.raises((StartupError, RuntimeError), match="no database"), client(app):
        raise AssertionError("it started")
    assert events == ["start", "end"]


@pytest.mark.parametrize("path", ["/", "web", "/web/", "/{x}", "/a//b", "/a?b", 5])
def test_a_path_that_cannot_be_mounted_is_refused(path: Any) -> None:
    with pytest.raises(GraphError, match="such as '/web'"):
        App("both").mount(path, plain)


def test_what_is_no_application_or_mounted_twice_is_refused() -> None:
    app = App("both")
    with pytest.raises(GraphError, match="scope, receive and send"):
        app.mount("/web", "module:app")  # type: ignore[arg-type]
    app.mount("/web", plain)
    with pytest.raises(GraphError, match="two applications"):
        app.mount("/web", plain)


SCRIPT = """
from contextlib import asynccontextmanager
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from penstock import App

@asynccontextmanager
async def lifespan(_):
    print("starts", flush=True)
    yield
    print("ends", flush=True)

async def hello(request):
    return PlainTextResponse(str(request.url))

async def breaks(request):
    async def pieces():
        yield b"first"
        raise RuntimeError("of the application")
    return StreamingResponse(pieces())

app = App("both")
routes = [Route("/", hello), Route("/breaks", breaks)]
app.mount("/web", Starlette(routes=routes, lifespan=lifespan))

@app.route("/double", executor="process")
def double(x: int) -> int:
    return 2 * x
"""


@pytest.mark.real
def test_under_run_it_ends_with_the_service(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(SCRIPT)
    with running(script, command=PENSTOCK) as server, httpx.Client() as http:
        assert http.get(f"{server.http_url}/web/").text == f"{server.http_url}/web/"
        redirected = http.get(f"{server.http_url}/web", follow_redirects=True)
        assert redirected.text == f"{server.http_url}/web/"
        assert http.post(f"{server.http_url}/double", json={"x": 2}).json() == 4
        with pytest.raises(httpx.RemoteProtocolError):
            http.get(f"{server.http_url}/web/breaks")
        assert server.stop() == 0
        lines = server.log().splitlines()
        assert lines.count("starts") == lines.count("ends") == 1


def test_an_application_with_cors_of_its_own_adds_its_fields_alone() -> None:
    async def own(_: Request) -> Response:
        return PlainTextResponse("x", headers={"access-control-allow-origin": "*"})

    async def none(_: Request) -> Response:
        return PlainTextResponse("x")

    origin = "https://app.example"
    app = App("both", cors={"origins": [origin]})
    app.mount("/web", Starlette(routes=[Route("/own", own), Route("/none", none)]))

    @app.route("/double")
    def double(x: int) -> int:
        return 2 * x

    with client(app) as http:
        for path, allowed in (("/web/own", "*"), ("/web/none", origin)):
            answer = http.get(path, headers={"origin": origin})
            assert answer.headers.get_list("access-control-allow-origin") == [allowed]
            assert answer.headers["vary"] == "origin"
        asked = {"origin": origin, "access-control-request-method": "DELETE"}
        answer = http.options("/web/none", headers=asked)
        assert "DELETE" in answer.headers["access-control-allow-methods"]
