"""Requests that a model server must refuse, of the Open Inference Protocol and of
``GeneralModelService``: the request, the status over HTTP, and part of the message.

Models are those of ``models.py``. Over gRPC, 400 is INVALID_ARGUMENT, and 404 NOT_FOUND.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.protocols import standard_messages as messages
from tests.hostile.bad_requests import MOST_BYTES
from tests.kit.http1 import request

INFER, _ = messages.inference_messages("ModelInfer")
GENERAL, _ = messages.general_model_messages()
OIP_CALL = f"/{messages.INFERENCE}/ModelInfer".encode()
GENERAL_CALL = f"/{messages.GENERAL_MODEL}/inference".encode()
PROTO = b"Content-Type: application/proto"
SIZE = b"Inference-Header-Content-Length: "
HUGE = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """One bad request over HTTP/1.1; ``stays_open``: the connection must stay open."""

    rule: str
    data: bytes
    status: int = 400
    text: str = ""
    stays_open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BadMessage:
    """One bad message over gRPC."""

    rule: str
    data: bytes
    status: int = 400
    text: str = ""


def _deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def tensor(**more: Any) -> dict[str, Any]:
    """An input of ``plain``, with changes; None omits a member."""
    whole = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]} | more
    return {name: value for name, value in whole.items() if value is not None}


def infer(body: Any, *fields: bytes, model: str = "plain", raw: bytes = b"") -> bytes:
    """An inference request, with ``raw`` after its JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    if raw:
        fields += (SIZE + b"%d" % len(data),)
    target = b"/v2/models/%s/infer" % model.encode()
    return request(data + raw, *fields, target=target)


def _input(rule: str, text: str, *, model: str = "plain", raw: bytes = b"", **more: Any) -> Bad:
    body = {"inputs": [tensor(**more)]}
    return Bad(rule=rule, data=infer(body, model=model, raw=raw), text=text)


def _binary(rule: str, text: str, raw: bytes, size: Any, model: str = "plain", **more: Any) -> Bad:
    """A tensor whose bytes follow the JSON, with its declared size."""
    members = {"data": None, "parameters": {"binary_data_size": size}} | more
    return _input(rule, text, model=model, raw=raw, **members)


def _number(
    rule: str, number: bytes, text: str = "not a JSON document", model: str = "FP64"
) -> Bad:
    start = b'{"inputs":[{"name":"x","datatype":"%s","shape":[1],"data":[' % model.encode()
    return Bad(rule=rule, data=infer(start + number + b"]}]}", model=model), text=text)


def _wrong_type(member: str, *values: Any) -> Iterator[Bad]:
    for value in values:
        yield _input(f"{member} is {value!r}", "", **{member: value})


def _whole(rule: str, body: Any, text: str) -> Bad:
    return Bad(rule=rule, data=infer(body), text=text)


FLOATS = struct.pack("<3f", 1, 2, 3)
GOOD = {"inputs": [tensor()]}
GOOD_JSON = json.dumps(GOOD).encode()
TWO = {"inputs": [tensor(), tensor()]}


