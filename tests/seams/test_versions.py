"""A second version of a graph is warmed up aside, swapped in and drained under load."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.seams.test_elsewhere import EXECUTOR
from tests.service.scripts import Answer, BackgroundCall, fetch, until
from tests.services.process import ROOT, ServiceProcess, running

pytestmark = pytest.mark.real

SCRIPT = """
import os, sys, threading, time
from pathlib import Path
sys.path.insert(0, {root!r})
import subprocesses
from penstock import App, run
from tests.seams.toy_admin import Admin

ran, gate = Path("ran"), Path("gate")

def shop(version):
    app = App("shop", applications=[Admin], **{config})

    @app.route("/price", workers=2, examples=[{{"n": -1}}], **{options})
    class price:
        def load(self):
            Path(f"loads_{{version}}").touch()
            while version == "slow" and not gate.exists():
                time.sleep(0.01)

        def predict(self, n: int) -> dict[str, object]:
            if n == -1:
                with ran.open("a") as file:
                    print(version, file=file)
                assert version != "broken"
            return {{"version": version, "pid": os.getpid()}}

    return app

{before}
run(shop("1"), versions=lambda description: shop(description["version"]))
"""

THREADS: dict[str, Any] = {"config": {}, "options": {}, "before": ""}
PROCESSES: dict[str, Any] = {"config": {}, "options": {"executor": "process"}, "before": ""}
ELSEWHERE: dict[str, Any] = {"config": {}, "options": {"executor": "subprocess"}, "before": ""}
ENGINES = {"config": {"build_dag_each_worker": True, "worker_num": 2}, "before": ""}
TWO = {**ENGINES, "options": {}}
TWO_WITH_PROCESSES = {**ENGINES, "options": {"executor": "process"}}
AGAIN = {  # a thread prevents forks: each process runs the script again
    **PROCESSES,
    "before": "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
}
EACH = pytest.mark.parametrize(
    "kind",
    [THREADS, PROCESSES, TWO, TWO_WITH_PROCESSES],
    ids=["threads", "processes", "two engines", "two engines with processes"],
)


@contextmanager
def shop(folder: Path, kind: dict[str, Any]) -> Iterator[ServiceProcess]:
    (folder / "subprocesses.py").write_text(EXECUTOR.text)
    (folder / "service.py").write_text(SCRIPT.format(root=str(ROOT), **kind))
    with running(folder / "service.py", environment={"PENSTOCK_LOG_LEVEL": "info"}) as server:
        yield server
        assert server.stop() == 0


def price(server: ServiceProcess) -> dict[str, Any]:
    answer = fetch(f"{server.http_url}/price", b'{"n": 1}')
    assert answer.status == 200, answer.body
    return answer.json


def swap(server: ServiceProcess, version: str) -> Answer:
    body = json.dumps({"name": "price", "version": version}).encode()
    return fetch(f"{server.http_url}/swap", body, 60)


def versions(server: ServiceProcess) -> list[str]:
    """Those of all engines."""
    graphs = fetch(f"{server.http_url}/status").json["graphs"]
    return [each["version"] for each in graphs]


@contextmanager
def load(server: ServiceProcess) -> Iterator[list[str]]:
    """Four callers, and the versions that have answered them; every request is answered."""
    over, answered, failed = threading.Event(), [], []

    def call() -> None:
        while not over.is_set():
            try:
                answered.append(price(server)["version"])
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


@EACH
def test_a_version_is_warmed_up_aside_and_swapped_in_under_load(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    with shop(tmp_path, kind) as server, load(server) as answered:
        until(lambda: "1" in answered, "an answer of version 1")
        assert swap(server, "2").status == 200
        assert (tmp_path / "ran").read_text().count("2\n") >= 2  # its examples ran in it
        assert {price(server)["version"] for _ in range(20)} == {"2"}
        until(lambda: versions(server) == ["2"], "the end of version 1 and its workers")
        until(lambda: "2" in answered, "an answer of version 2")
        assert swap(server, "1").status == 200  # back, made of a description
        assert {price(server)["version"] for _ in range(20)} == {"1"}


@EACH
def test_a_version_whose_examples_fail_changes_nothing(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    with shop(tmp_path, kind) as server, load(server) as answered:
        until(lambda: "1" in answered, "an answer of version 1")
        refused = swap(server, "broken")
        assert refused.status == 409
        assert b"route /price: example 1 fails" in refused.body
        until(lambda: versions(server) == ["1"], "the end of the broken version")
        assert swap(server, "2").status == 200
        until(lambda: "2" in answered, "an answer of version 2")
    assert set(answered) == {"1", "2"}


@EACH
def test_several_versions_serve_until_one_of_them_ends_with_its_workers(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    def change(*wanted: Any) -> None:
        answer = fetch(f"{server.http_url}/change", json.dumps(["price", *wanted]).encode(), 60)
        assert answer.status == 200, answer.body

    with shop(tmp_path, kind) as server, load(server) as answered:
        until(lambda: "1" in answered, "an answer of version 1")
        before = len(server.descendants())
        change("with_version", {"name": "price", "version": "2"})
        assert {price(server)["version"] for _ in range(10)} == {"1"}
        change("with_weights", {"1": 50, "2": 50})
        assert {price(server)["version"] for _ in range(60)} == {"1", "2"}
        change("with_weights", {})
        change("with_default", "2")
        assert {price(server)["version"] for _ in range(10)} == {"2"}
        change("without_version", "1")
        assert versions(server) == ["2"]
        assert len(server.descendants()) == before
    assert {*answered} == {"1", "2"}


def test_workers_elsewhere_open_the_op_of_their_version(tmp_path: Path) -> None:
    with shop(tmp_path, ELSEWHERE) as server:
        assert price(server)["version"] == "1"
        assert swap(server, "2").status == 200
        assert {price(server)["version"] for _ in range(20)} == {"2"}


@pytest.mark.parametrize("kind", [TWO, TWO_WITH_PROCESSES], ids=["threads", "processes"])
def test_an_engine_that_dies_in_between_is_left_out_and_its_successor_has_the_version(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    def engines() -> dict[str, int]:
        found = {}
        for each in server.descendants():
            with suppress(psutil.NoSuchProcess):
                found[each.name()] = each.pid
        return {name: pid for name, pid in found.items() if name.startswith("engine")}

    with shop(tmp_path, kind) as server:
        before = engines().values()
        swapping = BackgroundCall(lambda: swap(server, "slow"))
        until((tmp_path / "loads_slow").exists, "the start of the new version")
        asked = int((tmp_path / "asked").read_text())
        (victim,) = (pid for pid in before if pid != asked)
        os.kill(victim, signal.SIGKILL)
        until(lambda: victim not in engines().values(), "the death of an engine")
        (tmp_path / "gate").touch()
        assert swapping.result().status == 200
        until(lambda: len(engines()) == 2 and versions(server) == ["slow"], "the new version")
        assert {price(server)["version"] for _ in range(40)} == {"slow"}


def test_operators_see_the_version(tmp_path: Path) -> None:
    with shop(tmp_path, PROCESSES) as server:
        price(server)
        before = fetch(f"{server.http_url}/metrics").body.decode()
        assert swap(server, "2").status == 200
        until(lambda: versions(server) == ["2"], "the end of version 1 and its workers")
        trace = BackgroundCall(lambda: fetch(f"{server.http_url}/trace?requests=1&seconds=20"))
        until(lambda: price(server) and trace.is_over, "a trace")
        (graph,) = fetch(f"{server.http_url}/status").json["graphs"]
        titles = {each.name() for each in server.descendants()}
        after = fetch(f"{server.http_url}/metrics").body.decode()
    assert [each["name"] for each in graph["ops"]] == ["price@2"]
    assert {"price@2/0", "price@2/1"} < titles
    assert b"price@2" in trace.result().body
    series = 'penstock_op_queue_length{op="price",service="price",version="%s"}'
    assert [series % each in before for each in "12"] == [True, False]
    assert [series % each in after for each in "12"] == [False, True]


@pytest.mark.timeout(240)
def test_processes_that_run_the_script_again_open_the_version_that_they_are_started_for(
    tmp_path: Path,
) -> None:
    with shop(tmp_path, AGAIN) as server:
        assert price(server)["version"] == "1"
        assert swap(server, "2").status == 200
        assert {price(server)["version"] for _ in range(4)} == {"2"}
