"""Messages encoded by hand, and by the protocol compiler from its text format."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.protocols import paddle, paddle_message, tensors
from tests.wire.test_original_proto import PROTO_FIRST

ROOT = Path(__file__).parents[2]
PROTO = "penstock/protocols/pb/pipeline_service.proto"
PACKAGE = "baidu.paddle_serving.pipeline_serving"


def protoc(mode: str, message: str, data: bytes, folder: Path, proto: str) -> bytes:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--{mode}={message}", f"-I{folder}"]
    done = subprocess.run([*command, proto], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def encoded(message: str, text: str) -> bytes:
    return protoc("encode", f"{PACKAGE}.{message}", text.encode(), ROOT, PROTO)


def decoded(message: str, data: bytes) -> str:
    return protoc("decode", f"{PACKAGE}.{message}", data, ROOT, PROTO).decode()


# Written by hand from the table of fields.
BY_HAND = bytes.fromhex(
    "0a 01 78"  # 1 key "x"
    "12 07 30 2e 31 2c 30 2e 32"  # 2 value "0.1,0.2"
    "1a 1a"  # 3 tensors, 26 bytes
    "12 08 00 00 80 3f 00 00 20 c0"  # 2 float_data 1.0 -2.5
    "a0 01 01"  # 20 elem_type FP32
    "aa 01 02 02 01"  # 21 shape 2 1
    "b2 01 02 00 02"  # 22 lod 0 2
    "ba 01 00"  # 23 name, empty
    "22 03 75 63 69"  # 4 name "uci"
    "2a 01 70"  # 5 method "p"
    "30 ac 02"  # 6 logid 300
    "3a 07 31 2e 32 2e 33 2e 34"  # 7 clientip "1.2.3.4"
)


def test_a_request_encoded_by_hand_is_decoded() -> None:
    call = paddle_message.decode(BY_HAND, ("uci",))
    assert (call.key, call.value) == (["x"], ["0.1,0.2"])
    assert (call.name, call.method, call.logid, call.clientip) == ("uci", "p", 300, "1.2.3.4")
    value, lod = tensors.decode(call.tensors[0])
    np.testing.assert_array_equal(value, np.array([[1.0], [-2.5]], np.float32))
    assert lod is not None
    assert lod.tolist() == [[0], [2]]


def test_a_reply_is_encoded_as_by_hand() -> None:
    reply = paddle.Reply(50, "no", ["a"], ["1"])
    assert paddle_message.encode(reply) == bytes.fromhex("08 32 12 02 6e 6f 1a 01 61 22 01 31")
    assert paddle_message.encode(paddle.Reply()) == b""


TENSORS = {
    "INT64": ("int64_data: [-1, 9007199254740993] shape: 2", "int64", [-1, 9007199254740993]),
    "FP32": ("elem_type: 1 float_data: [0.5, inf] shape: 2", "float32", [0.5, np.inf]),
    "INT32": ("elem_type: 2 int_data: [-2147483648] shape: 1", "int32", [-(2**31)]),
    "FP64": ("elem_type: 3 float64_data: [0.1] shape: 1", "float64", [0.1]),
    "INT16": ("elem_type: 4 int_data: [-32768] shape: 1", "int16", [-32768]),
    "FP16": ("elem_type: 5 float_data: [65504] shape: 1", "float16", [65504]),
    "BF16": ("elem_type: 6 uint32_data: [16256] shape: 1", "uint16", [0x3F80]),
    "UINT8": ("elem_type: 7 uint32_data: [255] shape: 1", "uint8", [255]),
    "INT8": ("elem_type: 8 int_data: [-128] shape: 1", "int8", [-128]),
    "BOOL": ("elem_type: 9 bool_data: [true, false] shape: 2", "bool", [True, False]),
}


@pytest.fixture(scope="module")
def compiled() -> paddle.Call:
    """One request with a tensor of each type, encoded by the protocol compiler."""
    texts = [f'tensors {{ name: "{name}" {text} }}' for name, (text, _, _) in TENSORS.items()]
    texts.append('tensors { name: "STRING" elem_type: 12 str_data: ["a", "é"] shape: 9 }')
    return paddle_message.decode(encoded("Request", 'key: "k" value: "v"' + "\n".join(texts)), ())


@pytest.mark.parametrize("name", TENSORS)
def test_each_element_type_is_decoded(compiled: paddle.Call, name: str) -> None:
    feed, _ = paddle.unpack(compiled)
    _, dtype, numbers = TENSORS[name]
    assert feed[name].dtype == dtype
    assert feed[name].tolist() == numbers
    assert feed["STRING"] == "aé"


def test_our_encoding_is_decoded_by_the_compiler() -> None:
    array = np.array([[0.5, -2.0]], np.float32)
    reply = paddle.pack({"price": array}, typed=True, keep_text=True)
    text = decoded("Response", paddle_message.encode(reply))
    assert 'key: "price"' in text
    assert 'value: "array([[ 0.5, -2. ]], dtype=float32)"' in text
    assert "float_data: 0.5" in text
    assert "float_data: -2" in text
    assert "elem_type: 1" in text
    assert text.count("shape: ") == 2


def test_a_request_of_the_older_field_numbers_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "old.proto").write_text(PROTO_FIRST)
    text = b'key: "x" value: "1" name: "uci" method: "p" logid: -3 clientip: "1.2.3.4"'
    data = protoc("encode", f"{PACKAGE}.Request", text, tmp_path, "old.proto")
    call = paddle_message.decode(data, ("uci",))
    assert (call.key, call.value, call.tensors) == (["x"], ["1"], [])
    assert (call.name, call.method, call.logid, call.clientip) == ("uci", "p", -3, "1.2.3.4")
