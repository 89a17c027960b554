"""Services whose scripts started threads, which a fork would lack: child processes run the script
again."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from subprocess import run

import psutil
import pytest

from penstock.errors import StartupError
from penstock.service import program
from penstock.service.role import spawned_role
from tests.service.scripts import PENSTOCK, PYTHON, post, script, until
from tests.services.process import ServiceProcess, running

real = pytest.mark.real

THREAD = """
import os
print("running in", os.getpid(), flush=True)
threading.Thread(target=time.sleep, args=(600,), daemon=True, name="mine").start()
"""
REPORTING = """
def process(self, feed_batch, typical_logid):
    import os, random, numpy, subprocess, threading
    (feed,) = feed_batch
    return {
        "a": feed.get("a", ""),
        "pid": str(os.getpid()),
        "threads": ",".join(each.name for each in threading.enumerate()),
        "number": f"{random.random()} {numpy.random.random()}",
        "inherited": subprocess.run(
            ("sh", "-c", "ls /proc/$$/fd; env"), capture_output=True, text=True, close_fds=False
        ).stdout,
    }
"""
ALL = '"dag": {"is_thread_op": False}'
TWO = f'{ALL}, "op": {{"work": {{"concurrency": 2}}}}'


def call(server: ServiceProcess, **pairs: str) -> dict[str, str]:
    reply = post(server, **pairs).json
    assert reply["err_no"] == 0, reply
    return dict(zip(reply["key"], reply["value"], strict=True))


def children_of(server: ServiceProcess) -> list[psutil.Process]:
    return psutil.Process(server.pid).children(recursive=True)


@real
@pytest.mark.parametrize("command", [PYTHON, PENSTOCK])
def test_the_script_and_its_threads_run_again_in_each_process(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = script(tmp_path, REPORTING, TWO, before=THREAD)
    with running(path, command=command) as server:
        assert call(server, a="1")["a"] == "1"
        assert "mine" in call(server)["threads"].split(",")
        assert "threads run already (mine)" in server.log()
        for each in children_of(server):
            assert f"running in {each.pid}\n" in server.log()
        assert server.stop() == 0
        assert server.leftovers() == []
        assert server.log().count("after the service") == 1


@real
def test_killed_workers_and_engines_are_replaced(tmp_path: Path) -> None:
    with running(script(tmp_path, REPORTING, TWO, before=THREAD)) as server:
        family = children_of(server)
        assert len(family) == 3
        worker = int(call(server)["pid"])
        os.kill(
            worker, signal.SIGTERM
        )  # ignored: at a stop of all processes, the engine ends its workers
        assert call(server, a="1")["a"] == "1"
        assert psutil.pid_exists(worker)
        os.kill(worker, signal.SIGKILL)
        until(lambda: worker not in {each.pid for each in children_of(server)}, "its end")
        until(lambda: len(children_of(server)) == 3, "a new worker")
        assert call(server, a="2")["a"] == "2"
        engine = psutil.Process(server.pid).children()[0]
        engine.kill()
        psutil.wait_procs(family, timeout=10)
        until(lambda: len(children_of(server)) == 3 and server.is_ready(), "a new engine")
        assert call(server, a="3")["a"] == "3"
        assert server.stop() == 0


@real
def test_programs_that_a_worker_starts_do_not_inherit_its_role(tmp_path: Path) -> None:
    with running(script(tmp_path, REPORTING, TWO, before=THREAD)) as server:
        inherited = call(server)["inherited"]
        assert "PATH=" in inherited
        assert "_PENSTOCK_ROLE" not in inherited
        opened = {line for line in inherited.split() if line.isdigit()}
        assert len(opened - {"0", "1", "2"}) <= 1  # the pipe that ends the program with its parent


@real
def test_the_service_is_found_again_after_another_one_and_a_changed_folder(
    tmp_path: Path,
) -> None:
    before = """
import os
class Other(WebService):
    def get_pipeline_response(self, read_op):
        return WorkOp("other", input_ops=[read_op])
other = Other("other")
other.prepare_pipeline_config(yml_dict={"rpc_port": 0, "http_port": 0})
other.run_service()
os.chdir("/")
"""
    path = script(tmp_path, REPORTING, TWO, before=before + THREAD)
    with running(Path(path.name), cwd=tmp_path) as server:
        server.send_signal(signal.SIGTERM)
        # As long as ``wait_ready``: the script starts once more in each process.
        until(lambda: "after request  2 processes" in server.log(), "the second service", 60)
        server.wait_ready()
        assert call(server, a="1")["a"] == "1"
        assert server.stop() == 0


@real
def test_a_script_that_does_not_reach_its_service_again_is_an_error(tmp_path: Path) -> None:
    before = THREAD + 'if "_PENSTOCK_ROLE" in os.environ:\n    raise SystemExit\n'
    with running(script(tmp_path, REPORTING, TWO, before=before), ready=False) as server:
        assert server.wait_exit() == 1
        assert "did not reach this service" in server.log()


@real
def test_a_process_that_has_not_reached_its_service_ends_with_the_supervisor(
    tmp_path: Path,
) -> None:
    before = THREAD + 'if "_PENSTOCK_ROLE" in os.environ:\n    threading.Event().wait()\n'
    with running(script(tmp_path, REPORTING, TWO, before=before), ready=False) as server:
        until(lambda: server.log().count("running in") == 2, "the engine on its way")
        family = children_of(server)
        os.kill(server.pid, signal.SIGKILL)
        _, left = psutil.wait_procs(family, timeout=5)
        assert left == []


@real
def test_a_script_that_is_not_in_a_file_is_an_error_with_the_fix(tmp_path: Path) -> None:
    text = script(tmp_path, REPORTING, TWO, before=THREAD).read_text()
    ended = run((sys.executable, "-"), input=text, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "while threads run (mine)" in ended.stderr
    assert "its script is not in a file" in ended.stderr
    assert "start threads in init_op" in ended.stderr


def role(pid: int) -> str:
    engine_id = {"index": 1, "engines": 2, "generation": 3}
    return json.dumps({"service": 0, "engine_id": engine_id, "line": 7, "source": None, "pid": pid})


def test_another_process_s_role_in_the_environment_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_PENSTOCK_ROLE", role(os.getppid()))
    assert spawned_role() is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"engine_id": {"x": 1}}', '{"engine_id": {}, "n": 1}']
)
def test_an_invalid_role_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("_PENSTOCK_ROLE", text)
    with pytest.raises(StartupError, match="is set by the service itself"):
        spawned_role()


def test_a_notebook_cannot_be_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert program.rerun_problem() == "it is a notebook"
