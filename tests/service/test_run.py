"""Whole services as processes: start, failed starts, stop."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import PipelineClient
from tests.service.scripts import (
    NAME,
    PENSTOCK,
    PYTHON,
    BackgroundCall,
    fetch,
    fetch_as,
    post,
    script,
    until,
)
from tests.services.process import free_port, running

pytestmark = pytest.mark.real
WAYS = pytest.mark.parametrize("way", [PYTHON, PENSTOCK], ids=["python", "penstock run"])
STOPPED = pytest.mark.parametrize(
    ("way", "number"), [(PYTHON, signal.SIGINT), (PENSTOCK, signal.SIGTERM)]
)

# Blocks until a file exists, so that a test decides when the op continues.
GATED = """
def preprocess(self, input_dicts):
    import pathlib
    (feed,) = input_dicts.values()
    print("inside", flush=True)
    while feed.get("gate") and not pathlib.Path(feed["gate"]).exists():
        time.sleep(0.005)
    return feed
"""


@STOPPED
def test_a_script_without_a_guard_serves_until_a_signal_and_exits_with_0(
    way: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    with running(script(tmp_path), command=way) as server:
        assert post(server, a="1").json["value"] == ["1"]
        with PipelineClient() as client:
            client.connect([server.rpc_endpoint])
            assert list(client.predict({"a": "1"}, name="work").value) == ["1"]
        assert server.stop(number) == 0
        assert server.leftovers() == []
        log = server.log()
    assert "penstock serves work to this machine only" in log
    assert "stopped: 2 admitted, 2 answered, 0 cancelled, 0 refused" in log
    assert "after the service" in log
    assert "Traceback" not in log


# Start


def run_failing(
    path: Path, way: tuple[str, ...], **environment: str
) -> subprocess.CompletedProcess[str]:
    """The result of a start that is expected to fail."""
    ports = {"PENSTOCK_HTTP_PORT": str(free_port()), "PENSTOCK_RPC_PORT": str(free_port())}
    return subprocess.run(
        [*way, str(path)],
        env={**os.environ, **ports, **environment},
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


def assert_failed_clearly(
    done: subprocess.CompletedProcess[str], way: tuple[str, ...], message: str
) -> None:
    """The exit status is 1; the message is the last line of a traceback, or the only line."""
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not re.match("[A-Z]+ 2|    ", line)]
    assert re.search(message, lines[-1]), done.stderr
    if way is PENSTOCK:
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("error: ")
    assert "after the service" not in done.stdout


@WAYS
@pytest.mark.parametrize(
    ("hooks", "config", "message"),
    [
        ("pass", '"worker_nun": 1', "worker_nun: is not a known key.*worker_num"),
        ("def preprocess(self): pass", "", "op 'work': preprocess takes 0 arguments"),
        ("def init_op(self): open('no such file')", "", "op 'work': init_op failed: FileNotFound"),
        ("def init_op(self): raise SystemExit(0)", "", "op 'work': init_op failed: SystemExit"),
        (
            "pass",
            '"op": {"work": {"local_service_conf": {"model_config": "gone.onnx"}}}',
            r"op\.work\.local_service_conf\.model_config: model 'gone\.onnx': no such file",
        ),
    ],
    ids=["key", "hook", "init_op", "exit in init_op", "model"],
)
def test_a_failed_start_exits_with_1_and_a_clear_message(
    hooks: str, config: str, message: str, way: tuple[str, ...], tmp_path: Path
) -> None:
    assert_failed_clearly(run_failing(script(tmp_path, hooks, config), way), way, message)


@WAYS
@pytest.mark.parametrize("taken", ["http_port", "rpc_port"])
def test_a_port_in_use_is_an_error_before_init_op_runs(
    taken: str, way: tuple[str, ...], tmp_path: Path
) -> None:
    path = script(tmp_path, "def init_op(self): print('init_op ran')")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run_failing(path, way, **{f"PENSTOCK_{taken.upper()}": str(port)})
    assert_failed_clearly(
        done, way, f"{taken} {port} on 127.0.0.1 cannot be bound: Address already"
    )
    assert "init_op ran" not in done.stdout


@pytest.mark.parametrize(
    "loading",
    [
        "def init_op(self):\n    print('loading', flush=True)\n    threading.Event().wait(60)",
        "def init_op(self):\n    print('loading', flush=True)\n    try:\n"
        "        threading.Event().wait(60)\n    except BaseException:\n        pass",
    ],
    ids=["patient", "catching everything"],
)
@STOPPED
def test_a_signal_while_models_load_ends_the_start_with_0(
    loading: str, number: signal.Signals, way: tuple[str, ...], tmp_path: Path
) -> None:
    with running(script(tmp_path, loading), command=way, ready=False) as server:
        until(lambda: "loading" in server.log(), "loading")
        assert server.stop(number) == 0
        assert "stopped before the start was over" in server.log()
        assert "Traceback" not in server.log()
        assert "penstock serves" not in server.log()


def test_a_signal_while_the_script_is_imported_ends_penstock_run_with_0(tmp_path: Path) -> None:
    before = "print('training', flush=True)\nthreading.Event().wait(60)"
    with running(script(tmp_path, before=before), command=PENSTOCK, ready=False) as server:
        until(lambda: "training" in server.log(), "training")
        assert server.stop() == 0
        assert "Traceback" not in server.log()


def test_without_an_http_port_only_grpc_is_served(tmp_path: Path) -> None:
    path = script(tmp_path)
    with running(path, ready=False, environment={"PENSTOCK_HTTP_PORT": ""}) as server:
        until(lambda: "penstock serves" in server.log(), "the start")
        assert "http" not in server.log()
        with PipelineClient() as client:
            client.connect([server.rpc_endpoint])
            assert list(client.predict({"a": "1"}).value) == ["1"]
        assert server.stop() == 0


def test_a_hangup_does_not_end_a_service_of_one_process_and_the_log_says_so(
    tmp_path: Path,
) -> None:
    with running(script(tmp_path)) as server:
        server.send_signal(signal.SIGHUP)
        until(lambda: "SIGHUP has no effect" in server.log(), "the warning")
        assert post(server, a="1").json["value"] == ["1"]
        assert server.stop() == 0


# Stop


def test_a_second_sigterm_ends_the_drain_at_once(tmp_path: Path) -> None:
    with running(script(tmp_path, GATED)) as server:
        stuck = BackgroundCall(lambda: post(server, gate=str(tmp_path / "never")))
        until(lambda: "inside" in server.log(), "work")
        server.send_signal(signal.SIGTERM)
        until(lambda: "shutting down: 1 requests in flight" in server.log(), "the drain")
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 8
        answer = stuck.result()
    assert (answer.status, answer.json["err_no"], answer.json["err_msg"]) == (
        200,
        3001,
        "dag closed.",
    )


def test_queued_work_of_a_client_that_closes_its_connection_is_dropped(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with running(script(tmp_path, GATED)) as server:
        running_call = BackgroundCall(lambda: post(server, gate=str(gate)))
        until(lambda: "inside" in server.log(), "work")
        body = b'{"key": ["x"], "value": ["1"]}'
        head = f"POST /{NAME}/prediction HTTP/1.1\r\nHost: localhost\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.http_port)) as client:
            client.sendall(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))

        def requests() -> Any:
            return fetch(f"{server.http_url}/status").json["requests"]

        until(lambda: requests()["cancelled"] == 1, "the cancellation")
        gate.touch()
        assert running_call.result().status == 200
        assert post(server, x="2").json["value"] == ["2"]
        assert server.log().count("inside") == 2


def test_during_drain_delay_the_service_is_not_ready_but_accepts_requests(tmp_path: Path) -> None:
    with running(script(tmp_path, config='"drain_delay": 2.0')) as server:
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        until(lambda: fetch(f"{server.http_url}/readyz").status == 503, "unreadiness")
        answer = post(server, a="1")
        assert (answer.status, answer.json["value"]) == (200, ["1"])
        assert server.wait_exit() == 0
        assert time.monotonic() - began >= 2.0


PACKING = """
import pathlib
from penstock.protocols.pb import Response

