"""Child processes of multiprocessing import the script again, which has no guard."""

import json
from pathlib import Path

import pytest

from tests.service.scripts import post
from tests.services.process import running

POOLED = """
import multiprocessing
from penstock import Op, PipelineServer, RequestOp, ResponseOp

def square(number):
    return number * number

class Pooled(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (given,) = input_dicts.values()
        with multiprocessing.get_context(given["by"]).Pool(1) as pool:
            return {"y": str(pool.map(square, [3, 4]))}

server = PipelineServer("work")
server.set_response_op(ResponseOp(input_ops=[Pooled("pooled", input_ops=[RequestOp()])]))
server.prepare_server(yml_dict={"rpc_port": 0, "dag": {"is_thread_op": IN_THREADS}})
server.run_server()
"""


@pytest.mark.parametrize("in_threads", [True, False])
@pytest.mark.parametrize("by", ["spawn", "forkserver"])
def test_an_op_s_pool_works_without_starting_a_second_service(
    tmp_path: Path, by: str, in_threads: bool
) -> None:
    path = tmp_path / "service.py"
    path.write_text(POOLED.replace("IN_THREADS", str(in_threads)))
    with running(path) as server:
        reply = post(server, by=by)
        assert json.loads(reply.body)["value"] == ["[9, 16]"]
        assert server.stop() == 0
        assert server.log().count("penstock serves") == 1
