"""Requests that websites make a browser on this machine send to a service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from penstock.protocols.pb import Request, Response
from tests.service.scripts import NAME, PENSTOCK, fetch_as, script
from tests.services.process import ServiceFailed, ServiceProcess, free_port, running

pytestmark = pytest.mark.real

APP = """
from penstock import App
app = App("counts")
calls = 0

@app.route("/count")
def count(by: int = 1) -> int:
    global calls
    calls += by
    return calls
"""
EVIL = "evil.example"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    path = tmp_path_factory.mktemp("hosts") / "app.py"
    path.write_text(APP)
    with running(path, command=PENSTOCK) as server:
        yield server


PATHS = ["/count", "/no/such/path", "/counts", "/readyz", "/metrics", "/docs", "/openapi.json"]


@pytest.mark.parametrize("path", [*PATHS, "/v2/models", "/status", "/ui", "/health/deep", "/"])
def test_no_path_is_answered_under_another_name(server: ServiceProcess, path: str) -> None:
    for body in (None, b"{}"):
        refused = fetch_as(server.http_url + path, body, Host=f"{EVIL}:{server.http_port}")
        assert refused.status == 403
        assert b"allowed_hosts" in refused.body


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("origin", [f"http://{EVIL}", "null"])
def test_a_form_of_another_website_runs_nothing(
    server: ServiceProcess, origin: str, version: str
) -> None:
    with httpx.Client(http1=version != "HTTP/2", http2=version == "HTTP/2") as client:
        url = f"{server.http_url}/count"
        before = client.post(url, json={"by": 0}).json()
        for sent in (
            {"data": {"by": "1"}},
            {"files": {"by": (None, "1")}},
            {"content": b'{"by": 1}', "headers": {"content-type": "text/plain"}},
        ):
            given = {**sent, "headers": {**sent.get("headers", {}), "origin": origin}}  # type: ignore[dict-item]
            refused = client.post(url, **given)  # type: ignore[arg-type]
            assert (refused.status_code, refused.json()["error"]) == (403, "forbidden")
        assert client.options(url, headers={"origin": origin}).status_code == 403
        own = {"origin": server.http_url}
        assert client.post(url, json={"by": 1}, headers=own).json() == before + 1


def test_a_connection_stays_usable_for_other_callers_behind_a_proxy(server: ServiceProcess) -> None:
    with httpx.Client() as client:
        url = f"{server.http_url}/count"
        for host, status in (("localhost", 200), (EVIL, 403), ("localhost", 200)):
            assert client.post(url, json={"by": 0}, headers={"host": host}).status_code == status


def test_pipeline_routes_are_checked_and_grpc_calls_are_not(tmp_path: Path) -> None:
    body = json.dumps({"key": ["x"], "value": ["1"]}).encode()
    with running(script(tmp_path, "pass")) as server:
        url = f"{server.http_url}/{NAME}/prediction"
        assert fetch_as(url, body).json["err_no"] == 0
        refused = fetch_as(url, body, Host=EVIL)
        assert (refused.status, refused.json["code"]) == (403, 7)
        options = [("grpc.default_authority", EVIL)]
        with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}", options=options) as channel:
            call = channel.unary_unary(
                "/baidu.paddle_serving.pipeline_serving.PipelineService/inference",
                request_serializer=Request.SerializeToString,
                response_deserializer=Response.FromString,
            )
            assert call(Request(key=["x"], value=["1"]), timeout=10).err_no == 0


def test_a_service_for_other_machines_accepts_every_host_but_no_other_website(
    tmp_path: Path,
) -> None:
    path = tmp_path / "app.py"
    path.write_text(APP)
    with running(path, command=PENSTOCK, environment={"PENSTOCK_HOST": "0.0.0.0"}) as server:
        assert server.log().count("EVERY MACHINE") == 1
        url = f"{server.http_url}/count"
        assert fetch_as(url, b"{}", Host="any.example").status == 200
        assert fetch_as(url, b"{}", Host="any.example", Origin="http://any.example").status == 200
        assert fetch_as(url, b"{}", Host="any.example", Origin=f"http://{EVIL}").status == 403


def test_a_service_for_other_machines_accepts_only_its_names_if_it_has_some(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(APP)
    given = {"PENSTOCK_HOST": "0.0.0.0", "PENSTOCK_ALLOWED_HOSTS": "*.models.example"}
    with running(path, command=PENSTOCK, environment=given) as server:
        url = f"{server.http_url}/count"
        for host, status in (
            ("a.models.example", 200),
            ("10.1.2.3", 200),
            ("localhost", 200),
            (EVIL, 403),
        ):
            assert fetch_as(url, b"{}", Host=host).status == status


@pytest.mark.parametrize("engines", [1, 2])
def test_strict_refuses_to_serve_strangers(tmp_path: Path, engines: int) -> None:
    path = tmp_path / "app.py"
    path.write_text(APP)
    given = {"PENSTOCK_HOST": "0.0.0.0", "PENSTOCK_SET": "build_dag_each_worker=true"}
    given["PENSTOCK_WORKER_NUM"] = str(engines)
    with (
        pytest.raises(ServiceFailed, match=r"strict: host 0\.0\.0\.0: EVERY MACHINE"),
        running(path, command=(*PENSTOCK, "--strict"), environment=given),
    ):
        pass


def test_strict_serves_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(APP)
    with running(path, command=(*PENSTOCK, "--strict")) as server:
        assert "EVERY MACHINE" not in server.log()


def test_the_port_for_scrapers_is_checked_too(tmp_path: Path) -> None:
    port = free_port()
    config = f'"dag": {{"enable_prometheus": True, "prometheus_port": {port}}}'
    with running(script(tmp_path, "pass", config)):
        url = f"http://127.0.0.1:{port}/metrics"
        assert fetch_as(url).status == 200
        assert fetch_as(url, Host=EVIL).status == 403
