"""The Open Inference Protocol: tensors in both encodings, and refusals."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputMismatch, PackageError, RequestError, Undecodable
from penstock.protocols import oip, oip_json, oip_message
from penstock.protocols import standard_messages as messages
from penstock.protocols.oip import InferRequest, OutTensor
from penstock.protocols.tensors import DecodeBudget
from penstock.tensor import Signature

INFER, RESPONSE = messages.inference_messages("ModelInfer")

VALUES: dict[str, Any] = {
    "BOOL": [True, False],
    "UINT8": [0, 255],
    "UINT16": [0, 65535],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1],
    "INT8": [-128, 127],
    "INT16": [-(2**15), 2**15 - 1],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1],
    "FP16": [1.5, -65504.0],
    "BF16": [1.5, -3.0],
    "FP32": [0.1, -3.4e38],
    "FP64": [0.1, 1.7e308],
    "BYTES": ["ä", ""],
}
RAW = {
    "BOOL": b"\x01\x00",
    "UINT16": b"\x00\x00\xff\xff",
    "INT64": struct.pack("<qq", -(2**63), 2**63 - 1),
    "FP16": struct.pack("<ee", 1.5, -65504.0),
    "BF16": b"\xc0\x3f\x40\xc0",
    "FP32": struct.pack("<ff", 0.1, -3.4e38),
    "BYTES": b"\x02\x00\x00\x00\xc3\xa4\x00\x00\x00\x00",
}


@pytest.mark.parametrize("binary", [False, True])
def test_an_encoded_json_request_is_decoded_to_the_same(binary: bool) -> None:
    sent = [OutTensor(name, name, np.array(VALUES[name], oip.DTYPES[name])) for name in VALUES]
    body, header = oip_json.encode_request(sent, binary=binary)
    found = oip_json.decode(body, header)
    assert (header is not None) == found.all_binary == binary
    assert found.datatypes == {name: name for name in VALUES}
    for each in sent:
        texts = [
            each.decode() if isinstance(each, bytes) else each for each in found.feed[each.name]
        ]
        assert texts == each.array.tolist()


def body_of(datatype: str, data: Any, shape: list[int], **more: Any) -> bytes:
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": data, **more}
    return json.dumps({"id": "7", "inputs": [tensor]}).encode()


def array_of(datatype: str) -> np.ndarray[Any, Any]:
    return np.array(VALUES[datatype], oip.DTYPES[datatype])


@pytest.mark.parametrize("datatype", oip.DTYPES)
@pytest.mark.parametrize("nested", [False, True])
def test_every_datatype_is_decoded_and_encoded_in_json(datatype: str, nested: bool) -> None:
    data = [VALUES[datatype]] if nested else VALUES[datatype]
    request = oip_json.decode(body_of(datatype, data, [1, 2]))
    expected = array_of(datatype).reshape(1, 2)
    assert request.feed["x"].dtype == expected.dtype
    np.testing.assert_array_equal(request.feed["x"], expected)
    body, header = oip_json.encode(request, "m", "1", [OutTensor("y", datatype, expected)])
    answer = json.loads(body)
    assert header is None
    assert answer["id"] == "7"
    (output,) = answer["outputs"]
    assert (output["datatype"], output["shape"]) == (datatype, [1, 2])
    np.testing.assert_array_equal(np.array(output["data"], expected.dtype), expected.reshape(-1))


@pytest.mark.parametrize("datatype", RAW)
def test_raw_bytes_are_encoded_as_documented(datatype: str) -> None:
    raw = RAW[datatype]
    tensor = {
        "name": "x",
        "datatype": datatype,
        "shape": [2],
        "parameters": {"binary_data_size": len(raw)},
    }
    document = json.dumps(
        {"inputs": [tensor], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    ).encode()
    request = oip_json.decode(document + raw, len(document))
    oip.fit(request, None)
    np.testing.assert_array_equal(request.feed["x"], array_of(datatype))
    out = OutTensor("y", datatype, request.feed["x"])
    body, header = oip_json.encode(request, "m", "1", [out])
    assert header is not None
    assert body[header:] == raw
    (output,) = json.loads(body[:header])["outputs"]
    assert output["parameters"] == {"binary_data_size": len(raw)}
    assert "data" not in output


@pytest.mark.parametrize("datatype", oip.DTYPES)
@pytest.mark.parametrize("raw", [False, True])
def test_every_datatype_is_decoded_and_encoded_in_messages(datatype: str, raw: bool) -> None:
    expected = array_of(datatype).reshape(2, 1)
    message = INFER(model_name="m", model_version="1", id="7")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=[2, 1])
    if raw:
        message.raw_input_contents.append(oip.to_raw(OutTensor("x", datatype, expected)))
    elif datatype in ("FP16", "BF16"):
        with pytest.raises(PackageError, match="raw bytes only"):
            oip_message.decode(message.SerializeToString())
        return
    else:
        fill(tensor.contents, datatype)
    request, is_raw = oip_message.decode(message.SerializeToString())
    assert (request.model, request.version, request.id, is_raw) == ("m", "1", "7", raw)
    oip.fit(request, None)
    np.testing.assert_array_equal(request.feed["x"], expected)
    encoded = oip_message.encode(request, raw, "m", "1", [OutTensor("y", datatype, expected)])
    answer = RESPONSE.FromString(encoded)
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "7")
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("y", datatype, [2, 1])
    if raw:
        assert list(answer.raw_output_contents) == list(message.raw_input_contents)
    else:
        assert not answer.raw_output_contents
        assert output.contents == tensor.contents


def fill(contents: Any, datatype: str) -> None:
    field = {
        "BOOL": "bool_contents",
        "INT64": "int64_contents",
        "UINT64": "uint64_contents",
        "FP32": "fp32_contents",
        "FP64": "fp64_contents",
        "BYTES": "bytes_contents",
    }.get(datatype, "int_contents" if datatype.startswith("INT") else "uint_contents")
    values = VALUES[datatype]
    if datatype == "BYTES":
        values = [each.encode() for each in values]
    getattr(contents, field).extend(values)


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (b"{", Undecodable, "not a JSON document"),
        (b"[]", Undecodable, "must be an object"),
        (b"{}", Undecodable, 'no "inputs"'),
        (b'{"inputs": 3}', Undecodable, "must be a list"),
        (b'{"inputs": [{}]}', Undecodable, "needs a name, a shape and a datatype"),
        (body_of("FP31", [1], [1]), PackageError, "unknown datatype 'FP31'"),
        (body_of("FP32", [1, 2], [3]), PackageError, "needs 3 elements, got 2"),
        (body_of("FP32", [1, 2, 3, 4], [3]), PackageError, "needs 3 elements, got 4"),
        (body_of("FP32", [[1], [2], [3]], [2]), PackageError, r"contradicts the shape \[2\]"),
        (body_of("FP32", [[1, 2], [3, 4], [5, 6]], [2, 3]), PackageError, "level 1 has 3 elem"),
        (body_of("FP32", [[1, 2, 3], [4, 5]], [2, 3]), PackageError, "level 2 has 2 elements"),
        (body_of("FP32", [[1, 2], [3, 4]], [1, 2, 2]), PackageError, "level 1 has 2 elements"),
        (body_of("FP32", [[[1], [2]]], [1, 2]), PackageError, "level 2 has 2 elements"),
        (body_of("FP16", [[1, 2]], [2, 1]), PackageError, "level 1 has 1 elements"),
        (body_of("BYTES", [["a", "b"]], [2, 1]), PackageError, "level 1 has 1 elements"),
        (body_of("BYTES", [["a"], []], [2, 1]), PackageError, "level 2 has 0 elements"),
        (body_of("FP32", [1, "a"], [2]), Undecodable, "must be a number"),
        (body_of("FP32", [1, [2]], [2]), Undecodable, "must be a number, got a list"),
        (body_of("UINT8", [256], [1]), Undecodable, "from 0 to 255"),
        (body_of("FP16", [1e6], [1]), Undecodable, "too large for a float16"),
        (body_of("BOOL", [1], [1]), Undecodable, "true or false"),
        (body_of("BYTES", [1], [1]), Undecodable, "must be a text"),
        (body_of("FP32", None, [1]), Undecodable, "no data"),
        (
            body_of("FP32", [1], [1, -1]),
            Undecodable,
            r"shape\[1\] must be a whole number from 0 to",
        ),
        (
            body_of("FP32", ["x"], [1]),
            Undecodable,
            r"data\[0\] must be a number, got a text that is no number",
        ),
        (body_of("FP32", [], [0] * 17), Undecodable, "more than 16"),
        (body_of("FP32", [], [2**40, 2**40, 0]), PackageError, "too large"),
        (body_of("FP32", [], [2**40]), PackageError, "more than the body holds"),
        (body_of("FP32", [1], [1] * 20), Undecodable, "more than 16"),
        (
            body_of("FP32", [1], [1], parameters={"binary_data_size": 4}),
            PackageError,
            "both data and raw bytes",
        ),
        (
            body_of("FP32", [1], [1], parameters={"shared_memory_region": "r"}),
            PackageError,
            "shared memory is not available",
        ),
        (
            body_of("FP32", None, [1], parameters={"binary_data_size": 4}),
            PackageError,
            "the body ends before",
        ),
        (body_of("FP32", json.loads("[" * 30 + "]" * 30), [1]), PackageError, "contradicts"),
    ],
)
def test_invalid_json_requests_are_refused(
    body: bytes, error: type[RequestError], text: str
) -> None:
    with pytest.raises(error, match=text):
        oip_json.decode(body)


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_nan_stays_nan_when_rounded_to_bf16(bits: int) -> None:
    array = np.array([bits], np.uint32).view(np.float32)
    (rounded,) = oip.rounded(array).tolist()
    assert np.isnan(np.array([rounded << 16], np.uint32).view(np.float32)[0])


def test_bytes_after_the_last_tensor_are_refused() -> None:
    tensor = {
        "name": "x",
        "datatype": "UINT8",
        "shape": [1],
        "parameters": {"binary_data_size": 1},
    }
    document = json.dumps({"inputs": [tensor]}).encode()
    with pytest.raises(PackageError, match="1 bytes remain after the last tensor"):
        oip_json.decode(document + b"ab", len(document))


@pytest.mark.parametrize("name", ["priority", "timeout"])
@pytest.mark.parametrize("value", [0, 1, 2**63 - 1])
def test_parameters_of_scheduling_are_decoded(name: str, value: int) -> None:
    found = oip_json.decode(
        body_of("FP32", [1], [1])[:-1] + b',"parameters":{"%b":%d}}' % (name.encode(), value)
    )
    assert getattr(found, name) == value
    for kind in ("int64_param", "uint64_param"):
        message = messages.inference_messages("ModelInfer")[0]()
        setattr(message.parameters[name], kind, value)
        found, _ = oip_message.decode(message.SerializeToString())
        assert getattr(found, name) == value


@pytest.mark.parametrize("name", ["priority", "timeout"])
def test_parameters_of_scheduling_are_natural_numbers(name: str) -> None:
    for value in ("-1", "1.5", '"a"', "true", "9223372036854775808"):
        body = body_of("FP32", [1], [1])[:-1] + f',"parameters":{{"{name}":{value}}}}}'.encode()
        with pytest.raises((Undecodable, PackageError), match=name):
            oip_json.decode(body)
    for kind, wrong in (
        ("int64_param", -1),
        ("uint64_param", 2**63),
        ("string_param", "1"),
        ("bool_param", True),
        ("double_param", 1.0),
    ):
        message = messages.inference_messages("ModelInfer")[0]()
        setattr(message.parameters[name], kind, wrong)
        with pytest.raises(PackageError, match=name):
            oip_message.decode(message.SerializeToString())


def test_parameters_of_those_names_at_a_tensor_have_no_meaning() -> None:
    body = body_of("FP32", [1], [1], parameters={"priority": "high"})
    assert oip_json.decode(body).priority == 0


def test_two_inputs_of_one_name_are_refused() -> None:
    message = INFER(model_name="m")
    for _ in range(2):
        message.inputs.add(name="x", datatype="UINT8", shape=[1])
        message.raw_input_contents.append(b"a")
    with pytest.raises(PackageError, match="two inputs are called 'x'"):
        oip_message.decode(message.SerializeToString())
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    with pytest.raises(PackageError, match="two inputs are called 'x'"):
        oip_json.decode(json.dumps({"inputs": [tensor, tensor]}).encode())


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x01\x00\x00\x00", "end within element 0"),
        (b"\x00\x00\x00\x00\x00", "remain after"),
        (b"", "before 1 elements"),
        (b"\xff\xff\xff\xff", "end within element 0"),
    ],
)
def test_raw_texts_with_wrong_lengths_are_refused(raw: bytes, text: str) -> None:
    message = INFER(model_name="m")
    message.inputs.add(name="x", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(raw)
    with pytest.raises(PackageError, match=text):
        oip_message.decode(message.SerializeToString())


def test_raw_bytes_of_another_size_are_refused() -> None:
    message = INFER(model_name="m")
    message.inputs.add(name="x", datatype="FP32", shape=[2])
    message.raw_input_contents.append(bytes(7))
    with pytest.raises(PackageError, match=r"FP32 of shape \[2\] is 8 bytes, got 7"):
        oip_message.decode(message.SerializeToString())
    message.raw_input_contents.append(b"")
    with pytest.raises(PackageError, match="1 inputs, and raw bytes of 2"):
        oip_message.decode(message.SerializeToString())


@pytest.mark.parametrize(
    ("datatype", "shape", "raw", "text"),
    [("BOOL", [2], b"\1\2", "0 or 1"), ("FP32", [0, 2**62, 4], b"", "too large")],
)
def test_small_raw_bytes_are_validated(
    datatype: str, shape: list[int], raw: bytes, text: str
) -> None:
    message = INFER(model_name="m", inputs=[{"name": "x", "datatype": datatype, "shape": shape}])
    message.raw_input_contents.append(raw)
    with pytest.raises(PackageError, match=text):
        oip_message.decode(message.SerializeToString())


def test_contents_of_another_type_are_refused() -> None:
    message = INFER(model_name="m")
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[1])
    tensor.contents.int_contents.append(1)
    with pytest.raises(PackageError, match="not those of FP32"):
        oip_message.decode(message.SerializeToString())
    tensor.datatype = "INT8"
    tensor.contents.int_contents[:] = [128]
    with pytest.raises(PackageError, match="outside of -128 to 127"):
        oip_message.decode(message.SerializeToString())


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for decode in (oip_message.decode, oip_json.decode, lambda each: oip_json.decode(each, 3)):
        try:
            decode(data)
        except RequestError:
            continue


@given(st.lists(st.floats(width=32), max_size=20))
def test_numbers_are_rounded_to_the_nearest_bf16(values: list[float]) -> None:
    array = np.array(values, np.float32)
    raw = oip.to_raw(OutTensor("x", "BF16", array))
    wide = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    for before, after in zip(array, wide, strict=True):
        if np.isnan(before):
            assert np.isnan(after)
        elif np.isfinite(after):
            assert abs(after - before) <= max(abs(before) * 2**-8, 2.0**-133)
        else:
            assert abs(before) >= 3.38e38


SIGNATURE = Signature(
    inputs={"x": ("FP32", [-1, 2]), "t": ("BYTES", None)}, outputs={"y": ("BF16", [-1])}
)


def request_of(**arrays: np.ndarray[Any, Any]) -> InferRequest:
    request = InferRequest()
    for name, array in arrays.items():
        datatype = "BYTES" if array.dtype == object else oip._NAMES[array.dtype]
        request.add(name, datatype, array)
    return request


TEXTS = np.array([b"a"], object)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            request_of(x=np.zeros((1, 2), np.float32)),
            r"takes the inputs \['t', 'x'\], got \['x'\]",
        ),
        (request_of(x=np.zeros((1, 2), np.float64), t=TEXTS), "'x' is FP32, got FP64"),
        (
            request_of(x=np.zeros((1, 3), np.float32), t=TEXTS),
            r"shape \[-1, 2\], got \[1, 3\]",
        ),
        (request_of(x=np.zeros(2, np.float32), t=TEXTS), r"shape \[-1, 2\], got \[2\]"),
        (
            request_of(x=np.zeros((1, 2), np.float32), t=np.array([b"\xff"], object)),
            "'t': element 0 is not UTF-8",
        ),
    ],
)
def test_inputs_that_do_not_match_the_signature_are_refused(
    request_: InferRequest, text: str
) -> None:
    with pytest.raises(InputMismatch, match=text):
        oip.fit(request_, SIGNATURE)


def test_arrays_of_other_shapes_are_accepted_if_the_shape_is_a_hint() -> None:
    spec = replace(SIGNATURE.inputs[0], shape_is_hint=True)
    signature = Signature(inputs=[spec])
    for shape in ((2, 1, 2), (1, 3)):
        oip.fit(request_of(x=np.zeros(shape, np.float32)), signature)
    with pytest.raises(InputMismatch, match="'x' is FP32, got FP64"):
        oip.fit(request_of(x=np.zeros((1, 2), np.float64)), signature)


def test_outputs_are_those_requested() -> None:
    request = request_of(x=np.zeros((1, 2), np.float32), t=TEXTS)
    oip.fit(request, SIGNATURE)
    assert request.feed["t"].tolist() == ["a"]
    (output,) = oip.answered(request, SIGNATURE, {"y": np.zeros(1, np.float32), "z": 3})
    assert (output.name, output.datatype) == ("y", "BF16")
    request.outputs = ("y", "y")
    with pytest.raises(InputMismatch, match="requested twice"):
        oip.fit(request, SIGNATURE)
    request.outputs = ("nope",)
    with pytest.raises(InputMismatch, match=r"gives the outputs \['y'\], not \['nope'\]"):
        oip.fit(request, SIGNATURE)
    found = oip.answered(InferRequest(), None, {"n": 3, "t": "a", "u": ["b", "c"], "f": [1.5]})
    assert [(each.datatype, each.array.shape) for each in found] == [
        ("INT64", (1,)),
        ("BYTES", (1,)),
        ("BYTES", (2,)),
        ("FP64", (1,)),
    ]


def test_an_array_without_axes_keeps_its_shape() -> None:
    (output,) = oip.answered(InferRequest(), None, {"loss": np.array(1.5, np.float32)})
    assert output.array.shape == ()
    body, _ = oip_json.encode(InferRequest(), "m", "1", [output])
    assert json.loads(body)["outputs"] == [
        {"name": "loss", "datatype": "FP32", "shape": [], "data": [1.5]}
    ]


def test_a_large_body_is_decoded_flat_and_nested() -> None:
    numbers = np.arange(100_000, dtype=np.float32)
    flat = oip_json.decode(body_of("FP32", numbers.tolist(), [1000, 100]))
    nested = oip_json.decode(body_of("FP32", numbers.reshape(1000, 100).tolist(), [1000, 100]))
    for request in (flat, nested):
        np.testing.assert_array_equal(request.feed["x"], numbers.reshape(1000, 100))


@pytest.mark.parametrize("datatype", oip.DTYPES)
def test_messages_are_encoded_and_decoded_by_client_and_server_alike(datatype: str) -> None:
    array = array_of(datatype).reshape(1, 2)
    tensor = OutTensor("x", datatype, array)
    request_of = oip_message.encode_request("7", "m", [tensor], ["y", "z"])
    parsed = INFER.FromString(request_of)
    assert (parsed.id, parsed.model_name) == ("7", "m")
    assert [each.name for each in parsed.outputs] == ["y", "z"]
    request, raw = oip_message.decode(request_of)
    assert raw
    assert request.datatypes == {"x": datatype}
    for raw in (True, False):
        answer = oip_message.encode(request, raw, "m", "1", [tensor])
        found = oip_message.decode_response(answer)["x"]
        expected = array
        if datatype == "BYTES":
            expected = np.array([text.encode() for text in VALUES["BYTES"]], object).reshape(1, 2)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("binary", [False, True])
def test_an_answer_is_the_same_for_any_memory_layout(binary: bool) -> None:
    plain = np.arange(12, dtype=np.float32).reshape(3, 4)
    wide = np.zeros((3, 8), np.float32)
    wide[:, ::2] = plain
    request = InferRequest(all_binary=binary)
    answers = [
        (oip_message.encode(request, binary, "m", "1", [tensor]),
         oip_json.encode(request, "m", "1", [tensor]))
        for array in (plain, plain.astype(">f4"), np.asfortranarray(plain), wide[:, ::2])
        for tensor in [OutTensor("y", "FP32", array)]
    ]  # fmt: skip
    assert [*plain.reshape(-1)] == [*oip_message.decode_response(answers[0][0])["y"].reshape(-1)]
    assert answers == answers[:1] * 4


def test_cached_descriptions_of_tensors_are_not_mixed_up() -> None:
    for _ in range(2):
        for name, datatype, shape in (
            ("x", "FP32", [2]),
            ("x", "INT32", [2]),
            ("y", "FP32", [2, 1]),
        ):
            message = INFER(model_name="m", id=name)
            message.inputs.add(name=name, datatype=datatype, shape=shape)
            message.raw_input_contents.append(bytes(8))
            request, _ = oip_message.decode(message.SerializeToString())
            assert request.datatypes == {name: datatype}
            assert request.feed[name].dtype == oip.DTYPES[datatype]
            assert request.feed[name].shape == tuple(shape)
            message.raw_input_contents[0] = bytes(4)
            with pytest.raises(PackageError, match="is 8 bytes, got 4"):
                oip_message.decode(message.SerializeToString())


@pytest.mark.parametrize("answer", [b"\xff", b"\x2a\x7f", b"\x32\x01\x00"])
def test_an_invalid_answer_is_refused(answer: bytes) -> None:
    with pytest.raises((Undecodable, PackageError)):
        oip_message.decode_response(answer)


@pytest.mark.parametrize("padding", [0, 300_000])
def test_nested_data_follows_the_shape(padding: int) -> None:
    for data, shape in (([[], []], [2, 0]), ([[[1, 2]], [[3, 4]]], [2, 1, 2]), ([1, 2], [1, 2])):
        request = oip_json.decode(body_of("FP32", data, shape, other="x" * padding))
        assert request.feed["x"].shape == tuple(shape)
    with pytest.raises(PackageError, match="contradicts"):
        oip_json.decode(body_of("FP32", [[1, 2], [3, 4]], [4, 1], other="x" * padding))


@pytest.mark.parametrize("padding", [0, 300_000])
@pytest.mark.parametrize("raw", [b"", b"\0\0\x80\x3f"])
def test_raw_bytes_without_their_header_are_refused_with_its_name(padding: int, raw: bytes) -> None:
    body = body_of("FP32", None, [1], parameters={"binary_data_size": 4}, other="x" * padding)
    with pytest.raises((Undecodable, PackageError), match="Inference-Header-Content-Length"):
        oip_json.decode(body + raw)
    with pytest.raises(PackageError, match=r"the body ends before its 4 bytes$"):
        oip_json.decode(body, len(body))


def test_arrays_of_bfloat16_are_sent_as_bf16() -> None:
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    tensor = oip.out_tensor("y", {"y": array}, None)
    assert (tensor.datatype, oip.to_raw(tensor)) == ("BF16", array.tobytes())
    received = oip.from_raw("y", "BF16", [2], array.tobytes(), DecodeBudget(1))
    assert (received.dtype, received.tolist()) == (np.float32, [1.5, -2])


@pytest.mark.parametrize("final", [None, False, True])
def test_a_response_of_a_stream_says_whether_it_is_the_last_one(final: bool | None) -> None:
    request = InferRequest(id="7")
    outputs = [OutTensor("y", "INT64", np.array([1]))]
    answer = RESPONSE.FromString(oip_message.encode(request, True, "m", "1", outputs, final))
    parameters = {name: each.bool_param for name, each in answer.parameters.items()}
    assert parameters == ({} if final is None else {"triton_final_response": final})
    assert answer.outputs[0].name == "y"
    assert len(answer.raw_output_contents) == 1


def test_an_error_of_a_stream_names_its_request() -> None:
    _, streamed = messages.inference_messages("ModelStreamInfer")
    answer = streamed.FromString(oip_message.stream_error("no ä", "7", "m", "1"))
    assert answer.error_message == "no ä"
    response = answer.infer_response
    assert (response.id, response.model_name, response.model_version) == ("7", "m", "1")
    assert response.parameters["triton_final_response"].bool_param
    inner = RESPONSE(model_name="m")
    framed = oip_message.in_stream(inner.SerializeToString())
    assert streamed.FromString(framed).infer_response == inner


@pytest.mark.parametrize(("field", "value"), [("bool_param", True), ("bool_param", False)])
def test_a_request_may_ask_for_an_empty_last_response(field: str, value: bool) -> None:
    message = INFER(model_name="m", id="7")
    setattr(message.parameters["triton_enable_empty_final_response"], field, value)
    request, _ = oip_message.decode(message.SerializeToString())
    assert request.empty_final is value


@pytest.mark.parametrize(("field", "value"), [("int64_param", 1), ("string_param", "true")])
def test_whether_it_asks_for_that_is_true_or_false(field: str, value: Any) -> None:
    message = INFER(model_name="m", id="7")
    setattr(message.parameters["triton_enable_empty_final_response"], field, value)
    data = message.SerializeToString()
    with pytest.raises(PackageError, match="is true or false"):
        oip_message.decode(data)
    assert oip_message.id_of(data) == "7"
    assert oip_message.id_of(b"\xff") == ""


def test_true_is_no_number_of_microseconds() -> None:
    message = INFER(model_name="m")
    message.parameters["timeout"].bool_param = True
    with pytest.raises(PackageError, match="is an integer"):
        oip_message.decode(message.SerializeToString())


OF_PIECES = Signature(inputs={}, outputs={"x": ("FP32", [2, -1]), "y": ("BYTES", [1])})


def pieces_of(*shapes: tuple[int, ...], text: str = "a") -> list[list[OutTensor]]:
    value = [{"x": np.ones(shape, np.float32), "y": np.array([text], object)} for shape in shapes]
    return [oip.answered(InferRequest(), OF_PIECES, each) for each in value]


def test_pieces_are_joined_along_a_first_axis() -> None:
    x, y = oip.joined(InferRequest(), OF_PIECES, pieces_of((2, 3), (2, 3), (2, 3), (2, 3)))
    assert (x.name, x.datatype, x.array.shape) == ("x", "FP32", (4, 2, 3))
    assert (y.name, y.datatype, y.array.tolist()) == ("y", "BYTES", [["a"]] * 4)


def test_no_pieces_are_tensors_without_elements() -> None:
    x, y = oip.joined(InferRequest(), OF_PIECES, [])
    assert (x.datatype, x.array.dtype, x.array.shape) == ("FP32", np.float32, (0, 2, 0))
    assert (y.datatype, y.array.shape) == ("BYTES", (0, 1))
    (only,) = oip.joined(InferRequest(outputs=("y",)), OF_PIECES, [])
    assert only.name == "y"


def test_pieces_of_different_shapes_are_refused_unless_they_are_not_requested() -> None:
    with pytest.raises(InputMismatch, match=r"'x' are not one tensor: .*\[2, 3\].*\[2, 4\]"):
        oip.joined(InferRequest(), OF_PIECES, pieces_of((2, 3), (2, 4)))
    request = InferRequest(outputs=("y",))
    pieces = [[y] for _, y in pieces_of((2, 3), (2, 4))]
    (y,) = oip.joined(request, OF_PIECES, pieces)
    assert y.array.shape == (2, 1)
