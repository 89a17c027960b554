"""The Containerfiles, run in namespaces; run by test_containers.py.

The packages of the build stage are those of the tests' environment, but for the tests marked
`long`, in which the build stage runs as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest

from tests.deploy.test_containerfile import CONTAINERFILE
from tests.deploy.test_kubernetes import container as container_of
from tests.kit import onnx_models
from tests.kit.container import Builder, Image, Running
from tests.kit.containerfile import read
from tests.kit.kustomize import build
from tests.service.scripts import fetch, until
from tests.services.process import ROOT, direct

URL = "http://127.0.0.1:8080"
PROJECT = """
import os, subprocess, threading
from pathlib import Path

from penstock import App

app = App("shouts", host="127.0.0.1", http_port=9)

@app.route("/shout", executor="process")
def shout(line: str) -> str:
    return line.upper()

@app.route("/orphan_of_a_thread")
def orphan_of_a_thread(seconds: int) -> int:
    shell = f"sleep {seconds} >/dev/null 2>&1 & echo $!"
    return int(subprocess.run(["sh", "-c", shell], capture_output=True, text=True).stdout)

@app.route("/writable")
def writable(paths: list[str]) -> list[str]:
    return [each for each in paths if os.access(each, os.W_OK)]

@app.route("/orphan", executor="process")
def orphan(seconds: int) -> list[int]:
    return [os.getpid(), subprocess.Popen(["sleep", str(seconds)], start_new_session=True).pid]

if __name__ == "__main__":
    app.run()
"""


def stand_in(builder: Builder, text: str) -> Image:
    """The image of a Containerfile, with the packages of the tests' environment."""
    build, final = read(text)
    build.instructions = [
        each
        for each in build.instructions
        if each.name == "ENV" or each.text.startswith("python -m venv")
    ]
    (packages,) = (builder.stage(build).root / "opt/venv").glob("lib/python*/site-packages")
    shutil.copytree(ROOT / "penstock", packages / "penstock")
    program = packages.parents[2] / "bin/penstock"
    program.write_text("#!/opt/venv/bin/python\nfrom penstock.start import main\nmain()\n")
    program.chmod(0o755)
    (packages / "others.pth").write_text("/packages\n")
    return builder.stage(final)


OTHERS = {"/packages": Path(sysconfig.get_path("purelib"))}


def until_ready(container: Running, timeout: float = 60.0) -> psutil.Process:
    def ready() -> bool:
        assert container.outer.poll() is None, container.output.read_text()
        try:
            with direct.open(f"{URL}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    until(ready, "readiness", timeout)
    return container.first()


def status_of(process: psutil.Process) -> dict[str, str]:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_the_model_server(tmp_path: Path) -> None:
    image = stand_in(Builder(ROOT, tmp_path / "room"), CONTAINERFILE.read_text())
    check_the_model_server(image, tmp_path, OTHERS)


def check_the_model_server(image: Image, folder: Path, volumes: dict[str, Path]) -> None:
    models = folder / "models"
    (models / "double/1").mkdir(parents=True)
    onnx_models.scale(models / "double/1/model.onnx", 2.0)
    assert image.ports == [8080]
    # What Kubernetes gives it, without the delay of a drain.
    pod = container_of(build(ROOT / "deploy/kubernetes/base"))
    given = {each["name"]: each["value"] for each in pod["env"]} | {"PENSTOCK_DRAIN_DELAY": "0"}
    mounted = {"/models": models, **volumes}
    with image.running(folder / "log", variables=given, volumes=mounted) as container:
        first = until_ready(container)
        assert b"penstock_op_queue_length" in fetch("http://127.0.0.1:9090/metrics").body
        status = status_of(first)
        assert status["NSpid"].split()[-1] == "1"
        # Process 1 runs no code of users, so that it can wait for all that others leave behind.
        assert "engine" in {each.name() for each in first.children()}
        assert status["Uid"].split() == ["10001"] * 4
        assert status["Gid"].split() == ["10001"] * 4
        assert (int(status["CapEff"], 16), status["NoNewPrivs"]) == (0, "1")
        data = (
            b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}'
        )
        answer = fetch(f"{URL}/v2/models/double/infer", data).json
        assert answer["outputs"][0]["data"] == [2.0, 4.0, 6.0]
        assert container.stop() == 0, container.output.read_text()
    assert '"error"' not in container.output.read_text()