def oip_http() -> Iterator[Bad]:
    """Requests of the Open Inference Protocol over HTTP."""
    # The body as a whole.
    for rule, body in {
        "no body": b"",
        "null": b"null",
        "a list": b"[]",
        "a text": b'"inputs"',
        "cut off": GOOD_JSON[:-1],
        "something behind it": GOOD_JSON + b"x",
        "a comment": b"/**/" + GOOD_JSON,
        "UTF-16": GOOD_JSON.decode().encode("utf-16"),
        "no UTF-8": b'{"id":"\xff","inputs":[]}',
        "a lone surrogate": b'{"id":"\\ud800","inputs":[]}',
    }.items():
        yield _whole(rule, body, "")
    for levels in (65, 1_500, 200_000):
        body = b'{"inputs":[],"unknown":%b}' % _deep(levels)
        yield _whole(f"nested {levels} levels deep", body, "")
        data = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":%b}]}' % _deep(levels)
        yield _whole(f"data nested {levels} levels deep", data, "")
    yield _whole("no inputs", {}, 'no "inputs"')
    yield _whole("inputs that are an object", {"inputs": {"x": 1}}, "must be a list")
    yield _whole("no input", {"inputs": []}, "takes the inputs ['x'], got []")
    yield _whole("two inputs of one name", TWO, "two inputs are called 'x'")
    yield _whole("1,001 inputs", {"inputs": [tensor(name=str(n)) for n in range(1001)]}, "1000")
    yield _whole("20,000 members", {str(n): n for n in range(20_000)}, "1000")
    yield _whole("a number as the id", {**GOOD, "id": 1}, "id must be a text")
    yield _whole("parameters that are a list", {**GOOD, "parameters": []}, "an object")
    sequence = {"sequence_id": 7, "sequence_start": True}
    yield _whole("a sequence", {**GOOD, "parameters": sequence}, "a sequence of requests is not")
    for output, text in (
        ([{"name": "z"}], "not ['z']"),
        ([{"name": "x"}] * 1000, "requested twice"),
        ([{"name": "x"}] * 1001, "1000"),
        ([{"name": 1}], "must be a text"),
        ([{}], "has no name"),
        (["x"], "an object"),
        ({"name": "x"}, "a list"),
        ([{"name": "x", "parameters": {"classification": 3}}], "classification is not"),
        ([{"name": "x", "parameters": {"binary_data": "yes"}}], "true or false"),
        ([{"name": "x", "parameters": {"shared_memory_region": "/etc"}}], "shared memory"),
    ):
        yield _whole(f"outputs {str(output)[:60]}", {**GOOD, "outputs": output}, text)
    # One tensor: its members.
    yield from _wrong_type("name", 1, [], {}, True, "", "z" * 300, "../../etc/passwd", "x\0")
    yield from _wrong_type(
        "datatype", 1, [], "FP33", "fp32", "FP32\0", "", "object", "INT32", "FP64"
    )
    yield from _wrong_type(
        *(
            "shape",
            3,
            "3",
            [-1, 3],
            [1, -3],
            [-1, -3],
            [1.5, 3],
            ["a"],
            [[1, 3]],
            [True, 3],
            [None],
        ),
        *([2**63, 0], [10**30], [1] * 17, [1, 1, 3], [3], [], [0, 3], [4], [3, 1], {"a": 1}),
    )
    for shape in ([HUGE], [HUGE, 3], [2**31, 2**31], [2**62, 4], [2**63 - 1], [1_000_000, 3]):
        yield _input(f"a shape of {shape}", "more than the body holds", shape=shape)
    yield _input("no elements in too large a shape", "too large", shape=[0, HUGE, HUGE], data=[])
    yield from _wrong_type(
        *("data", 1, "123", {}, True, [1, 2], [1, 2, 3, 4], [], [[1, 2, 3], [4]], [1, [2], 3]),
        *([[1, 2], 3], ["a", 1, 2], ["", 1, 2], ["1e400", 1, 2], [True, 1, 2]),
        *([{}, 1, 2], ["nan", 1, 2], [1e39, 1, 2], ["__import__('os')", 1, 2]),
    )
    for member in ("name", "datatype", "shape"):
        yield _input(f"no {member}", "needs a name, a shape and a datatype", **{member: None})
    yield _input("no data", "has no data", data=None)
    yield _input("shared memory", "shared memory", parameters={"shared_memory_offset": 1})
    # Numbers.
    for number in (b"-NaN", b"Inf", b"+Infinity", b"nan", b"1e400", b"-1e400", b"01", b"1.",
                   b"+1", b"0x10", b"1_000", b"--1", b"1e", b"9" * 500):  # fmt: skip
        yield _number(f"the number {number[:20]!r}", number)
    yield _number("a number of 2,000 digits", b"1." + b"1" * 2000, "1000 characters")
    for datatype, number in (
        *(("INT8", b"128"), ("INT8", b"-129"), ("UINT8", b"-1"), ("UINT8", b"256")),
        *(
            ("UINT64", b"-1"),
            ("UINT64", b"18446744073709551616"),
            ("INT64", b"9223372036854775808"),
        ),
        *(("INT32", b"NaN"), ("INT32", b"null"), ("UINT8", b"Infinity"), ("BYTES", b"NaN")),
        *(("INT32", b"1.5"), ("INT64", b"1e300"), ("FP16", b"65520"), ("BF16", b"3.4e39")),
        *(("BOOL", b"1"), ("BOOL", b'"true"'), ("INT32", b"true"), ("BYTES", b"1")),
    ):
        yield _number(f"{number.decode()} as {datatype}", number, "", datatype)
    # Bytes after the JSON.
    yield _binary("more bytes than there are", "the body ends before", FLOATS, 13)
    yield _binary("far more bytes than there are", "the body ends before", FLOATS, HUGE)
    yield _binary(
        "fewer bytes than there are", "FP32 of shape [1, 3] is 12 bytes, got 8", FLOATS, 8
    )
    yield _binary("bytes behind the last tensor's", "1 bytes remain", FLOATS + b"x", 12)
    for size in (-1, 1.5, "a", None, [], {}, True, 2**64, "-1"):
        yield _binary(f"a size of {size!r}", "", FLOATS, size)
    yield _binary("both data and bytes", "both data and raw bytes", FLOATS, 12, data=[1, 2, 3])
    yield _binary("a shape of other bytes", "is 24 bytes, got 12", FLOATS, 12, shape=[2, 3])
    yield _binary("a huge shape of few bytes", "got 12", FLOATS, 12, shape=[HUGE, 3])
    members = {"data": None, "parameters": {"binary_data_size": 12}}
    overlapping = {"inputs": [tensor(**members), tensor(name="z", **members)]}
    yield Bad(
        rule="two tensors for the bytes of one",
        data=infer(overlapping, raw=FLOATS),
        text="the body ends before its 12 bytes",
    )
    for size in (
        b"x",
        b"-1",
        b"",
        b"1.5",
        b"1e3",
        b"9" * 19,
        b"9" * 18,
        b"0",
        b"3",
        b"+3",
        b"3, 3",
    ):
        data = infer(GOOD_JSON, SIZE + size)
        yield Bad(rule=f"a JSON length of {size.decode()!r}", data=data)
    for rule, raw, text in _bad_texts():
        yield _binary(rule, text, raw, len(raw), "BYTES", datatype="BYTES", shape=[1])
    yield _binary("2**40 texts", "before", b"\0" * 8, 8, "BYTES", datatype="BYTES", shape=[HUGE])
    yield _binary("a truth of 2", "0 or 1", b"\2", 1, "BOOL", datatype="BOOL", shape=[1])
    # Content encoding, size and path.
    compressed = gzip.compress(GOOD_JSON)
    for rule, encoding, body, status in (
        ("gzip that is none", b"gzip", GOOD_JSON, 400),
        ("gzip that is cut off", b"gzip", compressed[:-3], 400),
        ("gzip with bytes behind it", b"gzip", compressed + b"x", 400),
        ("an unknown encoding", b"br", GOOD_JSON, 415),
    ):
        data = infer(body, b"Content-Encoding: " + encoding)
        yield Bad(rule=rule, data=data, status=status)
    bomb = infer(gzip.compress(bytes(8 << 20)), b"Content-Encoding: gzip")
    yield Bad(rule="gzip of far too much", data=bomb, status=413, stays_open=False)
    announced = request(b"", b"Content-Length: %d" % (MOST_BYTES + 1), length=False,
                        target=b"/v2/models/plain/infer")  # fmt: skip
    yield Bad(rule="a body that is too large", data=announced, status=413, stays_open=False)
    for line, status in (
        *(("POST /v2/models/nope/infer", 404), ("POST /v2/models/plain/versions/2/infer", 404)),
        *(("POST /v2/models/%2e%2e/infer", 404), ("POST /v2/models/plain%00/infer", 404)),
        *(("POST /v2/models/%ff/infer", 404), ("GET /v2/models/nope", 404)),
        *(("GET /v2/models/nope/stats", 404), ("GET /v2/models/nope/ready", 404)),
        *(("GET /v2/models/plain/infer", 405), ("POST /v2/models/plain", 405)),
        *(("DELETE /v2/models/plain", 405), ("POST /v2/health/live", 405)),
        *(("POST /v2/repository/index", 404), ("GET /v2/models/plain/versions/-1", 404)),
        ("POST /v2/systemsharedmemory/region/a/register", 404),
    ):
        method, target = line.encode().split()
        data = request(GOOD_JSON, method=method, target=target)
        yield Bad(rule=line, data=data, status=status)


