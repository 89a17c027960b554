import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.scripts import post
from tests.services.process import running

ALL_KINDS = ["2>&-", "<&- >&-", "<&- >&- 2>&-"]

SCRIPT = """
import os, sys
from penstock.service.standard import open_standard_descriptors

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
