"""Routes with other methods than POST, and with parameters outside of the body, through whole
services: in this process, under another server, and as a process of its own.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from penstock import App, Query
from penstock.errors import GraphError, HookError, StartupError
from penstock.security.keys import line_of, new_key
from penstock.testing import client
from tests.service.items import app
from tests.service.scripts import PENSTOCK
from tests.services.process import running

SCRIPT = Path(__file__).parent / "items.py"


@contextmanager
def mounted() -> Iterator[httpx.Client]:
    """Calls the app inside of another one, on a loop in a thread."""
    api, below = FastAPI(), app.for_tests()
    api.mount("/below", below)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    inner = httpx.ASGITransport(api)

    class Transport(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            async def ask() -> httpx.Response:
                sent = httpx.Request(
                    request.method, request.url, headers=request.headers, content=request.read()
                )
                answer = await inner.handle_async_request(sent)
                content = b"".join([piece async for piece in answer.aiter_raw()])
                return httpx.Response(answer.status_code, headers=answer.headers, content=content)

            return asyncio.run_coroutine_threadsafe(ask(), loop).result(20)

    asyncio.run_coroutine_threadsafe(below.start(), loop).result(20)
    try:
        with httpx.Client(transport=Transport(), base_url="http://service/below") as http:
            yield http
    finally:
        asyncio.run_coroutine_threadsafe(below.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(
    scope="module",
    params=[
        "in process",
        "mounted",
        pytest.param("HTTP/1.1", marks=pytest.mark.real),
        pytest.param("HTTP/2", marks=pytest.mark.real),
    ],
)
def http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    if request.param == "in process":
        with client(app) as http:
            yield http
    elif request.param == "mounted":
        with mounted() as http:
            yield http
    else:
        two = request.param == "HTTP/2"
        with (
            running(SCRIPT, command=PENSTOCK) as server,
            httpx.Client(base_url=server.http_url, http1=not two, http2=two) as http,
        ):
            yield http


@pytest.mark.parametrize(
    ("method", "path", "more", "answer"),
    [
        ("GET", "/items/5", {}, [5, 10, []]),
        ("GET", "/items/5?limit=3&tag=a&tag=b+c", {}, [5, 3, ["a", "b c"]]),
        ("GET", "/items/5?limit=3", {"content": b"ignored"}, [5, 3, []]),
        ("GET", "/items/latest", {}, "latest"),
        ("GET", "/items/a%20b", {}, "a b"),
        ("GET", "/items/gr%C3%BC%C3%9Fe", {}, "grüße"),
        ("DELETE", "/items/5", {}, -5),
        ("DELETE", "/items/5", {"json": {}}, -5),
        ("PUT", "/items/5?dry=on", {"json": {"name": "n"}}, [5, "n", 1.0, True]),
        ("PATCH", "/items/5", {"json": {"name": "n"}}, [5, "n"]),
        ("GET", "/files/a/b%20c", {}, "a/b c"),
        ("GET", "/files/", {}, ""),
        (
            "GET",
            "/caller",
            {"headers": [("X-Token", "1, 2"), ("x-token", "3"), ("cookie", "a=b; session=s")]},
            ["me", [1, 2, 3], "s"],
        ),
        ("GET", "/sum/1.5?y=2", {}, 3.5),
        ("GET", "/sum/1.5?y=2&ten=true", {}, 13.5),
        ("GET", "/class/4?plus=1", {}, 15),
    ],
)
def test_a_request_is_answered(
    http: httpx.Client, method: str, path: str, more: dict[str, Any], answer: Any
) -> None:
    headers = [("user-agent", "me"), *more.get("headers", ())]
    reply = http.request(method, path, **{**more, "headers": headers})
    assert (reply.status_code, reply.json()) == (200, answer)


@pytest.mark.parametrize(
    ("method", "path", "status", "where"),
    [
        ("GET", "/items/5?limit=0", 422, [["query", "limit"]]),
        ("GET", "/items/5?limit=1&limit=2", 422, [["query", "limit"]]),
        ("GET", "/items/5?other=1", 422, [["query", "other"]]),
        ("GET", "/items/latest?other=1", 422, [["query", "other"]]),
        ("GET", "/sum/x?ten=7", 422, [["path", "x"], ["query", "y"], ["query", "ten"]]),
        ("GET", "/sum/1?y=%ff", 400, None),
        ("GET", "/items/", 404, None),
        ("GET", "/items/a%2Fb", 404, None),
        ("GET", "/files/a//b", 404, None),
        ("GET", "/files/a/%2e%2e/b", 404, None),
        ("GET", "/class/x", 404, None),
        ("PUT", "/items/5", 400, None),
    ],
)
def test_a_bad_request_is_refused(
    http: httpx.Client, method: str, path: str, status: int, where: Any
) -> None:
    reply = http.request(method, path)
    details = reply.json().get("details")
    assert (reply.status_code, details and [each["loc"] for each in details]) == (status, where)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/items/5", "DELETE, GET, HEAD, PATCH, PUT"),
        ("POST", "/items/latest", "GET, HEAD"),
        ("POST", "/sum/1", "GET, HEAD"),
        ("DELETE", "/class/1", "GET, HEAD"),
    ],
)
def test_another_method_is_405_with_the_allowed_ones(
    http: httpx.Client, method: str, path: str, allow: str
) -> None:
    reply = http.request(method, path)
    assert (reply.status_code, reply.headers["allow"]) == (405, allow)


def test_head_is_answered_as_get_without_the_body(http: httpx.Client) -> None:
    reply = http.head("/items/5?limit=3")
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["content-length"] == str(len(http.get("/items/5?limit=3").content))
    assert http.head("/items/5?limit=x").status_code == 422


def test_the_examples_of_parameters_run_in_the_deep_check(http: httpx.Client) -> None:
    checked = http.get("/health/deep").json()["checked"]
    assert [(each["route"], each["state"]) for each in checked] == [("/items/{id:int}", "ok")] * 2


def test_the_description_has_the_parameters(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    get, put = paths["/items/{id}"]["get"], paths["/items/{id}"]["put"]
    assert "requestBody" not in get
    assert "413" not in get["responses"]
    assert get["parameters"] == [
        {
            "name": "id",
            "in": "path",
            "required": True,
            "example": 5,
            "schema": {"title": "Id", "type": "integer"},
        },
        {
            "name": "limit",
            "in": "query",
            "example": 3,
            "schema": {"default": 10, "minimum": 1, "title": "Limit", "type": "integer"},
        },
        {
            "name": "tag",
            "in": "query",
            "example": ["a"],
            "schema": {
                "default": [],
                "items": {"type": "string"},
                "title": "Tag",
                "type": "array",
            },
        },
    ]
    content = put["requestBody"]["content"]["application/json"]
    assert content["examples"] == {"1": {"value": {"name": "n"}}}
    assert [each["name"] for each in put["parameters"]] == ["id", "dry"]
    places = [(each["in"], each["name"]) for each in paths["/caller"]["get"]["parameters"]]
    assert places == [("header", "user-agent"), ("header", "X-Token"), ("cookie", "session")]


class Color(enum.Enum):
    RED = "red"


def test_the_description_of_a_parameter_refers_to_its_own_schemas() -> None:
    service = App("colors")

    @service.get("/colors")
    def colors(color: Color) -> int:
        return 1

    with client(service) as http:
        found = http.get("/openapi.json").json()
    (parameter,) = found["paths"]["/colors"]["get"]["parameters"]
    assert parameter["schema"] == {"$ref": "#/components/schemas/Color"}
    assert found["components"]["schemas"]["Color"]["enum"] == ["red"]


class Body(BaseModel):
    x: int


def one(x: int) -> int:
    return x


def other(x: int) -> int:
    return x


def of_model(x: int, body: Body) -> int:
    return x


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (("GET", "/a/{x}"), ("GET", "/a/{x}"), "are GET /a/{x}"),
        (("GET", "/a/{x}"), ("DELETE", "/a/{y}"), "are one path: name its placeholders alike"),
        (("POST", "/{x}"), ("GET", "/a"), "begin it with a literal segment"),
        (("BREW", "/a"), ("GET", "/a"), "is one of GET, POST, PUT, PATCH, DELETE, not 'BREW'"),
        (("GET", "/a/{x:number}"), ("GET", "/b"), "converter of {x:number} is one of"),
        (("GET", "/a/{x-y}"), ("GET", "/b"), "'x-y' is no name of a parameter"),
    ],
)
def test_routes_in_conflict_are_an_error(
    first: tuple[str, str], second: tuple[str, str], words: str
) -> None:
    service = App("conflict")

    def add() -> None:
        for (method, path), target in zip((first, second), (one, other), strict=True):
            service.route(path, method=method)(target)

    with pytest.raises(GraphError, match=words):
        add()


def test_several_methods_and_forms_of_one_path_are_no_conflict() -> None:
    service = App("fits")
    service.get("/a/{x}")(one)
    service.delete("/a/{x}")(other)
    with client(service) as http:
        assert http.get("/a/3").json() == http.delete("/a/3").json() == 3


def test_a_page_and_a_route_at_one_path_are_an_error(tmp_path: Path) -> None:
    service = App("page")
    (tmp_path / "a.html").write_text("x")
    service.page("/a", tmp_path / "a.html")
    service.get("/a")(one)
    with pytest.raises(StartupError, match="two routes are GET /a"), client(service):
        pass


def test_a_model_in_a_route_without_a_body_is_an_error_that_names_it() -> None:
    with pytest.raises(HookError, match="of_model: body cannot be sent in the query"):
        App("model").get("/a")(of_model)


def test_external_workers_get_bodies_only(tmp_path: Path) -> None:
    options: dict[str, Any] = {"executor": "external", "socket": str(tmp_path / "s")}
    with pytest.raises(HookError, match="external workers get the body of a request only"):
        App("external").route("/a", batch=4, **options)(with_query_lists)


def with_query_lists(x: list[int], y: list[Annotated[int, Query()]]) -> list[int]:
    return x


def test_an_async_function_has_many_calls_in_flight_by_default() -> None:
    service = App("waits")
    waiting: list[asyncio.Future[None]] = []

    @service.get("/all")
    async def all_of(count: int) -> int:
        waiting.append(asyncio.get_running_loop().create_future())
        if len(waiting) == count:
            for each in waiting:
                each.set_result(None)
        await waiting[-1] if len(waiting) < count else None
        return len(waiting)

    with client(service) as http, ThreadPoolExecutor(20) as threads:
        replies = list(threads.map(lambda _: http.get("/all?count=20", timeout=30), range(20)))
    assert [each.json() for each in replies] == [20] * 20


@pytest.mark.parametrize(
    ("options", "workers"),
    [({}, 64), ({"workers": 3}, 3), ({"concurrency": 5}, 5), ({"batch": 8}, 1)],
)
def test_the_workers_of_an_async_function(options: dict[str, Any], workers: int) -> None:
    service = App("waits")
    service.route("/x", **options)(waits_batched if "batch" in options else waits)
    (found,) = service.services
    found.prepare_beside({})
    assert found.blueprint().options[0].concurrency == workers


async def waits(x: int) -> int:
    return x


async def waits_batched(x: list[int]) -> list[int]:
    return x


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"security": {"scopes": {"/typo": "a"}}}, "security.scopes: .* /typo"),
        ({"security": {"scopes": {"/b/{x}": "a"}}}, r"did you mean /b/\{x:int\}\?"),
        ({"security": {"scopes": {"/pkg.Service/Method": "a"}}}, "security.scopes"),
        ({"security": {"open": ["/b/1"]}}, "security.open: .* /b/1"),
        ({"security": {"open": ["b"]}}, "security.open"),
        ({"priority": {"levels": 2, "routes": {"c": 1}}}, "priority.routes: .* c"),
        ({"quotas": {"few": {"rate": 1, "routes": ["/c"]}}}, "quotas.few.routes: .* /c"),
    ],
)
def test_rules_for_a_route_that_is_not_served_end_the_start(
    config: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StartupError, match=what), client(listing(config, monkeypatch)):
        pass


def test_rules_for_routes_methods_and_graphs_that_are_served_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = "/inference.GRPCInferenceService/ModelInfer"
    scopes = {"/b/{x:int}": "a", "b": "a", method: "a", "/metrics": "a", "/ui": "a", "/docs": "a"}
    config = {
        "security": {"scopes": scopes, "open": ["/openapi.json"]},
        "priority": {"levels": 2, "routes": {"b": 1, "/b/{x:int}": 1, "/v2/models/stats": 1}},
        "quotas": {"few": {"rate": 1, "routes": ["/b/{x:int}", method]}},
    }
    with client(listing(config, monkeypatch)):
        pass


def listing(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("KEYS", line_of("ann", new_key(), ()))
    security = {"keys_env": "KEYS", **config.get("security", {})}
    app = App("listed", **{**config, "security": security})

    @app.route("/b/{x:int}")
    def b(x: int) -> int:
        return x

    return app
