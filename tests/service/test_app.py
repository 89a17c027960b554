"""Routes of an app, called through the engine without a port."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import ormsgpack
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from penstock import App, Array, Image, op
from penstock.errors import ConfigError, GraphError, HookError, ProductError, StartupError
from penstock.service import flags
from penstock.testing import client
from tests.service.scripts import PENSTOCK
from tests.services.process import free_port, running

ITEMS = 24


class Item(BaseModel):
    value: int


class Doubler:
    """One object per worker, with a method for each step."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def preprocess(self, item: Item) -> int:
        return item.value

    def inference(self, values: list[int]) -> list[int]:
        return [2 * each for each in values]

    def postprocess(self, doubled: int) -> dict[str, int]:
        return {"doubled": doubled}


class Pair(BaseModel):
    x: Annotated[np.ndarray, Array("float32", (None, 2))]
    by: float = 2.0


class Scaled(BaseModel):
    left: list[list[float]]
    total: float


@op()
def scale(request: dict[str, Any]) -> dict[str, Any]:
    assert request["x"].dtype == np.float32
    return {"scaled": request["x"] * request["by"]}


@op(scale, batch=4)
def join(scaled: list[dict[str, Any]]) -> list[Any]:
    return [
        ({}, 51, "too large")
        if each["scaled"].max() > 100
        else {"left": each["scaled"], "total": each["scaled"].sum(), "other": "of nobody"}
        for each in scaled
    ]


gate = threading.Event()


def make_app() -> App:
    app = App("tests")
    Doubler.made = 0
    app.route("/double", batch=8, workers=2)(Doubler)

    @app.route("/invert", batch=ITEMS, wait=100)
    def invert(items: list[Item]) -> list[float]:
        """Divides one by the value."""
        return [1 / each.value for each in items]

    @app.route("/wrong", batch=4)
    def wrong(items: list[Item]) -> list[int]:
        return []

    @app.route("/later")
    async def later(x: int) -> int:
        return x + 1

    @app.route("/lies")
    def lies(x: int) -> int:
        return "no number"  # type: ignore[return-value]

    @app.route("/stuck", timeout=0.2)
    def stuck(x: int) -> int:
        gate.wait(20)
        return x

    app.graph("/pairs", join, request=Pair, response=Scaled)
    return app


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with client(make_app()) as http:
        yield http
    gate.set()


def test_a_class_has_one_object_per_worker_and_all_its_steps_run(http: httpx.Client) -> None:
    assert http.post("/double", json={"value": 4}).json() == {"doubled": 8}
    assert Doubler.made == 2


def test_invalid_items_fail_without_affecting_their_batch(http: httpx.Client) -> None:
    bodies: list[Any] = [{"value": each} for each in range(1, ITEMS + 1)]
    bodies[3], bodies[7], bodies[11] = {"value": 0}, {"value": "x"}, {}
    with ThreadPoolExecutor(ITEMS) as threads:
        answers = list(threads.map(lambda body: http.post("/invert", json=body), bodies))
    for index, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
        if index in (7, 11):
            assert answer.status_code == 422
            assert answer.json()["details"][0]["loc"] == ["body", "value"]
        elif index == 3:
            assert answer.status_code == 500
            assert set(answer.json()) == {"error", "message", "id"}
        else:
            assert answer.json() == 1 / body["value"]


def test_a_msgpack_request_gets_a_msgpack_reply(http: httpx.Client) -> None:
    answer = http.post(
        "/later",
        content=ormsgpack.packb({"x": 1}),
        headers={"content-type": "application/msgpack"},
    )
    assert answer.headers["content-type"] == "application/msgpack"
    assert ormsgpack.unpackb(answer.content) == 2


