"""A refused request is forgotten: with the garbage collector off, thousands of refused requests of
every kind at every door leave no object in the service.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import ormsgpack
import pytest
from PIL import Image

from penstock.observe.recorder import KEPT, LISTED
from tests.kit import baidu_std, http1
from tests.kit.pipeline import encode
from tests.services.process import ServiceProcess, running

pytestmark = pytest.mark.real

EACH = 100
"""Requests of each kind; 10,000 together."""

MOST_RAISED = KEPT + LISTED + 100
"""The recorder has those of its latest and its listed requests, and of a few slow ones."""

AT_ONCE = 4
JSON, MSGPACK = "application/json", "application/msgpack"
FORM = "multipart/form-data; boundary=b"
PIPELINE = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
GENERAL = "/baidu.paddle_serving.predictor.general_model.GeneralModelService/inference"
INFER = "/inference.GRPCInferenceService/ModelInfer"
TENSOR = {"name": "x", "elem_type": 1, "shape": [1, 3], "float_data": [1.0, 2.0, 3.0]}
DO = ["raise before", "raise", "raise after", "product", "declared", "pieces", "nothing"]


def cut_picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (60, 60), "red").save(file, "png")
    return file.getvalue()[:-40]


PICTURE = cut_picture()


def form(*parts: tuple[str, bytes, str]) -> bytes:
    body = b""
    for name, value, kind in parts:
        file = f'; filename="f"\r\nContent-Type: {kind}' if kind else ""
        head = f'--b\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        body += head.encode() + value + b"\r\n"
    return body + b"--b--\r\n"


def inputs(**changed: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3], **changed}
    return json.dumps({"inputs": [tensor]}).encode()


def do(what: str) -> dict[str, Any]:
    return {"key": ["do"], "value": [what]}


def http(path: str, body: bytes, **fields: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def typed(path: str, body: bytes, kind: str = JSON, **fields: str) -> bytes:
    return http(path, body, content_type=kind, **fields)


LONG = b'"' + b"x" * (300 << 10)  # decoded in a thread
OVER_HTTP = {
    "picture": typed("/picture", PICTURE, "image/png"),
    "picture in a form": typed("/picture", form(("image", PICTURE, "image/png")), FORM),
    "picture in JSON": typed(
        "/picture", json.dumps({"image": base64.b64encode(PICTURE).decode()}).encode()
    ),
    "picture in msgpack": typed("/picture", ormsgpack.packb({"image": PICTURE}), MSGPACK),
    "no Base64": typed("/picture", b'{"image": "!"}'),
    "shape": typed("/rows", b'{"x": [[1, 2]]}'),
    "npy": typed("/rows", b"no npy", "application/x-npy"),
    "empty": typed("/batches", b""),
    "no JSON": typed("/batches", b"{"),
    "no JSON, long": typed("/batches", LONG),
    "no gzip": typed("/batches", b"x", content_encoding="gzip"),
    "no gzip, long": typed("/batches", LONG, content_encoding="gzip"),
    "no such coding": typed("/batches", b"x", content_encoding="br"),
    "gzip of no JSON": typed("/batches", gzip.compress(b"{"), content_encoding="gzip"),
    "media type": typed("/batches", b"x", "text/csv"),
    "no msgpack": typed("/batches", b"\xc1", MSGPACK),
    "no form": typed("/batches", b"--a", FORM),
    "form": typed("/batches", form(("value", b"x", "")), FORM),
    "a field twice": typed("/batches", form(("value", b"1", ""), ("value", b"2", "")), FORM),
    "a text for an object": typed("/batches", form(("value", b"{", JSON)), FORM),
    "caller's deadline": typed("/batches", b'{"value": 1}', penstock_timeout="0.000001"),
    "no route": typed("/nothing", b"{}"),
    "deep unions": typed("/tree", b'{"left":' * 60 + b"1" + b"}" * 60),
    "lies": typed("/lies", b'{"value": 1}'),
    **{
        f"{path}: {what}": typed(f"/{path}", body)
        for path in ("batches", "coroutine", "inline", "process", "steps", "external")
        for what, body in {
            "type": b'{"value": "x"}',
            "validator": b'{"value": -1}',
            "raises": b'{"value": 0}',
            "raises after": b'{"value": 1}',
        }.items()
        if path == "steps" or what != "raises after"
    },
    "plain, no JSON": http("/model", b"{"),
    "plain, no JSON, long": http("/model", LONG),
    "plain, no object": http("/model", b"[]"),
    "plain, digits": http("/model", b'{"x": %b}' % (b"1" * 5000)),
    "plain, raises": http("/model", b'{"y": 1}'),
    "no such service": http("/nobody/prediction", b"{}"),
    "pipeline, no JSON": http("/pipeline/prediction", b"{"),
    "pipeline, no JSON, long": http("/pipeline/prediction", b"{" + LONG),
    "pipeline, pairs": http("/pipeline/prediction", b'{"key": ["x"], "value": []}'),
    "pipeline, tensor": http(
        "/pipeline/prediction", json.dumps({"tensors": [TENSOR | {"shape": [7]}]}).encode()
    ),
    "pipeline, tensor, long": http(
        "/pipeline/prediction",
        json.dumps({"tensors": [TENSOR | {"float_data": [1.5] * 70_000}]}).encode(),
    ),
    **{
        f"pipeline, {each}": http("/pipeline/prediction", json.dumps(do(each)).encode())
        for each in DO
    },
    "remote": http("/remote/prediction", json.dumps(do("")).encode()),
    "OIP, no JSON": http("/v2/models/model/infer", b"{"),
    "OIP, no JSON, long": http("/v2/models/model/infer", b"{" + LONG),
    "OIP, no model": http("/v2/models/other/infer", inputs()),
    "OIP, type": http("/v2/models/model/infer", inputs(datatype="INT8")),
    "OIP, shape": http("/v2/models/model/infer", inputs(shape=[1, 2])),
    "OIP, rank": http("/v2/models/model/infer", inputs(shape=[3])),
    "OIP, data": http("/v2/models/model/infer", inputs(data=["a", 2, 3])),
    "OIP, output": http(
        "/v2/models/model/infer", inputs()[:-1] + b', "outputs": [{"name": "z"}]}'
    ),
    "general, no JSON": http("/GeneralModelService/inference", b"{"),
    "general, no model": http("/GeneralModelService/inference", b'{"tensor": []}'),
}  # fmt: skip
OVER_GRPC = {
    "no message": (PIPELINE, b"\xff"),
    "no message, long": (PIPELINE, b"\xff" * (300 << 10)),
    "no such service": (PIPELINE, encode({"name": "nobody"})),
    "tensor": (PIPELINE, encode({"name": "pipeline", "tensors": [TENSOR | {"shape": [7]}]})),
    "typed": (PIPELINE, encode({"name": "picture", "key": ["image"], "value": ["AAAA"]})),
    "typed, lies": (PIPELINE, encode({"name": "lies", "key": ["value"], "value": ["1"]})),
    **{each: (PIPELINE, encode({"name": "pipeline", **do(each)})) for each in DO},
    "OIP, no message": (INFER, b"\xff"),
    "OIP, no model": (INFER, b"\x0a\x01x"),
    "OIP, no input": (INFER, b"\x0a\x05model"),
    "general, no message": (GENERAL, b"\xff"),
    "no such method": ("/a.B/c", b""),
}
OVER_BAIDU_STD = {
    "no message": baidu_std.request(b"\xff"),
    "no model": baidu_std.request(b""),
    "no such service": baidu_std.request(b"", service="nobody"),
    "no such method": baidu_std.request(b"", method="nothing"),
    "no gzip": baidu_std.request(b"\xff", compress=2),
    "zlib of no message": baidu_std.request(zlib.compress(b"\xff"), compress=3),
    **{
        each: baidu_std.request(encode({"name": "pipeline", **do(each)}), service=PIPELINE[1:-10])
        for each in DO
    },
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("refusing")
    environment = {"REFUSING_SOCKET": str(folder / "socket")}
    script = Path(__file__).with_name("refusing.py")
    with running(script, environment=environment, timeout=60) as server:
        yield server
        assert server.stop() == 0
        log = server.log()
        assert "please report this" not in log


def send_http(server: ServiceProcess, count: int) -> Iterator[tuple[str, Callable[[], None]]]:
    def send(request: bytes) -> None:
        for _ in range(count // (AT_ONCE * 5)):
            with ExitStack() as stack:
                links = [
                    stack.enter_context(http1.connected(server.http_port, patience=20))
                    for _ in range(AT_ONCE)
                ]
                for link in links:
                    link.send(request * 5)
                for link in links:
                    for _ in range(5):
                        reply = link.reply()
                        assert reply.status >= 400 or b'"err_no":' in reply.body, reply

    for name, request in OVER_HTTP.items():
        yield name, lambda request=request: send(request)  # type: ignore[misc]


def send_grpc(server: ServiceProcess, count: int) -> Iterator[tuple[str, Callable[[], None]]]:
    with grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel:

        def send(path: str, message: bytes) -> None:
            call = channel.unary_unary(path)
            for _ in range(count // 20):
                for each in [call.future(message, timeout=20) for _ in range(20)]:
                    error = each.exception()
                    assert error is not None or each.result()[:1] == b"\x08", error

        for name, (path, message) in OVER_GRPC.items():
            yield name, lambda path=path, message=message: send(path, message)  # type: ignore[misc]


def send_baidu_std(server: ServiceProcess, count: int) -> Iterator[tuple[str, Callable[[], None]]]:
    with baidu_std.connected(server.rpc_port, patience=60) as client:

        def send(request: bytes) -> None:
            for _ in range(count // 10):
                client.send(*[request] * 10)
                for _ in range(10):
                    client.read()

        for name, request in OVER_BAIDU_STD.items():
            yield name, lambda request=request: send(request)  # type: ignore[misc]


def left(server: ServiceProcess) -> tuple[dict[str, int], int]:
    """The number of live objects of each class of ours, and of those only in cycles."""
    with http1.connected(server.http_port, patience=20) as link:
        link.send(http("/census", b"{}"))
        answer = link.reply().json()
    return answer["ours"], answer["unreachable"]


@pytest.mark.parametrize("door", [send_http, send_grpc, send_baidu_std])
def test_refused_requests_leave_no_object(service: ServiceProcess, door: Any) -> None:
    for _, send in door(service, 20):
        send()
    left(service)
    before, _ = left(service)
    found = {}
    for name, send in door(service, EACH):
        send()
        after, unreachable = left(service)
        assert after.pop("Raised", 0) <= MOST_RAISED
        more = {key: n - before.get(key, 0) for key, n in after.items()}
        more = {key: n for key, n in more.items() if n > EACH // 4}
        if more or unreachable > EACH // 4:
            found[name] = (unreachable, more)
    assert not found, json.dumps(found, indent=1)
    if door is send_http:
        log = service.log()
        for raised in ("ZeroDivisionError: ", "ValueError: process", "IndexError: 1"):
            assert raised in log, "tracebacks are in the log"
