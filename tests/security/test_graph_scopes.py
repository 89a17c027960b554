"""The scope of a graph holds for every protocol, whether its name is in the path or the body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.protocols import standard_messages as messages
from penstock.protocols.pb import pipeline_service_pb2
from penstock.security.keys import line_of, new_key
from tests.kit import http1
from tests.kit.frames import message
from tests.kit.http2 import call, linked
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

SCRIPT = """
from penstock import App, Service, op, run

app = App("typed", security={security!r})

@app.route("/double")
def double(x: int) -> int:
    return 2 * x

@op()
def echo(request):
    return request

run(app, Service("secret", echo))
"""
MAY, MAY_NOT, ADMIN = new_key(), new_key(), new_key()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("scopes")
    keys = folder / "keys.txt"
    lines = [("ann", MAY, ["use"]), ("bob", MAY_NOT, ["other"]), ("root", ADMIN, ["admin"])]
    keys.write_text("".join(f"{line_of(*each)}\n" for each in lines))
    script = folder / "service.py"
    security = {"keys": str(keys), "scopes": {"secret": "use", "double": "use"}}
    script.write_text(SCRIPT.format(security=security))
    with running(script) as server:
        yield server


def by_http(server: ServiceProcess, method: str, path: str, key: str, value: Any) -> http1.Reply:
    body = json.dumps(value)
    with http1.connected(server.http_port) as connection:
        connection.send(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        return connection.reply()


def by_pipeline(server: ServiceProcess, key: str) -> int:
    body = {"key": ["x"], "value": ["1"]}
    found = by_http(server, "POST", "/secret/prediction", key, body).json()
    return refused(found["err_no"], found["err_msg"], found["value"])


def refused(number: int, text: str, values: Any) -> int:
    """What a reply of the pipeline protocol says, whose errors are in its body."""
    if not number:
        return 200
    assert (list(values), "needs the scope use" in text) == ([], True)
    return 403


def by_plain(server: ServiceProcess, key: str) -> int:
    return by_http(server, "POST", "/secret", key, {"x": 1}).status


def by_route(server: ServiceProcess, key: str) -> int:
    return by_http(server, "POST", "/double", key, {"x": 1}).status


def by_oip(server: ServiceProcess, key: str) -> int:
    tensor = {"name": "x", "datatype": "INT64", "shape": [1], "data": [2]}
    path = "/v2/models/double/infer"
    return by_http(server, "POST", path, key, {"inputs": [tensor]}).status


def by_grpc(server: ServiceProcess, path: str, body: bytes, key: str) -> int:
    with linked(server.rpc_port) as link:
        stream = link.open(call(path.encode(), (b"x-api-key", key.encode())))
        link.upload(stream, message(body))
        answer = link.answer(stream)
    return {"0": 200, "7": 403}.get(answer.fields[b"grpc-status"].decode(), 500)


def by_grpc_pipeline(server: ServiceProcess, key: str) -> int:
    request = pipeline_service_pb2.Request(name="secret", method="prediction")
    request.key.append("x")
    request.value.append("1")
    path = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
    with linked(server.rpc_port) as link:
        stream = link.open(call(path.encode(), (b"x-api-key", key.encode())))
        link.upload(stream, message(request.SerializeToString()))
        reply = pipeline_service_pb2.Response.FromString(link.answer(stream).messages[0])
    return refused(reply.err_no, reply.err_msg, reply.value)


def by_grpc_oip(server: ServiceProcess, key: str) -> int:
    request = messages.inference_messages("ModelInfer")[0](model_name="double")
    tensor = request.inputs.add(name="x", datatype="INT64", shape=[1])
    tensor.contents.int64_contents.append(2)
    return by_grpc(server, f"/{messages.INFERENCE}/ModelInfer", request.SerializeToString(), key)


PROTOCOLS = {
    "pipeline": by_pipeline,
    "plain": by_plain,
    "route": by_route,
    "OIP": by_oip,
    "gRPC pipeline": by_grpc_pipeline,
    "gRPC OIP": by_grpc_oip,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_callers_with_the_scope_of_a_graph_may_use_it(
    server: ServiceProcess, protocol: str
) -> None:
    ask = PROTOCOLS[protocol]
    assert [ask(server, key) for key in (MAY, MAY_NOT, MAY)] == [200, 403, 200]


def test_refusals_are_counted_by_reason(server: ServiceProcess) -> None:
    assert by_grpc_oip(server, MAY_NOT) == 403  # by the engine: it names its graph in the body
    assert by_route(server, new_key()) == 401
    assert by_http(server, "GET", "/metrics", MAY, None).status == 403
    text = by_http(server, "GET", "/metrics", ADMIN, None).body.decode()
    for line in (
        'penstock_caller_refusals_total{reason="unauthorized"} 1',
        'penstock_caller_refusals_total{reason="forbidden"} 1',
        'code="forbidden"',
    ):
        assert line in text