class Slow(ResponseOp):
    def pack_response_package(self, channeldata):
        print("packing", flush=True)
        while not pathlib.Path("gate").exists():
            time.sleep(0.005)
        return Response(key=["packed"], value=["yes"])

server = PipelineServer("work")
server.set_response_op(Slow(input_ops=[WorkOp("work", input_ops=[RequestOp()])]))
server.prepare_server(yml_dict={"rpc_port": 0, "drain_timeout": TIMEOUT})
server.run_server()
raise SystemExit(0)
"""


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_replies_that_are_being_packed_at_a_stop_are_sent(protocol: str, tmp_path: Path) -> None:
    path = script(tmp_path, before=PACKING.replace("TIMEOUT", "30"))
    with running(path) as server, PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        if protocol == "http":
            answer = BackgroundCall(lambda: post(server, a="1").json["value"])
        else:
            answer = BackgroundCall(lambda: list(client.predict({"a": "1"}).value))
        until(lambda: "packing" in server.log(), "packing")
        server.send_signal(signal.SIGTERM)
        until(lambda: "shutting down: 0 requests in flight" in server.log(), "the drain")
        # Longer than the limit for sending a complete reply.
        with pytest.raises(AssertionError, match="still running"):
            answer.result(1.5)
        (tmp_path / "gate").touch()
        assert answer.result() == ["yes"]
        assert server.wait_exit() == 0


def test_a_pack_that_ends_after_the_deadline_is_logged(tmp_path: Path) -> None:
    path = script(tmp_path, before=PACKING.replace("TIMEOUT", '0.5, "deadline": 0.5'))
    with running(path) as server:
        assert post(server, a="1").json["err_no"] == 6000
        late = "pack_response_package: the request's deadline passed while it ran (log_id=0)"
        until(lambda: late in server.log(), "the line")


def test_a_pack_that_hangs_does_not_delay_the_exit(tmp_path: Path) -> None:
    path = script(tmp_path, before=PACKING.replace("TIMEOUT", "0.5"))
    with running(path) as server:
        BackgroundCall(lambda: post(server, a="1"))
        until(lambda: "packing" in server.log(), "packing")
        assert server.stop(timeout=10) == 0


# Log


def test_data_of_clients_is_not_logged_and_each_event_is_one_line(tmp_path: Path) -> None:
    with running(script(tmp_path)) as server:
        for pairs in [{"a\nFORGED": "secret\nFORGED"}, {"x": "secret" * 1000}]:
            post(server, **pairs)
        fetch(f"{server.http_url}/secret%0AFORGED/x", b"secret\nFORGED not json")
        fetch(f"{server.http_url}/work/prediction", b'{"key": ["secret"], "value": []}')
        assert server.stop() == 0
        lines = server.log().splitlines()
    assert not any("secret" in line or "FORGED" in line for line in lines)
    events = [line for line in lines if "[penstock" in line]
    assert len(events) == 2
    assert all(re.match(r"(INFO|WARNING) \d{4}-", line) for line in events), lines


FAILING = """
def preprocess(self, input_dicts):
    (feed,) = input_dicts.values()
    return feed["missing"]
