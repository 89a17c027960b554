"""A copied repository of Triton and other layouts, called by Triton's client, unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.repositories import make_repository
from tests.peers.test_tritonclient import HERE, PYTHON
from tests.services.process import running

pytestmark = pytest.mark.peers

SERVE = (sys.executable, "-m", "penstock", "serve", "--model-repository")
ROW = ["FP32", [1, 3], [1.0, 2.0, 3.0]]
THREE = ["FP32", [1, 3], [3.0, 6.0, 9.0]]
TWO = ["FP32", [1, 3], [2.0, 4.0, 6.0]]
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("encoder", {"pixels": ROW}, {"features": THREE}),
    ("served", {"pixels": ROW}, {"features": TWO}),
    ("both", {"pixels": ROW}, {"features": THREE}),
    (
        "flat",
        {"x": ["FP32", [4], [1.0, 2.0, 3.0, 4.0]]},
        {"y": ["FP32", [4], [2.0, 4.0, 6.0, 8.0]]},
    ),
    ("uci", {"rows": ROW}, {"doubled": TWO}),
    (
        "rank",
        {"PIXELS": ["FP32", [2, 3], [1.0] * 6]},
        {
            "SCORES": ["FP32", [2, 3], [pytest.approx(1 / 3)] * 6],
            "FEATURES": ["FP32", [2, 3], [3.0] * 6],
        },
    ),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    if not PYTHON.exists():
        pytest.skip("Triton's client is not installed: make peers")
    root = make_repository(tmp_path_factory.mktemp("models"))
    cases = root.parent / "cases.json"
    versions = {"encoder": "2", "served": "7", "both": "9"}
    cases.write_text(
        json.dumps(
            [
                {"model": name, "inputs": inputs, "version": versions.get(name, "1")}
                for name, inputs, _ in CASES
            ]
        )
    )
    with running(root, command=SERVE) as server:
        done = subprocess.run(
            [PYTHON, HERE / "client.py", f"127.0.0.1:{server.http_port}", cases],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)


def test_every_model_answers_over_every_protocol_and_encoding(found: dict[str, Any]) -> None:
    assert len(found["answers"]) == len(CASES)
    for (name, _, wanted), answers in zip(CASES, found["answers"], strict=True):
        assert len(answers) == 11, name
        for how, answer in answers.items():
            assert answer == wanted, (name, how)


def test_the_client_reads_versions_and_configurations(found: dict[str, Any]) -> None:
    assert found["metadata of both"]["versions"] == ["9", "10"]
    assert found["metadata of encoder"]["platform"] == "onnxruntime_onnx"
    for config in found["configuration of encoder"]:
        assert config["max_batch_size"] == 16
        assert [*map(int, config["input"][0]["dims"])] == [3]
        assert config["instance_group"] == [{"count": 2, "kind": "KIND_CPU"}]
    for config in found["configuration of rank"]:
        steps = config["ensemble_scheduling"]["step"]
        assert [each["model_name"] for each in steps] == ["encoder", "head"]
