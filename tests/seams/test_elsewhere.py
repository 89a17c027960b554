"""The executor of docs/executors.md: it starts plain subprocesses, which connect to it over TCP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.documents import ROOT, blocks_of
from tests.service.scripts import BackgroundCall, fetch_as, post, until
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

(EXECUTOR,) = [
    each for each in blocks_of(ROOT / "docs/executors.md") if each.name == "subprocesses.py"
]
SCRIPT = """
import os, time
import numpy as np
import subprocesses
from penstock import Model, Service, op, run

def act(request):
    if request.get("do") == "exit":
        os._exit(9)
    until = time.monotonic() + 60
    while request.get("do") == "wait" and not os.path.exists("gate") and time.monotonic() < until:
        open("entered", "w").close()
        time.sleep(0.01)
    if request.get("do") == "raise":
        raise ValueError("as told")
    x = np.array(request["x"].split(","), np.float32)
    return {"x": str(x * 2), "pid": str(os.getpid())}

def service(name, executor, **more):
    return Service(name, op(name="act")(act), http_port=0, rpc_port=0,
                   op={"act": {"executor": executor, **more}})

run(service("near", "thread"), service("far", "subprocess"),
    service("late", "subprocess", timeout=300, on_timeout="kill"))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "subprocesses.py").write_text(EXECUTOR.text)
    (folder / "service.py").write_text(SCRIPT)
    with running(folder / "service.py", cwd=folder) as server:
        server.folder = folder  # type: ignore[attr-defined]
        yield server
        assert server.stop() == 0
        assert server.leftovers() == []


def answer(server: ServiceProcess, name: str, **pairs: str) -> tuple[int, str, dict[str, str]]:
    """The error's number and text, and the answer."""
    reply = post(server, name, **pairs).json
    return reply["err_no"], reply["err_msg"], dict(zip(reply["key"], reply["value"], strict=True))


def test_the_answers_are_those_of_a_thread_from_a_process_of_its_own(
    server: ServiceProcess,
) -> None:
    _, _, near = answer(server, "near", x="1,2.5")
    _, _, far = answer(server, "far", x="1,2.5")
    assert int(near.pop("pid")) == server.pid
    assert psutil.Process(int(far.pop("pid"))).ppid() == server.pid
    assert near == far
    assert (
        answer(server, "near", do="raise", x="1")[0] == answer(server, "far", do="raise", x="1")[0]
    )
    (loaded,) = server_op(server, "far")["loaded"]
    assert loaded["where"] == f"pid {loaded['pid']}"


def server_op(server: ServiceProcess, name: str) -> dict[str, object]:
    with_ops = json.loads(fetch_as(f"{server.http_url}/status").body)["graphs"]
    (found,) = [each["ops"][0] for each in with_ops if each["name"] == name]
    return dict(found)


def test_a_killed_subprocess_costs_its_own_batch_only(server: ServiceProcess) -> None:
    before = answer(server, "far", x="1")[2]["pid"]
    number, text, _ = answer(server, "far", do="exit", x="1")
    assert number != 0
    assert "worker" in text
    number, _, after = answer(server, "far", x="1")
    assert number == 0
    assert after["pid"] != before
    line = f"op far/act: worker 0 (pid {before}) died: exit status 9"
    until(lambda: line in server.log(), "a line of the log")
    assert server_op(server, "far")["deaths"] == 1


def test_a_deadline_passes_and_the_call_goes_on(server: ServiceProcess) -> None:
    folder: Path = server.folder  # type: ignore[attr-defined]
    body = json.dumps({"key": ["do", "x"], "value": ["wait", "1"]}).encode()
    url = f"{server.http_url}/far/prediction"
    assert fetch_as(url, body, Penstock_Timeout="0.3").status == 504
    waiting = BackgroundCall(lambda: answer(server, "far", x="1"))
    until((folder / "entered").exists, "the call")
    assert server_op(server, "far")["idle"] == 0
    (folder / "gate").touch()
    assert waiting.result()[0] == 0
    (folder / "gate").unlink()


def test_a_call_over_its_time_limit_is_ended_with_its_worker(server: ServiceProcess) -> None:
    before = answer(server, "late", x="1")[2]["pid"]
    assert "300 ms" in answer(server, "late", do="wait", x="1")[1]
    assert answer(server, "late", x="1")[2]["pid"] != before