"""


def test_every_line_is_json_without_a_terminal_and_names_the_op_and_the_request(
    tmp_path: Path,
) -> None:
    trace = "4b" * 16
    path, by_default = script(tmp_path, FAILING), ("env", "-u", "PENSTOCK_LOG_FORMAT", *PYTHON)
    logged = {"PENSTOCK_LOG_REQUESTS": "true"}
    with running(path, command=by_default, environment=logged) as server:
        body = b'{"key": ["a"], "value": ["1"], "logid": 9}'
        context = f"00-{trace}-{'0a' * 8}-01"
        fetch_as(f"{server.http_url}/work/prediction", body, traceparent=context)
        assert server.stop() == 0
        *lines, last = server.log().splitlines()
    assert last == "after the service"  # of the script
    events = [json.loads(line) for line in lines]
    failed = next(each for each in events if each.get("exception_type"))
    (request,) = [each for each in events if each.get("request", {}).get("graph") == "work"]
    assert (failed["op"], failed["exception_type"]) == ("work", "KeyError")
    for each in (failed, request):
        assert (each["data_id"], each["log_id"], each["trace"]) == (request["data_id"], 9, trace)
    assert events[0]["message"].startswith("penstock serves work")


def test_a_failed_start_is_one_json_line_for_each_problem(tmp_path: Path) -> None:
    path = tmp_path / "service.py"
    for text, kind in [("raise KeyError('x')", "KeyError"), ("x = 1", "StartupError")]:
        path.write_text(text)
        with running(path, command=(*PENSTOCK, "--log-format", "json"), ready=False) as server:
            assert server.wait_exit() == 1
            (event,) = [json.loads(line) for line in server.log().splitlines()]
        assert event["level"] == "ERROR"
        assert event["exception_type"].endswith(kind)


def test_log_level_and_format_come_from_flags_or_environment(tmp_path: Path) -> None:
    before = "import logging\nlogging.getLogger('mine').debug('imported')"
    path = script(tmp_path, before=before)
    command = (*PENSTOCK, "--log-level", "debug", "--log-format", "json")
    with running(path, command=command) as server:
        assert server.stop() == 0
        lines = [line for line in server.log().splitlines() if line.startswith("{")]
    events = [json.loads(line) for line in lines]
    assert ("debug", "imported") in [(e["level"].lower(), e["message"]) for e in events]
    assert any(e["message"].startswith("stopped: ") for e in events)
    assert any(e["message"].startswith("penstock serves work") for e in events)
    quiet = {"PENSTOCK_LOG_LEVEL": "error"}
    with running(path, environment=quiet) as server:
        assert server.stop() == 0
        assert "stopped: " not in server.log()