def _bad_texts() -> Iterator[tuple[str, bytes, str]]:
    """Raw bytes of a BYTES tensor of one element."""
    yield "a length that is cut off", b"\1\0\0", "before 1 elements"
    yield "no bytes of a text", b"\1\0\0\0", "end within element 0"
    yield "a text of 4 GiB", b"\xff\xff\xff\xffabc", "end within element 0"
    yield "bytes behind the last text", b"\1\0\0\0ab", "1 bytes remain"
    yield "a text that is no UTF-8", b"\1\0\0\0\xff", "not UTF-8"


def oip_message(model: str = "plain", raw: bytes | None = FLOATS, **more: Any) -> bytes:
    """A ``ModelInferRequest`` with one input, whose members ``more`` changes."""
    whole = {"name": "x", "datatype": "FP32", "shape": [1, 3]} | more
    message = INFER(model_name=model, inputs=[whole])
    if raw is not None:
        message.raw_input_contents.append(raw)
    return message.SerializeToString()


GOOD_OIP = oip_message()


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field, whose content may be invalid."""
    return bytes((number << 3 | 2, len(content))) + content


def oip_messages() -> Iterator[BadMessage]:
    """Messages of the Open Inference Protocol over gRPC."""

    def bad(rule: str, text: str, **more: Any) -> BadMessage:
        return BadMessage(rule=rule, data=oip_message(**more), text=text)

    for name in ("nope", "", "../plain", "plain\0", "plain" * 1000):
        yield BadMessage(rule=f"the model {name[:20]!r}", data=oip_message(name), status=404)
    versioned = INFER(model_name="plain", model_version="7").SerializeToString()
    yield BadMessage(rule="another version", data=versioned, status=404)
    for shape in ([-1, 3], [1, -3], [-1, -3], [HUGE, 3], [2**63 - 1], [2**62, 4], [-(2**63), 3],
                  [1, 1, 3], [3], [], [1] * 17, [0, 3], [4]):  # fmt: skip
        yield bad(f"a shape of {shape}", "", shape=shape)
    yield bad("no elements in too large a shape", "too large", shape=[0, 2**62, 4], raw=b"")
    for size in (0, 1, 11, 13, 24):
        yield bad(f"{size} bytes", f"is 12 bytes, got {size}", raw=bytes(size))
    for datatype in ("FP33", "fp32", "", "object", "INT32", "FP64", "FP32\0", "x" * 5000):
        yield bad(f"the datatype {datatype[:20]!r}", "", datatype=datatype)
    for name in ("", "z", "z" * 5000, "x\0"):
        yield bad(f"the input {name[:20]!r}", "takes the inputs ['x']", name=name)
    for rule, raw, text in _bad_texts():
        yield bad(rule, text, model="BYTES", datatype="BYTES", shape=[1], raw=raw)
    yield bad("2**40 texts", "before", model="BYTES", datatype="BYTES", shape=[HUGE], raw=bytes(8))
    yield bad("a truth of 2", "0 or 1", model="BOOL", datatype="BOOL", shape=[1], raw=b"\2")
    floats = {"fp32_contents": [1, 2, 3]}
    yield bad("both forms of data", "both typed contents and raw", contents=floats)
    yield bad("no data", "needs 3 elements, got 0", raw=None)
    yield bad("too little data", "got 2", raw=None, contents={"fp32_contents": [1, 2]})
    yield bad("data of another type", "not those of FP32", raw=None, contents={"int_contents": [1]})
    half = {"datatype": "FP16", "shape": [1], "contents": {"fp32_contents": [1]}}
    yield bad("FP16 that is typed", "raw bytes only", model="FP16", raw=None, **half)
    small = {"datatype": "INT8", "shape": [1], "contents": {"int_contents": [128]}}
    yield bad("128 as INT8", "outside of -128 to 127", model="INT8", raw=None, **small)
    huge = {"datatype": "FP32", "shape": [HUGE], "contents": {"fp32_contents": [1]}}
    yield bad("a huge shape of one number", "got 1", raw=None, **huge)
    shared = {"shared_memory_region": {"string_param": "a"}}
    yield bad("shared memory", "shared memory", parameters=shared)
    one = INFER.FromString(GOOD_OIP)
    two = INFER(model_name="plain", inputs=[*one.inputs] * 2, raw_input_contents=[FLOATS] * 2)
    yield BadMessage(rule="two inputs of a name", data=two.SerializeToString(), text="two inputs")
    none = INFER(model_name="plain").SerializeToString()
    yield BadMessage(rule="no input", data=none, text="takes the inputs ['x'], got []")
    more = INFER(model_name="plain", inputs=one.inputs, raw_input_contents=[FLOATS] * 2)
    yield BadMessage(rule="too many bytes", data=more.SerializeToString(), text="raw bytes of 2")
    for names, text in ((["z"], "not ['z']"), (["x"] * 5000, ""), ([""], "not [''")):
        outputs = [{"name": name} for name in names]
        data = INFER(model_name="plain", outputs=outputs).SerializeToString() + GOOD_OIP
        yield BadMessage(rule=f"{len(names)} outputs {names[0]!r}", data=data, text=text)
    classified = {"name": "x", "parameters": {"classification": {"int64_param": 1}}}
    data = INFER(outputs=[classified]).SerializeToString() + GOOD_OIP
    yield BadMessage(rule="classification", data=data, text="classification is not")
    part = INFER(parameters={"sequence_id": {"int64_param": 7}})
    data = part.SerializeToString() + GOOD_OIP
    yield BadMessage(rule="a sequence", data=data, text="a sequence of requests is not")
    many = INFER(inputs=[{"name": str(n)} for n in range(3000)], model_name="plain")
    yield BadMessage(rule="3,000 inputs", data=many.SerializeToString(), text="1000 tensors")
    yield from _garbage(GOOD_OIP, "ModelInferRequest")
    name = field(1, b"plain")
    yield BadMessage(
        rule="a name that is no UTF-8", data=field(1, b"\xff"), text="ModelInferRequest"
    )
    compressed = field(5, field(1, b"x") + field(2, b"FP32") + field(3, b"\xff" * 8))
    yield BadMessage(
        rule="a shape without an end", data=name + compressed, text="ModelInferRequest"
    )
    longest = field(5, field(1, b"x") + field(3, b"\xff" * 11 + b"\1"))
    yield BadMessage(rule="a dimension of 12 bytes", data=name + longest, text="ModelInferRequest")
    floats_cut = field(5, field(2, b"FP32") + field(5, field(6, b"\0" * 5)))
    yield BadMessage(rule="half a float", data=name + floats_cut, text="ModelInferRequest")


def _garbage(good: bytes, name: str) -> Iterator[BadMessage]:
    for rule, data in {
        "cut off": good[:-1],
        "a byte behind it": good + b"\xff",
        "zeros": bytes(100),
        "0xff": b"\xff" * 100,
        "JSON": b'{"model_name":"plain"}',
        "a length beyond the end": b"\x2a\xff\xff\xff\xff\x0f",
        "a length of 2**63": b"\x2a" + b"\xff" * 9 + b"\1",
        "groups without an end": b"\x7b" * 90,
        "groups nested too deep": b"\x7b" * 200 + b"\x7c" * 200,
        "the end of a group": b"\x7c",
        "field number 0": b"\0\1",
        "200,000 groups": b"\x7b" * 200_000,
    }.items():
        yield BadMessage(rule=rule, data=data, text=name)
    yield BadMessage(rule="200,000 unknown fields", data=b"\xf8\x07\0" * 200_000, text="more than")


GENERAL_GOOD = {
    "tensor": [{"name": "x", "elem_type": 1, "shape": [1, 3], "float_data": [1, 2, 3]}],
    "model": "plain",
}


def general(body: Any, *fields: bytes, target: bytes = b"/GeneralModelService/inference") -> bytes:
    """A request of ``GeneralModelService``."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return request(data, *fields, target=target)


