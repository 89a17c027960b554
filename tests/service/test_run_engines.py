"""Whole services with several engines on the same ports.

``tests.faults.test_exactly_one_end`` restarts and kills them under load."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from tests.service.scripts import NAME, BackgroundCall, post, script, until
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

HOOKS = """
def preprocess(self, input_dicts, data_id, log_id):
    (feed,) = input_dicts.values()
    return {**feed, "id": str(data_id)}, False, None, ""

def process(self, feed_batch, typical_logid):
    import os, pathlib
    (feed,) = feed_batch
    if feed.get("do") == "wait":
        pathlib.Path(feed["began"]).write_text(str(os.getpid()))
        while not pathlib.Path(feed["gate"]).exists():
            time.sleep(0.005)
    return {"n": feed["n"], "id": feed["id"], "pid": str(os.getpid()), "service": self.name}
"""
ENGINES = '"build_dag_each_worker": True, "worker_num": '
TWO = f'{ENGINES} 2, "op": {{"work": {{"concurrency": 2}}}}'


def service(folder: Path, config: str = TWO, hooks: str = HOOKS, before: str = "") -> Path:
    return script(folder, hooks, config, before)


def predict(server: ServiceProcess, n: int = 1, **pairs: str) -> dict[str, str]:
    answer = post(server, NAME, 30.0, n=str(n), **pairs)
    assert answer.status == 200, answer  # 503 if a stopping service has not admitted it
    reply = answer.json
    assert reply["err_no"] == 0, reply
    return dict(zip(reply["key"], reply["value"], strict=True))


def engines_of(server: ServiceProcess) -> list[psutil.Process]:
    """The engines, oldest first."""
    return sorted(
        psutil.Process(server.pid).children(), key=lambda each: (each.create_time(), each.pid)
    )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_log_lines_have_the_engine_and_those_of_workers_their_engine(
    tmp_path: Path,
) -> None:
    hooks = """
def init_op(self):
    import logging
    logging.getLogger("mine").info("begins")
"""
    config = f'{ENGINES} 2, "op": {{"work": {{"executor": "process"}}}}'
    with running(service(tmp_path, config, hooks)) as server:
        server.stop()
        lines = server.log().splitlines()
    first_lines = sorted(line[line.index("engine") :] for line in lines if line.endswith("begins"))
    assert first_lines == ["engine 0 [mine] begins", "engine 1 [mine] begins"]
    stopped = [line for line in lines if "] stopped: " in line]
    assert {line.split("[")[0].split()[-1] for line in stopped} == {"0", "1"}


def test_all_engines_serve_requests_and_data_ids_are_unique(tmp_path: Path) -> None:
    with running(service(tmp_path, f"{ENGINES} 3")) as server:
        pids = {str(each.pid) for each in engines_of(server)}
        assert len(pids) == 3
        answers: list[dict[str, str]] = []

        def all_have_answered() -> bool:
            answers.append(predict(server))
            return len({each["pid"] for each in answers}) == 3

        until(all_have_answered, "an answer of each")
        assert {each["pid"] for each in answers} == pids
        ids = [int(each["id"]) for each in answers]
        assert len(set(ids)) == len(ids)
        by_engine = {each["pid"]: int(each["id"]) % 3 for each in answers}
        assert sorted(by_engine.values()) == [0, 1, 2]
        assert server.log().count("penstock serves") == 1
        assert "3 engines" in server.log()
        assert server.stop() == 0
        assert not server.leftovers(0)
        assert "after the service" in server.log()


def test_a_port_of_another_service_is_not_shared(tmp_path: Path) -> None:
    with running(service(tmp_path)) as server:
        taken = {"PENSTOCK_RPC_PORT": str(server.rpc_port)}
        with running(service(tmp_path), environment=taken, ready=False) as other:
            assert other.wait_exit() == 1
            assert f"rpc_port {server.rpc_port} on 127.0.0.1 cannot be bound" in other.log()
        predict(server)


# Ends


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_at_a_stop_every_engine_finishes_its_admitted_requests(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running(service(tmp_path)) as server:
        gate = tmp_path / "gate"

        def blocked_call(n: int) -> BackgroundCall:
            began = str(tmp_path / f"began{n}")
            return BackgroundCall(
                lambda: predict(server, n, do="wait", gate=str(gate), began=began)
            )

        def begun_calls() -> set[str]:
            return {each.name.removeprefix("began") for each in tmp_path.glob("began*")}

        calls = [blocked_call(n) for n in range(6)]
        until(lambda: len(begun_calls()) >= 2, "two calls have begun")
        server.send_signal(number)
        until(lambda: server.log().count("shutting down") == 2, "the stop")
        gate.touch()
        answered = set()
        for call in calls:
            try:
                answered.add(call.result()["n"])
            except (AssertionError, OSError):  # not admitted, as the service was stopping
                continue
        assert begun_calls() <= answered
        assert server.wait_exit() == 0
        assert is_free(server.http_port)
        assert is_free(server.rpc_port)


# Replacements


def test_an_engine_that_gets_sigterm_is_replaced_without_losing_a_request(
    tmp_path: Path,
) -> None:
    with running(service(tmp_path)) as server:
        gate, began = tmp_path / "gate", tmp_path / "began"
        blocked_call = BackgroundCall(
            lambda: predict(server, do="wait", gate=str(gate), began=str(began))
        )
        until(lambda: began.exists() and began.read_text(), "the call has begun")
        old = int(began.read_text())
        before = {each.pid for each in engines_of(server)}
        os.kill(old, signal.SIGTERM)
        until(lambda: "another process accepts connections now" in server.log(), "its successor")
        pids = {each.pid for each in engines_of(server)}
        assert len(pids - before) == 1
        assert old in pids
        assert {int(predict(server)["pid"]) for _ in range(12)} <= pids - {old}
        gate.touch()
        assert int(blocked_call.result()["pid"]) == old
        until(lambda: f"(pid {old}) has ended: exit status 0" in server.log(), "its end")
        assert server.stop() == 0


def test_a_reload_opens_the_models_again(tmp_path: Path) -> None:
    hooks = """
def init_op(self):
    self.text = open("model.txt").read()
def process(self, feed_batch, typical_logid):
    return {"n": self.text, "id": "0", "pid": "0"}
"""
    model = tmp_path / "model.txt"
    model.write_text("first")
    with running(service(tmp_path, TWO, hooks)) as server:
        assert predict(server)["n"] == "first"
        model.write_text("second")
        server.send_signal(signal.SIGHUP)
        until(lambda: server.log().count("has ended: exit status 0") == 2, "two replacements")
        assert {predict(server)["n"] for _ in range(8)} == {"second"}
        model.unlink()
        server.send_signal(signal.SIGHUP)
        until(lambda: "nothing has changed" in server.log(), "a failure")
        assert {predict(server)["n"] for _ in range(8)} == {"second"}
        assert server.log().count("penstock serves") == 1