def test_process_1_ends_by_a_signal_while_modules_are_imported(tmp_path: Path) -> None:
    image = stand_in(Builder(ROOT, tmp_path / "room"), CONTAINERFILE.read_text())
    hook = tmp_path / "hook"
    hook.mkdir()
    text = "import os, signal\nos.kill(1, signal.SIGTERM)\nraise SystemExit('it was ignored')"
    (hook / "typer.py").write_text(text)
    variables = {"PYTHONPATH": "/hook"}
    mounted = {"/hook": hook, **OTHERS}
    with image.running(tmp_path / "log", variables=variables, volumes=mounted) as container:
        status = container.outer.wait(30)
    assert (status, container.output.read_text()) == (128 + 15, "")


def test_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "app.py").write_text(PROJECT)
    for secret in (".env", "id_ed25519", "id_rsa.pub", "key.p12", "key.pfx"):
        (project / secret).write_text("SECRET=1\n")
    for folder in (".git", ".kube", ".docker"):
        (project / "part" / folder).mkdir(parents=True)
    (project / "requirements.txt").write_text("penstock-serving==0.2.0\n")
    (project / "app.py").chmod(0o600)  # as a umask of 077 makes them
    (project / "part").chmod(0o700)
    monkeypatch.chdir(project)
    subprocess.run([sys.executable, "-m", "penstock", "containerize", "app.py"], check=True)
    image = stand_in(Builder(project, tmp_path / "room"), (project / "Containerfile").read_text())
    copied = {
        each.relative_to(image.root / "app").as_posix() for each in image.root.glob("app/**/*")
    }
    assert copied == {"app.py", "part", "requirements.txt"}
    check_the_project(image, tmp_path, OTHERS)


def check_the_project(image: Image, folder: Path, volumes: dict[str, Path]) -> None:
    with image.running(folder / "log", volumes=volumes) as container:
        first = until_ready(container)
        assert status_of(first)["NSpid"].split()[-1] == "1"
        assert fetch(f"{URL}/shout", b'{"line": "abc"}').json == "ABC"
        paths = ["/", "/app", "/app/app.py", "/etc", "/opt/venv", "/usr/local", "/cache", "/tmp"]
        answer = fetch(f"{URL}/writable", json.dumps({"paths": paths}).encode())
        assert answer.json == ["/cache", "/tmp"]
        # Process 1 gets the children of processes that have ended, and must wait for them.
        worker, sleeper = fetch(f"{URL}/orphan", b'{"seconds": 1000}').json
        inside = {
            int(status_of(each)["NSpid"].split()[-1]): each
            for each in first.children(recursive=True)
        }
        os.kill(inside[worker].pid, 9)
        until(lambda: not inside[worker].is_running(), "the end of the worker")
        left = fetch(f"{URL}/orphan_of_a_thread", b'{"seconds": 1000}').json
        inside |= {int(status_of(each)["NSpid"].split()[-1]): each for each in first.children(True)}
        os.kill(inside[left].pid, 9)
        os.kill(inside[sleeper].pid, 9)
        until(lambda: not inside[left].is_running(), "the end of a thread's child", 30)
        until(lambda: not inside[sleeper].is_running(), "the end of its child", 30)
        assert container.stop() == 0, container.output.read_text()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_both_with_their_own_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = Path(os.environ["WHEELS"])  # those of requirements/image.txt, and ours
    context = tmp_path / "context"
    (context / "requirements").mkdir(parents=True)
    (context / "dist").mkdir()
    shutil.copy(ROOT / ".dockerignore", context)
    shutil.copy(ROOT / "requirements/image.txt", context / "requirements")
    (ours,) = wheels.glob("penstock_serving-*.whl")
    shutil.copy(ours, context / "dist")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
    volumes = {"/wheels": wheels}
    builder = Builder(context, tmp_path / "room", offline, volumes)
    check_the_model_server(builder.build(CONTAINERFILE.read_text()), tmp_path, {})

    project = tmp_path / "project"
    project.mkdir()
    (project / "app.py").write_text(PROJECT)
    shutil.copy(ROOT / "requirements/image.txt", project / "requirements.txt")
    shutil.copy(ours, project)
    monkeypatch.chdir(project)
    subprocess.run([sys.executable, "-m", "penstock", "containerize", "app.py"], check=True)
    builder = Builder(project, tmp_path / "room-2", offline, volumes)
    check_the_project(builder.build((project / "Containerfile").read_text()), tmp_path, {})
