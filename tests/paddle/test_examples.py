"""The projects of ``paddle/examples``, unmodified: each as a process, called by its own clients."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtimes.forms import needs
from tests.services.process import ROOT, ServiceProcess, running

# Each starts several processes that import Paddle and OpenCV.
pytestmark = [needs("paddle"), pytest.mark.real, pytest.mark.timeout(300)]

EXAMPLES = ROOT / "paddle/examples"
SERVE = (sys.executable, "-m", "paddle_serving_server.serve", "--model")


def printed_by(folder: Path, script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, script, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_example(name: str, into: Path) -> Path:
    """A copy of the example with its models."""
    folder = shutil.copytree(EXAMPLES / name, into / name)
    printed_by(folder, "make_model.py")
    return folder


@contextmanager
def served(name: str, into: Path) -> Iterator[ServiceProcess]:
    with serving(make_example(name, into)) as server:
        yield server


@contextmanager
def serving(folder: Path) -> Iterator[ServiceProcess]:
    """The web service of an example that has its models."""
    with running(folder / "web_service.py", timeout=120) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log()


def over_http(server: ServiceProcess, folder: Path) -> list[dict[str, str]]:
    """The values of the replies printed by its HTTP client."""
    lines = printed_by(folder, "pipeline_http_client.py", server.http_url).splitlines()
    replies = [ast.literal_eval(line) for line in lines]
    assert [each["err_no"] for each in replies] == [0] * len(replies)
    return [dict(zip(each["key"], each["value"], strict=True)) for each in replies]


def over_grpc(server: ServiceProcess, folder: Path) -> dict[str, str]:
    """The values of the reply printed by its gRPC client."""
    text = printed_by(folder, "pipeline_rpc_client.py", server.rpc_endpoint)
    assert "err_no" not in text
    keys, values = (
        [ast.literal_eval(each) for each in re.findall(rf'^{field}: (".*")$', text, re.MULTILINE)]
        for field in ("key", "value")
    )
    return dict(zip(keys, values, strict=True))


def numbers(text: str) -> np.ndarray:
    return np.array([float(each) for each in re.findall(r"-?\d+\.\d*", text)])


def test_the_simple_web_service_example(tmp_path: Path) -> None:
    folder = tmp_path / "simple_web_service"
    with served("simple_web_service", tmp_path) as server:
        (reply,) = over_http(server, folder)
        prices = numbers(reply["price"])
        assert prices.shape == (2,)
        # The mean of the data is 22.5, and no house costs more than 50.
        assert prices[0] == prices[1] == pytest.approx(21.33, abs=0.1)
        assert numbers(over_grpc(server, folder)["price"]) == pytest.approx(prices[:1])
        assert "to every machine that can reach this one" in server.log()
    lines = (folder / "PipelineServingLogs/pipeline.log").read_text()
    assert "UciOp::preprocess >>> log_id:0" in lines


def test_the_image_classification_example(tmp_path: Path) -> None:
    folder = tmp_path / "image_classification"
    with served("image_classification", tmp_path) as server:
        (reply,) = over_http(server, folder)
        assert ast.literal_eval(reply["label"]) == ["blue, Blue", "green, Green"]
        probabilities = ast.literal_eval(reply["prob"])
        assert min(probabilities) > 0.99
        one = over_grpc(server, folder)
        assert ast.literal_eval(one["label"]) == ["green, Green"]
        assert ast.literal_eval(one["prob"]) == pytest.approx(probabilities[1:], abs=1e-6)


def test_the_ocr_example(tmp_path: Path) -> None:
    folder = tmp_path / "ocr"
    with served("ocr", tmp_path) as server:
        note, empty = (ast.literal_eval(reply["result"]) for reply in over_http(server, folder))
        assert [text for (text, _), _ in note] == ["rgbbr", "grg"]
        assert empty == []
        for (_, score), box in note:
            assert score > 0.9
            assert np.array(box).shape == (4, 2)
        tops = [min(y for _, y in box) for _, box in note]
        assert 0 < tops[0] < 60 < 120 < tops[1] < 190
        assert ast.literal_eval(over_grpc(server, folder)["result"]) == note


def test_the_detection_example(tmp_path: Path) -> None:
    folder = tmp_path / "detection"
    with served("detection", tmp_path) as server:
        (reply,) = over_http(server, folder)
        found = {name: ast.literal_eval(text) for name, text in reply.items()}
        # Pictures of 320 x 240 are scaled to 320 x 320 for the model.
        drawn = {"one": [40, 60, 160, 100], "two": [10, 10, 80, 200]}
        assert [*found] == [*drawn]
        for name, expected in drawn.items():
            (box,) = found[name]
            assert box["bbox"] == pytest.approx(expected, abs=2)
            assert (box["category_id"], box["score"]) == (0, pytest.approx(1.0))
        assert ast.literal_eval(over_grpc(server, folder)["two"]) == found["two"]
        log = server.log()
        assert "op 'finder' runs on the CPU, as missing_device: cpu allows" in log


def test_the_bert_example(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    with served("bert", tmp_path) as server:
        (reply,) = over_http(server, folder)
        first, second = numbers(reply["pooled_output"]).reshape(2, 8)
        assert np.abs(first - second).max() > 0.1
        same, english = numbers(over_grpc(server, folder)["pooled_output"]).reshape(2, 8)
        assert same == pytest.approx(first)
        assert np.abs(english - first).max() > 0.01


PREDICTIONS = {
    # Each model's sum for a sentence: values of words; and of pairs, each with half of the first.
    "i am very sad": (-1.0, -1.5),
    "this movie is great": (3.0, 4.5),
    "this movie is bad": (-2.0, -3.0),
}


def good(total: float) -> float:
    """The probability of a good sentence with this sum, by both models."""
    return float(1 / (1 + np.exp(-2 * total)))


def test_the_ensemble_example(tmp_path: Path) -> None:
    check_ensemble(make_example("ensemble", tmp_path))


def check_ensemble(folder: Path) -> None:
    """Run the example, which has its models, with two model servers and its own clients."""
    with ExitStack() as stack:
        endpoints = []
        for name in ("bow", "cnn"):
            model = folder / f"imdb_{name}_model"
            model_server = stack.enter_context(running(model, command=SERVE, timeout=120))
            endpoints.append(f"op.{name}.server_endpoints=127.0.0.1:{model_server.http_port}")
        places = {"PENSTOCK_SET": ";".join(endpoints)}
        script = folder / "pipeline_server.py"
        server = stack.enter_context(running(script, environment=places, timeout=120))
        text = printed_by(folder, "pipeline_rpc_client.py", server.rpc_endpoint)
        *lines, count = text.splitlines()
        assert count == "60"
        got: dict[str, Any] = {}
        for line in lines:
            sentence, _, values = line.partition(" [[")
            got[sentence] = numbers(values)
        reply = ast.literal_eval(printed_by(folder, "pipeline_http_client.py", server.http_url))
        assert (reply["err_no"], reply["key"]) == (0, ["prediction"])
        assert server.stop() == 0
        (folder / "profile.txt").write_text(server.log())
    for sentence, totals in PREDICTIONS.items():
        expected = np.mean([good(total) for total in totals])
        assert got[sentence] == pytest.approx([1 - expected, expected], abs=1e-3), sentence
    needed = ast.literal_eval(printed_by(folder, "analyse.py"))
    assert {*needed} == {"bow", "cnn", "combine"}
    assert (folder / "trace").is_file()
