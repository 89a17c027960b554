"""Triton's client, unchanged, loads and unloads the models of a repository."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.onnx_models import scale
from tests.peers.test_tritonclient import HERE, PYTHON
from tests.services.repository import Repository, serving

pytestmark = pytest.mark.peers

MODELS = ["a", "b", "broken", "e"]
ENSEMBLE = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 3 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
ensemble_scheduling {
  step { model_name: "a" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "z" } }
  step { model_name: "b" model_version: -1
    input_map { key: "x" value: "z" } output_map { key: "y" value: "y" } }
}
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    if not PYTHON.exists():
        pytest.skip("Triton's client is not installed: make peers")
    folder = tmp_path_factory.mktemp("triton")
    repository = Repository(folder / "models")
    for name in "ab":
        repository.add(name, 1, factor=3.0)
        repository.config(name, "max_batch_size: 8")
    repository.put("broken", 1, b"no model")
    repository.config("e", ENSEMBLE)
    sent = scale(folder / "sent.onnx", 5.0)
    with serving(repository, mode="explicit") as server:
        done = subprocess.run(
            [PYTHON, HERE / "repository.py", f"127.0.0.1:{server.http_port}", sent],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr + server.log()
        yield json.loads(done.stdout)


def rows(**ready: str) -> list[list[str]]:
    """The index: models with the versions that serve, and the others."""
    found = {name: [name, "1", "UNAVAILABLE"] for name in MODELS}
    found |= {name: [name, version, "READY"] for name, version in ready.items()}
    return sorted(found.values())


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_models_are_loaded_and_unloaded(seen: dict[str, Any], over: str) -> None:
    one = seen[over]
    assert {"model_repository", "model_repository(unload_dependents)"} <= {*one["extensions"]}
    sent = [["sent", "7", "UNAVAILABLE"]] if over == "grpc" else []
    assert one["before"] == sorted([*rows(), *sent])
    assert (one["ready before"], one["ready"], one["ready after"]) == (False, True, False)
    assert one["answer"] == [[3.0, 3.0, 3.0]]
    assert one["loaded"] == sorted([*rows(a="1"), *sent])
    assert one["unloaded"] == sorted([*rows(), *sent])


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_an_ensemble_comes_and_goes_with_its_steps(seen: dict[str, Any], over: str) -> None:
    one = seen[over]
    sent = [["sent", "7", "UNAVAILABLE"]] if over == "grpc" else []
    assert one["with its steps"] == sorted([*rows(a="1", b="1", e="1"), *sent])
    assert one["without its steps"] == sorted([*rows(), *sent])


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_files_and_configurations_may_be_sent(seen: dict[str, Any], over: str) -> None:
    one = seen[over]
    assert one["sent"] == [[5.0, 5.0, 5.0]]
    assert (one["config"], one["config of the repository"]) == (2, 8)


def test_errors_are_those_of_triton(seen: dict[str, Any]) -> None:
    for over, failed, unknown in (
        ("http", "500", "404"),
        ("grpc", "StatusCode.INTERNAL", "StatusCode.NOT_FOUND"),
    ):
        one = seen[over]
        for key in ("broken", "broken again"):
            status, text = one[key]
            assert status == failed
            assert text.startswith("failed to load 'broken': version 1: ")
        assert one["unknown"] == [unknown, "failed to load 'nope': no repository has it"]
        assert one["unknown unload"] == [unknown, "failed to unload 'nope': no repository has it"]


@pytest.mark.parametrize("over", ["http.aio", "grpc.aio"])
def test_the_clients_of_asyncio_do_the_same(seen: dict[str, Any], over: str) -> None:
    loaded, unloaded = seen[over]
    assert ["a", "1", "READY"] in loaded
    assert ["a", "1", "UNAVAILABLE"] in unloaded
