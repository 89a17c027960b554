"""Answers with a status, header fields and media types of their own, and errors with a status."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from pydantic import BaseModel

from penstock import (
    App,
    File,
    HttpError,
    Media,
    PipelineClient,
    Response,
    op,
    redirect,
)
from penstock.errors import GraphError
from penstock.testing import client
from tests.service.scripts import PENSTOCK
from tests.services.process import running


class Item(BaseModel):
    name: str


class Missing(BaseModel):
    missing: str


class Taken(Exception):
    pass


class TakenForGood(Taken):
    pass


class Broken(Exception):
    pass


@op()
def taken(request: dict[str, Any]) -> dict[str, Any]:
    raise Taken("taken by another")


def make_app() -> App:
    app = App("answers")
    app.error(Taken, status=409)
    app.error(TakenForGood, status=410, code="taken_for_good")
    app.error(Broken, status=502)

    @app.route("/make", status=201, answers={404: Missing, 303: None, 409: HttpError})
    def make(name: str) -> Response[Item]:
        if name == "nobody":
            return Response(Missing(missing=name), status=404)  # type: ignore[return-value]
        if name == "elsewhere":
            return redirect("/items/ä b", status=303)  # type: ignore[return-value]
        if name == "undeclared":
            return Response(Item(name=name), status=202)
        if name == "body":
            return Response(Item(name=name), status=303)
        given = Response(Item(name=name), headers=[("X-Made", name), ("x-made", "twice")])
        given.set_cookie("last", name, max_age=60, secure=True)
        return given

    @app.route("/together", batch=8, wait=20, answers={404: Missing})
    def together(names: list[str]) -> list[Response[Item | Missing]]:
        return [
            Response(Missing(missing=each), status=404)
            if each == "nobody"
            else Response(Item(name=each), headers={"x-name": each})
            for each in names
        ]

    @app.route("/gone", status=204)
    def gone(x: int) -> None:
        return None

    @app.route("/text")
    def text(kind: str) -> Response[str]:
        return Response("größer,1\n" * 1000, media_type=kind)

    @app.route("/page")
    def page(x: int) -> Annotated[str, Media("text/html")]:
        return f"<p>{x}</p>"

    @app.route("/file")
    def file(path: str) -> File:
        return File(path, name='ä".csv')

    @app.route("/bad")
    def bad(value: str) -> Response[int]:
        return Response(1, headers={"x-value": value})

    @app.route("/unannounced")
    def unannounced(x: int) -> int:
        return Response(x, status=200)  # type: ignore[return-value]

    @app.route("/free")
    def free(x: int):  # type: ignore[no-untyped-def]  # any answer
        return Response({"x": x}, headers={"x-free": "1"})

    @app.route("/raise")
    def raises(what: str) -> int:
        raise {
            "taken": Taken("taken by another"),
            "for good": TakenForGood(),
            "broken": Broken("of the store"),
            "http": HttpError(402, "pay first"),
            "named": HttpError(422, "no", "no_such_unit"),
            "later": HttpError(503, "later"),
        }[what]

    @app.route("/raise-together", batch=8, wait=20)
    async def raise_together(names: list[str]) -> list[int]:
        if "taken" in names:
            raise Taken("taken by another")
        return [1 for _ in names]

    @app.get("/labels")
    def labels(version: str = "1", many: int = 1) -> Response[list[str]]:
        return Response(["rose"] * many, etag=version, headers={"cache-control": "no-cache"})

    @app.get("/download")
    def download(path: str) -> File:
        return File(path)

    app.graph("/graph", taken)
    return app


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with client(make_app()) as http:
        yield http


def test_a_response_has_the_route_s_status_and_its_own_fields(http: httpx.Client) -> None:
    answer = http.post("/make", json={"name": "rose"})
    assert (answer.status_code, answer.json()) == (201, {"name": "rose"})
    assert answer.headers.get_list("x-made") == ["rose", "twice"]
    assert answer.headers["content-type"] == "application/json"
    cookie = "last=rose; Path=/; SameSite=Lax; Max-Age=60; Secure; HttpOnly"
    assert answer.headers["set-cookie"] == cookie


def test_a_declared_status_has_a_value_of_its_type_or_no_body(http: httpx.Client) -> None:
    answer = http.post("/make", json={"name": "nobody"})
    assert (answer.status_code, answer.json()) == (404, {"missing": "nobody"})
    answer = http.post("/make", json={"name": "elsewhere"}, follow_redirects=False)
    assert (answer.status_code, answer.content) == (303, b"")
    assert answer.headers["location"] == "/items/%C3%A4%20b"
    assert "content-type" not in answer.headers


@pytest.mark.parametrize("name", ["undeclared", "body"])
def test_an_undeclared_status_or_body_is_a_failure_whose_log_says_what_to_write(
    http: httpx.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        assert http.post("/make", json={"name": name}).status_code == 500
    wanted = {"undeclared": "answers={202: ...}", "body": "the status 303 has no body"}
    assert wanted[name] in caplog.text


def test_each_element_of_a_batch_may_be_a_response(http: httpx.Client) -> None:
    names = ["rose", "nobody", "tulip"]
    answers = [http.post("/together", json={"names": each}) for each in names]
    assert [each.status_code for each in answers] == [200, 404, 200]
    assert [each.headers.get("x-name") for each in answers] == ["rose", None, "tulip"]
    assert answers[1].json() == {"missing": "nobody"}


def test_204_has_no_body(http: httpx.Client) -> None:
    answer = http.post("/gone", json={"x": 1})
    assert (answer.status_code, answer.content) == (204, b"")
    assert "content-length" not in answer.headers


def test_texts_and_files_are_sent_as_they_are(http: httpx.Client, tmp_path: Path) -> None:
    answer = http.post("/text", json={"kind": "text/csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.text == "größer,1\n" * 1000
    assert http.post("/page", json={"x": 3}).text == "<p>3</p>"
    path = tmp_path / "table.csv"
    path.write_text("1,2\n")
    answer = http.post("/file", json={"path": str(path)})
    assert answer.content == b"1,2\n"
    assert answer.headers["content-type"] == "text/csv"
    wanted = "attachment; filename=\"__.csv\"; filename*=UTF-8''%C3%A4%22.csv"
    assert answer.headers["content-disposition"] == wanted
    assert http.post("/file", json={"path": str(tmp_path / "none")}).status_code == 500


def test_an_unchanged_answer_is_304_without_a_body(http: httpx.Client) -> None:
    first = http.get("/labels")
    assert (first.json(), first.headers["etag"]) == (["rose"], '"1"')
    asked = {"If-None-Match": '"0", "1"'}
    same = http.get("/labels", headers=asked)
    assert (same.status_code, same.content) == (304, b"")
    assert (same.headers["etag"], same.headers["cache-control"]) == ('"1"', "no-cache")
    assert http.get("/labels?version=2", headers=asked).json() == ["rose"]
    head = http.head("/labels", headers=asked)
    assert (head.status_code, head.content) == (304, b"")
    # A compressed answer has other bytes, and so a weak tag, which is found as well.
    packed = http.get("/labels?many=2000", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["etag"] == 'W/"1"'
    asked = {"If-None-Match": packed.headers["etag"]}
    assert http.get("/labels?many=2000", headers=asked).status_code == 304
    answers = http.get("/openapi.json").json()["paths"]["/labels"]["get"]["responses"]
    assert "content" not in answers["304"]


def test_a_file_is_sent_in_parts_and_only_if_it_changed(http: httpx.Client, tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_bytes(b"0123456789")
    whole = http.get("/download", params={"path": str(path)})
    assert (whole.content, whole.headers["accept-ranges"]) == (b"0123456789", "bytes")

    def again(**fields: str) -> httpx.Response:
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        return http.get("/download", params={"path": str(path)}, headers=headers)

    part = again(range="bytes=2-4")
    assert (part.status_code, part.content) == (206, b"234")
    assert part.headers["content-range"] == "bytes 2-4/10"
    assert part.headers["content-type"] == "text/plain"
    beyond = again(range="bytes=10-")
    assert (beyond.status_code, beyond.content) == (416, b"")
    assert beyond.headers["content-range"] == "bytes */10"
    assert again(range="bytes=2-4", if_range='"other"').content == b"0123456789"
    assert again(if_modified_since=whole.headers["last-modified"]).status_code == 304
    assert again(if_none_match=whole.headers["etag"], range="bytes=2-4").status_code == 304
    answers = http.get("/openapi.json").json()["paths"]["/download"]["get"]["responses"]
    assert {"200", "206", "304", "416"} <= {*answers}


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b=1", "a\nb", "\0", "ä€", " blank"])
def test_a_line_break_in_a_field_is_never_sent(http: httpx.Client, value: str) -> None:
    answer = http.post("/bad", json={"value": value})
    assert answer.status_code == 500
    assert "set-cookie" not in answer.headers


def test_a_response_without_its_annotation_says_what_to_write(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    assert http.post("/unannounced", json={"x": 1}).status_code == 500
    assert "write -> Response[...]" in caplog.text
    assert http.post("/free", json={"x": 1}).headers["x-free"] == "1"


@pytest.mark.parametrize(
    ("what", "status", "code", "text"),
    [
        ("taken", 409, "conflict", "taken by another"),
        ("for good", 410, "taken_for_good", "TakenForGood"),
        ("broken", 502, "bad_gateway", "of the store"),
        ("http", 402, "payment_required", "pay first"),
        ("named", 422, "no_such_unit", "no"),
        ("later", 503, "service_unavailable", "later"),
    ],
)
def test_an_exception_has_the_status_of_its_class(
    http: httpx.Client, what: str, status: int, code: str, text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with caplog.at_level(logging.INFO, "penstock"):
        answer = http.post("/raise", json={"what": what})
    assert (answer.status_code, answer.json()) == (status, {"error": code, "message": text})
    assert ("raised" in caplog.text or text in caplog.text) == (status >= 500)
    assert ("retry-after" in answer.headers) == (status == 503)


def test_in_a_batch_and_in_a_graph_it_is_the_same(http: httpx.Client) -> None:
    assert http.post("/raise-together", json={"names": "taken"}).status_code == 409
    assert http.post("/raise-together", json={"names": "fine"}).json() == 1
    answer = http.post("/graph", json={})
    assert (answer.status_code, answer.json()["message"]) == (409, "taken by another")


def test_the_description_has_every_declared_answer(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    answers = paths["/make"]["post"]["responses"]
    assert "200" not in answers
    assert answers["201"]["content"]["application/json"]["schema"]["$ref"].endswith("/Item")
    assert "content" not in answers["303"]
    assert {"409", "410", "502"} <= {*answers}  # of the app's errors
    components = http.get("/openapi.json").json()["components"]
    missing = components["responses"][answers["404"]["$ref"].rpartition("/")[2]]
    schema = missing["content"]["application/json"]["schema"]
    assert [each["title"] for each in schema["anyOf"]] == ["Error", "Missing"]
    assert "409" in paths["/graph"]["post"]["responses"]
    assert "content" not in paths["/gone"]["post"]["responses"]["204"]
    assert "*/*" in paths["/text"]["post"]["responses"]["200"]["content"]
    assert next(iter(paths["/page"]["post"]["responses"]["200"]["content"])) == "text/html"


@pytest.mark.parametrize(
    "options",
    [
        {"status": 404},
        {"status": "201"},
        {"answers": {200: Item}},
        {"answers": {99: None}},
        {"answers": {302: HttpError}},
        {"answers": {304: Item}},
    ],
)
def test_a_status_that_cannot_be_is_refused_at_the_route(options: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match=r"status|answers"):
        App("wrong").route("/x", **options)


def test_app_error_takes_a_class_and_a_status_of_an_error() -> None:
    app = App("wrong")
    for kind, status in ((Taken(), 409), (Taken, 200), (HttpError, 409), (Taken, "409")):
        with pytest.raises(GraphError, match=r"app\.error"):
            app.error(kind, status=status)  # type: ignore[arg-type]


SCRIPT = """
from penstock import App, HttpError, Response