@pytest.mark.parametrize(
    ("path", "content", "kind", "status", "error"),
    [
        ("/later", b"{", "application/json", 400, "undecodable"),
        ("/later", b"", "application/json", 400, "undecodable"),
        ("/later", b"x", "text/csv", 415, "unknown_media_type"),
        ("/later", b'{"x": 1.5}', "application/json", 422, "invalid_input"),
        ("/lies", b'{"x": 1}', "application/json", 500, "hook_failed"),
        ("/wrong", b'{"value": 1}', "application/json", 500, "wrong_count"),
        ("/stuck", b'{"x": 1}', "application/json", 504, "op_timeout"),
        ("/nothing", b"{}", "application/json", 404, "unknown_service"),
        ("/Doubler", b'{"value": 1}', "application/json", 404, "unknown_service"),
    ],
)
def test_each_failure_has_its_status_and_the_common_form(
    http: httpx.Client, path: str, content: bytes, kind: str, status: int, error: str
) -> None:
    if path == "/stuck":
        threading.Timer(0.5, gate.set).start()
    answer = http.post(path, content=content, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert "Traceback" not in answer.text
    assert "no number" not in answer.text


def test_a_graph_of_ops_has_a_typed_route(http: httpx.Client) -> None:
    answer = http.post("/pairs", json={"x": [[1, 2], [3, 4]]})
    assert answer.json() == {"left": [[2.0, 4.0], [6.0, 8.0]], "total": 20.0}
    assert http.post("/pairs", json={"x": [1]}).status_code == 422
    product = http.post("/pairs", json={"x": [[1, 200]]})
    assert (product.status_code, product.json()["number"]) == (400, 51)


def test_a_route_accepts_json_and_forms_and_compresses_replies(http: httpx.Client) -> None:
    assert http.post("/later", json={"x": 3}).json() == 4
    array = io.BytesIO()
    np.save(array, np.ones((1, 2), "float32"))
    for files in ({"x": array.getvalue()}, {"x": ("x.npy", array.getvalue())}):
        answer = http.post("/pairs", files=files)
        assert answer.json()["total"] == 4.0
    body = {"x": np.full((800, 2), 0.5).tolist()}
    answer = http.post("/pairs", json=body, headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json()["total"] == 1600.0


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/later?x=1", {"x": 2}, "x"),
        ("/double?value=", {"value": 1}, "value"),
        ("/pairs?by=3", {"x": [[1, 2]]}, "by"),
    ],
)
def test_a_parameter_in_the_query_of_a_route_without_one_is_refused_instead_of_ignored(
    http: httpx.Client, path: str, body: Any, name: str
) -> None:
    answer = http.post(path, json=body)
    (detail,) = answer.json()["details"]
    assert (answer.status_code, detail["loc"]) == (422, ["query", name])
    other = http.post(path.partition("?")[0] + "?_=1234", json=body)
    (detail,) = other.json()["details"]
    assert (other.status_code, detail["loc"]) == (422, ["query", "_"])


@pytest.mark.parametrize(("path", "status"), [("/double", 405), ("/later", 405), ("/nothing", 404)])
def test_another_method_of_a_known_path_is_405(http: httpx.Client, path: str, status: int) -> None:
    assert http.get(path).status_code == status


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("POST", "/later/", "; did you mean /later?"),
        ("GET", "/later/", "; did you mean /later?"),
        ("POST", "/latr", "; did you mean /later?"),
        ("GET", "/livz", "; did you mean /livez?"),
        ("POST", "/one/two/three", "; /docs lists them"),
        ("POST", "/latr/prediction", "; /docs lists them"),
        ("POST", "/later/now", "; did you mean /later?"),
        ("GET", "/later/now", "; did you mean /later?"),
        ("POST", "/v1/later", "; did you mean /later?"),
        ("GET", "/", "; /docs lists them"),
        ("POST", "/" + "x" * 4000, "; /docs lists them"),
    ],
)
def test_the_404_of_an_unknown_path_names_the_nearest_route(
    http: httpx.Client, method: str, path: str, hint: str
) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")
    assert answer.json() == {
        "error": "unknown_service",
        "message": f"there is no route {path[:100]}{hint}",
    }


