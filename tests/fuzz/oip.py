"""Requests of the Open Inference Protocol: JSON, raw bytes after it, and protobuf, decoded to
arrays and encoded again. The short way of usual requests gives the same result as the general one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

import numpy as np

from penstock.errors import RequestError
from penstock.protocols import oip, oip_generate, oip_json, oip_message
from penstock.protocols import standard_messages as messages
from penstock.protocols.oip import MAX_TENSORS, InferRequest
from penstock.tensor import Signature
from tests.fuzz.choices import Choices

NAMES = re.compile("'.*'|[0-9]+")
INFER, RESPONSE = messages.inference_messages("ModelInfer")


def same(one: InferRequest, other: InferRequest) -> bool:
    return (
        one.feed.keys() == other.feed.keys()
        and (one.id, one.model, one.version) == (other.id, other.model, other.version)
        and (one.datatypes, one.outputs) == (other.datatypes, other.outputs)
        and all(
            array.dtype == other.feed[name].dtype
            and array.shape == other.feed[name].shape
            and array.tobytes() == other.feed[name].tobytes()
            for name, array in one.feed.items()
        )
    )


def check(request: InferRequest, size: int) -> list[oip.OutTensor]:
    """Check the invariants of every request; returns its inputs as outputs."""
    assert max(len(request.feed), len(request.outputs or ())) <= MAX_TENSORS
    assert sum(array.nbytes for array in request.feed.values()) <= 64 + 16 * size
    oip.fit(request, None)
    return [oip.OutTensor(name, request.datatypes[name], a) for name, a in request.feed.items()]


def of_json(choices: Choices) -> Hashable:
    header = choices.octet() << 8 | choices.octet()
    body = choices.rest()
    usual = None if header else oip_json._read_usual(body)
    if usual is not None:
        assert same(usual, oip_json._Reader(body, len(body)).request(False))
    request = oip_json.decode(body, header or None)
    answer, length = oip_json.encode(request, "m", "1", check(request, len(body)))
    json.loads(answer[:length])
    return usual is not None, *sorted(set(request.datatypes.values()))[:3]


def of_message(choices: Choices) -> Hashable:
    data = choices.rest()
    usual = oip_message._read_raw(data)
    if usual is not None:
        assert same(usual, oip_message._decode(data)[0])
    request, raw = oip_message.decode(data)
    answer = oip_message.encode(request, raw, "m", "1", check(request, len(data)))
    assert len(RESPONSE.FromString(answer).outputs) == len(request.feed)
    found = oip_message.decode_response(answer)
    assert [*found] == [*request.feed]
    assert all(np.array_equal(found[name].shape, request.feed[name].shape) for name in found)
    return usual is not None, raw, *sorted(set(request.datatypes.values()))[:3]


MODEL = Signature(
    inputs={"x": ("FP32", [-1, 2]), "n": ("INT8", [1]), "t": ("BYTES", [-1]), "on": ("BOOL", None)}
)


def of_members(choices: Choices) -> Hashable:
    body = choices.rest()
    request = oip_generate.decode(body, MODEL)
    outputs = check(request, len(body))
    names = request.feed.keys()
    for name, spec in MODEL.input_specs.items():
        if name in names and spec.shape is not None:
            assert len(request.feed[name].shape) == len(spec.shape)
    answer = json.loads(oip_generate.encode(request, "m", "1", outputs))
    assert answer.keys() - {"id"} == {"model_name", "model_version", *names}
    joined = json.loads(oip_generate.encode_joined(request, "m", "1", MODEL, [outputs, outputs]))
    assert joined.keys() == answer.keys()
    return "members", bool(request.id), *sorted(names)


PARTS = (of_json, of_message, of_members)


def run(data: bytes) -> Hashable:
    choices = Choices(data)
    part = choices.of(PARTS)
    try:
        return part.__name__, part(choices)
    except RequestError as error:
        return part.__name__, type(error).__name__, NAMES.sub("", str(error))[:24]


def of_body(document: Any, raw: bytes = b"") -> bytes:
    body = json.dumps(document).encode()
    return b"\0" + (len(body) if raw else 0).to_bytes(2, "big") + body + raw


def tensor(datatype: str, data: Any, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": datatype, "shape": shape, "data": data, **more}


def seed(datatype: str, raw: bytes | None, shape: list[int], **contents: Any) -> bytes:
    message = INFER(model_name="m", id="7", outputs=[{"name": "x"}])
    message.inputs.add(name="x", datatype=datatype, shape=shape, contents=contents)
    if raw is not None:
        message.inputs[0].ClearField("contents")
        message.raw_input_contents.append(raw)
    encoded: bytes = message.SerializeToString()
    return b"\1" + encoded


BINARY = {"parameters": {"binary_data_size": 9}}
SEEDS = [
    of_body({"inputs": [tensor("FP32", [[1, 2.5], [3, 4]], [2, 2])], "id": "7"}),
    of_body({"inputs": [tensor("FP16", ["NaN", 1], [2])], "outputs": [{"name": "x"}]}),
    of_body({"inputs": [tensor("BYTES", ["a", "\u00e9"], [2])], "outputs": [{"name": "y"}]}),
    of_body({"inputs": [{**tensor("BYTES", None, [2]), **BINARY}]}, b"\1\0\0\0a\0\0\0\0"),
    of_body({"inputs": [{**tensor("UINT8", None, [3, 3]), **BINARY}]}, bytes(9)),
    of_body({"inputs": [tensor("BOOL", [True], [1])], "parameters": {"binary_data_output": True}}),
    seed("FP32", bytes(8), [2]),
    seed("BOOL", b"\0\1", [1, 2]),
    seed("BYTES", b"\1\0\0\0a", [1]),
    seed("BF16", b"\1\2", [1]),
    seed("UINT64", None, [2], uint64_contents=[1, 2**64 - 1]),
    seed("INT8", None, [1], int_contents=[-1]),
    seed("BYTES", None, [1], bytes_contents=[b"a"]),
    b'\2{"x": [1, 2.5], "n": -1, "t": "a", "on": [true], "id": "7", "stream": false}',
    b'\2{"parameters": {"t": ["a", "b"], "priority": 1, "top_k": null}, "x": [1, "NaN", 3, 4]}',
]  # fmt: skip
WORDS = [
    *(f'"{name}"'.encode() for name in (*oip.DTYPES, "shape", "data", "parameters", "outputs")),
    *(name.encode() for name in oip.DTYPES),
    *(b'"binary_data_size":|-1|1e39|18446744073709551616|[[[[|"NaN"|null|true|\\ud800').split(b"|"),
    b"\x1a\x02\x01\x03",
    b"\x3a\x04",
    b"\xff" * 9 + b"\1",
]
