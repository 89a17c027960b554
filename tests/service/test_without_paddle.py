"""Without the distribution penstock-paddle: a service that sets the keys of its instruments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import PipelineClient
from tests.service.scripts import PENSTOCK, script
from tests.services.process import running

HIDDEN = "import sys; sys.modules['penstock_paddle'] = None"  # as if not installed
INSTALL = "pip install penstock-paddle"


@pytest.mark.real
def test_the_service_starts_with_one_warning(tmp_path: Path) -> None:
    keys = '"log_dir": ".", "dag": {"use_profile": True, "tracer": {"interval_s": 1}}'
    path = script(tmp_path, "pass", keys, HIDDEN)
    with running(path) as server:
        (warning,) = [line for line in server.log().splitlines() if INSTALL in line]
        assert "log_dir, dag.tracer.interval_s, dag.use_profile: no effect without" in warning
        with PipelineClient() as client:
            client.connect([server.rpc_endpoint])
            for _ in range(2):  # the first is reported in the log
                assert list(client.predict({"x": "1"}, profile=True).key) == ["x"]
        assert server.stop() == 0
        assert server.log().count(INSTALL) == 2
        assert "pipeline.profile, which a caller requests: no effect without" in server.log()
    assert not (tmp_path / "PipelineServingLogs").exists()


@pytest.mark.real
def test_check_reports_what_is_missing(tmp_path: Path) -> None:
    path = script(tmp_path, "pass", '"dag": {"use_profile": True}', HIDDEN)
    command = [*PENSTOCK[:-1], "check", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert (done.stdout + done.stderr).count(INSTALL) == 1


def test_the_analyst_is_an_import_error_that_says_what_to_install() -> None:
    code = f"{HIDDEN}\nimport penstock\nprint(*dir(penstock))\npenstock.Analyst"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=False
    )
    assert set(done.stdout.split()) & {"Analyst", "App"} == {"App"}  # for help(penstock)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: penstock.Analyst is in the distribution penstock-paddle, which is not"
        f" installed: {INSTALL}"
    )
