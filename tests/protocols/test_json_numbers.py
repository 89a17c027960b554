"""The rule for numbers in JSON, and that every protocol follows it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput, Undecodable
from penstock.protocols import general_model_json, json_numbers, media, oip, oip_json, paddle_json
from penstock.protocols.general_model import GeneralResponse, Output
from penstock.protocols.tensors import DecodeBudget
from penstock.tensor import Signature
from penstock.typed.arrays import Array
from penstock.typed.signature import Schema

nan, inf = float("nan"), float("inf")

LISTS = {
    "bare words": "[1.5, NaN, Infinity, -Infinity]",
    "texts": '[1.5, "NaN", "Infinity", "-Infinity"]',
    "as they are sent": '[1.5, null, "Infinity", "-Infinity"]',
}
NUMBERS = [1.5, nan, inf, -inf]
SENT = b'[1.5,null,"Infinity","-Infinity"]'


def read_by_oip(data: str, padding: str = "", datatype: str = "FP32") -> Any:
    body = f'{{"inputs": [{{"name": "x", "datatype": "{datatype}", "shape": [4], "data": {data}}}]'
    return oip_json.decode(f"{body}{padding}}}".encode()).feed["x"]


def read_by_paddle(data: str, padding: str = "", field: str = "float_data") -> Any:
    body = f'{{"tensors": [{{"name": "x", "elem_type": 1, "shape": [4], "{field}": {data}}}]'
    call = paddle_json.decode(f"{body}{padding}}}".encode(), name="", method="")
    return call.tensors[0].data[field]


def read_by_general_model(data: str, padding: str = "", field: str = "float_data") -> Any:
    body = f'{{"tensor": [{{"alias_name": "x", "elem_type": 1, "shape": [4], "{field}": {data}}}]'
    found = general_model_json.decode(f"{body}{padding}}}".encode(), DecodeBudget(1000))
    return found.tensors[0].data[field]


def read_by_type(data: str, padding: str = "", dtype: str = "float32") -> Any:
    schema = Schema(Annotated[np.ndarray, Array(dtype)], "x")
    return schema.read(data.encode(), media.JSON)


READERS = [read_by_oip, read_by_paddle, read_by_general_model, read_by_type]


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("data", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("read", READERS)
def test_nan_and_infinities_are_elements_of_float_arrays(read: Any, data: str, large: bool) -> None:
    array = read(data, f', "other": "{"x" * 300_000}"' if large else "")
    np.testing.assert_array_equal(array, np.array(NUMBERS, "float32"))


@pytest.mark.parametrize("word", ["nan", "Inf", "-NaN", "+Infinity", "NaN1", "1e400"])
@pytest.mark.parametrize("read", [read_by_oip, read_by_paddle, read_by_general_model])
def test_other_words_are_refused(read: Any, word: str) -> None:
    for element in (word, f'"{word}"'):
        with pytest.raises(Undecodable):
            read(f"[1.5, {element}, NaN, 2]")


@pytest.mark.parametrize("element", ["NaN", "Infinity", "null", '"NaN"'])
def test_integers_are_never_nan(element: str) -> None:
    data = f"[1, {element}, 2, 3]"
    for read, kind in ((read_by_oip, "INT64"), (read_by_paddle, "int64_data")):
        with pytest.raises(Undecodable):
            read(data, "", kind)
    with pytest.raises(InvalidInput):
        read_by_type(data, "", "int64")


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": NaN, "inputs": []}',
        b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": [NaN]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [Infinity], "data": [1]}]}',
        b'{"inputs": [], "other": [-Infinity]}',
    ],
)
def test_bare_words_elsewhere_are_refused(body: bytes) -> None:
    with pytest.raises(Undecodable):
        oip_json.decode(body)


def sent_by_oip(array: Any) -> bytes:
    body, _ = oip_json.encode(oip.InferRequest(), "m", "1", [oip.sent("x", array)])
    return body


def sent_by_media(array: Any) -> bytes:
    return media.encode({"x": array}, media.JSON)


def sent_by_type(array: Any) -> bytes:
    schema = Schema(Annotated[np.ndarray, Array(str(array.dtype))], "x", of_answers=True)
    return schema.write(schema.check(array), media.JSON)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
@pytest.mark.parametrize("send", [sent_by_oip, sent_by_media, sent_by_type])
def test_nan_is_sent_as_null_and_infinities_as_texts(send: Any, dtype: str) -> None:
    array = np.array(NUMBERS, dtype)
    assert SENT in send(array)
    assert SENT in send(np.array([array, array]).T[:, 0])  # not contiguous
    json.loads(send(array), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"x": [1.5, inf, None]}, b'{"x":[1.5,"Infinity",null]}'),
        ({"y": {"z": -inf}, "x": None}, b'{"y":{"z":"-Infinity"},"x":null}'),
        ({"x": np.float32(inf), "y": nan}, b'{"x":"Infinity","y":null}'),
        ({"z": (inf,)}, b'{"z":["Infinity"]}'),
        ({"x": np.arange(3).astype(">i4")}, b'{"x":[0,1,2]}'),
        ({1: 2, np.int64(3): 4, 2**70: 5}, b'{"1":2,"3":4,"1180591620717411303424":5}'),
        ({"x": np.longdouble(1.5), "y": np.ones(2, np.longdouble)}, b'{"x":1.5,"y":[1.0,1.0]}'),
        ({"x": np.array([None, inf, np.ones(1)], object)}, b'{"x":[null,"Infinity",[1.0]]}'),
        ({"x": np.array([2**64 - 1], np.uint64)}, b'{"x":[18446744073709551615]}'),
    ],
)
def test_plain_values_are_sent_as_json(value: Any, text: bytes) -> None:
    assert media.encode(value, media.JSON) == text


@pytest.mark.parametrize("kind", [media.JSON, media.MSGPACK])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"x": [0, {"y": 2**64}]}, r"^x\[1\]\.y: an integer of more than 64 bits"),
        ({"x": np.array([1j])}, "^x: an array of complex128"),
        ({"x": [np.longdouble("1e4000")]}, r"^x\[0\]: a float128 is beyond"),
        ({"x": [{"y": object()}]}, r"^x\[0\]\.y: .*object"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_its_place(kind: str, value: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        media.encode(value, kind)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["x"] = value
    with pytest.raises(TypeError, match="nested deeper"):
        media.encode(value, media.JSON)


def test_arrays_of_another_byte_order_have_the_same_numbers_in_msgpack() -> None:
    array = np.arange(3, dtype=">i4")
    value = {"x": array, "y": [{"z": array}], "u": (array, 1)}
    plain = {"x": [0, 1, 2], "y": [{"z": [0, 1, 2]}], "u": [[0, 1, 2], 1]}
    assert media.decode(media.encode(value, media.MSGPACK), media.MSGPACK) == plain


def test_plain_json_has_bare_words_and_exact_integers() -> None:
    body = b'{"x": [NaN, -Infinity], "y": 12345678901234567890123, "z": -9223372036854775809}'
    value = media.decode(body, media.JSON)
    assert repr(value["x"]) == "[nan, -inf]"
    assert (value["y"], value["z"]) == (12345678901234567890123, -9223372036854775809)
    with pytest.raises(Undecodable):
        media.decode(b'{"x": [NaN, 1e400]}', media.JSON)
    with pytest.raises(Undecodable):
        media.decode(b'{"x": "NaN, NaN" 1}', media.JSON)


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        ("[1.0, 9007199254740993]", "int64", [1, 2**53 + 1]),
        ("[[9223372036854775807], [0.0]]", "int64", [[2**63 - 1], [0]]),
        ("[18446744073709551615, 0.0]", "uint64", [2**64 - 1, 0]),
        ("[9223372036854775808, 1]", "uint64", [2**63, 1]),
        ("[3.0, 4]", "int64", [3, 4]),
        ("[[1, null]]", "float64", [[1.0, nan]]),
        ("[100000000000000000000, null]", "float32", [1e20, nan]),
        ("[16777217]", "float32", [16777216.0]),
    ],
)
def test_arrays_keep_what_their_dtype_can_hold(data: str, dtype: str, expected: Any) -> None:
    array = read_by_type(data, "", dtype)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, np.array(expected, dtype))


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ("[9223372036854775808, -1]", "int64"),
        ("[18446744073709551616, 0.0]", "uint64"),
        ("[9007199254740994.0]", "int64"),
        ("[9007199254740993.0]", "int64"),
        ("[1.5]", "int64"),
        ('["1"]', "int64"),
        ('["1.5"]', "float32"),
        ("[true, null]", "float32"),
        ("[1e39, null]", "float32"),
        ("null", "float32"),
        ("[[1], [null, 2]]", "float32"),
    ],
)
def test_what_an_array_would_lose_is_refused(data: str, dtype: str) -> None:
    with pytest.raises(InvalidInput):
        read_by_type(data, "", dtype)


@given(st.lists(st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False), min_size=1))
def test_integers_are_exact_or_refused(numbers: list[Any]) -> None:
    for dtype in (np.dtype("int64"), np.dtype("uint64")):
        try:
            array = json_numbers.array(numbers, dtype)
        except (TypeError, ValueError):
            continue
        if array.dtype == dtype:
            assert array.tolist() == numbers


@given(st.lists(st.floats(width=32)), st.sampled_from(["float16", "float32", "float64"]))
def test_an_answer_is_read_as_the_same_array(numbers: list[float], dtype: str) -> None:
    with np.errstate(over="ignore"):
        array = np.array(numbers, dtype)
    signature = Signature(inputs={"x": (dtype, [-1])}, outputs={"x": (dtype, [-1])})
    body = orjson.loads(sent_by_oip(array))
    body["inputs"] = body.pop("outputs")
    request = oip_json.decode(orjson.dumps(body))
    oip.fit(request, signature)
    np.testing.assert_array_equal(request.feed["x"], array)
    text = f'{{"x":{orjson.dumps(body["inputs"][0]["data"]).decode()}}}'.encode()
    again = json_numbers.array(media.decode(text, media.JSON)["x"], array.dtype)
    np.testing.assert_array_equal(again.astype(dtype), array)


def test_the_answers_of_paddles_routes_are_as_before() -> None:
    array = np.array(NUMBERS, "float32")
    output = Output(name="x", tensor=oip.sent("x", array), lod=[])
    answer = general_model_json.encode(GeneralResponse(outputs={"m": [output]}))
    assert b'"float_data":[1.5,null,null,null]' in answer
    body = general_model_json.encode_request([output])
    assert b'"float_data":[1.5,null,"Infinity","-Infinity"]' in body
    found = general_model_json.decode(body, DecodeBudget(1000)).tensors[0]
    np.testing.assert_array_equal(found.data["float_data"], array)


@pytest.mark.parametrize("kind", [Any, dict[str, Any]])
def test_answers_without_a_type_have_infinities_as_texts(kind: Any) -> None:
    schema = Schema(kind, "x", of_answers=True)
    value = schema.check({"a": [inf, nan, None], "b": np.array([-inf, nan]), "c": Decimal("1.5")})
    assert (
        schema.write(value, media.JSON)
        == b'{"a":["Infinity",null,null],"b":["-Infinity",null],"c":"1.5"}'
    )


@pytest.mark.parametrize("number", ["1e400", "-1E+0309", "1.0e999", "1" * 320 + ".5"])
def test_typed_functions_get_no_infinity_for_a_number_that_is_too_large(number: str) -> None:
    array = Annotated[np.ndarray, Array("float64")]
    for kind in (float, list[float], array, Any):
        with pytest.raises(Undecodable, match="beyond the range of float64"):
            Schema(dict[str, kind], "x").read(f'{{"a": {number}}}'.encode(), media.JSON)  # type: ignore[valid-type]


def test_what_looks_like_a_number_that_is_too_large_is_read() -> None:
    value = {"1e400": "1e999", "a": 10**400, "e1000": [1e300, -1e-320]}
    assert Schema(Any, "x").read(json.dumps(value).encode(), media.JSON) == value


def test_typed_answers_have_infinities_as_texts() -> None:
    schema = Schema(dict[str, float | list[float] | None], "x", of_answers=True)
    value = schema.check({"a": inf, "b": nan, "c": None, "d": [1.0, -inf]})
    assert (
        schema.write(value, media.JSON)
        == b'{"a":"Infinity","b":null,"c":null,"d":[1.0,"-Infinity"]}'
    )
