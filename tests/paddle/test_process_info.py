"""``serve stop`` and ``serve kill``: the processes that get a signal, and those that do not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from paddle_serving_server import process_info, serve
from tests.kit.onnx_models import scale
from tests.services.process import running

SERVE = (sys.executable, "-m", "paddle_serving_server.serve", "--model")
SERVICE = """
import time
from paddle_serving_server.web_service import Op, WebService

class Slow(Op):
    def process(self, feed_batch, typical_logid=0):
        time.sleep(1)
        return feed_batch[0]

class Service(WebService):
    def get_pipeline_response(self, read_op):
        return Slow(name="slow", input_ops=[read_op])

service = Service(name="slow")
service.prepare_pipeline_config(yml_dict={"http_port": 1, "rpc_port": 2, "host": "127.0.0.1"})
service.run_service()
"""

Start = Callable[..., tuple["subprocess.Popen[bytes]", dict[str, Any]]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SERVING_HOME", str(tmp_path))
    return tmp_path


def entries_in_file() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(process_info.path().read_text())
    return found


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a waiting process, and returns it with its entry for the file."""
    with ExitStack() as stack:

        def started(port: int) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
            process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            stack.enter_context(process)
            stack.callback(process.kill)
            began = process_info._started(process.pid)
            entry = {"pid": process.pid, "port": [port], "model": "m", "started": began}
            return process, entry

        yield started


def test_a_running_server_has_an_entry_in_the_file(home: Path) -> None:
    with process_info.recorded([9393, None], "['uci']"):
        (entry,) = entries_in_file()
        assert entry["port"] == [9393]
        assert entry["model"] == "['uci']"
        assert entry.keys() == {"pid", "port", "model", "start_time", "started"}
        with process_info.recorded([1], "other"):
            assert entries_in_file()[0] == entry
            assert len(entries_in_file()) == 2
    assert entries_in_file() == []


@pytest.mark.parametrize(
    ("command", "number"), [("stop", signal.SIGTERM), ("kill", signal.SIGKILL)]
)
def test_all_servers_or_the_one_with_a_port_get_the_signal(
    command: str, number: signal.Signals, start: Start
) -> None:
    processes, entries = zip(*(start(port) for port in (1, 2, 3)), strict=True)
    process_info.path().write_text(json.dumps(entries))
    assert serve.main([command, "--port", "2"]) == 0
    assert [process.poll() for process in processes] == [None, -number, None]
    assert [each["port"] for each in entries_in_file()] == [[1], [3]]
    assert serve.main([command]) == 0
    assert [process.wait(10) for process in processes] == [-number] * 3
    assert entries_in_file() == []


def test_a_process_that_is_not_the_server_gets_no_signal(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    another, entry = start(1)
    unknown, its = start(2)
    ended, old = start(3)
    ended.kill()
    ended.wait()
    del its["started"]  # as written by the original
    entry["started"] += "0"  # its pid was another process's at that time
    process_info.path().write_text(json.dumps([entry, its, old]))
    assert serve.main(["kill"]) == 1
    assert "names no running server" in capsys.readouterr().err
    assert another.poll() is unknown.poll() is None
    assert entries_in_file() == []


@pytest.mark.parametrize("text", ["[", "{}", "[1]", '[{"pid": "1", "port": []}]', None])
def test_an_invalid_or_missing_file_is_an_error(
    text: str | None,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    if text is not None:
        process_info.path().write_text(text)
    assert serve.main(["stop"]) == 1
    assert f"error: {home}/ProcessInfo.json" in capsys.readouterr().err
    if text is not None:
        with process_info.recorded([1], "m"):  # the server runs without the file
            assert "serve stop finds" in caplog.text
        assert process_info.path().read_text() == text


@pytest.mark.real
def test_stop_ends_a_model_server_and_a_pipeline(home: Path) -> None:
    model = home / "models" / "m.onnx"
    model.parent.mkdir()
    scale(model, 2.0)
    script = home / "service.py"
    script.write_text(SERVICE)
    here = {"SERVING_HOME": str(home)}
    command = [sys.executable, "-m", "paddle_serving_server.serve"]
    with (
        running(model, command=SERVE, environment=here) as server,
        running(script, environment=here) as service,
    ):
        served = {each["pid"]: each for each in entries_in_file()}
        assert served[server.pid]["port"] == [server.http_port, server.rpc_port]
        assert {*served[service.pid]["port"]} == {service.http_port, service.rpc_port}
        first = [*command, "stop", "--port", str(server.rpc_port)]
        done = subprocess.run(first, capture_output=True, text=True, timeout=60)
        ports = f"{server.http_port}, {server.rpc_port}"
        assert done.stdout == f"process {server.pid} (port {ports}) has ended\n"
        assert done.returncode == 0
        assert server.wait_exit() == 0
        assert service.is_ready()
        assert subprocess.run([*command, "stop"], timeout=60).returncode == 0
        assert service.wait_exit() == 0
    assert entries_in_file() == []
