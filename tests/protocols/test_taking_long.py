"""Requests that would block the event loop are recognised, even if they are small."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.protocols import paddle, paddle_json, paddle_message
from penstock.protocols.pb import Request, Tensor
from penstock.protocols.protobuf import varint

MOST = (256 << 10) - 64
LONGEST = 25e-3
"""Limit of blocking in seconds: 5 ms on a normal machine, and five times that under load."""

BodyOf = Callable[[int], bytes]


def message(**tensor: Any) -> bytes:
    return Request(tensors=[Tensor(name="x", **tensor)], method="m").SerializeToString()


def tensors(**tensor: Any) -> BodyOf:
    inner = Tensor(name="x", **tensor).SerializeToString()
    member = b"\x1a" + bytes((len(inner),)) + inner
    return lambda size: member * min(9000, size // len(member)) + b"*\x01m"


def document(element: bytes, around: bytes = b'{"key":[],"value":[],"other":[%b]}') -> BodyOf:
    return lambda size: around % b",".join([element] * min(9999, (size - 80) // (len(element) + 1)))


def numbers(field: bytes, element: bytes) -> BodyOf:
    def body(size: int) -> bytes:
        count = (size - 120) // (len(element) + 1)
        head = b'{"tensors":[{"name":"x","elem_type":%d,"shape":[%d],"%b":[' % (
            {b"int64_data": 0, b"float_data": 1, b"bool_data": 9}[field],
            count,
            field,
        )
        return head + b",".join([element] * count) + b"]}]}"

    return body


TENSORS = b'{"tensors":[%b]}'
BODIES: dict[str, BodyOf] = {
    "JSON: numbers of one digit": numbers(b"int64_data", b"1"),
    "JSON: numbers as texts": numbers(b"int64_data", b'"1"'),
    "JSON: floats": numbers(b"float_data", b"0.12345678901234567"),
    "JSON: floats as texts": numbers(b"float_data", b'"1"'),
    "JSON: truth values": numbers(b"bool_data", b"true"),
    "JSON: pairs": document(b'"abc"', b'{"key":[],"value":[%b]}'),
    "JSON: tensors": document(b'{"name":"x","shape":[1],"int64_data":[1]}', TENSORS),
    "JSON: tensors of a lod": document(b'{"lod":[1]}', TENSORS),
    "JSON: empty lists": document(b",".join([b"[]"] * 10)),
    "JSON: empty objects": document(b",".join([b"{}"] * 10)),
    "JSON: a text": lambda size: b'{"key":["x"],"value":["%b"]}' % (b"\\u0041" * (size // 6 - 5)),
    "int64": lambda size: message(int64_data=[300, 3 * 10**9] * (size // 16), shape=[size // 8]),
    "int8": lambda size: message(elem_type=8, int_data=[1] * (size - 20), shape=[size - 20]),
    "float16": lambda size: message(elem_type=5, float_data=[1.5] * (size // 5), shape=[size // 5]),
    "texts": lambda size: message(elem_type=12, str_data=["x"] * min(9999, size // 3 - 20)),
    "numbers one by one": lambda size: one_by_one(min(99_000, size // 2)),
    "unknown fields": lambda size: b"\x78\x01" * min(30_000, size // 2 - 10) + b"*\x01m",
    "pairs": lambda size: b"\n\x01x\x12\x01y" * min(9999, size // 6 - 5) + b"*\x01m",
    "tensors": tensors(shape=[1], int64_data=[1]),
    "tensors with a lod": tensors(elem_type=1, shape=[2], float_data=[1, 1], lod=[0, 2]),
    "empty tensors": lambda size: b"\x1a\x00" * min(9999, size // 2 - 5) + b"*\x01m",
}  # fmt: skip


def one_by_one(count: int) -> bytes:
    return b"\x1a" + varint(2 * count) + b"\x08\x01" * count + b"*\x01m"


def decoder(name: str, body: bytes) -> Callable[..., paddle.Call]:
    if name.startswith("JSON"):
        return partial(paddle_json.decode, body, name="a", method="m")
    return partial(paddle_message.decode, body, ("a",))


def seconds(work: Callable[[], object]) -> float:
    """Of this thread's CPU time; the least of several runs."""
    least = 1.0
    for _ in range(5):
        start = time.thread_time()
        work()
        least = min(least, time.thread_time() - start)
    return least


def briefly(decode: Callable[..., paddle.Call]) -> None:
    """Decode down to the feed, unless it takes long."""
    with contextlib.suppress(paddle.TakesLong):
        paddle.prepare(decode(briefly=True))


@pytest.mark.parametrize("size", [4 << 10, 16 << 10, 64 << 10, MOST])
@pytest.mark.parametrize("name", BODIES)
def test_no_body_blocks_the_loop_for_long(name: str, size: int) -> None:
    decode = decoder(name, BODIES[name](size))
    assert seconds(partial(briefly, decode)) < LONGEST


@pytest.mark.parametrize("name", BODIES)
def test_each_of_the_bodies_is_a_valid_request(name: str) -> None:
    body = BODIES[name](MOST)
    assert decoder(name, body)().nbytes == len(body)


def test_normal_requests_of_some_size_are_decoded_in_the_loop() -> None:
    floats = numbers(b"float_data", b"0.25")(100_000)
    paddle_json.decode(floats, name="a", method="m", briefly=True)
    picture = message(elem_type=1, float_data=[0.5] * 16_384, shape=[128, 128])
    paddle_message.decode(picture, ("a",), briefly=True)
