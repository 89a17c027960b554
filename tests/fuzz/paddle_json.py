"""The JSON form of the pipeline protocol, decoded to arrays."""

from __future__ import annotations

from collections.abc import Hashable

from penstock.errors import RequestError
from penstock.protocols import paddle, paddle_json
from penstock.protocols.paddle import MAX_MEMBERS
from penstock.protocols.paddle_json import decode, encode


def run(data: bytes) -> Hashable:
    try:
        call = decode(data, name="fuzz", method="prediction")
        assert max(len(call.key), len(call.value), len(call.tensors)) <= MAX_MEMBERS
        feed, _ = paddle.unpack(call)
    except RequestError as error:
        return type(error).__name__, str(error)[:24]
    assert call.feed is None or call.feed == feed
    size = sum(getattr(value, "nbytes", 0) for value in feed.values())
    assert size <= 64 + 16 * len(data) or call.tensors
    try:
        reply = encode(paddle.pack(feed, typed=call.typed, keep_text=True))
        assert paddle_json.write_texts(feed, feed.values()) in (None, reply)
    except (RequestError, TypeError) as error:
        return "reply", type(error).__name__, str(error)[:24]
    return "good", len(feed), call.typed


SEEDS = [
    b"",
    b"null",
    b'{"key":["a"],"value":["1"]}',
    b'{"key":["a"],"value":["1"],"logid":"5","clientip":"1.2.3.4","name":"fuzz","method":"m"}',
    b'{"tensors":[{"name":"x","elem_type":1,"shape":[2,2],"float_data":[1,2.5,"NaN","Infinity"]}]}',
    b'{"tensors":[{"name":"b","elem_type":13,"byte_data":"k05VTVBZAQA="}]}',
    b'{"tensors":[{"name":"i","elem_type":"INT64","shape":[1],"int64_data":["7"],"lod":[0,1]}]}',
    b'{"tensors":[{"name":"s","elem_type":"STRING","shape":[1],"str_data":["\\u00e9"]}]}',
]
WORDS = (
    b'"key":|"value":|"tensors":|"elem_type":|"elemType":|"shape":|"int64_data":|'
    b'"byte_data":|"lod":|1e400|-0|18446744073709551616|\\ud800|[[[[[[[[|true|null'
).split(b"|")
