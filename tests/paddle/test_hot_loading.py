"""Hot loading as in the original: a model's folder changes, and its time file is touched.

The models multiply by a number, which is the version that has answered.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.observe.status import shown
from penstock.observe.swaps import unresolved
from tests.kit.onnx_models import save
from tests.paddle.test_monitor import HADOOP
from tests.service.scripts import fetch, until
from tests.services.process import ROOT, ServiceProcess, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

SERVE = (sys.executable, "-m", "paddle_serving_server.serve", "start", "--model")
ENGINES = {"PENSTOCK_BUILD_DAG_EACH_WORKER": "true", "PENSTOCK_WORKER_NUM": "2"}
PROCESSES = {"PENSTOCK_SET": "op.uci.executor=process;op.uci.concurrency=2"}
BODY = b'{"x": [[1, 1, 1]]}'
KINDS = [{}, PROCESSES, ENGINES, ENGINES | PROCESSES]
EACH = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(KINDS[0], id="threads"),
        pytest.param(KINDS[1], id="processes", marks=pytest.mark.long),
        pytest.param(KINDS[2], id="engines", marks=pytest.mark.long),
        pytest.param(KINDS[3], id="engines with processes"),
    ],
)


def model(folder: Path, factor: float) -> None:
    """What a training job, or the original's monitor, does: it writes over the files."""
    save(
        folder / "model.onnx",
        f"(float[n, 3] x) => (float[n, 3] y) <float[1] factor = {{{float(factor)}}}>"
        " { y = Mul(x, factor) }",
    )


def touch(folder: Path, name: str = "fluid_time_file") -> None:
    (folder / name).touch()


@contextmanager
def served(folder: Path, kind: dict[str, str], *flags: str) -> Iterator[ServiceProcess]:
    """The model ``uci`` in a folder, which multiplies by 2."""
    (folder / "uci").mkdir()
    (folder / "copies").mkdir()
    model(folder / "uci", 2)
    environment = {**kind, "TMPDIR": str(folder / "copies"), "PENSTOCK_HOST": "127.0.0.1"}
    with running(folder / "uci", *flags, command=SERVE, environment=environment) as server:
        yield server
        assert server.stop() == 0
        assert server.leftovers() == []
        assert [*(folder / "copies").glob("penstock-*")] == []
        assert "Traceback" not in server.log()


def answer(server: ServiceProcess) -> float:
    found = fetch(f"{server.http_url}/uci", BODY)
    assert found.status == 200, found.body
    value: float = found.json["y"][0][0]
    return value


def status(server: ServiceProcess) -> dict[str, Any]:
    found: dict[str, Any] = fetch(f"{server.http_url}/status").json
    return found


def versions(server: ServiceProcess) -> list[str]:
    """Those of all engines."""
    return [each["version"] for each in status(server)["graphs"]]


def not_served(server: ServiceProcess) -> list[dict[str, Any]]:
    """Changes that were refused, as the status has them."""
    return unresolved(status(server)["swaps"])


def is_taken(server: ServiceProcess, version: float) -> None:
    """Wait until all engines serve it, and no other."""
    until(lambda: answer(server) == version, f"an answer of {version}", 20)
    until(lambda: len(versions(server)) == 1, "the end of the version before", 20)
    assert {answer(server) for _ in range(20)} == {version}


@contextmanager
def load(server: ServiceProcess) -> Iterator[list[float]]:
    """Four callers, and what has answered them; every request is answered."""
    over, answered, failed = threading.Event(), list[float](), list[BaseException]()

    def call() -> None:
        while not over.is_set():
            try:
                answered.append(answer(server))
            except BaseException as error:
                failed.append(error)
                return

    callers = [threading.Thread(target=call) for _ in range(4)]
    for each in callers:
        each.start()
    try:
        yield answered
    finally:
        over.set()
        for each in callers:
            each.join()
    assert failed == []


def only(version: float, answered: list[float]) -> None:
    """Check that callers get no other answer any more."""
    first = len(answered) + 4  # what each of them may just be writing down
    until(lambda: len(answered) > first + 20, "answers")
    assert {*answered[first:]} == {version}


@EACH
def test_a_model_is_taken_anew_under_load(tmp_path: Path, kind: dict[str, str]) -> None:
    folder = tmp_path / "uci"
    with served(tmp_path, kind) as server, load(server) as answered:
        assert "uci  is opened from a copy, and taken anew when its fluid_time_file" in server.log()
        until(lambda: 2 in answered, "an answer of the first model")
        model(folder, 3)
        touch(folder)
        is_taken(server, 3)
        only(3, answered)
        model(folder, 4)
        touch(folder, "fluid_time_stamp")  # the name of the original's documents
        is_taken(server, 4)
        only(4, answered)
        copies = tmp_path / "copies"
        until(lambda: len([*copies.glob("*/*/0")]) == 1, "the end of the copies before")


