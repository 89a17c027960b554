"""Triton's client, unchanged, against Penstock's models and pipelines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.test_oip import VALUES
from tests.services.process import running

pytestmark = pytest.mark.peers

HERE = Path(__file__).parent / "triton"
PYTHON = HERE / ".venv" / "bin" / "python"
"""Of a separate environment: the client needs an older protobuf than the locked one."""

SERVICE = """
from penstock import Service, Signature, op, run

DATATYPES = %r

@op()
def echo(feed):
    return feed

@op()
def one_op(feed):
    return feed

@op()
def fails(feed):
    raise ValueError("a secret")

echoed = {name: (name, [-1, 1]) for name in DATATYPES}
signature = Signature(inputs=echoed, outputs=echoed)
one = {"x": ("FP32", [-1])}
run(
    Service("echo", echo, signature=signature, docs=False),
    Service("fails", fails, signature=Signature(inputs=one, outputs=one)),
    Service("one", one_op, signature=Signature(inputs=one, outputs=one)),
)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    if not PYTHON.exists():
        pytest.skip("Triton's client is not installed: make peers")
    folder = tmp_path_factory.mktemp("triton")
    script = folder / "service.py"
    script.write_text(SERVICE % [*VALUES])
    number = ["FP32", [1], [1.0]]
    full = {name: [name, [2, 1], values] for name, values in VALUES.items()}
    json_only = {name: each for name, each in full.items() if name not in ("FP16", "BF16")}
    cases = [
        {"model": "echo", "inputs": full},
        {"model": "echo", "inputs": json_only, "wrong": True},
        {"model": "nope", "inputs": {"x": number}, "wrong": True},
        {"model": "fails", "inputs": {"x": number}, "wrong": True},
        {"model": "fails", "inputs": {"x": ["FP32", [1, 1], [1.0]]}, "wrong": True},
        {"model": "one", "inputs": {"x": ["FP32", [3], [float("nan"), float("inf"), 1.0]]}},
    ]
    (folder / "cases.json").write_text(json.dumps(cases))
    with running(script) as server:
        done = subprocess.run(
            [PYTHON, HERE / "client.py", f"127.0.0.1:{server.http_port}", folder / "cases.json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)


def test_the_client_reads_the_metadata_of_server_and_models(answers: dict[str, Any]) -> None:
    assert answers["server"]["name"] == "penstock"
    assert answers["live"] == answers["ready"] == [True, True]
    assert answers["no such model"] == [False] * 4
    metadata = answers["metadata of echo"]
    assert metadata["versions"] == ["1"]
    assert metadata["inputs"][0] == {"name": "BOOL", "datatype": "BOOL", "shape": [-1, 1]}


def test_every_datatype_is_echoed_over_every_protocol_and_encoding(answers: dict[str, Any]) -> None:
    full = answers["answers"][0]
    assert len(full) == 10
    for how, answer in full.items():
        assert answer == {
            name: [name, [2, 1], pytest.approx(values, rel=1e-6) if name == "FP32" else values]
            for name, values in VALUES.items()
        }, how


def test_the_client_reads_the_configuration_of_models(answers: dict[str, Any]) -> None:
    for found in answers["configuration of echo"]:
        first = found["input"][0]
        assert {**first, "dims": [*map(int, first["dims"])]} == {
            "name": "BOOL",
            "data_type": "TYPE_BOOL",
            "dims": [-1, 1],
        }


def test_nan_and_infinities_arrive_in_json_and_raw(answers: dict[str, Any]) -> None:
    for how, answer in answers["answers"][-1].items():
        (kind, shape, (nan, inf, one)) = answer["x"]
        assert (kind, shape, inf, one) == ("FP32", [3], float("inf"), 1.0), how
        assert nan != nan, how


def test_errors_have_the_statuses_of_the_protocol(answers: dict[str, Any]) -> None:
    lacks, nope, fails, shape, _ = answers["answers"][1:]
    for how, answer in lacks.items():
        status, text = answer["error"]
        assert "the model takes the inputs" in text, how
        assert status in ("400", "StatusCode.INVALID_ARGUMENT", None)
    assert nope["http, raw"] == {"error": ["404", "there is no model 'nope'"]}
    assert nope["grpc"]["error"][0] == "StatusCode.NOT_FOUND"
    assert "there is no model" in nope["grpc, stream 0"]["error"][1]
    for how, answer in fails.items():
        status, text = answer["error"]
        assert "its log says why, under this id: " in text, how
        assert "secret" not in text
        assert status in ("500", "StatusCode.INTERNAL", None)
    assert "has the shape [-1], got [1, 1]" in shape["http, raw"]["error"][1]


def test_statistics_count_the_rows_and_the_batches(answers: dict[str, Any]) -> None:
    over_http, over_grpc = answers["statistics"]
    (echo,) = [each for each in over_http["model_stats"] if each["name"] == "echo"]
    assert echo["inference_stats"]["success"]["count"] == 10
    assert (echo["inference_count"], echo["execution_count"]) == (20, 10), "of two rows each"
    assert echo["batch_stats"][0]["batch_size"] == 2
    assert echo["last_inference"] > 1.7e12
    (fails,) = [each for each in over_grpc["model_stats"] if each["name"] == "fails"]
    assert int(fails["inference_stats"]["fail"]["count"]) == 9