@pytest.mark.real
def test_a_path_near_a_route_of_two_segments_and_a_bad_head_are_not_the_pipeline_protocol_s(
    tmp_path: Path,
) -> None:
    script = tmp_path / "app.py"
    script.write_text(
        "from penstock import App\n"
        "app = App('sections')\n"
        "@app.route('/api/predict')\n"
        "def predict(x: float) -> float:\n"
        "    return x\n"
    )
    with (
        running(script, command=PENSTOCK) as server,
        httpx.Client(base_url=server.http_url) as http,
    ):
        assert http.post("/api/predict", json={"x": 1}).json() == 1.0
        for method in ("POST", "GET"):
            answer = http.request(method, "/api/predct")
            assert answer.status_code == 404
            message = "there is no route /api/predct; did you mean /api/predict?"
            assert answer.json()["message"] == message
        with socket.create_connection((http.base_url.host, http.base_url.port or 0)) as link:
            link.sendall(b"GET / HTTP/1.1\r\nno header\r\n\r\n")
            body = link.makefile("rb").read().partition(b"\r\n\r\n")[2]
        assert json.loads(body)["error"] == "undecodable"
        for name in ("other", "api", "v1"):
            other = http.post(f"/{name}/prediction", json={"key": [], "value": []})
            assert (other.status_code, other.json()["error"]) == (404, "unknown_service")
        own = http.post("/predict/prediction", json={"key": ["x"], "value": ["1"]})
        assert (own.status_code, own.json()["key"]) == (200, [])


def test_paths_of_the_pipeline_protocol_keep_its_plain_text_errors(http: httpx.Client) -> None:
    answer = http.get("/later/prediction")
    assert (answer.status_code, answer.headers["content-type"][:10]) == (405, "text/plain")


def test_routes_with_letters_outside_ascii_and_spaces_are_called_and_described() -> None:
    app = App("words")

    @app.route("/größe")
    def size(x: int) -> int:
        return 2 * x

    @app.route("/two words/now")
    def now(x: int) -> int:
        return 3 * x

    with client(app) as http:
        for path, answer in (("größe", 2), ("gr%c3%b6%C3%9Fe", 2), ("two words/n%6fw", 3)):
            assert http.post(f"/{path}", json={"x": 1}).json() == answer
        paths = http.get("/openapi.json").json()["paths"]
        assert {"/gr%C3%B6%C3%9Fe", "/two%20words/now"} <= paths.keys()
        missing = http.post("/grosse", json={"x": 1})
        assert missing.json()["message"] == "there is no route /grosse; did you mean /größe?"
        missing = http.post("/gr%C3%B6ssen", json={"x": 1})
        assert missing.json()["message"] == "there is no route /grössen; did you mean /größe?"


def test_a_405_names_the_allowed_methods(http: httpx.Client) -> None:
    answer = http.get("/later")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json() == {
        "error": "method_not_allowed",
        "message": "GET is not answered here: use POST",
    }


def test_the_log_line_of_a_failure_has_the_id_of_its_reply(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    reply_id = http.post("/invert", json={"value": 0}).json()["id"]
    assert any(reply_id in record.getMessage() and record.exc_info for record in caplog.records)


def test_the_log_line_of_a_failed_batch_has_the_ids_of_all_its_replies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("wrong")

    @app.route("/wrong", batch=3, wait=1000)
    def wrong(items: list[Item]) -> list[int]:
        return [1, 2]

    with client(app) as http, ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda x: http.post("/wrong", json={"value": x}), range(3)))
    lines = [each for each in caplog.messages if "must return a list" in each]
    for answer in answers:
        assert answer.status_code == 500
        assert any(answer.json()["id"] in line for line in lines)