@EACH
def test_what_cannot_be_served_is_told_once_and_changes_nothing(
    tmp_path: Path, kind: dict[str, str]
) -> None:
    folder = tmp_path / "uci"
    with served(tmp_path, kind) as server:
        whole = (folder / "model.onnx").read_bytes()
        with load(server) as answered:
            (folder / "model.onnx").write_bytes(whole[: len(whole) // 2])
            touch(folder)
            until(lambda: "what was before" in server.log(), "the reason", 20)
            (line,) = (each for each in server.log().splitlines() if "what was before" in each)
            assert f"uci: what is in {folder} is not served" in line
            assert f"cannot open '{folder}/model.onnx'" in line
            until(lambda: not_served(server), "the reason in the status")
            (refused,) = not_served(server)
            assert (refused["model"], refused["tries"]) == ("uci", 1)
            assert f"cannot open '{folder}/model.onnx'" in refused["why"]
            assert f"is not served: {refused['why']}" in shown(status(server))
            loads = {"name": "uci", "outcomes": {"start": 1}}
            until(lambda: status(server)["loads"] == [loads], "the count of the attempt")
            only(2, answered)
        started = {each.pid for each in server.descendants()}
        workers = [x for x in server.descendants() if x.name().startswith(("uci", "engine"))]
        for each in workers:  # what starts anew opens the model that is served
            with suppress(psutil.NoSuchProcess):  # it has ended with its engine
                each.kill()
        gone = {each.pid for each in workers}
        until(
            lambda: (
                not gone & {x.pid for x in server.descendants()}
                and len(server.descendants()) == len(started)
                and server.is_ready()
            ),
            "new processes",
        )
        assert {answer(server) for _ in range(20)} == {2}
        model(folder, 3)
        touch(folder)
        is_taken(server, 3)
        until(lambda: not_served(server) == [], "the end of the reason")


def test_a_model_with_another_signature_is_refused(tmp_path: Path) -> None:
    """Callers of the one before could not call it."""
    folder = tmp_path / "uci"
    with served(tmp_path, {}) as server, load(server) as answered:
        save(folder / "model.onnx", "(float[n, 4] other) => (float[n, 4] y) { y = Abs(other) }")
        touch(folder)
        until(lambda: "what was before" in server.log(), "the reason", 20)
        (line,) = (each for each in server.log().splitlines() if "what was before" in each)
        assert "has another signature" in line
        assert "it is served after a restart" in line
        only(2, answered)


def test_processes_that_run_the_program_again_share_the_copies(tmp_path: Path) -> None:
    """A thread of a user's module prevents forks."""
    (tmp_path / "threaded.py").write_text(
        "import threading, time\n"
        "from penstock.instrument import Instrument as Mine\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    (tmp_path / "serve.yml").write_text(
        "models: {uci: {path: uci, executor: process, concurrency: 2}}\n"
        "server: {instruments: [threaded:Mine]}\n"
    )
    folder = tmp_path / "uci"
    folder.mkdir()
    (tmp_path / "copies").mkdir()
    model(folder, 2)
    command = (sys.executable, "-m", "penstock", "serve", "--hot_loading", "true", "--config")
    environment = {"TMPDIR": str(tmp_path / "copies"), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with running(tmp_path / "serve.yml", command=command, environment=environment) as server:
        assert "runs the program again" in server.log()
        assert answer(server) == 2
        model(folder, 3)
        touch(folder)
        is_taken(server, 3)
        assert len([*(tmp_path / "copies").glob("penstock-*")]) == 1
        assert server.stop() == 0
    assert [*(tmp_path / "copies").glob("penstock-*")] == []


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(KINDS[1], id="processes", marks=pytest.mark.long),
        pytest.param(KINDS[2], id="engines"),
    ],
)
def test_engines_that_replace_others_take_models_anew(tmp_path: Path, kind: dict[str, str]) -> None:
    """Also what is touched while they start. They have the service's protocols, too."""
    folder = tmp_path / "uci"
    request = json.dumps(
        {"tensor": [{"float_data": [1, 1, 1], "elem_type": 1, "name": "x", "shape": [1, 3]}]}
    ).encode()
    with served(tmp_path, kind) as server, load(server):
        model(folder, 3)
        touch(folder)
        is_taken(server, 3)
        server.send_signal(signal.SIGHUP)
        model(folder, 4)
        touch(folder)
        is_taken(server, 4)
        found = fetch(f"{server.http_url}/GeneralModelService/inference", request)
        assert found.status == 200, found.body


def test_a_folder_is_taken_when_it_is_at_rest(tmp_path: Path) -> None:
    """Also if its time file was touched before all was there."""
    folder = tmp_path / "uci"
    with served(tmp_path, {}) as server, load(server) as answered:
        model(tmp_path, 3)
        whole = (tmp_path / "model.onnx").read_bytes()
        touch(folder)
        for end in range(0, len(whole), len(whole) // 8):
            (folder / "model.onnx").write_bytes(whole[:end])
            threading.Event().wait(0.4)
        (folder / "model.onnx").write_bytes(whole)
        is_taken(server, 3)
        assert "ERROR" not in server.log()
    assert {*answered} == {2, 3}


def test_the_last_of_several_changes_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "uci"
    with served(tmp_path, {}) as server, load(server):
        for factor in range(3, 30):
            model(folder, factor)
            touch(folder)
            threading.Event().wait(0.1)
        is_taken(server, 29)


def test_a_model_that_is_deleted_is_served_on(tmp_path: Path) -> None:
    folder = tmp_path / "uci"
    with served(tmp_path, PROCESSES) as server, load(server) as answered:
        model(folder, 3)
        touch(folder)
        is_taken(server, 3)
        shutil.rmtree(folder)
        only(3, answered)
        folder.mkdir()
        touch(folder)
        until(lambda: "what was before" in server.log(), "the reason", 20)
        model(folder, 4)
        touch(folder)
        is_taken(server, 4)


@pytest.mark.parametrize("kind", KINDS[:2], ids=["threads", "processes"])
def test_a_service_ends_in_the_middle_of_a_change(tmp_path: Path, kind: dict[str, str]) -> None:
    folder = tmp_path / "uci"
    with served(tmp_path, kind):
        (folder / "weights").write_bytes(bytes(200 << 20))
        touch(folder)
        until(lambda: [*(tmp_path / "copies").glob("*/*/0/uci/weights")], "a copy")
    # ``served`` checks its end


def test_one_of_several_models_is_taken_anew(tmp_path: Path) -> None:
    """A sequence of two models, and one of them alone."""
    folder = tmp_path / "second"
    folder.mkdir()
    model(folder, 10)
    more = [str(folder), "--model", f"alone={folder}"]
    with served(tmp_path, {}, *more) as server:

        def answers() -> list[float]:
            found = [fetch(f"{server.http_url}/{x}", BODY).json for x in ("second", "alone")]
            return [each["y"][0][0] for each in found]

        assert answers() == [20, 10]
        model(folder, 100)
        touch(folder)
        until(lambda: answers() == [200, 100], "both graphs", 20)
        model(tmp_path / "uci", 3)
        touch(tmp_path / "uci")
        until(lambda: answers() == [300, 100], "the other model", 20)


def test_penstock_serve_takes_no_model_anew_unless_told_to(tmp_path: Path) -> None:
    (tmp_path / "uci").mkdir()
    model(tmp_path / "uci", 2)
    command = (sys.executable, "-m", "penstock", "serve")
    for flags, is_hot in (((), False), (("--hot_loading",), True)):
        with running(tmp_path / "uci", *flags, command=command) as server:
            assert ("taken anew" in server.log()) is is_hot
    with running(tmp_path / "uci", "--hot_loading", "false", command=SERVE) as server:
        assert "taken anew" not in server.log()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(KINDS[0], id="threads"),
        pytest.param(KINDS[3], id="engines with processes", marks=pytest.mark.long),
    ],
)
def test_the_monitor_updates_a_server_under_load(tmp_path: Path, kind: dict[str, str]) -> None:
    """By the command line of the original's document, with a Hadoop client of this machine."""
    remote, client = tmp_path / "remote", tmp_path / "hadoop"
    remote.mkdir()
    client.write_text(HADOOP)
    client.chmod(0o755)
    flags = [
        "--type=hdfs", f"--hadoop_bin={client}", "--remote_path=/",
        "--remote_model_name=uci_housing.tar.gz", "--remote_donefile_name=donefile",
        "--local_path=.", "--local_model_name=uci", "--local_timestamp_file=fluid_time_file",
        "--local_tmp_path=_tmp", "--unpacked_filename=uci_housing_model", "--interval=1",
    ]  # fmt: skip

    def publish(factor: float) -> None:
        new = tmp_path / "uci_housing_model"
        new.mkdir(exist_ok=True)
        model(new, factor)
        with tarfile.open(remote / "uci_housing.tar.gz", "w:gz") as archive:
            archive.add(new, new.name)
        (remote / "donefile").touch()

    with served(tmp_path, kind) as server, load(server) as answered:
        command = [sys.executable, "-m", "paddle_serving_server.monitor", *flags]
        monitor = subprocess.Popen(command, cwd=tmp_path)
        try:
            for factor in (3, 4, 5):
                publish(factor)
                is_taken(server, factor)
                only(factor, answered)
        finally:
            monitor.terminate()
        assert monitor.wait(20) == 0
    assert {*answered} == {2, 3, 4, 5}
