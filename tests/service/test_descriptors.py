import resource
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config.schema import ServiceConfig
from penstock.service.listening import max_connections, raise_descriptor_limit
from penstock.service.opening import limits_of
from tests.service.scripts import post
from tests.services.process import running

ALL_KINDS = ["2>&-", "<&- >&-", "<&- >&- 2>&-"]

SCRIPT = """
import os, sys
from penstock.service.listening import open_standard_descriptors

open_standard_descriptors()
kept = os.open(sys.argv[1], os.O_WRONLY)
said = [f"{os.readlink(f'/proc/self/fd/{n}')} {os.get_inheritable(n)}" for n in (0, 1, 2)]
os.write(kept, "\\n".join([str(kept > 2), *said]).encode())
"""

SERVICE = """
import numpy as np
from penstock import Op, PipelineServer, RequestOp, ResponseOp

class Making(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return {"array": np.ones(100_000)}

class Adding(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (given,) = input_dicts.values()
        print("added")
        return {"y": str(given["array"].sum())}

making = Making("making", input_ops=[RequestOp()])
server = PipelineServer("work")
server.set_response_op(ResponseOp(input_ops=[Adding("adding", input_ops=[making])]))
server.prepare_server(yml_dict={"rpc_port": 0, "dag": {"is_thread_op": IN_THREADS}})
server.run_server()
"""


@pytest.mark.parametrize("closed", ["", *ALL_KINDS])
def test_those_that_are_closed_lead_to_nowhere_and_others_stay(tmp_path: Path, closed: str) -> None:
    told = tmp_path / "told"
    told.touch()
    line = f'exec "$0" "$@" {closed}'
    command = ["sh", "-c", line, sys.executable, "-c", SCRIPT, str(told)]
    subprocess.run(command, check=True, stdin=subprocess.PIPE, capture_output=True)
    above, *standard = told.read_text().splitlines()
    assert above == "True"
    for what, sign in zip(standard, ("<&-", ">&-", "2>&-"), strict=True):
        where, inheritable = what.split()
        assert inheritable == "True"
        assert (where == "/dev/null") == (sign in closed.split())


@pytest.mark.parametrize("in_threads", [True, False])
@pytest.mark.parametrize("closed", ALL_KINDS)
def test_a_service_that_is_started_without_them_works(
    tmp_path: Path, closed: str, in_threads: bool
) -> None:
    path = tmp_path / "service.py"
    path.write_text(SERVICE.replace("IN_THREADS", str(in_threads)))
    command = ("sh", "-c", f'exec "$0" "$@" {closed}', sys.executable)
    with running(path, command=command) as server:
        for _ in range(3):
            assert post(server).json["value"] == ["100000.0"]
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("descriptors", "processes", "most"),
    [
        (100_000, 0, 1024),
        (100_000, 1000, 1024),
        (1024, 0, 896),
        (1024, 8, 896 - 8 * 22),
        (1024, 100, 896 - 256),  # the callers keep a half
        (256, 2, 256 - 64 - 44),
        (20, 8, 16),
    ],
)
def test_connections_leave_descriptors_for_everything_else_and_for_each_worker_process(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, processes: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (descriptors, descriptors))
    assert max_connections(None, processes) == most
    assert max_connections(5, processes) == 5
    assert limits_of(ServiceConfig(), processes).max_connections == most


@pytest.mark.parametrize(
    ("soft", "hard", "processes", "then", "warned"),
    [
        (1024, 4096, 0, 1024, False),
        (1024, 4096, 11, 1024, False),
        (1024, 4096, 12, 4 * 264, False),
        (1024, 4096, 100, 4096, True),
        (1024, 1024, 12, 1024, False),
        (1024, 1024, 23, 1024, False),
        (1024, 1024, 24, 1024, True),
        (1024, resource.RLIM_INFINITY, 100, 8800, False),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 100, resource.RLIM_INFINITY, False),
    ],
)
def test_the_soft_limit_follows_the_worker_processes_as_far_as_the_hard_one(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, processes: int, then: int, warned: bool
) -> None:
    limits = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda what: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda what, given: limits.__setitem__(0, given[0]))
    assert (raise_descriptor_limit(processes) is not None) == warned
    assert limits == [then, hard]
