"""Valid requests with one rule broken, which every door of the pipeline protocol must refuse alike.

Each case changes one thing in ``VALID``. Tests of the codec, of the servers and of whole services
use these cases."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from penstock.protocols import pb

VALID: dict[str, Any] = {
    "key": ["x"],
    "value": ["0.1,0.2"],
    "tensors": [
        {"name": "t", "elem_type": 1, "shape": [2, 2], "float_data": [1.0, 2.0, 3.0, 4.0]},
    ],
    "logid": 7,
    "clientip": "10.0.0.1",
}

UNDECODABLE = "undecodable"  # HTTP 400, INVALID_ARGUMENT
PACKAGE = 8000
INPUT = 5000


@dataclass(frozen=True, slots=True)
class Case:
    """One broken request.

    Attributes:
        rule: a description of the broken rule; the id of the test.
        answer: ``UNDECODABLE`` or the ``err_no``.
        body: the HTTP body; None if JSON cannot express it.
        message: the encoded message; None if protobuf cannot express it.
    """

    rule: str
    answer: str | int
    body: bytes | None
    message: bytes | None


def valid_body() -> bytes:
    return json.dumps(VALID).encode()


def valid_message() -> bytes:
    return _message(VALID)


def _message(document: dict[str, Any]) -> bytes:
    return json_format.ParseDict(document, pb.Request()).SerializeToString()


def _edited(edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    document = copy.deepcopy(VALID)
    edit(document)
    return document


def _both(rule: str, answer: str | int, edit: Callable[[dict[str, Any]], object]) -> Case:
    document = _edited(edit)
    return Case(rule, answer, json.dumps(document).encode(), _message(document))


def _json(rule: str, edit: Callable[[dict[str, Any]], object]) -> Case:
    return Case(rule, UNDECODABLE, json.dumps(_edited(edit)).encode(), None)


def _body(rule: str, body: bytes) -> Case:
    return Case(rule, UNDECODABLE, body, None)


def _bytes(rule: str, message: bytes) -> Case:
    return Case(rule, UNDECODABLE, None, message)


def _tensor(**members: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["tensors"][0].update(members)


def _replaced(**members: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.update(tensors=[{"name": "t", **members}])


def _set(**members: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.update(members)


def _bytes_of(data: bytes) -> Callable[[dict[str, Any]], object]:
    return _replaced(elem_type=13, byte_data=base64.b64encode(data).decode())


def _npy(descr: str, data: bytes = bytes(8)) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,), }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def _nested(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels - 1):
        nested = [nested]
    return nested


def _wire_cases() -> list[Case]:
    """Bytes that are no document or no message."""
    body, message = valid_body(), valid_message()
    return [
        _body("JSON that is cut off", body[:-1]),
        _body("JSON with something behind it", body + b"{}"),
        _body("JSON with a comment", body[:-1] + b"/* */}"),
        _body("JSON in UTF-16", body.decode().encode("utf-16")),
        _body("JSON behind a byte order mark", b"\xef\xbb\xbf" + body),
        _body("JSON with broken UTF-8", body.replace(b"0.1", b"\xff")),
        _body("JSON with a bad escape", body.replace(b"0.1", b"\\x")),
        _body("JSON with a bare NaN as a text", body.replace(b'"0.1,0.2"', b"NaN")),
        _body("JSON with a bare NaN as an integer", body.replace(b'"logid": 7', b'"logid": NaN')),
        _body("JSON with a bare NaN in an unknown member", body[:-1] + b', "other": [NaN]}'),
        _body("JSON with another bare word", body.replace(b"3.0", b"Inf")),
        _body("JSON with a bare NaN and a sign", body.replace(b"3.0", b"-NaN")),
        _body("JSON with half a surrogate pair", body.replace(b"0.1", b"\\ud800")),
        _body("JSON that is a list", b"[]"),
        _body("JSON that is a text", b'"x"'),
        _body("JSON of 10,000 brackets", b"[" * 10_000),
        _body("a number too large for a float", body.replace(b"3.0", b"1e400")),
        _body("a number of 1,001 characters", body.replace(b"3.0", b"3." + b"0" * 999)),
        _body("an integer of 1,001 characters", body.replace(b"3.0", b"3" * 1001)),
        _bytes("a message that is cut off", message[:-1]),
        _bytes("a message with an unknown wire type", message + b"\x0f"),
        _bytes("a message with field number 0", message + b"\x00\x00"),
        _bytes("a message with an endless varint", message + b"\x30" + b"\xff" * 11),
        _bytes("a message nested deeper than 100", message + b"\x43" * 101 + b"\x44" * 101),
        _bytes("a text that is not UTF-8", message + b"\x12\x01\xff"),
        _bytes("a tensor that is no message", message + b"\x1a\x01\x08"),
        _bytes("text instead of a message", b"GET / HTTP/1.1\r\n"),
    ]


def _json_cases() -> list[Case]:
    """Values of a wrong JSON type, and too many or too deeply nested values."""
    return [
        _json("a number as text value", _set(value=[1.5])),
        _json("null as text value", _set(value=[None])),
        _json("a text instead of a list", _set(key="x")),
        _json("an object instead of a list", _set(key={"x": 1})),
        _json("a number as client address", _set(clientip=1)),
        _json("a number as service name", _set(name=1)),
        _json("a truth value as log id", _set(logid=True)),
        _json("a fraction as log id", _set(logid=1.5)),
        _json("a log id over 63 bits", _set(logid=2**63)),
        _json("a log id text that is no number", _set(logid="7 ")),
        _json("a list as tensor", _set(tensors=[[]])),
        _json("a text as shape", _tensor(shape="2,2")),
        _json("a dimension over 31 bits", _tensor(shape=[2**31])),
        _json("an element type over 31 bits", _tensor(elem_type=2**31)),
        _json("a truth value as float", _tensor(float_data=[True])),
        _json("a text that is no float", _tensor(float_data=["one"])),
        _json("a float too large for float32", _tensor(float_data=[1e39])),
        _json("a fraction as int32", _tensor(int_data=[1.5])),
        _json("a negative unsigned number", _tensor(uint32_data=[-1])),
        _json("a number as truth value", _tensor(bool_data=[1])),
        _json("a number as text part", _tensor(str_data=[1])),
        _json("bytes that are not base64", _tensor(byte_data="***")),
        _json("unknown members nested deeper than 64", _set(other=_nested(64))),
        _json("a tensor's unknown members nested deeper than 64", _tensor(other=_nested(62))),
        _json("over 10,000 members", _set(**{f"m{n}": 1 for n in range(10_001)})),
        _both("over 10,000 keys", UNDECODABLE, _set(key=["x"] * 10_001, value=["1"] * 10_001)),
        _both("over 10,000 values", UNDECODABLE, _set(value=["1"] * 10_001)),
        _both("over 10,000 tensors", UNDECODABLE, _set(tensors=[{}] * 10_001)),
    ]


def _package_cases() -> list[Case]:
    """Requests that can be decoded, but have inconsistent pairs or tensors."""
    most = 2**31 - 1
    edits = {
        "fewer values than keys": _set(key=["x", "y"]),
        "a negative dimension": _tensor(shape=[-1, 4]),
        "two negative dimensions": _tensor(shape=[-2, -2]),
        "fewer elements than the shape says": _tensor(shape=[2, 3]),
        "more elements than the shape says": _tensor(shape=[1, 2]),
        "a shape whose product wraps": _tensor(shape=[65536] * 4),
        "a zero dimension with data": _tensor(shape=[0, 4]),
        "no data for a shape that overflows": _replaced(elem_type=1, shape=[0, most, most, most]),
        "no data for a shape": _replaced(elem_type=1, shape=[2]),
        "no data and no shape": _replaced(elem_type=1),
        "over 16 dimensions": _tensor(shape=[2, 2, *[1] * 15]),
        "an unknown element type": _tensor(elem_type=14),
        "a negative element type": _tensor(elem_type=-1),
        "complex numbers": _replaced(elem_type=10, shape=[1], complex64_data=[1, 2]),
        "data in the wrong field": _tensor(elem_type=3),
        "data in two fields": _tensor(int_data=[1]),
        "an int8 out of range": _replaced(elem_type=8, shape=[1], int_data=[128]),
        "an int16 out of range": _replaced(elem_type=4, shape=[1], int_data=[-32769]),
        "a uint8 out of range": _replaced(elem_type=7, shape=[1], uint32_data=[256]),
        "a bfloat16 pattern out of range": _replaced(elem_type=6, shape=[1], uint32_data=[65536]),
        "a float16 out of range": _replaced(elem_type=5, shape=[1], float_data=[65520]),
        "an odd lod": _tensor(lod=[0, 1, 2]),
        "a lod that does not start at 0": _tensor(lod=[1, 2]),
        "a lod that decreases": _tensor(lod=[0, 2, 1, 2]),
        "a lod that ends before the rows": _tensor(lod=[0, 1]),
        "a lod that ends behind the rows": _tensor(lod=[0, 3]),
        "a lod on a scalar": _replaced(elem_type=1, float_data=[1], lod=[0, 1]),
        "text parts for a number type": _tensor(str_data=["1"]),
        "no bytes": _replaced(elem_type=13),
        # Further cases of .npy bytes are in tests/protocols/test_npy.py.
        "bytes that are a pickle": _bytes_of(b"\x80\x04]\x94."),
        "bytes that are an archive": _bytes_of(b"PK\x03\x04"),
        "bytes of objects": _bytes_of(_npy("|O")),
        "bytes that are too few": _bytes_of(_npy("<f4", bytes(7))),
    }
    return [_both(rule, PACKAGE, edit) for rule, edit in edits.items()] + [
        _both("a tensor without a name", INPUT, _tensor(name="")),
        _both("a tensor's name over 256 characters", INPUT, _tensor(name="n" * 257)),
    ]


def cases() -> list[Case]:
    """All cases; their rules are unique."""
    return [*_wire_cases(), *_json_cases(), *_package_cases()]