class Raising:
    """Each step raises if the text is the step's name."""

    def preprocess(self, text: str) -> str:
        return self._step("preprocess", text)

    def inference(self, texts: list[str]) -> list[str]:
        return [self._step("inference", each) for each in texts]

    def postprocess(self, text: str) -> int:
        return len(self._step("postprocess", text))

    def _step(self, name: str, text: str) -> str:
        if name == text:
            raise KeyError(text)
        return text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("preprocess", "Raising.preprocess raised"),
        ("inference", "Raising.inference raised"),
        ("postprocess", "Raising.postprocess, or the check of its result, raised"),
    ],
)
def test_the_log_line_names_the_method_that_raised(
    text: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("raising")
    app.route("/length", batch=4)(Raising)
    with client(app) as http:
        assert http.post("/length", json={"text": text}).status_code == 500
    assert any(each.startswith(f"op Raising: {message} (") for each in caplog.messages)


def test_the_log_line_names_the_function_that_raised(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    http.post("/invert", json={"value": 0})
    http.post("/lies", json={"x": 0})
    messages = [each.partition(" (")[0] for each in caplog.messages]
    assert messages == [
        "op invert/invert: invert raised",
        "op lies/lies: the check of the result raised",
    ]


class Unmade:
    def __init__(self) -> None:
        raise OSError(2, "No such file", "model.onnx")

    def predict(self, x: int) -> int:
        return x


class Unloaded:
    def load(self) -> None:
        raise OSError(2, "No such file", "model.onnx")

    def predict(self, x: int) -> int:
        return x


@pytest.mark.parametrize(
    ("target", "step"), [(Unmade, "Unmade.__init__"), (Unloaded, "Unloaded.load")]
)
def test_a_class_that_fails_to_start_is_named_with_its_method(
    target: type[Any], step: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("unmade")
    app.route("/x")(target)
    with pytest.raises(StartupError, match=f"{step} failed: .*model.onnx"), client(app):
        pass
    assert f"op {target.__name__}: {step} raised" in caplog.messages


def test_functions_may_return_numpy_scalars_and_raise_product_errors() -> None:
    app = App("answers")

    @app.route("/scalars")
    def scalars(x: int) -> dict[str, Any]:
        if x < 0:
            raise ProductError(51, "x is negative")
        return {"half": np.float32(x / 2), "row": np.arange(x)}

    with client(app) as http:
        assert http.post("/scalars", json={"x": 3}).json() == {"half": 1.5, "row": [0, 1, 2]}
        refused = http.post("/scalars", json={"x": -1})
        assert refused.status_code == 400
        assert refused.json() == {"error": "product", "message": "x is negative", "number": 51}


def fastapi_client(application: Any) -> httpx.Client:
    """FastAPI's client, which runs each request on an event loop of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it prefers another package than httpx
        from fastapi.testclient import TestClient
    return TestClient(application)


class Loaded:
    """Counts how often it is loaded, as a model would be."""

    loads = 0

    def load(self) -> None:
        type(self).loads += 1

    def predict(self, x: int) -> int:
        return 2 * x


def test_a_mounted_app_serves_on_each_event_loop_and_loads_at_most_twice() -> None:
    app, before = App("mounted"), Loaded.loads
    app.route("/double")(Loaded)

    async def request() -> int:
        transport = httpx.ASGITransport(app.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            return int((await http.post("/double", json={"x": 4})).text)

    assert [asyncio.run(request()) for _ in range(4)] == [8, 8, 8, 8]
    assert Loaded.loads - before == 2  # on the first loop, which has ended, and on one that lasts


@pytest.mark.parametrize("mounted", [True, False])
def test_a_test_client_of_fastapi_without_a_lifespan_loads_once(mounted: bool) -> None:
    app, before = App("mounted"), Loaded.loads
    app.route("/double")(Loaded)
    api: Any = app
    if mounted:
        api = FastAPI()
        api.mount("/flowers", app.asgi)
    http = fastapi_client(api)
    path = "/flowers/double" if mounted else "/double"
    answers = [http.post(path, json={"x": each}) for each in (*range(5), "?")]
    assert [each.status_code for each in answers] == [200] * 5 + [422]
    assert [each.json() for each in answers[:5]] == [0, 2, 4, 6, 8]
    assert Loaded.loads - before == 1
    large = b" " * (1 << 20) + b'{"x": 1}'
    assert http.post(path, content=large).json() == 2


def test_a_failed_start_without_a_lifespan_is_503_at_each_request() -> None:
    app = App("unmade")
    app.route("/x")(Unmade)
    http = fastapi_client(app)
    assert [http.post("/x", json={"x": 1}).status_code for _ in range(2)] == [503, 503]


def test_an_embedded_service_has_a_status_and_a_request_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("seen", log_requests=True)
    app.route("/double")(Loaded)
    with caplog.at_level("INFO"), client(app) as http:
        assert http.post("/double", json={"x": 4}).json() == 8
        local = {"host": "localhost"}
        status = http.get("/status", headers=local).json()
        assert (status["ready"], status["answers"]["ok"]) == (True, 1)
        assert http.get("/ui/state", headers=local).status_code == 200
    (line,) = [each for each in caplog.messages if each.startswith("/double 200 ")]
    assert " Loaded ok (data_id=" in line


@pytest.mark.real
def test_an_app_itself_is_served_by_uvicorn(tmp_path: Path) -> None:
    (tmp_path / "flowers.py").write_text(
        'from penstock import App\n\napp = App("flowers")\n\n\n'
        '@app.route("/double")\ndef double(x: int) -> int:\n    return 2 * x\n'
    )
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", "flowers:app", "--port", str(port))
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        log = []
        for line in server.stderr:
            log.append(line.decode())
            if b"Uvicorn running" in line:
                break
        try:
            answer = httpx.post(f"http://127.0.0.1:{port}/double", json={"x": 4}, timeout=20)
            assert (answer.status_code, answer.json()) == (200, 8), log
            assert httpx.get(f"http://127.0.0.1:{port}/status").json()["answers"]["ok"] == 1
        finally:
            server.terminate()
        log.append(server.stderr.read().decode())
    assert "Traceback" not in "".join(log)


@pytest.mark.parametrize("path", ["predict", "/a{b}", "/double", "/{x}", "/a?b"])
def test_a_path_that_cannot_be_a_route_is_an_error(path: str) -> None:
    with pytest.raises(GraphError):
        make_app().route(path)(Doubler)


def test_a_decorator_without_brackets_is_refused_with_the_fix() -> None:
    with pytest.raises(GraphError, match=r"@app\.route needs a path, such as '/predict'"):
        App("iris").route(Doubler)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"bacth": 4}, "route('/x'): bacth is not a known option; did you mean batch?"),
        ({"concurrenc": 4}, "route('/x'): concurrenc is not a known option; did you mean workers?"),
        (
            {"memory_limit": 4},
            "route('/x'): memory_limit is not a known option; did you mean memory_limit_mib?",
        ),
        ({"http_port": 1}, "route('/x'): http_port is not a known option; it is one of App(...)"),
        (
            {"response_model": int},
            "route('/x'): response_model is not a known option: the annotation of the result is the"
            " type of answers",
        ),
    ],
)
def test_an_unknown_option_of_a_route_is_refused_with_the_nearest(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        App("iris").route("/x", **options)
    assert caught.value.problems == [problem]


def test_an_unknown_option_of_an_app_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        App("iris", http_prt=80, batch=4, lifespan=None)
    assert caught.value.problems == [
        "App('iris'): http_prt is not a known option; did you mean http_port?",
        "App('iris'): batch is not a known option; it is one of @app.route(...)",
        "App('iris'): lifespan is not a known option: write @app.lifespan above a function that"
        " yields once",
    ]
    with flags.using(flags.Flags(lenient=True)):
        App("iris", http_prt=80)


@pytest.mark.parametrize(
    ("app", "options", "message"),
    [
        ({}, {"max_batches": 0}, "route('/double'): max_batches: must be"),
        ({"http_port": "x"}, {}, "App('iris'), route /double: http_port: must be an integer"),
    ],
)
def test_an_invalid_value_is_refused_with_app_and_route(
    app: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    made = App("iris", **app)
    made.route("/double", **options)(Doubler)
    with pytest.raises(ConfigError, match=re.escape(message)):
        made.services[0].prepare_beside({})


def test_the_test_client_without_httpx_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "penstock.testing.http_client", raising=False)
    with (
        pytest.raises(StartupError, match=r"pip install 'penstock-serving\[testing\]'"),
        client(make_app()),
    ):
        pass


def test_routes_with_images_do_not_start_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("pictures")

    @app.route("/size")
    def size(picture: Annotated[np.ndarray, Image()]) -> int:
        return picture.size

    monkeypatch.setattr("penstock.typed.signature.find_spec", lambda _: None)
    with pytest.raises(StartupError, match="size: an Image needs the package Pillow"), client(app):
        pass
    with pytest.raises(HookError, match="/graph: an Image needs the package Pillow"):
        app.graph("/graph", scale, request=Annotated[np.ndarray, Image()])


def test_a_timeout_that_is_no_number_is_refused_with_an_example() -> None:
    with pytest.raises(ConfigError, match=r"route\('/double'\): timeout is a number of seconds"):
        App("iris").route("/double", timeout="1s")  # type: ignore[arg-type]


def test_an_app_without_routes_is_an_error() -> None:
    with pytest.raises(GraphError, match="no routes"):
        App("empty").services  # noqa: B018
