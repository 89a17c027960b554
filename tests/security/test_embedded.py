"""``security`` of an App inside another server, and of applications below an App."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock import App, Caller
from penstock.security.keys import line_of, new_key
from penstock.testing import client
from tests.services.process import free_port

ANN, ADMIN = new_key(), new_key()


def fields(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.txt"
    file.write_text(f"{line_of('ann', ANN, ())}\n{line_of('root', ADMIN, ['admin'])}\n")
    return file


def make_app(keys: Path) -> App:
    app = App("closed", security={"keys": str(keys), "scopes": {"/web": "web.use"}})
    app.mount("/web", Starlette(routes=[Route("/hello", hello)]))
    app.mount("/others", Starlette(routes=[Route("/hello", hello)]))

    @app.route("/whose")
    def whose(x: int, caller: Caller) -> str:
        return f"{x} of {caller.name}"

    return app


@pytest.mark.parametrize(
    ("key", "status"),
    [(None, 401), (new_key(), 401), (ANN, 200)],
    ids=["nothing", "unknown", "known"],
)
def test_routes_and_mounted_applications_need_a_key(
    keys: Path, key: str | None, status: int
) -> None:
    with client(make_app(keys)) as http:
        answer = http.post("/whose", json={"x": 2}, headers=fields(key))
        assert answer.status_code == status
        if status == 200:
            assert answer.json() == "2 of ann"
        else:
            assert answer.headers["www-authenticate"].startswith("Bearer")
        below = http.get("/others/hello", headers=fields(key))
        assert (below.status_code, below.text == "hello") == (status, status == 200)
        assert http.get("/others/none", headers=fields(key)).status_code == (
            404 if status == 200 else 401
        )
        assert http.get("/livez").status_code == 200


def test_a_mounted_application_may_need_a_scope(keys: Path) -> None:
    with client(make_app(keys)) as http:
        assert http.get("/web/hello", headers=fields(ANN)).status_code == 403


def test_a_caller_of_our_own_makes_examples(keys: Path) -> None:
    app = App("examples", security={"keys": str(keys)})
    seen: list[Caller | None] = []

    @app.route("/needs", examples=[({"x": 1}, "penstock []")])
    def needs(x: int, caller: Caller) -> str:
        return f"{caller.name} {sorted(caller.scopes)}"

    @app.route("/may", examples=[{"x": 1}])
    def may(x: int, caller: Caller | None) -> int:
        seen.append(caller)
        return x

    with client(app) as http:
        assert http.post("/needs", json={"x": 1}, headers=fields(ANN)).json() == "ann []"
        assert seen == [None]


def test_a_model_of_the_inference_protocol_gets_who_calls(keys: Path) -> None:
    tensor = {"name": "x", "datatype": "INT64", "shape": [1], "data": [3]}
    with client(make_app(keys)) as http:
        inputs = http.get("/v2/models/whose", headers=fields(ANN)).json()["inputs"]
        assert [each["name"] for each in inputs] == ["x"]
        path = "/v2/models/whose/infer"
        answer = http.post(path, json={"inputs": [tensor]}, headers=fields(ANN)).json()
        assert answer["outputs"][0]["data"] == ["3 of ann"]
        forged = {**tensor, "name": "caller"}
        body = {"inputs": [tensor, forged]}
        assert http.post(path, json=body, headers=fields(ANN)).status_code == 400


@pytest.mark.real
def test_an_app_under_uvicorn_needs_a_key(tmp_path: Path, keys: Path) -> None:
    (tmp_path / "flowers.py").write_text(
        "from penstock import App, Caller\n\n"
        f'app = App("flowers", security={{"keys": {str(keys)!r}}})\n\n\n'
        '@app.route("/whose")\ndef whose(x: int, caller: Caller) -> str:\n    return caller.name\n'
    )
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = (sys.executable, "-m", "uvicorn", "flowers:app", "--port", str(port))
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        log = []
        for line in server.stderr:
            log.append(line.decode())
            if b"Uvicorn running" in line:
                break
        try:
            for key, status in ((None, 401), (ANN, 200)):
                answer = httpx.post(f"{url}/whose", json={"x": 4}, headers=fields(key), timeout=20)
                assert answer.status_code == status, log
            assert answer.json() == "ann"
            for key, status in ((None, 401), (ANN, 403), (ADMIN, 200)):
                assert httpx.get(f"{url}/status", headers=fields(key)).status_code == status
        finally:
            server.terminate()
        log.append(server.stderr.read().decode())
    assert "Traceback" not in "".join(log)
    assert ANN not in "".join(log)
