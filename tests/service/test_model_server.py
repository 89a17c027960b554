"""``penstock serve``: saved models behind every protocol, with no code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from penstock.errors import StartupError
from penstock.service.model_server import parse
from tests.service.models import plus_one, scale
from tests.services.process import ServiceProcess, running

SERVE = (sys.executable, "-m", "penstock", "serve", "--model")
CONF = """
feed_var { name: "x" alias_name: "x" feed_type: 1 shape: 3 }
fetch_var { name: "y" alias_name: "doubled" fetch_type: 1 shape: 3 }
"""
ROW = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("models")
    double = scale(folder / "double.onnx", 2.0)
    triple = scale(folder / "triple.onnx", 3.0)
    first = folder / "first"
    first.mkdir()
    scale(first / "model.onnx", 2.0)
    (first / "serving_server_conf.prototxt").write_text(CONF)
    more = ("--model", f"row={first}", str(triple), "--runtime_thread_num", "2")
    with running(double, *more, command=SERVE, timeout=60) as server:
        yield server


def answer(service: ServiceProcess, model: str, body: Any = ROW) -> tuple[int, Any]:
    reply = httpx.post(f"{service.http_url}/v2/models/{model}/infer", json=body)
    return reply.status_code, reply.json()


@pytest.mark.real
def test_each_model_is_called_by_its_name(service: ServiceProcess) -> None:
    status, found = answer(service, "double")
    assert status == 200
    assert found["model_name"] == "double"
    outputs = {each["name"]: each["data"] for each in found["outputs"]}
    assert outputs == {"y": [2, 4, 6], "twice": [4, 8, 12]}
    plain = httpx.post(f"{service.http_url}/double", json={"x": [[1, 2, 3]]}).json()
    assert plain == {"y": [[2, 4, 6]], "twice": [[4, 8, 12]]}


@pytest.mark.real
def test_the_output_of_one_is_the_input_of_the_next(service: ServiceProcess) -> None:
    status, found = answer(service, "row", {**ROW, "outputs": [{"name": "y"}]})
    assert status == 200
    (output,) = found["outputs"]
    assert output["data"] == [6, 12, 18]


@pytest.mark.real
def test_what_is_wrong_is_said(service: ServiceProcess) -> None:
    wrong = {"inputs": [{**ROW["inputs"][0], "datatype": "FP64"}]}
    assert answer(service, "double", wrong) == (400, {"error": "input 'x' is FP32, got FP64"})
    assert answer(service, "nope") == (404, {"error": "there is no model 'nope'"})
    url = f"{service.http_url}/v2/models/double"
    assert httpx.post(f"{url}/versions/2/infer", json=ROW).status_code == 404
    assert httpx.get(f"{url}/versions/1").json()["versions"] == ["1"]
    late = httpx.post(f"{url}/infer", json=ROW, headers={"penstock-timeout": "0.0000001"})
    assert late.status_code == 504
    assert httpx.get(f"{url}/infer").status_code == 405
    header = {"inference-header-content-length": "x"}
    assert httpx.post(f"{url}/infer", json=ROW, headers=header).status_code == 400


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "You must specify your serving model"),
        (["--model", "nowhere"], "--model nowhere: no such file or folder"),
        (["--use_lite", "--model", "."], "--use_lite: Paddle Lite is not available here"),
        (["--prot", "1"], "ambiguous|unrecognized arguments: --prot 1"),
        (["--port", "x"], "invalid int value: 'x'"),
    ],
)
def test_flags_that_cannot_be_obeyed(arguments: list[str], text: str) -> None:
    with pytest.raises(StartupError, match=text):
        parse(arguments)


def test_flags_with_fewer_items_than_models_begin_again(tmp_path: Path) -> None:
    files = [str(scale(tmp_path / f"m{index}.onnx", 2.0)) for index in range(3)]
    server, keys = parse(
        ["--model", *files, "--runtime_thread_num", "2", "0", "--batch_infer_size", "8"]
    )
    assert keys == {}
    (model,) = server.models
    assert (model.name, model.workers, model.batch) == ("m2", (2, 4, 2), (8, 1, 8))
    server, _ = parse(["--model", files[0], "--model", files[0]])
    with pytest.raises(StartupError, match=r"write --model NAME=PATH"):
        server.services  # noqa: B018
    assert json.dumps(server.models[0].options)


@pytest.mark.real
@pytest.mark.parametrize("flags", [(), ("--no_pad",)])
def test_requests_of_many_rows_and_sizes_get_the_answers_of_a_bare_loop(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    model = plus_one(tmp_path / "plus.onnx")
    more = ("--runtime_thread_num", "2", "--batch_infer_size", "8", *flags)
    shapes = [(1 + i % 19, 20 + 7 * i % 23, 3 + i % 2) for i in range(60)]
    with running(model, *more, command=SERVE, timeout=60) as server:

        def ask(shape: tuple[int, int, int]) -> bool:
            x = np.random.default_rng(shape[0]).random(shape, np.float32)
            tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": x.ravel().tolist()}
            body = {"inputs": [tensor], "outputs": [{"name": "y"}]}
            status, found = answer(server, "plus", body)
            (output,) = found["outputs"]
            y = np.array(output["data"], "f4").reshape(output["shape"])
            return status == 200 and y.shape == shape and bool(np.allclose(y, x + 1))

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(ask, shapes))
        statistics = httpx.get(f"{server.http_url}/v2/models/plus/stats").json()
        (found,) = statistics["model_stats"]
        assert found["inference_count"] == sum(shape[0] for shape in shapes)
        assert found["inference_stats"]["success"]["count"] == 60
        (graph,) = httpx.get(f"{server.http_url}/status").json()["graphs"]
        (op,) = graph["ops"]
        assert (op["elements"] > 0) == (flags == ())
