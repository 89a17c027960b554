"""Both ports are one service: the same request gets the same reply, field by field."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict, Parse

from penstock.client.messages import pack_request
from penstock.protocols import pb
from tests.services.process import ServiceProcess, direct, running

pytestmark = pytest.mark.real

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"


@pytest.fixture(scope="module")
def server() -> Iterator[ServiceProcess]:
    with running(Path(__file__).parent / "echo.py") as process:
        yield process


def by_http(server: ServiceProcess, request: pb.Request) -> pb.Response:
    document = MessageToDict(request, preserving_proto_field_name=True)
    message = urllib.request.Request(
        f"{server.http_url}/{request.name}/prediction", json.dumps(document).encode()
    )
    with direct.open(message, timeout=10) as reply:
        return Parse(reply.read(), pb.Response())


def by_grpc(server: ServiceProcess, request: pb.Request) -> pb.Response:
    with grpc.insecure_channel(server.rpc_endpoint) as channel:
        call = channel.unary_unary(METHOD)
        return pb.Response.FromString(call(request.SerializeToString(), timeout=10))


def packed(feed: dict[str, object], **options: object) -> pb.Request:
    return pack_request(feed, None, own_address=str, **options)  # type: ignore[arg-type]


REQUESTS = {
    "texts": packed({"x": "one", "y": "zwei ü \n\"'"}),
    "no text at all": packed({}),
    "a list as text": packed({"x": [[1, 2], [3, 4]]}),
    "all kinds of values": packed({"do": "various"}),
    "all kinds of values, asked with a tensor": pb.Request(
        key=["do"],
        value=["various"],
        tensors=[pb.Tensor(name="x", elem_type=1, shape=[2], float_data=[1.0, 2.0])],
    ),
    "floats": packed(
        {"x": np.array([[0.1, 1e-30], [3.4e38, -0.0]], np.float32)}, pack_tensor_format=True
    ),
    "doubles": packed({"x": np.array([0.1, np.pi, 1e300])}, pack_tensor_format=True),
    "integers": packed({"x": np.array([2**62, -(2**62), 0])}, pack_tensor_format=True),
    "small integers": packed({"x": np.arange(5, dtype=np.int8)}, pack_tensor_format=True),
    "a text in a tensor": packed({"x": "straße", "y": np.ones(1)}, pack_tensor_format=True),
    "texts in a tensor": pb.Request(
        tensors=[pb.Tensor(name="x", elem_type=12, shape=[2], str_data=["ß", ""])]
    ),
    "bytes in a tensor": packed(
        {"x": np.arange(6.0).reshape(2, 3)}, pack_tensor_format=True, use_tensor_bytes=True
    ),
    "sequences": packed(
        {"x": np.arange(6.0).reshape(6, 1), "x.lod": [0, 2, 6]}, pack_tensor_format=True
    ),
    "a product error": packed({"do": "refuse"}),
    "an exception before": packed({"do": "raise"}),
    "a declared error": packed({"do": "declare"}),
    "an exception in process": packed({"do": "break"}),
    "a tensor that lies about its shape": pb.Request(
        tensors=[pb.Tensor(name="x", elem_type=3, shape=[5], float_data=[1.0])]
    ),
    "more names than values": pb.Request(key=["a", "b"], value=["1"]),
    "another service's name": pb.Request(name="other", key=["x"], value=["1"]),
    "a log id": pb.Request(key=["do"], value=["raise"], logid=2**62),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_answered_alike_on_both_ports(server: ServiceProcess, name: str) -> None:
    request = pb.Request.FromString(REQUESTS[name].SerializeToString())
    if not request.name:
        request.name = "echo"  # over HTTP it stands in the path
    http, rpc = by_http(server, request), by_grpc(server, request)
    assert MessageToDict(http) == MessageToDict(rpc)
    assert http == rpc


def test_the_requests_reach_good_answers_and_each_kind_of_error(server: ServiceProcess) -> None:
    numbers = {by_grpc(server, request).err_no for request in REQUESTS.values()}
    assert {0, 51, 5000, 8000, 10000} <= numbers
