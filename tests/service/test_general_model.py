"""``penstock serve`` with the protocol of the original's model server, called as by its clients."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import onnxruntime as ort
import pytest

from penstock.protocols import standard_messages as messages
from tests.kit import one_write
from tests.kit.onnx_models import scale
from tests.services.process import ROOT, ServiceProcess, running

pytestmark = pytest.mark.real

REQUEST, RESPONSE = messages.general_model_messages()
SERVE = (sys.executable, "-m", "penstock", "serve", "--model")
# The features in the original's example.
FEATURES = [0.0137, -0.1136, 0.2553, -0.0692, 0.0582, -0.0727, -0.1583, -0.0584, 0.6283, 0.4919]
FEATURES += [0.1856, 0.0795, -0.0332]
URL = "/GeneralModelService/inference"
METHOD = f"/{messages.GENERAL_MODEL}/inference"


def document(count: int = 1, **more: Any) -> dict[str, Any]:
    tensor = {"float_data": FEATURES * count, "elem_type": 1, "name": "x", "alias_name": "x"}
    tensor["shape"] = [count, 13]
    return {"tensor": [tensor], "fetch_var_names": ["price"], "log_id": 0, **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "uci"
    script = ROOT / "examples/simple_web_service/train.py"
    subprocess.run([sys.executable, script, folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def price(folder: Path) -> float:
    session = ort.InferenceSession(folder / "uci.onnx", providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"x": np.array([FEATURES], np.float32)})
    return float(output[0, 0])


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ServiceProcess]:
    with running(folder, command=SERVE, timeout=60) as server:
        yield server


def curl(service: ServiceProcess, body: bytes, *more: str) -> bytes:
    command = ["curl", "-sS", "--noproxy", "*", "-X", "POST", f"{service.http_url}{URL}", *more]
    return subprocess.run(
        [*command, "--data-binary", "@-"], input=body, check=True, capture_output=True
    ).stdout


@pytest.mark.parametrize("more", [(), ("-H", "Content-Type: application/json")])
def test_the_documented_request_succeeds_with_curl(
    service: ServiceProcess, price: float, more: tuple[str, ...]
) -> None:
    answer = json.loads(curl(service, json.dumps(document()).encode(), *more))
    (output,) = answer["outputs"]
    (tensor,) = output["tensor"]
    assert tensor.pop("float_data") == [pytest.approx(price, rel=1e-5)]
    assert tensor == {
        "elem_type": 1,
        "shape": [1, 1],
        "name": "fc_0.tmp_1",
        "alias_name": "price",
    }
    assert output["engine_name"] == "uci"
    assert (answer["err_no"], answer["log_id"]) == (0, 0)


def test_a_protobuf_request_over_http_gets_a_protobuf_reply(
    service: ServiceProcess, price: float
) -> None:
    body = REQUEST(**document(log_id=2**64 - 1, profile_server=True)).SerializeToString()
    reply = RESPONSE.FromString(curl(service, body, "-H", "Content-Type: application/proto"))
    assert reply.outputs[0].tensor[0].float_data == pytest.approx([price], rel=1e-5)
    assert (reply.log_id, reply.err_no, reply.profile_server) == (2**64 - 1, 0, True)
    assert [*reply.profile_time] == sorted(reply.profile_time)
    assert len(reply.profile_time) == 4


@pytest.mark.parametrize("kind", ["application/json", "application/proto"])
def test_requests_and_large_replies_may_be_gzip(service: ServiceProcess, kind: str) -> None:
    body = json.dumps(document(200)).encode()
    if kind == "application/proto":
        body = REQUEST(**document(200)).SerializeToString()
    headers = {"content-type": kind, "content-encoding": "gzip", "accept-encoding": "gzip"}
    url = f"{service.http_url}{URL}"
    with httpx.stream("POST", url, content=gzip.compress(body), headers=headers) as reply:
        raw = b"".join(reply.iter_raw())
    assert (reply.status_code, reply.headers["content-encoding"]) == (200, "gzip")
    assert reply.headers["content-type"] == kind
    plain = gzip.decompress(raw)
    if kind == "application/proto":
        assert len(RESPONSE.FromString(plain).outputs[0].tensor[0].float_data) == 200
    else:
        assert len(json.loads(plain)["outputs"][0]["tensor"][0]["float_data"]) == 200
    small = httpx.post(url, json=document(), headers={"accept-encoding": "gzip"})
    assert len(small.content) < 512
    assert "content-encoding" not in small.headers


@pytest.mark.parametrize("method", ["inference", "debug"])
def test_grpcio_can_call_both_ports(service: ServiceProcess, price: float, method: str) -> None:
    for port in (service.rpc_port, service.http_port):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(
                METHOD.replace("inference", method), REQUEST.SerializeToString, RESPONSE.FromString
            )
            response = call(REQUEST(**document(log_id=5)), timeout=10)
            assert response.outputs[0].tensor[0].float_data == pytest.approx([price], rel=1e-5)
            assert (response.log_id, response.outputs[0].engine_name) == (5, "uci")


@pytest.mark.parametrize(
    ("body", "status", "err_no", "code", "text"),
    [
        (document(fetch_var_names=["cost"]), 400, 5000, "INVALID_ARGUMENT", "no output 'cost'"),
        (document(tensor=[]), 400, 8000, "INVALID_ARGUMENT", "the request has no tensor"),
        (document(model="nope"), 404, 3002, "NOT_FOUND", "there is no model 'nope'"),
        (
            document(tensor=[{**document()["tensor"][0], "shape": [1, 12]}]),
            400,
            8000,
            "INVALID_ARGUMENT",
            "needs 12 elements, got 13",
        ),
    ],
)
def test_a_failure_has_its_number_and_status_in_each_encoding(
    service: ServiceProcess, body: dict[str, Any], status: int, err_no: int, code: str, text: str
) -> None:
    url = f"{service.http_url}{URL}"
    reply = httpx.post(url, json=body)
    assert reply.status_code == status
    assert (reply.json()["err_no"], reply.json()["outputs"]) == (err_no, [])
    assert text in reply.json()["err_msg"]
    message = REQUEST(**body)
    headers = {"content-type": "application/proto"}
    reply = httpx.post(url, content=message.SerializeToString(), headers=headers)
    response = RESPONSE.FromString(reply.content)
    assert (reply.status_code, response.err_no) == (status, err_no)
    assert text in response.err_msg
    with grpc.insecure_channel(f"127.0.0.1:{service.rpc_port}") as channel:
        call = channel.unary_unary(METHOD, REQUEST.SerializeToString, RESPONSE.FromString)
        with pytest.raises(grpc.RpcError) as raised:
            call(message, timeout=10)
    error: Any = raised.value
    assert error.code().name == code
    assert text in error.details()
    assert ("err-no", str(err_no)) in error.trailing_metadata()


def test_undecodable_bodies_wrong_methods_and_timeouts_have_their_statuses(
    service: ServiceProcess,
) -> None:
    url = f"{service.http_url}{URL}"
    for kind, body, status in (
        ("application/json", b"{", 400),
        ("application/proto", b"\x0a", 400),
        ("image/png", b"", 415),
    ):
        reply = httpx.post(url, content=body, headers={"content-type": kind})
        assert reply.status_code == status
        if kind == "application/proto":
            assert RESPONSE.FromString(reply.content).err_no == 8000
        else:
            assert reply.json()["err_no"] == 8000
    assert httpx.get(url).status_code == 405
    # In one write: a body that comes after the deadline gets another status.
    late = one_write.post(service.http_port, URL, document(), {"penstock-timeout": "0.0000001"})
    assert (late[0], late[1]["err_no"]) == (504, 6000)


def test_one_of_several_models_is_selected_by_path_or_field(tmp_path: Path) -> None:
    files = [scale(tmp_path / f"{name}.onnx", factor) for name, factor in (("two", 2), ("six", 6))]
    tensor = {"name": "x", "elem_type": 1, "shape": [1, 3], "float_data": [1, 2, 3]}
    body = {"tensor": [tensor], "fetch_var_names": ["y"]}
    with running(files[0], "--model", str(files[1]), command=SERVE, timeout=60) as server:
        by_path = httpx.post(f"{server.http_url}/GeneralModelService/six/inference", json=body)
        assert by_path.json()["outputs"][0]["tensor"][0]["float_data"] == [6, 12, 18]
        described = httpx.get(f"{server.http_url}/openapi.json").json()["paths"]
        names = {f"/GeneralModelService/{name}inference" for name in ("", "two/", "six/")}
        assert names <= {*described}
        assert "/GeneralModelService/{model}/inference" not in described
        url = f"{server.http_url}{URL}"
        by_field = httpx.post(url, json={**body, "model": "two"})
        assert by_field.json()["outputs"][0]["tensor"][0]["float_data"] == [2, 4, 6]
        unnamed = httpx.post(url, json=body)
        assert (unnamed.status_code, unnamed.json()["err_no"]) == (404, 3002)
        assert "'two', 'six'" in unnamed.json()["err_msg"]
        unknown = httpx.post(f"{server.http_url}/GeneralModelService/nope/inference", json=body)
        assert unknown.status_code == 404


def test_a_graph_whose_answers_come_in_pieces_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "count.py"
    script.write_text(
        "from penstock import Service, Signature, op\n"
        "from penstock.api.general_model import GeneralModelApplication\n\n"
        "@op()\ndef count(request):\n    yield {'y': request['x']}\n\n"
        "tensors = {'inputs': {'x': ('FP32', [3])}, 'outputs': {'y': ('FP32', [3])}}\n"
        "more = {'signature': Signature(**tensors), 'applications': [GeneralModelApplication]}\n"
        "service = Service('count', count, **more)\n"
    )
    tensor = {"name": "x", "elem_type": 1, "shape": [3], "float_data": [1, 2, 3]}
    with running(script, command=(*SERVE[:3], "run")) as server:
        answer = httpx.post(f"{server.http_url}{URL}", json={"tensor": [tensor]})
        assert (answer.status_code, answer.json()["err_no"]) == (404, 3002)
        assert "answers in pieces" in answer.json()["err_msg"]
        described = httpx.get(f"{server.http_url}/openapi.json").json()["paths"]
        assert "/GeneralModelService/count/inference" not in described
