"""The protobuf form of the pipeline protocol, in both numberings, decoded to arrays."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from penstock.errors import RequestError
from penstock.protocols import paddle, paddle_message, pb
from penstock.protocols.paddle import MAX_MEMBERS
from penstock.protocols.paddle_message import decode, encode


def run(data: bytes) -> Hashable:
    try:
        call = decode(data, ("fuzz",))
        assert max(len(call.key), len(call.value), len(call.tensors)) <= MAX_MEMBERS
        feed, _ = paddle.unpack(call)
    except RequestError as error:
        return type(error).__name__, str(error)[:24]
    size = sum(getattr(value, "nbytes", 0) for value in feed.values())
    assert call.feed is None or call.feed == feed
    # Strings of an array are padded to the longest; one octet can become a number of eight.
    assert size <= 64 + 16 * len(data) or call.tensors
    call.message().SerializeToString()
    try:
        reply = encode(paddle.pack(feed, typed=call.typed, keep_text=True))
        assert paddle_message.write_texts(feed, feed.values()) in (None, reply)
    except (RequestError, TypeError) as error:
        return "reply", type(error).__name__, str(error)[:24]
    return "good", len(feed), call.typed


def seed(**fields: Any) -> bytes:
    return pb.Request(**fields).SerializeToString()


TENSOR = pb.Tensor(name="x", elem_type=1, shape=[2, 2], float_data=[1, 2, 3, 4])
SEEDS = [
    b"",
    seed(key=["a"], value=["1"], name="fuzz", method="prediction", logid=5, clientip="1.2.3.4"),
    seed(tensors=[TENSOR]),
    seed(tensors=[pb.Tensor(name="t", elem_type=13, byte_data=b"\x93NUMPY\x01\x00")]),
    seed(tensors=[pb.Tensor(name="i", elem_type=0, shape=[1], int_data=[7], lod=[0, 1])]),
    b"\x0a\x04fuzz\x12\x01k\x1a\x01v",
    b"\x0a\x01k\x12\x01v\x1a\x04fuzz",
]
WORDS = [b"fuzz", b"\x0a\x01k", b"\x12\x01v", TENSOR.SerializeToString(), b"\xff\xff\xff\xff\x0f"]
