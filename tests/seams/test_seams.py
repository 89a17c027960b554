"""Additions from outside of the package: a protocol, an executor, an instrument."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.service.scripts import post, until
from tests.services.process import ROOT, ServiceProcess, direct, running

pytestmark = pytest.mark.real

SCRIPT = """
import sys, threading
sys.path.insert(0, {root!r})
import tests.seams.toy_executor
from penstock import Service, op
from tests.seams.lines import Lines
from tests.seams.toy_instrument import Teller

@op()
def shout(request):
    return {{"line": request["line"].upper() + " by " + threading.current_thread().name[:3]}}

service = Service("shout", shout, http_port=0, rpc_port=0, op={{"shout": {{"executor": "toy"}}}},
                  applications=[Lines], instruments=[Teller()])
service.run()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> ServiceProcess:
    path = tmp_path_factory.mktemp("seams") / "service.py"
    path.write_text(SCRIPT.format(root=str(ROOT)))
    with running(path) as server:
        yield server  # type: ignore[misc]
        assert server.stop() == 0


def test_a_custom_protocol_replies_to_lines_over_http(server: ServiceProcess) -> None:
    with direct.open(f"{server.http_url}/lines/shout", b"one\ntwo\n", timeout=10) as answer:
        assert answer.read() == b"ONE by toy\nTWO by toy\n"
    with direct.open(f"{server.http_url}/lines/other", b"one\n", timeout=10) as answer:
        assert answer.read() == b"! unknown_service\n"


def test_a_custom_protocol_replies_to_lines_over_a_grpc_stream(server: ServiceProcess) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:
        call = channel.stream_stream("/lines.Lines/Ask")
        assert list(call(iter([b"shout", b"one", b"two"]), timeout=10)) == [
            b"ONE by toy",
            b"TWO by toy",
        ]


def test_the_pipeline_protocol_uses_the_custom_executor(
    server: ServiceProcess,
) -> None:
    assert post(server, "shout", line="x").json["value"] == ["X by toy"]


def test_the_custom_instrument_gets_every_event(server: ServiceProcess) -> None:
    before = server.log().count("told replied")
    assert post(server, "shout", line="x").json["err_no"] == 0
    events = [line[5:] for line in server.log().splitlines() if line.startswith("told ")]
    assert sum(line.startswith("replied") for line in events) == before + 1
    number = [line for line in events if line.startswith("replied")][-1].split()[1]
    assert f"admitted shout {number}" in events
    assert f"replied {number} True None" in events
    assert "closed shout full" in events
    assert "returned shout True 0" in events


SEVERAL = """
import threading
from penstock import Service, op
{before}
@op()
def shout(request):
    return {{"line": request["line"].upper()}}

service = Service("shout", shout, http_port=0, rpc_port=0, build_dag_each_worker=True,
                  worker_num=2, dag={{"is_thread_op": False}})
service.run()
"""
THREAD = "threading.Thread(target=threading.Event().wait, daemon=True).start()"


@pytest.mark.parametrize("before", ["", THREAD], ids=["forked", "spawned"])
def test_a_custom_instrument_reports_for_all_engines_and_is_in_every_process(
    before: str, tmp_path: Path
) -> None:
    path = tmp_path / "service.py"
    path.write_text(SEVERAL.format(before=before))
    named = {"PENSTOCK_INSTRUMENTS": "tests.seams.toy_reporter:Reporter"}
    with running(path, environment=named) as server:
        for _ in range(8):
            assert post(server, "shout", line="x").json["err_no"] == 0
        until(lambda: "told sum 8 of 2 " in server.log(), "the sum of both engines")
        assert server.stop() == 0
        lines = [line[5:] for line in server.log().splitlines() if line.startswith("told ")]
    (summed,) = {line for line in lines if line.startswith("sum 8 ")}
    assert "/{name}/{method}" in summed
    first = {line.split()[-1] for line in lines if line.startswith("in the first ")}
    others = {line.split()[-1] for line in lines if line.startswith("in another ")}
    assert first == {str(server.pid)}
    assert len(others - first) == 4  # two engines, each with a worker
    assert {line.split()[-1] for line in lines if line.startswith("left ")} == first | others
    ended = {line.split()[-1] for line in lines if line.startswith("ended ")}
    assert len(ended) == 2
    assert ended < others