def general_documents() -> Iterator[tuple[str, dict[str, Any], int, str]]:
    """Rule, document, status and text of cases for both encodings."""

    def one(**more: Any) -> dict[str, Any]:
        whole = GENERAL_GOOD["tensor"][0] | more  # type: ignore[index]
        whole = {name: value for name, value in whole.items() if value is not None}
        return {**GENERAL_GOOD, "tensor": [whole]}

    yield "no tensor", {"model": "plain"}, 400, "no tensor"
    yield "no model", {"tensor": GENERAL_GOOD["tensor"]}, 404, "which model"
    yield "an unknown model", {**GENERAL_GOOD, "model": "nope"}, 404, "no model 'nope'"
    yield "an unknown output", {**GENERAL_GOOD, "fetch_var_names": ["z"]}, 400, "no output 'z'"
    twice = {**GENERAL_GOOD, "fetch_var_names": ["x"] * 1000}
    yield "an output 1,000 times", twice, 400, "requested twice"
    many = {**GENERAL_GOOD, "fetch_var_names": ["x"] * 1001}
    yield "an output 1,001 times", many, 400, "1000"
    yield (
        "a tensor twice",
        {**GENERAL_GOOD, "tensor": GENERAL_GOOD["tensor"] * 2},
        400,
        "two inputs",
    )
    yield "1,001 tensors", {**GENERAL_GOOD, "tensor": [{}] * 1001}, 400, "1000"
    yield "an empty tensor", {**GENERAL_GOOD, "tensor": [{}]}, 400, ""
    for number in (-1, 12, 13, 21, 99, 2**31 - 1, -(2**31)):
        yield f"the element type {number}", one(elem_type=number), 400, "is unknown"
    yield "complex numbers", one(elem_type=10, float_data=None), 400, "COMPLEX64 is not supported"
    yield "another type", one(elem_type=2), 400, "INT32 belongs into int_data, not into float_data"
    yield "a type of raw bytes", one(elem_type=5), 400, "FP16 belongs into tensor_content"
    ints = one(elem_type=2, float_data=None, int_data=[1, 2, 3])
    yield "a type that the model does not take", ints, 400, "'x' is FP32, got INT32"
    yield "data in two fields", one(int_data=[1]), 400, "belongs into float_data"
    for shape in ([-1, 3], [1, -3], [2**31 - 1, 2**31 - 1], [1] * 17, [1, 4], [3], [], [0, 3]):
        yield f"a shape of {shape}", one(shape=shape), 400, ""
    yield (
        "no elements in too large a shape",
        one(shape=[0] + [2**31 - 1] * 3, float_data=[]),
        400,
        "",
    )
    yield "no data", one(float_data=None), 400, "needs 3 elements, got 0"
    for lod in ([1, 1], [0], [0, -1], [0, 2, 1], [0, 2], [0, 1, 0, 1], [-1, 1], [0, 2**31 - 1]):
        yield f"a lod of {lod}", one(lod=lod), 400, ""
    yield "a long lod", one(lod=[0] * 100_001), 400, "100000"
    yield "another name", one(name="z"), 400, "takes the inputs ['x'], got ['z']"
    yield "a name that is a path", one(name="../../etc/passwd"), 400, "takes the inputs"
    half = {"name": "x", "elem_type": 5, "shape": [2]}
    yield "too few raw bytes", {"model": "FP16", "tensor": [half]}, 400, "is 4 bytes, got 0"
    text = {"name": "x", "elem_type": 20, "shape": [3], "data": ["a"]}
    yield "too few texts", {"model": "BYTES", "tensor": [text]}, 400, "needs 3 elements, got 1"


