"""Services with ``legacy``: what those that were written for the original rely on."""

from __future__ import annotations

from pathlib import Path

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
def test_the_log_files_are_in_the_working_directory(tmp_path: Path, threads: bool) -> None:
    script = tmp_path / "web_service.py"
    script.write_text(SERVICE.format(legacy=True, threads=threads))
    with running(script) as server:
        assert post(server, "echo", x="a").json["value"] == ["a"]
        assert "penstock serves echo to every machine that reaches this one" in server.log()
        assert server.stop() == 0
    warnings = (tmp_path / "PipelineServingLogs" / "pipeline.log.wf").read_text()
    assert "[web_service.py:7] seen 0" in warnings


def test_other_services_write_no_files(tmp_path: Path) -> None:
    script = tmp_path / "web_service.py"
    script.write_text(SERVICE.format(legacy=False, threads=True))
    with running(script) as server:
        assert post(server, "echo", x="a").json["value"] == ["a"]
    assert [each.name for each in tmp_path.iterdir()] == ["web_service.py"]
