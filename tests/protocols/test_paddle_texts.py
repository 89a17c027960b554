"""Texts-only messages read and written by hand: the library is the judge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PackageError
from penstock.protocols import paddle, paddle_message, pb
from penstock.protocols.paddle import OnePair, Reply
from penstock.protocols.paddle_message import read_texts, write_texts
from penstock.protocols.tensors import WireTensor

TEXT = st.text(max_size=140) | st.builds("x".__mul__, st.sampled_from([127, 128, 16384, 70_000]))
TEXTS = st.lists(TEXT, max_size=4)
METHOD = b"*\x01m"  # field 5


@given(
    TEXTS,
    TEXTS,
    TEXT,
    TEXT.filter(bool),
    st.integers(-(2**63), 2**63 - 1) | st.integers(0, 200),
    TEXT,
)
def test_what_is_read_is_what_the_library_reads(
    key: list[str], value: list[str], name: str, method: str, logid: int, clientip: str
) -> None:
    request = pb.Request(
        key=key, value=value, name=name, method=method, logid=logid, clientip=clientip
    )
    data = request.SerializeToString()
    call = read_texts(data)
    assert (call is not None) == (logid >= 0)
    if call is not None:
        assert call.message() == pb.Request(
            key=key, value=value, name=name, method=method, logid=logid, clientip=clientip[:64]
        )
        assert call.nbytes == len(data)


PAIR = {"name": "echo", "key": ["x"], "value": ["1"], "method": "m"}


@given(TEXT, TEXT, TEXT, TEXT, st.integers(0, 2**63 - 1) | st.integers(0, 200), TEXT)
def test_one_pair_is_read_as_the_library_reads_it(
    key: str, value: str, name: str, method: str, logid: int, clientip: str
) -> None:
    request = pb.Request(
        key=[key], value=[value], name=name, method=method, logid=logid, clientip=clientip
    )
    call = read_texts(request.SerializeToString())
    assert (call is not None) == bool(method or clientip)
    if call is not None:
        request.clientip = clientip[:64]
        assert call.message() == request
        assert call.feed in (None, {key: value})


@given(st.data())
def test_one_pair_with_anything_wrong_is_the_librarys_or_left_to_it(data: st.DataObject) -> None:
    size = st.sampled_from([0, 1, 127, 128, 300])
    request = pb.Request(
        key=["k" * data.draw(size)], value=["v" * data.draw(size)], name="echo", method="m"
    )
    raw = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, min(len(raw), 8)) | st.integers(0, len(raw)))
        how = data.draw(st.sampled_from(["cut", "put", "change"]))
        if how == "cut":
            del raw[where : where + data.draw(st.integers(1, 300))]
        elif how == "put":
            raw[where:where] = data.draw(st.binary(max_size=3))
        else:
            raw[where : where + 1] = data.draw(st.sampled_from([b"\n", b"\x12", b"\x1a", b"\xff"]))
    call = read_texts(bytes(raw))
    if call is not None:
        expected = pb.Request.FromString(bytes(raw))
        expected.clientip = expected.clientip[:64]
        assert call.message() == expected
        assert call.nbytes == len(raw)


@pytest.mark.parametrize(
    ("one", "changed"),
    [
        (True, {}),
        (True, {"key": [""], "value": [""]}),
        (True, {"key": ["k" * 127], "value": ["v" * 128]}),
        (True, {"value": ["v" * (64 << 10)]}),
        (False, {"key": ["k" * 128]}),
        (False, {"value": ["v" * ((64 << 10) + 1)]}),
        (False, {"name": "n" * 600}),
        (False, {"key": ["x", "y"], "value": ["1", "2"]}),
        (False, {"value": ["1", "2"]}),
        (False, {"value": []}),
        (False, {"key": [paddle.PROFILE_KEY]}),
    ],
)
def test_one_small_pair_has_its_feed_from_the_start(one: bool, changed: dict[str, Any]) -> None:
    request = pb.Request(**{**PAIR, **changed})
    call = read_texts(request.SerializeToString())
    assert call is not None
    assert (type(call) is OnePair, call.feed is not None) == (one, one)
    assert (call.message(), call.typed) == (request, False)
    assert call.decoded_bytes() == paddle.Call(call.key, call.value, []).decoded_bytes()
    if one:
        assert paddle.unpack(call) == (call.feed, False)


@given(st.binary(max_size=60) | st.binary(max_size=30).map(lambda data: data + METHOD))
def test_any_bytes_give_the_librarys_call_or_are_left_to_it(data: bytes) -> None:
    call = read_texts(data)
    if call is not None:
        expected = pb.Request.FromString(data)
        expected.clientip = expected.clientip[:64]
        assert call.message() == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\x01x\x12\x011",
        pb.Request(method="m", tensors=[pb.Tensor(name="x")]).SerializeToString(),
        METHOD + b"\n\x05x",
        METHOD + b"\n",
        METHOD + b"\n\x01\xff",
        METHOD + b"B\x01x",
        METHOD + b"\n" + b"\xff" * 9 + b"\x01",
        METHOD + b"\n\x81",
        METHOD + b"(\x01",
        METHOD + b"\n\x01x" * 64,
    ],
    ids=[
        "empty",
        "nothing that shows the numbering",
        "tensors",
        "cut off",
        "cut in a length",
        "no UTF-8",
        "an unknown field",
        "a length of ten bytes",
        "cut in a long length",
        "field 5 as a number",
        "many fields",
    ],
)
def test_the_rest_is_left_to_the_library(data: bytes) -> None:
    assert read_texts(data) is None


class Uncut(bytes):
    """Bytes of which no part is to be copied."""

    def __getitem__(self, key: Any) -> Any:
        assert isinstance(key, int)
        return super().__getitem__(key)


def test_tensors_are_not_copied_before_they_are_left_to_the_library() -> None:
    tensor = pb.Tensor(name="x", byte_data=bytes(1 << 20))
    assert read_texts(Uncut(pb.Request(tensors=[tensor], method="m").SerializeToString())) is None


@given(TEXTS, TEXTS)
def test_what_is_written_is_what_the_library_writes(key: list[str], value: list[str]) -> None:
    written = write_texts(key, value)
    assert written == pb.Response(key=key, value=value).SerializeToString(deterministic=True)


class Own(str):
    """A text of a user's own kind."""

    __slots__ = ()


