"""The port for operators: their pages move there, probes are on both ports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.security.keys import line_of, new_key
from tests.service.scripts import PENSTOCK
from tests.services.process import ServiceProcess, free_port, running

pytestmark = pytest.mark.real

APP = """
from penstock import App
app = App("doubles")

@app.route("/double", examples=[{"x": 1}])
def double(x: int) -> int:
    return 2 * x
"""
MOVED = ["/ui", "/ui/state", "/ui/history", "/ui/requests", "/status", "/metrics", "/health/deep"]
PROBES = ["/livez", "/readyz", "/v2/health/live", "/v2/health/ready"]
OUTSIDE = {"x-forwarded-for": "10.1.2.3"}


@pytest.fixture(scope="module", params=[1, 2])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServiceProcess, str]]:
    path = tmp_path_factory.mktemp("admin") / "app.py"
    path.write_text(APP)
    port = free_port()
    given = {"PENSTOCK_ADMIN_PORT": str(port), "PENSTOCK_WORKER_NUM": str(request.param)}
    given["PENSTOCK_BUILD_DAG_EACH_WORKER"] = "true"
    with running(path, command=PENSTOCK, environment=given) as server:
        yield server, f"http://127.0.0.1:{port}"


def test_pages_of_operators_are_on_their_port_only(site: tuple[ServiceProcess, str]) -> None:
    server, admin = site
    with httpx.Client() as http:
        for path in MOVED:
            assert http.get(admin + path).status_code == 200
            assert http.get(server.http_url + path, headers=OUTSIDE).status_code == 404
            redirected = http.get(f"{server.http_url}{path}?a=b")
            there = f"{admin}{path}?a=b"
            assert (redirected.status_code, redirected.headers["location"]) == (307, there)
        for path in PROBES:
            for url in (server.http_url, admin):
                assert http.get(url + path).status_code == 200
        assert http.post(f"{server.http_url}/double", json={"x": 4}).json() == 8
        missing = http.post(f"{admin}/double", json={"x": 4})
        assert (missing.status_code, missing.json()["error"]) == (404, "unknown_service")
        assert http.get(f"{admin}/ui", headers={"host": "evil.example"}).status_code == 403
        described = http.get(f"{server.http_url}/openapi.json").json()["paths"]
        assert not described.keys() & set(MOVED)
        assert {"/double", "/readyz"} <= described.keys()
    lines = server.log().splitlines()
    assert f"  admin {admin}   GET /ui /status /trace /metrics" in lines
    assert "/ui" not in next(line for line in lines if line.startswith("  http"))


def test_commands_follow_it(site: tuple[ServiceProcess, str]) -> None:
    server, admin = site
    for address in (f"127.0.0.1:{server.http_port}", admin):
        command = [sys.executable, "-m", "penstock", "status", "--json", address]
        printed = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
        assert json.loads(printed)["ready"] is True


SECURED = """
from penstock import App
app = App("doubles", security={"keys_env": "KEYS"})

@app.route("/uis")
def double(x: int) -> int:
    return 2 * x
"""


def test_unknown_callers_are_not_told_which_routes_are_near(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(SECURED)
    given = {"PENSTOCK_ADMIN_PORT": str(free_port()), "KEYS": line_of("ann", new_key(), ())}
    with running(path, command=PENSTOCK, environment=given) as server:
        answer = httpx.get(f"{server.http_url}/ui", headers=OUTSIDE)
        assert (answer.status_code, answer.json()["error"]) == (404, "unknown_service")
        assert "uis" not in answer.text