def general_http() -> Iterator[Bad]:
    """Requests of ``GeneralModelService`` over HTTP."""
    for rule, document, status, text in general_documents():
        yield Bad(rule=rule, data=general(document), status=status, text=text)
        message = GENERAL(**document).SerializeToString()
        yield Bad(rule=f"proto: {rule}", data=general(message, PROTO), status=status, text=text)
    good = json.dumps(GENERAL_GOOD).encode()
    for rule, body in {
        "no body": b"",
        "null": b"null",
        "a list": b"[]",
        "cut off": good[:-1],
        "something behind it": good + b"x",
        "no UTF-8": b'{"model":"\xff"}',
        "a lone surrogate": b'{"model":"\\udc00"}',
        "nested too deep": b'{"unknown":%b}' % _deep(65),
        "nested far too deep": b'{"unknown":%b}' % _deep(200_000),
        "a NaN with a sign": good.replace(b"[1, 2, 3]", b"[-NaN, 2, 3]"),
        "NaN elsewhere": good.replace(b"[1, 2, 3]", b"[NaN, 2, 3]")[:-1] + b',"log_id":NaN}',
        "1e400": good.replace(b"[1, 2, 3]", b"[1e400, 2, 3]"),
        "1e39": good.replace(b"[1, 2, 3]", b"[1e39, 2, 3]"),
        "a long number": good.replace(b"[1, 2, 3]", b"[1.%b, 2, 3]" % (b"1" * 2000)),
    }.items():
        yield Bad(rule=rule, data=general(body))
    for member, values in {
        "tensor": (1, {}, "x", [1], [[]]),
        "fetch_var_names": ("x", [1], {}),
        "profile_server": (1, "true", []),
        "log_id": (-1, 2**64, 1.5, "a", [], True),
        "model": (1, [], {}),
    }.items():
        for value in values:
            document = {**GENERAL_GOOD, member: value}
            yield Bad(rule=f"{member} is {value!r}", data=general(document))
    for member, values in {
        "name": (1, []),
        "elem_type": ("FP32", 1.5, [], 2**31, True),
        "shape": (3, "3", [1.5, 3], [2**31, 3], ["a"], [[1, 3]], [None], [10**30]),
        "lod": (1, ["a"], [[0, 1]], [2**31]),
        "float_data": (1, "a", ["a", 1, 2], [[1, 2, 3]], [True, 1, 2], {}),
        "int64_data": ([2**63], [1.5]),
        "uint32_data": ([-1], [2**32]),
        "bool_data": ([1], ["true"]),
        "data": ([1], "a", [[]]),
        "tensor_content": ("*", "a", [1], 1),
    }.items():
        for value in values:
            document = {**GENERAL_GOOD, "tensor": [GENERAL_GOOD["tensor"][0] | {member: value}]}  # type: ignore[index, operator]
            yield Bad(rule=f"{member} is {value!r}", data=general(document))
    for each in _garbage(GENERAL(**GENERAL_GOOD).SerializeToString(), "general_model.Request"):
        yield Bad(rule=f"proto: {each.rule}", data=general(each.data, PROTO))
    yield Bad(rule="another type", data=general(good, b"Content-Type: text/html"), status=415)
    yield Bad(rule="gzip that is none", data=general(good, b"Content-Encoding: gzip"))
    for target, status in ((b"/GeneralModelService/nope/inference", 404),
                           (b"/GeneralModelService/plain/../inference", 404)):  # fmt: skip
        yield Bad(rule=target.decode(), data=general(good, target=target), status=status)


def general_messages() -> Iterator[BadMessage]:
    """Messages of ``GeneralModelService`` over gRPC."""
    for rule, document, status, text in general_documents():
        data = GENERAL(**document).SerializeToString()
        yield BadMessage(rule=rule, data=data, status=status, text=text)
    yield from _garbage(GENERAL(**GENERAL_GOOD).SerializeToString(), "general_model.Request")
    for rule, part in {
        "a text that is no UTF-8": field(9, b"\xff"),
        "a shape without an end": field(11, b"\xff" * 8),
        "half a float": field(2, bytes(5)),
        "half a double": field(4, bytes(9)),
    }.items():
        yield BadMessage(rule=rule, data=field(1, part), text="general_model.Request")
