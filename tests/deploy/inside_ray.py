"""The pod of the overlay ray, and a node of its cluster, as two containers in namespaces; run by
test_containers.py.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.deploy.inside_containers import OTHERS, URL, stand_in, status_of, until_ready
from tests.deploy.test_kubernetes import FOLDER, container
from tests.kit.container import Builder, Image, Running
from tests.kit.kustomize import build
from tests.service.scripts import fetch, until

TOKEN = "0123456789abcdef0123456789abcdef"
HEAD = (
    "exec ray start --head --num-cpus=1 --object-store-memory=100000000 --disable-usage-stats"
    " --include-dashboard=false --block"
)
PROGRAM = """
import os
from penstock import App

app = App("ocr")

@app.route("/recognise")
def recognise(line: str) -> list[str]:
    return [line.upper(), os.environ["NODE"]]
"""


def image_of(project: Path, room: Path) -> Image:
    image = stand_in(Builder(project, room), (project / "Containerfile").read_text())
    ray = image.root / "opt/venv/bin/ray"
    ray.write_text("#!/opt/venv/bin/python\nfrom ray.scripts.scripts import main\nmain()\n")
    ray.chmod(0o755)
    image.entrypoint = ["/bin/sh", "-c"]
    return image


def raylets(service: psutil.Process) -> list[psutil.Process]:
    return [each for each in service.children(recursive=True) if each.name() == "raylet"]


def answer() -> Any:
    return fetch(f"{URL}/recognise", b'{"line": "abc"}', timeout=180).json


@pytest.mark.timeout(800)
def test_the_service_joins_the_cluster_and_joins_it_again_when_its_head_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "app.py").write_text(PROGRAM)
    (project / "requirements.txt").write_text("penstock-serving==0.2.0\n")
    monkeypatch.chdir(project)
    subprocess.run([sys.executable, "-m", "penstock", "containerize", "app.py"], check=True)
    head, own = (image_of(project, tmp_path / each) for each in ("head", "own"))
    pod = container(build(FOLDER / "overlays/ray"))
    given = {each["name"]: each["value"] for each in pod["env"] if "value" in each}
    token = {"RAY_AUTH_MODE": given["RAY_AUTH_MODE"], "RAY_AUTH_TOKEN": TOKEN}
    given |= token | {"PENSTOCK_DRAIN_DELAY": "0"}
    given["PENSTOCK_SET"] = given["PENSTOCK_SET"].replace("concurrency=4", "concurrency=1")
    address = "127.0.0.1:6379"
    (command,) = pod["args"]
    command = command.replace("penstock-head-svc:6379", address)
    assert pod["command"] == own.entrypoint

    def running_head(name: str) -> AbstractContextManager[Running]:
        variables = token | {"NODE": name}
        return head.running(tmp_path / f"{name}.log", [HEAD], variables=variables, volumes=OTHERS)

    with (
        ExitStack() as heads,
        own.running(tmp_path / "log", [command], variables=given, volumes=OTHERS) as service,
    ):
        heads.enter_context(running_head("head"))
        first = until_ready(service, 300)
        assert (first.name(), status_of(first)["NSpid"].split()[-1]) == ("penstock", "1")
        assert status_of(first)["Uid"].split() == ["10001"] * 4
        assert answer() == ["ABC", "head"]
        (raylet,) = raylets(first)
        heads.close()
        assert psutil.wait_procs([raylet], 180)[1] == [], "it ends without its head"
        heads.enter_context(running_head("another"))
        wanted = ["ABC", "another"]
        until(lambda: answer() == wanted, "a worker at the head that is back", timeout=180)
        assert len(raylets(first)) == 1
        assert service.first() == first, "it is the same service"
        assert service.stop(60) == 0, service.output.read_text()