ITEM = TEXT | st.builds(Own, TEXT) | st.sampled_from(["\ud800", 1, None, ["a"], np.ones(2)])


@given(st.dictionaries(TEXT | st.builds(Own, TEXT) | st.sampled_from(["\udfff", 1]), ITEM))
def test_a_result_is_written_as_its_reply_would_be_or_not_at_all(value: dict[Any, Any]) -> None:
    written = write_texts(value, value.values())
    try:
        reply = paddle.pack(value, typed=False, keep_text=True)
    except PackageError:
        assert written is None
        return
    assert written in (None, paddle_message.encode(reply))
    kinds = {*map(type, value), *map(type, value.values())}
    plain = not kinds - {str} and all(map(is_unicode, [*value, *value.values()]))
    assert (written is not None) == plain


def is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


@pytest.mark.parametrize(
    ("key", "value"),
    [(["x"], ["\ud800"]), (["\ud800"], ["1"]), (["x"], [1]), ([1], ["1"]), (["x"], [np.ones(2)])],
    ids=["no Unicode", "a name that is none", "a number", "a number as a name", "an array"],
)
def test_what_is_no_text_is_left_to_others(key: list[Any], value: list[Any]) -> None:
    assert write_texts(key, value) is None


@pytest.mark.parametrize(
    "reply",
    [
        Reply(err_no=5000, err_msg="no", key=["x"], value=["1"]),
        Reply(err_msg="no", key=["x"], value=["1"]),
        Reply(key=["x"], value=["1"], tensors=[WireTensor("x")]),
    ],
    ids=["an error", "a text of an error", "tensors"],
)
def test_other_replies_are_left_to_the_library(reply: Reply) -> None:
    assert paddle_message.encode(reply) == pb.Response(
        err_no=reply.err_no,
        err_msg=reply.err_msg,
        key=reply.key,
        value=reply.value,
        tensors=[tensor.message() for tensor in reply.tensors],
    ).SerializeToString(deterministic=True)
