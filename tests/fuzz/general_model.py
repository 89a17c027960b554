"""Requests of ``GeneralModelService``, JSON and protobuf, decoded to feeds and encoded again."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

from penstock.errors import RequestError
from penstock.protocols import general_model as rules
from penstock.protocols import general_model_json, general_model_message
from penstock.protocols import standard_messages as messages
from penstock.protocols.general_model import MAX_TENSORS, GeneralRequest, GeneralResponse
from penstock.protocols.tensors import DecodeBudget
from penstock.tensor import LOD_SUFFIX, Signature
from tests.fuzz.choices import Choices

NAMES = re.compile("'.*'|[0-9]+")
REQUEST, RESPONSE = messages.general_model_messages()
DATATYPES = ("FP32", "INT64", "INT32", "FP64", "FP16", "BF16", "UINT8", "BOOL", "BYTES")
SIGNATURES = [Signature(inputs={"x": (each, None)}, outputs={}) for each in DATATYPES]


def feed_of(request: GeneralRequest, signature: Signature, size: int) -> GeneralResponse:
    assert max(len(request.tensors), len(request.fetch)) <= MAX_TENSORS
    feed = rules.feed_of(request, signature, DecodeBudget(size))
    assert sum(array.nbytes for array in feed.values()) <= 64 + 16 * size
    assert {*feed} <= {"x", "x" + LOD_SUFFIX}
    outputs = rules.outputs_of(request, signature, "engine", feed)
    return GeneralResponse(outputs=outputs, log_id=request.log_id)


def of_json(choices: Choices) -> Hashable:
    signature, body = choices.of(SIGNATURES), choices.rest()
    request = general_model_json.decode(body, DecodeBudget(len(body)))
    response = feed_of(request, signature, len(body))
    return len(json.loads(general_model_json.encode(response))["outputs"][0]["tensor"])


def of_message(choices: Choices) -> Hashable:
    signature, data = choices.of(SIGNATURES), choices.rest()
    request = general_model_message.decode(data, DecodeBudget(len(data)))
    response = feed_of(request, signature, len(data))
    found = RESPONSE.FromString(general_model_message.encode(response))
    assert found.log_id == request.log_id
    return len(found.outputs[0].tensor)


PARTS = (of_json, of_message)


def run(data: bytes) -> Hashable:
    choices = Choices(data)
    part = choices.of(PARTS)
    try:
        return part.__name__, part(choices)
    except RequestError as error:
        return part.__name__, type(error).__name__, NAMES.sub("", str(error))[:24]


def seeds(datatype: int, **tensor: Any) -> list[bytes]:
    document = {"tensor": [{"name": "x", **tensor}], "fetch_var_names": ["x"], "log_id": 7}
    raw = tensor.get("tensor_content")
    message: bytes = REQUEST(**document).SerializeToString()
    if raw is not None:
        document["tensor"] = [{"name": "x", **tensor, "tensor_content": "AAAA"}]
    body = json.dumps(document).encode()
    return [bytes((0, datatype)) + body, bytes((1, datatype)) + message]


SEEDS = [
    *seeds(0, elem_type=1, shape=[2, 1], float_data=[1, 2.5], lod=[0, 1, 2]),
    *seeds(1, shape=[2], int64_data=[1, -1]),
    *seeds(2, elem_type=2, shape=[1], int_data=[-1]),
    *seeds(3, elem_type=3, shape=[1], float64_data=[1]),
    *seeds(4, elem_type=5, shape=[1], tensor_content=b"ab"),
    *seeds(6, elem_type=20, data=["a", "b"]),
    *seeds(7, elem_type=9, shape=[1], bool_data=[True]),
    *seeds(8, elem_type=20, shape=[2], data=["a", ""]),
]
WORDS = [
    *(f'"{name}":'.encode() for name in (*rules.NUMBERS, "shape", "lod", "data", "tensor_content")),
    *(b'"elem_type":20|"alias_name":"x"|-1|1e39|4294967296|"NaN"|null|[[[[|\\ud800').split(b"|"),
    b"\x5a\x01\x02",
    b"\x62\x02\0\2",
    b"\xff" * 9 + b"\1",
]
