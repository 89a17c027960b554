"""The house price example: its training, its op, and the service as a process."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import numpy as np
import onnxruntime
import pytest

from tests.services.process import ROOT, ServiceProcess, direct, running
from tests.services.transcript import numbers_in, output_of, shown_like

EXAMPLE = ROOT / "examples/simple_web_service"
HOUSE = (
    "0.0137, -0.1136, 0.2553, -0.0692, 0.0582, -0.0727, -0.1583, -0.0584, "
    "0.6283, 0.4919, 0.1856, 0.0795, -0.0332"
)
HOUSE_ROW = [float(number) for number in HOUSE.split(",")]
WRONG_INPUT = 51


@pytest.fixture(scope="module")
def train() -> ModuleType:
    spec = importlib.util.spec_from_file_location("uci_train", EXAMPLE / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "uci_train", module)  # its dataclasses are looked up there
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(train: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uci")
    train.main(folder)
    return folder


@pytest.fixture(scope="module")
def bare(model: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model / "uci.onnx")


def prices(bare: onnxruntime.InferenceSession, rows: Any) -> np.ndarray:
    (price,) = bare.run(None, {"x": np.asarray(rows, dtype=np.float32)})
    return price


# Training


def test_the_models_error_on_unseen_houses_is_far_below_that_of_the_mean_price(
    train: ModuleType, bare: onnxruntime.InferenceSession
):
    learn, held_out = train.load()
    assert (len(learn.x), len(held_out.x)) == (405, 101)
    error = np.sqrt(np.mean((prices(bare, held_out.x) - held_out.price) ** 2))
    baseline = np.sqrt(np.mean((learn.price.mean() - held_out.price) ** 2))
    assert error < 5.0
    assert error < 0.6 * baseline


@pytest.mark.parametrize("count", [0, 1, 7])
def test_the_model_accepts_any_batch_size(bare: onnxruntime.InferenceSession, count: int):
    assert prices(bare, np.tile(HOUSE_ROW, (count, 1))).shape == (count, 1)


# The service, as a process


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(((sys.executable,), EXAMPLE), id="python in the folder"),
        pytest.param(((sys.executable, "-m", "penstock", "run"), ROOT), id="penstock run"),
    ],
)
def server(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    command, cwd = request.param
    with running(EXAMPLE / "web_service.py", command=command, cwd=cwd, timeout=50) as process:
        yield process


@pytest.fixture(scope="module")
def served(server: ServiceProcess) -> onnxruntime.InferenceSession:
    """The same model file that the service opened."""
    return onnxruntime.InferenceSession(EXAMPLE / "models/uci/uci.onnx")


def ask(server: ServiceProcess, x: str) -> dict[str, Any]:
    body = json.dumps({"key": ["x"], "value": [x]}).encode()
    with direct.open(f"{server.http_url}/uci/prediction", data=body, timeout=20) as reply:
        assert reply.status == 200
        answer: dict[str, Any] = json.load(reply)
    return answer


@pytest.mark.real
def test_an_http_answer_equals_that_of_the_bare_model(
    server: ServiceProcess, served: onnxruntime.InferenceSession
):
    answer = ask(server, f"{HOUSE};{HOUSE.replace('0.6283', '0.1')}")
    other = [0.1 if number == 0.6283 else number for number in HOUSE_ROW]
    assert (answer["err_no"], answer["key"]) == (0, ["price"])
    expected = prices(served, [HOUSE_ROW, other]).reshape(-1)
    assert numbers_in(answer["value"][0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.real
@pytest.mark.parametrize("as_tensor", [False, True], ids=["text", "tensor"])
def test_a_grpc_answer_equals_that_of_the_bare_model(
    server: ServiceProcess, served: onnxruntime.InferenceSession, as_tensor: bool
):
    from penstock import PipelineClient

    feed = np.float32([HOUSE_ROW] * 2) if as_tensor else f"{HOUSE};{HOUSE}"
    with PipelineClient() as client:
        client.connect([server.rpc_endpoint])
        reply = client.predict(feed_dict={"x": feed}, fetch=["price"], pack_tensor_format=as_tensor)
    assert reply.err_no == 0
    price = dict(zip(reply.key, reply.value, strict=True))["price"]
    expected = prices(served, [HOUSE_ROW] * 2).reshape(-1)
    assert numbers_in(price) == pytest.approx(expected, rel=1e-5)


@pytest.mark.real
@pytest.mark.parametrize(
    ("x", "reason"),
    [
        ("one,two", "a sample has 2 numbers, it must have 13"),
        (f"{HOUSE};", "a sample has 1 numbers"),
        (HOUSE.replace("0.0137", "__import__('os')"), "only numbers"),
        (HOUSE.replace("0.0137", "nan"), "finite"),
        (HOUSE.replace("0.0137", "1e39"), "finite"),  # too large for float32
    ],
)
def test_a_bad_request_is_refused_and_the_next_one_is_answered(
    server: ServiceProcess, x: str, reason: str
):
    refused = ask(server, x)
    assert refused["err_no"] == WRONG_INPUT
    assert refused["err_msg"].startswith("x: ")
    assert reason in refused["err_msg"]
    assert ask(server, HOUSE)["err_no"] == 0


def post_json(server: ServiceProcess, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    http_request = Request(f"{server.http_url}/uci", json.dumps(body).encode())
    try:
        with direct.open(http_request, timeout=20) as reply:
            return reply.status, json.load(reply)
    except HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.real
def test_the_json_route_accepts_nested_lists(
    server: ServiceProcess, served: onnxruntime.InferenceSession
):
    status, answer = post_json(server, {"x": [HOUSE_ROW] * 2})
    assert status == 200
    expected = prices(served, [HOUSE_ROW] * 2).reshape(-1)
    assert numbers_in(answer["price"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.real
@pytest.mark.parametrize("x", [None, 5, {}, [], [[1.0]], [HOUSE_ROW, [1.0]], [["1"] * 13]])
def test_the_json_route_refuses_an_invalid_feature_vector(server: ServiceProcess, x: Any):
    status, answer = post_json(server, {"x": x})
    assert (status, answer["number"]) == (400, WRONG_INPUT)


@pytest.mark.real
def test_the_clients_output_is_that_of_the_readme(server: ServiceProcess):
    for client, address in [
        ("http_client.py", server.http_url),
        ("grpc_client.py", server.rpc_endpoint),
    ]:
        printed = output_of(EXAMPLE / client, address)
        shown = shown_like(EXAMPLE / "README.md", printed)
        assert numbers_in(printed) == pytest.approx(numbers_in(shown), rel=1e-4)