app = App("answers")

class Taken(Exception):
    pass

class Broken(Exception):
    pass

app.error(Taken, status=409)
app.error(Broken, status=502)

def thread(what: str) -> Response[str]:
    if what == "taken":
        raise Taken("by another")
    if what == "broken":
        raise Broken("the store")
    if what == "http":
        raise HttpError(451, "not here", "hidden")
    cookies = [("set-cookie", "a=b"), ("set-cookie", "c=d")]
    return Response(what, status=202, etag="1", headers=cookies)

def process(what: str) -> Response[str]:
    return thread(what)

app.route("/thread", answers={202: str})(thread)
app.route("/process", answers={202: str}, executor="process", batch=None)(process)
"""


@pytest.mark.real
def test_workers_in_processes_answer_as_threads_do_over_http_and_grpc(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(SCRIPT)
    with running(script, command=PENSTOCK) as server, httpx.Client() as http:
        for name in ("thread", "process"):
            url = f"{server.http_url}/{name}"
            good = http.post(url, json={"what": "fine"})
            assert (good.status_code, good.json(), good.headers["etag"]) == (202, "fine", '"1"')
            assert good.headers.get_list("set-cookie") == ["a=b", "c=d"]
            for what, status, code in (
                ("taken", 409, "conflict"),
                ("broken", 502, "bad_gateway"),
                ("http", 451, "hidden"),
            ):
                bad = http.post(url, json={"what": what})
                assert (bad.status_code, bad.json()["error"]) == (status, code)
        # The pipeline protocol has numbers of errors.
        with PipelineClient() as pipeline:
            pipeline.connect([server.rpc_endpoint])
            for name in ("thread", "process"):
                assert pipeline.predict({"what": "taken"}, name=name).err_no == 50
        assert server.stop() == 0
        assert server.log().count("Broken: the store") == 2
        assert "Taken" not in server.log()


@pytest.mark.parametrize("module", ["starlette.exceptions", "fastapi"])
def test_the_exceptions_of_fastapi_have_their_status(
    module: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind = pytest.importorskip(module).HTTPException
    app = App("moved")

    @app.route("/items", batch=4)
    def items(status: list[int]) -> list[int]:
        for each in status:
            if each != 200:
                raise kind(each, {"why": "no such item"})
        return status

    with client(app) as http:
        missing = http.post("/items", json={"status": 404})
        assert (missing.status_code, missing.json()["error"]) == (404, "not_found")
        assert missing.json()["message"] == "{'why': 'no such item'}"
        assert "Traceback" not in caplog.text
        assert http.post("/items", json={"status": 503}).status_code == 503
        assert "HTTPException" in caplog.text
        assert http.post("/items", json={"status": 307}).status_code == 500  # no error
        assert http.post("/items", json={"status": 200}).json() == 200
