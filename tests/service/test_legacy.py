"""Services with ``legacy``: what services written for the original rely on."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.service.scripts import post
from tests.services.process import running

pytestmark = pytest.mark.real

SERVICE = """
import logging
from penstock import Op, WebService

class EchoOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        logging.getLogger().warning("seen %s", log_id)
        (input_dict,) = input_dicts.values()
        return input_dict, True, None, ""

class Echo(WebService):
    defaults = {{"host": "0.0.0.0"}}
    legacy = {legacy}

    def get_pipeline_response(self, read_op):
        return EchoOp("echo", input_ops=[read_op])

service = Echo("echo")
config = {{"http_port": 9999, "dag": {{"is_thread_op": {threads}}}}}
service.prepare_pipeline_config(yml_dict=config)
service.run_service()
"""


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
def test_log_files_are_written_to_the_working_directory(tmp_path: Path, threads: bool) -> None:
    script = tmp_path / "web_service.py"
    script.write_text(SERVICE.format(legacy=True, threads=threads))
    with running(script) as server:
        assert post(server, "echo", x="a").json["value"] == ["a"]
        assert "penstock serves echo to every machine that can reach this one" in server.log()
        assert server.stop() == 0
    warnings = (tmp_path / "PipelineServingLogs" / "pipeline.log.wf").read_text()
    assert "[web_service.py:7] seen 0" in warnings


OCR = """
import threading
import numpy as np
from penstock import Op, ResponseOp, WebService

class OcrOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (input_dict,) = input_dicts.values()
        data = np.fromstring(input_dict["image"].encode(), np.uint8)
        return {{"sum": data.sum(), "score": np.float32(0.2)}}, True, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        return {{"res": str([fetch_dict["sum"], fetch_dict["score"]])}}, None, ""

class Ocr(WebService):
    legacy = {legacy}

    def get_pipeline_response(self, read_op):
        return OcrOp("ocr", input_ops=[read_op])

{before}
service = Ocr("ocr")
service.prepare_pipeline_config(
    yml_dict={{"rpc_port": 0, "worker_num": 2, "build_dag_each_worker": {engines},
              "dag": {{"is_thread_op": {threads}}}}}
)
service.run_service()
"""
THREAD = "threading.Thread(target=threading.Event().wait, daemon=True).start()"


# The gate has the fewest processes, and the most with each way of starting them.
SAMPLE = [("", False, True), ("", True, False), (THREAD, True, False)]


@pytest.mark.parametrize(
    ("before", "engines", "threads"),
    [
        pytest.param(
            *each,
            id="-".join(
                (
                    "spawned" if each[0] else "forked",
                    "engines" if each[1] else "one",
                    "threads" if each[2] else "processes",
                )
            ),
            marks=() if each in SAMPLE else pytest.mark.long,
        )
        for each in product(["", THREAD], [True, False], [True, False])
    ],
)
def test_numpy_behaves_as_numpy_1_in_all_processes(
    tmp_path: Path, before: str, engines: bool, threads: bool
) -> None:
    script = tmp_path / "web_service.py"
    script.write_text(OCR.format(legacy=True, threads=threads, engines=engines, before=before))
    with running(script) as server:
        for _ in range(4):
            assert post(server, "ocr", image="ab").json["value"] == ["[195, 0.2]"]
        assert server.log().count("numpy.fromstring reads bytes here") == 1
        assert server.stop() == 0


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="numpy 1 prints so")
def test_numpy_is_unchanged_in_other_services(tmp_path: Path) -> None:
    script = tmp_path / "web_service.py"
    text = OCR.format(legacy=False, threads=True, engines=False, before="")
    script.write_text(text.replace("np.fromstring", "np.frombuffer"))
    with running(script) as server:
        (value,) = post(server, "ocr", image="ab").json["value"]
        assert value == "[np.uint64(195), np.float32(0.2)]"


def test_other_services_write_no_log_files(tmp_path: Path) -> None:
    script = tmp_path / "web_service.py"
    script.write_text(SERVICE.format(legacy=False, threads=True))
    with running(script) as server:
        assert post(server, "echo", x="a").json["value"] == ["a"]
    assert [each.name for each in tmp_path.iterdir()] == ["web_service.py"]
