"""Triton's client, unchanged, reads the statistics of each version of a model."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.peers.test_tritonclient import HERE, PYTHON
from tests.services.repository import Repository, serving

pytestmark = pytest.mark.peers


def test_statistics_are_those_of_each_version_in_all_engines(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("Triton's client is not installed: make peers")
    repository = Repository(tmp_path / "models")
    for version in (1, 2):
        repository.add("m", version)
    repository.config("m", "max_batch_size: 8 version_policy: { all {} }")
    engines = {"PENSTOCK_BUILD_DAG_EACH_WORKER": "true", "PENSTOCK_WORKER_NUM": "2"}
    with serving(repository, mode="none", environment=engines) as server:
        done = subprocess.run(
            [PYTHON, HERE / "version_statistics.py", f"127.0.0.1:{server.http_port}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr + server.log()
    for over in json.loads(done.stdout).values():
        for kind, versions in (("all", ["1", "2"]), ("model", ["1", "2"]), ("version", ["2"])):
            found = {each["version"]: each for each in over[kind]["model_stats"]}
            assert sorted(found) == versions
            for version, each in found.items():
                requests = 10 if version == "1" else 6
                # In JSON of messages, 64-bit numbers are texts.
                assert int(each["inference_stats"]["success"]["count"]) == requests
                assert int(each["inference_count"]) == requests
                assert int(each["last_inference"]) > 0
                rows = sum(
                    int(x["batch_size"]) * int(x["compute_infer"]["count"])
                    for x in each["batch_stats"]
                )
                assert rows == requests
