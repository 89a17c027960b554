"""The files in docs/deployment.md, checked by systemd, nginx, haproxy and a container builder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT, blocks_of
from tests.kit.containerfile import read
from tests.peers.front import haproxy, nginx
from tests.peers.programs import program
from tests.service.scripts import PENSTOCK, fetch_as
from tests.services.process import free_port, running

pytestmark = pytest.mark.peers

BLOCKS = {block.name: block.text for block in blocks_of(ROOT / "docs/deployment.md")}
APP = """
from penstock import App
app = App("doubles")

@app.route("/double")
def double(x: int) -> int:
    return 2 * x
"""


def test_systemd_accepts_the_documented_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "penstock.service"
    text = BLOCKS["penstock.service"].replace("/opt/classifier/.venv/bin/penstock", "/bin/true")
    unit.write_text(text.replace("WorkingDirectory=/opt/classifier", "WorkingDirectory=/"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    messages = [line for line in done.stderr.splitlines() if "penstock.service" in line]
    assert messages == []


@pytest.mark.parametrize(
    ("proxy", "config"),
    [(nginx, "penstock.conf"), (haproxy, "haproxy.cfg")],
    ids=["nginx", "haproxy"],
)
def test_a_proxy_forwards_requests_with_the_documented_configuration(
    proxy: Any, config: str, tmp_path: Path
) -> None:
    path = tmp_path / "app.py"
    path.write_text(APP)
    front = free_port()
    allowed = re.findall("PENSTOCK_ALLOWED_HOSTS=(.*)", BLOCKS["penstock.service"])
    environment = {"PENSTOCK_ALLOWED_HOSTS": allowed[0]}
    with running(path, command=PENSTOCK, environment=environment) as server:
        site = BLOCKS[config].replace("127.0.0.1:8080", f"127.0.0.1:{server.http_port}")
        site = site.replace("127.0.0.1:8000", f"127.0.0.1:{front}")
        with proxy(tmp_path / "proxy", site, front):
            url = f"http://127.0.0.1:{front}/double"
            own = {"Host": "models.example.org", "Origin": "https://models.example.org"}
            for headers in ({}, own):
                for _ in range(3):
                    answer = fetch_as(url, b'{"x": 21}', **headers)
                    assert (answer.status, answer.body) == (200, b"42")
            other = fetch_as(url, b'{"x": 21}', Host="other.example.org")
            assert (other.status, other.json["error"]) == (403, "forbidden")
        assert server.stop() == 0


def test_the_container_can_be_built(tmp_path: Path) -> None:
    builder = next((each for each in ("buildah", "podman", "docker") if shutil.which(each)), None)
    if builder is None or not _works(builder):
        pytest.skip("no builder of containers works here")
    for each in ("deploy/Containerfile", "requirements/image.txt", ".dockerignore"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / each, tmp_path / each)
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*wheel, "--wheel-dir", str(tmp_path / "dist"), str(ROOT)], check=True)
    base = read((tmp_path / "deploy/Containerfile").read_text())[0].base
    pulled = subprocess.run([builder, "pull", base], capture_output=True, timeout=60, check=False)
    if pulled.returncode:
        pytest.skip(f"{base} cannot be had here")
    command = [builder, "build", "-f", "deploy/Containerfile", "-t", "penstock-test", "."]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)


def _works(builder: str) -> bool:
    done = subprocess.run([program(builder), "info"], capture_output=True, timeout=20, check=False)
    return done.returncode == 0
