"""URLs and data to requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.bench import BadTarget, target_of
from penstock.bench.inference import Input, inputs_of, random_tensors, shapes_of
from penstock.protocols import oip, oip_json, oip_message
from penstock.protocols.pb import Request

ROW = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}


def test_an_http_request_is_a_post_of_the_data_or_a_get():
    requested = target_of("https://[::1]/a?b=c", data='[{"x": 1}, [2]]')
    assert (requested.calls, requested.method, requested.path, requested.tls) == (
        None,
        "POST",
        "/a?b=c",
        True,
    )
    assert (requested.host, requested.port, requested.authority) == ("::1", 443, "[::1]:443")
    assert [json.loads(body.content) for body in requested.bodies] == [{"x": 1}, [2]]
    assert target_of("http://127.0.0.1:1").method == "GET"


def test_items_become_json_members_a_form_or_a_request_of_the_pipeline(tmp_path: Path):
    def sent(url: str, **given: Any) -> tuple[str, str, Any]:
        found = target_of(f"http://h:1{url}", **given)
        return found.method, found.path, json.loads(found.bodies[0].content)

    assert sent("/add", pairs=["a=1"]) == ("POST", "/add", {"a": "1"})
    assert sent("/v1/add", pairs=["a:=1", "q==2"]) == ("POST", "/v1/add?q=2", {"a": 1})
    assert sent("/v1/add", pairs=["a=1"], as_json=True, method="put")[0] == "PUT"
    assert sent("/uci/prediction", pairs=["a=1"])[2] == {"key": ["a"], "value": ["1"]}
    assert target_of("http://h:1/a?b=c", pairs=["q==x y"]).path == "/a?b=c&q=x+y"
    (tmp_path / "x.png").write_bytes(b"picture")
    found = target_of("http://h:1/p", fields=[f"image=@{tmp_path / 'x.png'}"])
    assert found.method == "POST"
    assert dict(found.bodies[0].fields)["content-type"].startswith("multipart/form-data; boundary=")


def test_json_data_becomes_a_grpc_request_of_the_pipeline():
    data = '{"key": ["x"], "value": ["1"], "logid": 7, "tensors": [{"name": "t", "shape": [2]}]}'
    requested = target_of("grpc://127.0.0.1:1/ocr/prediction", data=data)
    assert requested.calls == "pipeline"
    message = Request.FromString(requested.bodies[0].content)
    assert (message.name, message.method, message.logid) == ("ocr", "prediction", 0)
    assert (list(message.key), list(message.value)) == (["x"], ["1"])
    assert message.clientip
    assert (message.tensors[0].name, list(message.tensors[0].shape)) == ("t", [2])


@pytest.mark.parametrize(
    ("url", "given", "message_pattern"),
    [
        ("grpc://127.0.0.1:1/ocr/prediction", {}, "needs a request"),
        ("grpc://127.0.0.1:1/", {"data": '{"x": 1}'}, "no request of the pipeline protocol"),
        ("grpc://127.0.0.1:1/", {"data": "[1]"}, "no request of the pipeline protocol"),
        ("grpc://127.0.0.1:1/", {"fields": ["a=b"]}, "for HTTP"),
        ("http://127.0.0.1:1/x", {"data": "{}", "fields": ["a=b"]}, "either data, items or a form"),
        ("http://127.0.0.1:1/x", {"data": "{}", "pairs": ["a=b"]}, "either data, items or a form"),
        ("http://127.0.0.1:1/x", {"shapes": ["x:1"]}, "for models"),
        ("http://127.0.0.1:1/x", {"binary": True}, "for models"),
        ("grpc://127.0.0.1:1/v2/models/m", {"data": "{}"}, "no request of the Open Inference"),
        ("http://127.0.0.1:1/v2/models/m", {}, "has no metadata of the model"),
        ("grpc://127.0.0.1:1/v2/models/m", {}, "has no metadata of the model"),
    ],
)
def test_an_invalid_target_is_refused(url: str, given: dict[str, Any], message_pattern: str):
    with pytest.raises(BadTarget, match=message_pattern):
        target_of(url, **given)


def test_a_models_request_is_encoded_as_json_binary_and_grpc():
    data, url = json.dumps(ROW), "127.0.0.1:1/v2/models/a%20b/versions/3"
    text = target_of(f"http://{url}", data=data)
    assert text.path == "/v2/models/a%20b/versions/3/infer"
    assert json.loads(text.bodies[0].content) == ROW
    raw = target_of(f"http://{url}/infer", data=data, binary=True)
    assert raw.path == text.path
    fields = dict(raw.bodies[0].fields)
    found = oip_json.decode(raw.bodies[0].content, int(fields["inference-header-content-length"]))
    assert found.feed["x"].tolist() == [[1, 2, 3]]
    call = target_of(f"grpc://{url}", data=data)
    requested, is_raw = oip_message.decode(call.bodies[0].content)
    assert (call.calls, call.path) == ("inference", "/inference.GRPCInferenceService/ModelInfer")
    assert (requested.model, requested.version, is_raw) == ("a b", "3", True)
    assert requested.feed["x"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("datatype", oip.DTYPES)
def test_random_inputs_are_generated_for_every_type(datatype: str):
    requests = random_tensors([Input("x", datatype, (-1, 5))], {})
    assert len(requests) == 16
    arrays = [tensor.array for (tensor,) in requests]
    assert {array.shape for array in arrays} == {(1, 5)}
    assert {array.dtype for array in arrays} == {oip.DTYPES[datatype]}
    assert any(not np.array_equal(array, arrays[0]) for array in arrays)


def test_generated_inputs_have_the_given_shapes_and_large_ones_are_few():
    shapes = shapes_of(["a:b:2,3", "y:1,1024,1024,8"])
    inputs = [Input("a:b", "FP32", (-1, -1)), Input("y", "UINT8", (-1, -1, -1, 8))]
    requests = random_tensors(inputs, shapes)
    assert [tensor.array.shape for tensor in requests[0]] == [(2, 3), (1, 1024, 1024, 8)]
    assert len(requests) == 1


@pytest.mark.parametrize("text", ["x", "x:", ":1", "x:a", "x:-1"])
def test_an_invalid_shape_is_refused(text: str):
    with pytest.raises(BadTarget, match="is no shape"):
        shapes_of([text])


def test_a_shape_must_be_complete_and_of_a_known_input():
    with pytest.raises(BadTarget, match="give --shape x:1"):
        random_tensors([Input("x", "FP32", (-1, -1))], {})
    with pytest.raises(BadTarget, match="no input y, but x"):
        random_tensors([Input("x", "FP32", (1,))], {"y": (1,)})
    with pytest.raises(BadTarget, match="no readable inputs"):
        inputs_of({"inputs": [{}]})
    with pytest.raises(BadTarget, match="has the datatype 'FP8'"):
        inputs_of({"inputs": [{"name": "x", "datatype": "FP8", "shape": [1]}]})
