"""Triton's client, unchanged, against functions that yield."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers.test_tritonclient import HERE, PYTHON
from tests.services.process import ServiceProcess, running
from tests.services.test_streams import SCRIPT

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module", params=["thread", "process"])
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    if not PYTHON.exists():
        pytest.skip("Triton's client is not installed: make peers")
    folder = tmp_path_factory.mktemp("streams")
    environment = {"EXECUTOR": request.param, "FOLDER": str(folder)}
    with running(SCRIPT, environment=environment) as server:
        done = subprocess.run(
            [PYTHON, HERE / "streams.py", f"127.0.0.1:{server.http_port}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        found["closed"] = _wait_for(folder / "cancelled.closed", server)
        yield found


def _wait_for(file: Path, server: ServiceProcess) -> int:
    """The size of a file that appears once the service has noticed something."""
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline
        assert server.is_ready()
    return file.stat().st_size


def token(n: int, request_id: str = "", *, final: bool = False) -> dict[str, Any]:
    return {
        "id": request_id,
        "final": final,
        "text": ["BYTES", [1], [f"é{n}"]],
        "n": ["INT64", [1], [n]],
    }


def test_the_configuration_says_that_a_model_is_decoupled(answers: dict[str, Any]) -> None:
    over_http, over_grpc, other = answers["configuration"]
    assert over_http["model_transaction_policy"] == {"decoupled": True}
    assert over_grpc["model_transaction_policy"] == {"decoupled": True}
    assert other["model_transaction_policy"] == {"decoupled": False}
    assert [each["shape"] for each in answers["metadata"]["outputs"]] == [[1], [1]]


def test_each_piece_is_a_response(answers: dict[str, Any]) -> None:
    assert answers["stream"] == [token(n, "a") for n in range(3)]
    assert answers["asyncio"] == [token(n, "d") for n in range(3)]


def test_an_empty_response_ends_an_answer_if_it_is_asked_for(answers: dict[str, Any]) -> None:
    *pieces, last = answers["final"]
    assert pieces == [token(n, "a") for n in range(3)]
    assert last == {"id": "a", "final": True}


def test_another_model_is_answered_on_the_same_stream(answers: dict[str, Any]) -> None:
    found = answers["mixed"]
    doubled = {"final": True, "result": ["INT64", [1], [42]]}
    assert [each for each in found if each["id"] != "a"] == [
        {"id": "b", **doubled},
        {"id": "c", **doubled},
    ]
    assert len(found) == 6


def test_an_error_ends_its_request_and_not_the_stream(answers: dict[str, Any]) -> None:
    found = answers["fails"]
    assert [each for each in found if "n" in each] == [token(0), token(1)]
    (error,) = [each for each in found if "error" in each]
    assert "there is no 2" in error["error"]
    assert any("result" in each for each in found)


def test_an_error_closes_the_stream_if_that_is_asked_for(answers: dict[str, Any]) -> None:
    *pieces, error = answers["closes"]
    assert pieces == [token(0), token(1)]
    assert "there is no 2" in error["error"]
    assert error["status"].startswith("StatusCode.")


def test_a_cancelled_stream_closes_its_generator(answers: dict[str, Any]) -> None:
    assert answers["cancelled"] == 2
    assert answers["closed"] == 1


def test_who_does_not_stream_gets_all_pieces_as_one_tensor(answers: dict[str, Any]) -> None:
    three, none = answers["whole"]
    assert three == {
        "id": "w",
        "final": None,
        "text": ["BYTES", [3, 1], [["é0"], ["é1"], ["é2"]]],
        "n": ["INT64", [3, 1], [[0], [1], [2]]],
    }
    assert none["text"] == ["BYTES", [0, 1], []]
    assert none["n"] == ["INT64", [0, 1], []]
    for when, n in (("at once", 0), ("in the middle", 2)):
        assert f"there is no {n}" in answers[f"fails {when}"]["error"]
