"""The protocol of the original's model server: its rules, and both of its encodings."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputMismatch, PackageError, RequestError, TooLarge, Undecodable
from penstock.protocols import general_model as rules
from penstock.protocols import general_model_json, general_model_message
from penstock.protocols import standard_messages as messages
from penstock.protocols.general_model import GeneralRequest, GeneralResponse, InTensor
from penstock.protocols.oip import OutTensor
from penstock.protocols.tensors import DecodeBudget
from penstock.request import Feed
from penstock.tensor import Signature, TensorSpec

REQUEST, RESPONSE = messages.general_model_messages()

VALUES: dict[int, tuple[str, list[Any], str]] = {
    0: ("int64", [-(2**63), 2**63 - 1], "INT64"),
    1: ("float32", [0.5, -3.0], "FP32"),
    2: ("int32", [-(2**31), 2**31 - 1], "INT32"),
    3: ("float64", [0.1, 1.7e308], "FP64"),
    4: ("int16", [-(2**15), 2**15 - 1], "INT16"),
    5: ("float16", [1.5, -65504.0], "FP16"),
    6: ("float32", [1.5, -3.0], "BF16"),
    7: ("uint8", [0, 255], "UINT8"),
    8: ("int8", [-128, 127], "INT8"),
    9: ("bool", [True, False], "BOOL"),
    20: ("object", ["ä", ""], "BYTES"),
}
RAW = {
    4: struct.pack("<hh", -(2**15), 2**15 - 1),
    5: struct.pack("<ee", 1.5, -65504.0),
    6: b"\xc0\x3f\x40\xc0",
    7: b"\x00\xff",
    8: b"\x80\x7f",
}


def signature_of(datatype: str = "FP32", shape: list[int] | None = None) -> Signature:
    return Signature(
        inputs={"x": (datatype, shape or [-1, 2])}, outputs={"y": (datatype, shape or [-1, 2])}
    )


def as_message(tensor: dict[str, Any], **more: Any) -> GeneralRequest:
    data = REQUEST(tensor=[tensor], **more).SerializeToString()
    return general_model_message.decode(data, DecodeBudget(len(data)))


def as_json(tensor: dict[str, Any], **more: Any) -> GeneralRequest:
    if "tensor_content" in tensor:
        tensor = {**tensor, "tensor_content": base64.b64encode(tensor["tensor_content"]).decode()}
    body = json.dumps({"tensor": [tensor], **more}).encode()
    return general_model_json.decode(body, DecodeBudget(len(body)))


FORMS = [as_message, as_json]
Form = Callable[..., GeneralRequest]


def feed(request: GeneralRequest, signature: Signature | None = None) -> Feed:
    return rules.feed_of(request, signature or signature_of(), DecodeBudget(100))


def tensor_of(code: int) -> dict[str, Any]:
    field = rules.TYPES[code].field
    data = RAW.get(code, VALUES[code][1])
    return {"name": "x", "alias_name": "x", "elem_type": code, "shape": [1, 2], field: data}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", VALUES)
def test_every_type_is_decoded_and_encoded(form: Form, code: int) -> None:
    dtype, values, datatype = VALUES[code]
    request = form(tensor_of(code), fetch_var_names=["y"], log_id=2**64 - 1)
    assert (request.fetch, request.log_id, request.profile) == (["y"], 2**64 - 1, False)
    signature = signature_of(datatype)
    array = feed(request, signature)["x"]
    expected = np.array([values], dtype)
    assert (array.dtype, array.shape) == (expected.dtype, (1, 2))
    np.testing.assert_array_equal(array, expected)
    outputs = rules.outputs_of(request, signature, "m", {"y": expected})
    response = GeneralResponse(outputs=outputs, log_id=request.log_id)
    sent = {**tensor_of(code), "name": "y", "alias_name": "y"}
    message = RESPONSE.FromString(general_model_message.encode(response))
    expected_message = RESPONSE(
        outputs=[{"tensor": [sent], "engine_name": "m"}], log_id=request.log_id
    )
    assert message == expected_message
    document = json.loads(general_model_json.encode(response))
    if code in RAW:
        sent["tensor_content"] = base64.b64encode(RAW[code]).decode()
    (output,) = document["outputs"]
    (tensor_document,) = output["tensor"]
    field = rules.TYPES[code].field
    if dtype == "float32":
        np.testing.assert_array_equal(
            tensor_document.get("float_data", []), sent.get("float_data", [])
        )
        tensor_document.pop("float_data", None)
        sent.pop("float_data", None)
    assert tensor_document == sent, field
    assert (output["engine_name"], document["log_id"]) == ("m", 2**64 - 1)
    assert (document["err_no"], document["err_msg"]) == (0, "")


def test_requests_and_answers_have_the_documented_bytes() -> None:
    tensor = b"\x12\x08" + struct.pack("<ff", 1, 2) + b"\x50\x01\x5a\x02\x01\x02\x6a\x01x\x72\x01x"
    data = b"\x0a" + bytes([len(tensor)]) + tensor + b"\x12\x01y\x18\x01\x20\x07\xa2\x06\x01m"
    request = general_model_message.decode(data, DecodeBudget(0))
    assert (request.fetch, request.profile, request.log_id, request.model) == (["y"], True, 7, "m")
    np.testing.assert_array_equal(feed(request)["x"], np.array([[1, 2]], np.float32))
    value = {"y": np.array([[3]], np.float32), "y.lod": np.array([0, 1], np.int32)}
    outputs = rules.outputs_of(request, signature_of(), "m", value)
    response = GeneralResponse(outputs=outputs, profile=[1, 200], log_id=7, err_no=-1, err_msg="no")
    tensor = b"\x12\x04" + struct.pack("<f", 3) + b"\x50\x01\x5a\x02\x01\x01\x62\x02\x00\x01"
    tensor += b"\x6a\x01y\x72\x01y"
    output = b"\x0a" + bytes([len(tensor)]) + tensor + b"\x12\x01m"
    expected = b"\x0a" + bytes([len(output)]) + output + b"\x12\x03\x01\xc8\x01\x18\x01\x20\x07"
    expected += b"\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x32\x02no"
    assert general_model_message.encode(response) == expected
    assert general_model_json.encode(response) == (
        b'{"outputs":[{"tensor":[{"float_data":[3.0],"elem_type":1,"shape":[1,1],"lod":[0,1],'
        b'"name":"y","alias_name":"y"}],"engine_name":"m"}],"profile_time":[1,200],'
        b'"profile_server":true,"log_id":7,"err_no":-1,"err_msg":"no"}'
    )


X = {"name": "x", "elem_type": 1, "shape": [1, 2], "float_data": [1.0, 2.0]}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"shape": [1, 3]}, PackageError, "needs 3 elements, got 2"),
        ({"shape": []}, PackageError, "needs 1 elements, got 2"),
        ({"shape": [-1, 2]}, PackageError, "a negative dimension"),
        ({"shape": [2**31 - 1] * 16}, PackageError, "elements, got 2"),
        ({"shape": [1] * 17}, PackageError, "a shape has 17 numbers, which are more than 16"),
        ({"lod": [0] * 100_001}, PackageError, "a lod has 100001 numbers"),
        ({"elem_type": 0}, PackageError, "INT64 belongs into int64_data, not into float_data"),
        ({"elem_type": 10}, PackageError, "the element type COMPLEX64 is not supported"),
        ({"elem_type": 12}, PackageError, "the element type 12 is unknown"),
        ({"elem_type": -1}, PackageError, "the element type -1 is unknown"),
        ({"int_data": [1, 2]}, PackageError, "FP32 belongs into float_data, not into int_data"),
        ({"name": "z"}, InputMismatch, r"takes the inputs \['x'\], got \['z'\]"),
        ({"name": ""}, InputMismatch, r"got \[''\]"),
        ({"lod": [0, 2]}, PackageError, r"the lod ends at 2, but the shape is \[1, 2\]"),
        ({"lod": [1]}, PackageError, "a lod starts at 0"),
        ({"lod": [0, 1, 0, 1]}, PackageError, "only one level"),
        ({"shape": [1, 2, 1]}, InputMismatch, "has the shape"),
        ({"elem_type": 7, "float_data": [], "tensor_content": b"ab"}, InputMismatch, "got UINT8"),
        ({"elem_type": 7, "float_data": [], "tensor_content": b"a"}, PackageError, "got 1"),
    ],
)
def test_an_inconsistent_or_unexpected_tensor_is_refused(
    form: Form, changed: dict[str, Any], error: type[RequestError], text: str
) -> None:
    with pytest.raises(error, match=text):
        feed(form({**X, **changed}))


def test_inputs_and_outputs_have_names_and_aliases() -> None:
    specs = [
        TensorSpec(name=name, alias=alias, dtype=np.dtype("float32"), shape=(None, 2))
        for name, alias in (("x", "input"), ("fc.tmp", "price"), ("b/y", "b/y"))
    ]
    signature = Signature(inputs=specs[:1], outputs=specs[1:2])
    for names in ({"name": "x"}, {"name": "input"}, {"name": "", "alias_name": "input"}):
        assert [*feed(as_json({**X, **names}), signature)] == ["input"]
    with pytest.raises(PackageError, match="no tensor"):
        feed(GeneralRequest(), signature)
    with pytest.raises(PackageError, match="two inputs are called 'input'"):
        feed(
            GeneralRequest([InTensor("x", "", 1, [0, 2]), InTensor("input", "", 1, [0])]), signature
        )
    value = {"price": np.zeros((1, 2), np.float32)}
    for fetch in ([], ["price"], ["fc.tmp"]):
        (output,) = rules.outputs_of(GeneralRequest(fetch=fetch), signature, "m", value)["m"]
        assert (output.name, output.tensor.name) == ("fc.tmp", "price")
    with pytest.raises(InputMismatch, match=r"there is no output 'cost', only \['price'\]"):
        rules.outputs_of(GeneralRequest(fetch=["cost"]), signature, "m", value)


def test_texts_for_a_uint8_input_are_terminated_with_nul() -> None:
    request = as_json({"name": "x", "elem_type": 20, "data": ["ab", "c"], "shape": [2]})
    array = feed(request, signature_of("UINT8", [-1]))["x"]
    assert array.tobytes() == b"ab\0c\0"
    assert feed(request, signature_of("BYTES", [-1]))["x"].tolist() == ["ab", "c"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"tensor": {}}',
        b'{"tensor": [1]}',
        b'{"tensor": [{"shape": 1}]}',
        b'{"tensor": [{"name": 1}]}',
        b'{"tensor": [{"float_data": ["x"]}]}',
        b'{"tensor": [{"int_data": [2147483648]}]}',
        b'{"tensor": [{"tensor_content": "*"}]}',
        b'{"tensor": [], "log_id": -1}',
        b'{"tensor": [], "profile_server": 1}',
        b'{"tensor": [], "x": %s}' % (b"[" * 70 + b"]" * 70),
        b'{"tensor": [%s]}' % b",".join([b"{}"] * 1001),
    ],
)
def test_invalid_json_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(Undecodable):
        general_model_json.decode(body, DecodeBudget(len(body)))


def test_invalid_and_too_large_messages_are_refused() -> None:
    for data in (
        b"\x0a",
        b"\x0a\x05\x12",
        b"\x0a\x02\x6a\x05",
        b"\x12\x01\xff",
        b"\x0a\x00" * 1001,
    ):
        with pytest.raises(Undecodable):
            general_model_message.decode(data, DecodeBudget(len(data)))
    data = b"\x0a\x81\x80\x40" + b"\x1a\xfd\xff\x3f" + bytes((1 << 20) - 3)
    with pytest.raises(TooLarge):
        general_model_message.decode(data, SmallBudget())


class SmallBudget(DecodeBudget):
    def __init__(self) -> None:
        self._left = 1 << 20


@pytest.mark.parametrize("code", VALUES)
def test_requests_and_responses_are_encoded_and_decoded_by_client_and_server_alike(
    code: int,
) -> None:
    dtype, values, datatype = VALUES[code]
    array = np.array([values], dtype)
    input_tensor = rules.Output(name="x", tensor=OutTensor("alias", datatype, array), lod=[0, 1])
    message = general_model_message.encode_request(
        [input_tensor], ["y"], log_id=2**64 - 1, profile=True, model="m"
    )
    tensor = {**tensor_of(code), "alias_name": "alias", "lod": [0, 1]}
    assert REQUEST.FromString(message) == REQUEST(
        tensor=[tensor], fetch_var_names=["y"], profile_server=True, log_id=2**64 - 1, model="m"
    )
    body = general_model_json.encode_request([input_tensor], ["y"], log_id=2**64 - 1, model="m")
    for request in (
        general_model_message.decode(message, DecodeBudget(0)),
        general_model_json.decode(body, DecodeBudget(0)),
    ):
        assert (request.fetch, request.log_id, request.model) == (["y"], 2**64 - 1, "m")
        got = feed(request, signature_of(datatype))
        np.testing.assert_array_equal(got["x"], array)
        assert got["x.lod"].tolist() == [0, 1]
    response = GeneralResponse(
        outputs={"m": [input_tensor], "n": []}, profile=[1, 2**40], log_id=9, err_no=-1, err_msg="ä"
    )
    found = general_model_message.decode_response(general_model_message.encode(response))
    (output,) = found.outputs["m"]
    assert (output.name, output.lod, output.tensor[:2]) == ("x", [0, 1], ("alias", datatype))
    assert output.tensor.array.dtype == array.dtype
    np.testing.assert_array_equal(output.tensor.array, array)
    assert found.outputs["n"] == []
    assert (found.profile, found.log_id, found.err_no, found.err_msg) == ([1, 2**40], 9, -1, "ä")


def test_invalid_and_inconsistent_answers_are_refused() -> None:
    for data in (b"\x0a", b"\x0a\x05\x0a", b"\x32\x01\xff"):
        with pytest.raises(Undecodable, match="not a general_model"):
            general_model_message.decode_response(data)
    tensor = {"name": "y", "elem_type": 1, "shape": [1, 3], "float_data": [1.0, 2.0]}
    response = RESPONSE(outputs=[{"tensor": [tensor], "engine_name": "m"}])
    with pytest.raises(PackageError, match="tensor 'y': the shape"):
        general_model_message.decode_response(response.SerializeToString())


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_as_an_answer_or_refused(data: bytes) -> None:
    with suppress(RequestError):
        general_model_message.decode_response(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_as_a_request_or_refused(data: bytes) -> None:
    for decode in (general_model_message.decode, general_model_json.decode):
        with suppress(RequestError):
            rules.feed_of(decode(data, DecodeBudget(100)), signature_of(), DecodeBudget(100))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
MEMBERS = ("shape", "lod", "name", "alias_name", "elem_type", "data", "tensor_content")


@given(st.dictionaries(st.sampled_from([*rules.NUMBERS, *MEMBERS]), JSON_VALUES))
def test_any_json_is_decoded_as_a_request_or_refused(tensor: dict[str, Any]) -> None:
    body = json.dumps({"tensor": [{"name": "x", **tensor}]}).encode()
    with suppress(RequestError):
        request = general_model_json.decode(body, DecodeBudget(len(body)))
        rules.feed_of(request, signature_of(), DecodeBudget(len(body)))
