"""``penstock serve`` over baidu_std, the protocol of the original's clients, as a process."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort
import psutil
import pytest

from penstock.protocols.pb import Response
from tests.kit import pipeline
from tests.kit.baidu_std import Message, connected, field, request
from tests.service.test_general_model import FEATURES, REQUEST, RESPONSE, SERVE, document
from tests.services.process import ROOT, ServiceProcess, running

pytestmark = pytest.mark.real

ENOSERVICE, ENOMETHOD, EREQUEST = 1001, 1002, 1003
MAX_BYTES = 1 << 20
PIPELINE = "baidu.paddle_serving.pipeline_serving.PipelineService"


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
    limits = {"PENSTOCK_MAX_MESSAGE_BYTES": str(MAX_BYTES)}
    with running(folder, command=SERVE, timeout=60, environment=limits) as server:
        yield server
        assert server.stop() == 0
        assert "please report this" not in server.log()


def message(count: int = 1, **more: Any) -> bytes:
    body: bytes = REQUEST(**document(count, **more)).SerializeToString()
    return body


def prices(answer: Message) -> list[float]:
    assert (answer.code, answer.text) == (0, "")
    return [*RESPONSE.FromString(answer.payload).outputs[0].tensor[0].float_data]


def test_one_port_serves_every_protocol_and_no_other_is_bound(folder: Path, price: float) -> None:
    with running(folder, command=SERVE, timeout=60, environment={"PENSTOCK_RPC_PORT": ""}) as one:
        address = f"127.0.0.1:{one.http_port}"
        assert f"  grpc  {address} " in one.log()
        assert {each.laddr.port for each in psutil.Process(one.pid).net_connections()} == {
            one.http_port
        }
        with connected(one.http_port) as client:
            assert prices(client.ask(request(message()))) == [price]
        with grpc.insecure_channel(address) as channel:
            infer = channel.unary_unary(
                "/baidu.paddle_serving.predictor.general_model.GeneralModelService/inference",
                response_deserializer=RESPONSE.FromString,
            )
            answer = infer(message(), timeout=10)
        assert [*answer.outputs[0].tensor[0].float_data] == [price]
        assert one.stop() == 0


@pytest.mark.parametrize("names", [{}, {"method": "debug"}, {"service": "GeneralModelService"}])
def test_a_call_succeeds_on_both_ports(
    service: ServiceProcess, price: float, names: dict[str, str]
) -> None:
    for port in (service.http_port, service.rpc_port):
        with connected(port) as client:
            answer = client.ask(request(message(log_id=5), id=2**63, **names))
            assert answer.id == 2**63
            assert prices(answer) == pytest.approx([price], rel=1e-5)
            assert RESPONSE.FromString(answer.payload).log_id == 5


def test_a_thousand_concurrent_calls_over_four_connections_succeed(
    service: ServiceProcess, price: float
) -> None:
    ids_of_threads: list[set[int]] = []

    def call(first: int) -> None:
        with connected(service.http_port, patience=30) as client:
            ids = range(first, first + 250)
            sender = threading.Thread(
                target=lambda: client.send(*[request(message(1 + id % 3), id=id) for id in ids])
            )
            sender.start()
            answered = set()
            for _ in ids:
                answer = client.read()
                assert prices(answer) == pytest.approx([price] * (1 + answer.id % 3), rel=1e-5)
                answered.add(answer.id)
            sender.join()
            ids_of_threads.append(answered)

    threads = [threading.Thread(target=call, args=(1 + 250 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set().union(*ids_of_threads) == {*range(1, 1001)}


@pytest.mark.parametrize("count", [1, 2000])
@pytest.mark.parametrize(("kind", "pack"), [(2, gzip.compress), (3, zlib.compress)])
def test_compressed_requests_are_decoded(
    service: ServiceProcess, kind: int, pack: Any, count: int
) -> None:
    with connected(service.http_port) as client:
        assert len(prices(client.ask(request(pack(message(count)), compress=kind)))) == count


@pytest.mark.parametrize("count", [1, 2000])
def test_an_attachment_is_ignored(service: ServiceProcess, count: int) -> None:
    with connected(service.http_port) as client:
        answer = client.ask(request(message(count) + b"\xff" * 5000, attachment=5000))
        assert len(prices(answer)) == count
        packed = gzip.compress(message(count)) + b"\xff" * 9
        assert len(prices(client.ask(request(packed, compress=2, attachment=9)))) == count


BAD = [
    (request(service="a.B"), ENOSERVICE, "there is no service 'a.B'"),
    (request(method="train"), ENOMETHOD, "has no method 'train'"),
    (request(b"\xff"), EREQUEST, "not a general_model.Request message"),
    (request(message(), compress=2), EREQUEST, "the data is not gzip"),
    (request(message(), compress=4), EREQUEST, "the compression 4 is not supported"),
    (request(message(), compress=77), EREQUEST, "the compression 77 is not supported"),
    (request(message(), attachment=2**20), EREQUEST, "has no attachment of 1048576"),
    (request(message(), attachment=-1), EREQUEST, "has no attachment of -1"),
    (request(message(), more=field(6, b"")), EREQUEST, "chunks"),
    (request(message(), more=field(8, b"")), EREQUEST, "streams"),
    (request(message(fetch_var_names=["cost"])), EREQUEST, "there is no output 'cost'"),
    (request(message(tensor=[])), EREQUEST, "the request has no tensor"),
    (request(message(model="nope")), ENOSERVICE, "there is no model 'nope'"),
    (request(zlib.compress(bytes(2 << 20)), compress=3), EREQUEST, "expands"),
]


@pytest.mark.parametrize(("data", "code", "text"), BAD, ids=range(len(BAD)))
def test_a_bad_call_gets_an_error_and_the_next_call_succeeds(
    service: ServiceProcess, price: float, data: bytes, code: int, text: str
) -> None:
    with connected(service.http_port) as client:
        answer = client.ask(data)
        assert (answer.code, answer.payload) == (code, b"")
        assert text in answer.text
        assert prices(client.ask(request(message()))) == pytest.approx([price], rel=1e-5)


def test_a_message_over_the_limit_is_refused_by_its_header(service: ServiceProcess) -> None:
    with connected(service.http_port) as client:
        client.send(request(bytes(3 * MAX_BYTES), id=9)[:1000])
        answer = client.read()
        assert (answer.id, answer.code) == (9, EREQUEST)
        assert answer.text == f"the body is over {MAX_BYTES} bytes"
        assert client.ends()


def test_invalid_bytes_after_a_call_close_the_connection(service: ServiceProcess) -> None:
    with connected(service.http_port) as client:
        assert client.ask(request(message())).code == 0
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        assert client.ends()


def test_the_pipeline_service_is_served_over_baidu_std(
    service: ServiceProcess, price: float
) -> None:
    body = pipeline.encode({"key": ["x"], "value": [str([FEATURES])], "name": "uci"})
    with connected(service.rpc_port) as client:
        answer = client.ask(request(body, service=PIPELINE))
        assert answer.code == 0
        reply = Response.FromString(answer.payload)
        assert reply.err_no == 0, reply.err_msg
        assert str(round(price, 4))[:6] in reply.value[0]
