"""The rule of bytes in texts, in every kind of type."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Annotated, Any

import numpy as np
import ormsgpack
import pytest
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from penstock.errors import InvalidInput
from penstock.protocols import media
from penstock.typed.arrays import Image
from penstock.typed.base64_bytes import binary, text
from penstock.typed.signature import Signature

DATA = bytes(range(240, 256)) + b"?>"
STANDARD = base64.b64encode(DATA).decode()
assert {"+", "/"} <= set(STANDARD)
URL_SAFE = base64.urlsafe_b64encode(DATA).decode()
FORM = "multipart/form-data; boundary=b"


class Model(BaseModel):
    data: bytes


@dataclasses.dataclass
class Data:
    data: bytes


class Dict(TypedDict):
    data: bytes


class Outer(BaseModel):
    type: Model
    more: list[bytes] = []
    maybe: bytes | None = None


class Tree(BaseModel):
    data: bytes
    kids: list[Tree] = []


def of_parameter(data: bytes) -> bytes:
    return data


def of_model(value: Model) -> Model:
    return value


def of_dataclass(value: Data) -> Data:
    return value


def of_dict(value: Dict) -> Dict:
    return value


def of_nested(value: Outer) -> Outer:
    return value


def of_tree(value: Tree) -> Tree:
    return value


OBJECTS = [of_parameter, of_model, of_dataclass, of_dict, of_tree]


@pytest.mark.parametrize(
    "sent",
    [
        STANDARD,
        URL_SAFE,
        STANDARD.rstrip("="),
        URL_SAFE.rstrip("="),
        f"data:audio/wav;base64,{STANDARD}",
    ],
)
def test_every_spelling_of_base64_is_read(sent: str) -> None:
    assert binary(sent) == DATA
    assert text(DATA) == STANDARD
    for function in OBJECTS:
        signature = Signature(function, batched=False)
        body = json.dumps({"data": sent}).encode()
        value = signature.request.read(body, media.JSON)
        assert _data(value) == DATA, function
        assert _data(signature.request.read(_form(sent.encode()), FORM)) == DATA
        packed = ormsgpack.packb({"data": sent})
        assert _data(signature.request.read(packed, media.MSGPACK)) == DATA


@pytest.mark.parametrize(
    "sent", ["a", "%%%%", "data:image/png,xyz", "YQ==YQ==", "\u00e9\u00e9\u00e9\u00e9"]
)
def test_other_texts_are_refused(sent: str) -> None:
    for function in OBJECTS:
        with pytest.raises(InvalidInput, match="Base64"):
            Signature(function, batched=False).request.read(
                json.dumps({"data": sent}).encode(), media.JSON
            )


def _data(value: Any) -> Any:
    return value["data"] if isinstance(value, dict) else value.data


def _form(data: bytes, *, file: bool = False) -> bytes:
    name = b'; filename="a"' if file else b""
    head = b'--b\r\nContent-Disposition: form-data; name="data"' + name
    return head + b"\r\n\r\n" + data + b"\r\n--b--"


@pytest.mark.parametrize("function", OBJECTS)
def test_files_and_msgpack_have_raw_bytes(function: Any) -> None:
    request = Signature(function, batched=False).request
    assert _data(request.read(_form(b"YQ==", file=True), FORM)) == b"YQ=="
    assert _data(request.read(ormsgpack.packb({"data": b"YQ=="}), media.MSGPACK)) == b"YQ=="


@pytest.mark.parametrize("function", OBJECTS)
def test_an_answer_is_written_by_the_same_rule_and_can_be_sent_on(function: Any) -> None:
    signature = Signature(function, batched=False)
    value = signature.request.read(json.dumps({"data": URL_SAFE}).encode(), media.JSON)
    result = signature.response.check(signature.call(function, [value]))
    written = json.loads(signature.response.write(result, media.JSON))
    packed = ormsgpack.unpackb(signature.response.write(result, media.MSGPACK))
    if function is of_parameter:
        written, packed = {"data": written}, {"data": packed}
    assert (written["data"], packed["data"]) == (STANDARD, DATA)
    assert signature.request.read(json.dumps(written).encode(), media.JSON) == value


@pytest.mark.parametrize("function", OBJECTS)
def test_openapi_says_the_same_of_all(function: Any) -> None:
    signature = Signature(function, batched=False)
    for schema in (signature.request, signature.response):
        found = json.dumps(schema.describe(refs="{model}"))
        assert '"contentEncoding": "base64"' in found
        assert "format" not in found


def test_nested_bytes_follow_the_rule_also_in_large_bodies() -> None:
    signature = Signature(of_nested, batched=False)
    body = {"type": {"data": URL_SAFE}, "more": [URL_SAFE, "YQ"] * 5000, "maybe": "YQ"}
    assert len(json.dumps(body)) > 64 << 10
    value = signature.request.read(json.dumps(body).encode(), media.JSON)
    assert (value.type.data, value.more[:2], value.maybe) == (DATA, [DATA, b"a"], b"a")
    written = json.loads(signature.response.write(signature.response.check(value), media.JSON))
    assert (written["type"]["data"], written["more"][1]) == (STANDARD, "YQ==")


class Hex(BaseModel):
    model_config = ConfigDict(val_json_bytes="hex", ser_json_bytes="hex")
    data: bytes


class Encoded(BaseModel):
    data: Base64Bytes


def of_hex(value: Hex) -> Hex:
    return value


def of_encoded(value: Encoded) -> Encoded:
    return value


@pytest.mark.parametrize(("function", "sent"), [(of_hex, "ff00"), (of_encoded, "/wA=")])
def test_models_with_a_rule_of_their_own_keep_it(function: Any, sent: str) -> None:
    signature = Signature(function, batched=False)
    body = json.dumps({"data": sent}).encode()
    value = signature.request.read(body, media.JSON)
    assert value.data == b"\xff\x00"
    written = json.loads(signature.response.write(signature.response.check(value), media.JSON))
    assert written == {"data": sent}


def of_both(a: str | bytes, b: bytes | str) -> int:
    return len(a) + len(b)


def test_a_text_that_may_be_a_text_is_one() -> None:
    read = Signature(of_both, batched=False).request.read
    value = read(b'{"a": "YQ==", "b": "YQ=="}', media.JSON)
    assert (value.a, value.b) == ("YQ==", "YQ==")
    value = read(ormsgpack.packb({"a": b"x", "b": b"y"}), media.MSGPACK)
    assert (value.a, value.b) == (b"x", b"y")


def of_limits(data: Annotated[bytes, Field(min_length=2, max_length=3)]) -> int:
    return len(data)


def test_limits_of_length_are_those_of_the_bytes() -> None:
    request = Signature(of_limits, batched=False).request
    assert request.read(b'{"data": "YWFh"}', media.JSON).data == b"aaa"
    with pytest.raises(InvalidInput, match="at most 3 bytes"):
        request.read(b'{"data": "YWFhYQ=="}', media.JSON)
    assert "Length" not in json.dumps(request.describe(refs="{model}"))


def of_image(picture: Annotated[np.ndarray, Image("L")]) -> int:
    return picture.size


def test_an_image_is_read_by_the_same_rule() -> None:
    gif = base64.b64decode("R0lGODdhAQABAIAAAP///////ywAAAAAAQABAAACAkQBADs=")
    read = Signature(of_image, batched=False).request.read
    for sent in (
        base64.urlsafe_b64encode(gif).rstrip(b"=").decode(),
        f"data:image/gif;base64,{base64.b64encode(gif).decode()}",
    ):
        assert read(json.dumps({"picture": sent}).encode(), media.JSON).picture.shape == (1, 1)
