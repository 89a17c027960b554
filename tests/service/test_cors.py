"""What a browser needs to call a service from another origin: over both versions of HTTP, for each
protocol, and under another server.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock import App
from penstock.testing.client import client
from tests.service.scripts import NAME, PENSTOCK, script
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

APP = "https://app.example"
SCRIPT = f"""
from penstock import App
app = App("texts", cors={{"origins": ["{APP}"]}}, body_timeout=1)

@app.route("/length")
def length(text: str) -> int:
    if not text:
        raise RuntimeError("no text")
    return len(text)
"""
PREFLIGHT = {
    "origin": APP,
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type,authorization",
}
ALLOWED = "access-control-allow-origin"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    path = tmp_path_factory.mktemp("cors") / "app.py"
    path.write_text(SCRIPT)
    with running(path, command=PENSTOCK) as server:
        yield server


@pytest.mark.parametrize("http2", [False, True])
def test_a_page_may_call_a_typed_route_and_read_its_errors(
    server: ServiceProcess, http2: bool
) -> None:
    with httpx.Client(http1=not http2, http2=http2, base_url=server.http_url) as client:
        for path in ("/length", "/none"):
            asked = client.options(path, headers=PREFLIGHT)
            assert (asked.status_code, asked.headers[ALLOWED]) == (204, APP)
            assert "POST" in asked.headers["access-control-allow-methods"]
            allowed = asked.headers["access-control-allow-headers"]
            assert allowed == "content-type,authorization"
        for body, path, status in (
            ({"text": "abc"}, "/length", 200),
            ({}, "/length", 422),
            ({"text": ""}, "/length", 500),
            ({}, "/none", 404),
        ):
            for origin, shown in ((APP, APP), (None, None)):
                given = {} if origin is None else {"origin": origin}
                answer = client.post(path, json=body, headers=given)
                assert (answer.status_code, answer.headers.get(ALLOWED)) == (status, shown)
                assert "origin" in answer.headers["vary"]
        large = {**PREFLIGHT, "x-large": "x" * 8000}
        large |= {"x-larger": "x" * 8000, "x-largest": "x" * 8000}
        assert client.post("/length", headers=large).status_code == 431


def test_a_page_may_read_that_its_request_took_too_long(server: ServiceProcess) -> None:
    head = f"POST /length HTTP/1.1\r\nhost: localhost\r\norigin: {APP}\r\ncontent-length: 9\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as link:
        link.sendall(head.encode())
        answer = link.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert f"{ALLOWED}: {APP}\r\n".encode() in answer


def test_options_without_cors_names_the_methods(tmp_path: Path) -> None:
    with (
        running(script(tmp_path, "pass")) as server,
        httpx.Client(base_url=server.http_url) as http,
    ):
        for path, allow in (
            (f"/{NAME}/prediction", "OPTIONS, POST"),
            ("/readyz", "GET, HEAD, OPTIONS"),
        ):
            answer = http.options(path)
            assert (answer.status_code, answer.headers["allow"]) == (204, allow)
            assert ALLOWED not in answer.headers
            assert "vary" not in answer.headers


def test_the_pipeline_protocol_and_oip_have_it_too(tmp_path: Path) -> None:
    config = '"cors": {"origins": ["*"]}'
    body = json.dumps({"key": ["x"], "value": ["1"]})
    with (
        running(script(tmp_path, "pass", config)) as server,
        httpx.Client(base_url=server.http_url) as http,
    ):
        headers = {"origin": "http://any.example"}
        for path in (f"/{NAME}/prediction", f"/v2/models/{NAME}/infer"):
            assert http.options(path, headers={**PREFLIGHT, **headers}).status_code == 204
            assert http.post(path, content=body, headers=headers).headers[ALLOWED] == "*"
        assert http.post(f"/{NAME}/prediction", content=body, headers=headers).json()["err_no"] == 0
        for path in ("/status", "/ui/state", "/trace", "/metrics", "/health/deep"):
            refused = http.get(path, headers=headers)
            assert (refused.status_code, ALLOWED in refused.headers) == (403, False)


def test_a_page_may_call_an_app_under_another_server() -> None:
    app = App("texts", cors={"origins": [APP]})

    @app.route("/length")
    def length(text: str) -> int:
        return len(text)

    with client(app) as http:
        asked = http.options("/length", headers=PREFLIGHT)
        assert (asked.status_code, asked.headers[ALLOWED]) == (204, APP)
        for body, status in (({"text": "abc"}, 200), ({}, 422)):
            answer = http.post("/length", json=body, headers={"origin": APP})
            assert (answer.status_code, answer.headers[ALLOWED]) == (status, APP)
            other = http.post("/length", json=body, headers={"origin": "https://evil.example"})
            assert (other.status_code, ALLOWED in other.headers) == (status, False)
