"""The pipeline's messages, in both numberings, compared with the protobuf library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PackageError, Undecodable
from penstock.protocols import paddle, pb, tensors
from penstock.protocols.paddle import Reply
from penstock.protocols.paddle_message import decode, encode, read_texts, write_texts
from penstock.protocols.tensors import WireTensor
from tests.kit import own_messages
from tests.kit.usage import memory, peak_memory, reset_peak_memory

# key "x", value "1", name "uci", method "prediction", logid 7, clientip "10.0.0.1", one by one in
# the numbering that clients used before there were tensors.
OLD = {
    "key": bytes.fromhex("0a 01 78"),
    "value": bytes.fromhex("12 01 31"),
    "name": bytes.fromhex("1a 03 75 63 69"),
    "method": bytes.fromhex("22 0a 70 72 65 64 69 63 74 69 6f 6e"),
    "logid": bytes.fromhex("28 07"),
    "clientip": bytes.fromhex("32 08 31 30 2e 30 2e 30 2e 31"),
}
TEXT = st.text(max_size=140) | st.builds("x".__mul__, st.sampled_from([127, 128, 16384, 70_000]))
TEXTS = st.lists(TEXT, max_size=4)
LOGID = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 200)
METHOD = b"*\x01m"  # field 5


def old(*fields: str) -> bytes:
    return b"".join(OLD[field] for field in fields)


def kept(request: pb.Request) -> pb.Request:
    """The request as it is kept, with a truncated clientip."""
    request.clientip = request.clientip[:64]
    return request


# --- The older numbering ---


@pytest.mark.parametrize(
    "fields",
    [
        tuple(OLD),
        ("key", "value", "clientip"),
        ("key", "value", "logid"),
        ("key", "value", "logid", "clientip"),
        ("name", "clientip"),
        ("key", "value", "name", "method"),
    ],
    ids=", ".join,
)
def test_one_field_of_the_old_numbering_is_enough_to_recognise_it(fields: tuple[str, ...]) -> None:
    call = decode(old(*fields), ("uci",))
    assert call.key == (["x"] if "key" in fields else [])
    assert call.value == (["1"] if "value" in fields else [])
    assert call.name == ("uci" if "name" in fields else "")
    assert call.method == ("prediction" if "method" in fields else "")
    assert call.logid == (7 if "logid" in fields else 0)
    assert call.clientip == ("10.0.0.1" if "clientip" in fields else "")
    assert (call.tensors, call.nbytes) == ([], len(old(*fields)))


def test_a_request_in_the_old_numbering_keeps_the_name_of_another_service() -> None:
    assert decode(old("name", "method", "logid"), ("ocr",)).name == "uci"


@pytest.mark.parametrize("service", ["ocr", ""])
def test_an_ambiguous_request_is_old_only_with_the_services_name(service: str) -> None:
    with pytest.raises(Undecodable):
        decode(old("key", "value", "name", "method"), (service,))


@pytest.mark.parametrize(
    ("data", "member", "value"),
    [
        (bytes.fromhex("28 ff ff ff ff ff ff ff ff ff 01"), "logid", -1),
        (
            OLD["logid"] + pb.Request(logid=3).SerializeToString(),
            "logid",
            3,
        ),  # fields of both numberings
        (pb.Request(clientip="9" * 100).SerializeToString(), "clientip", "9" * 64),
        (b"\x32\x64" + b"9" * 100, "clientip", "9" * 64),
        (pb.Request(key=["x"]).SerializeToString() + b"\xc0\x3e\x01", "key", ["x"]),  # field 1000
        (old(*OLD) + b"\xc0\x3e\x01", "name", "uci"),
    ],
)
def test_members_of_both_numberings_are_decoded(data: bytes, member: str, value: object) -> None:
    assert getattr(decode(data, ("uci",)), member) == value


def test_an_old_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(Undecodable):
        decode(b"\x12\x01\xff" + OLD["clientip"], ())


@pytest.mark.parametrize(
    "request_",
    [
        pb.Request(key=["x"], value=["1"]),
        pb.Request(key=["x"], value=["1"], name="uci"),
        pb.Request(key=["x"], value=["1"], name="uci", method="prediction"),
        pb.Request(logid=-5, clientip="10.0.0.1"),
        pb.Request(tensors=[pb.Tensor(name="x", float_data=[1], shape=[1])]),
        pb.Request(tensors=[pb.Tensor()], name="uci"),
        pb.Request(),
    ],
    ids=lambda r: str(r).replace("\n", " ") or "empty",
)
def test_a_request_in_the_new_numbering_is_never_taken_for_an_old_one(request_: pb.Request) -> None:
    for service in ("uci", ""):
        call = decode(request_.SerializeToString(), (service,))
        assert call.message() == request_
        assert call.typed == bool(request_.tensors)


# --- Limits ---


@pytest.mark.parametrize(
    "member", [b"\x0a\x00", b"\x12\x00", b"\x1a\x00", b"\x7a\x00", b"\x7b\x7c"]
)
@pytest.mark.parametrize("before", [b"", b"\x7b\x7c"], ids=["", "behind a group"])
def test_a_million_empty_members_are_refused_without_an_object_for_each(
    member: bytes, before: bytes
) -> None:
    data = before + member * 1_000_000 + METHOD
    reset_peak_memory()
    start = memory()
    with pytest.raises(Undecodable, match="more than 10000"):
        decode(data, ())
    assert peak_memory() - start < 4 * len(data)


def test_the_allowed_number_of_members_of_each_kind_is_decoded() -> None:
    call = decode(b"\x0a\x00\x12\x00\x1a\x00" * 10_000 + METHOD, ())
    assert (len(call.key), len(call.value), len(call.tensors)) == (10_000, 10_000, 10_000)


# --- Any request, with the general decoder ---

requests = st.builds(
    pb.Request,
    key=st.lists(st.text(max_size=4), max_size=3),
    value=st.lists(st.text(max_size=4), max_size=3),
    tensors=st.lists(
        st.builds(pb.Tensor, name=st.text(max_size=3), shape=st.lists(st.integers(0, 4))),
        max_size=2,
    ),
    name=st.text(max_size=4),
    method=st.text(max_size=4),
    logid=LOGID,
    clientip=st.text(max_size=64),
)


@given(requests)
def test_every_request_is_decoded_to_the_same(request: pb.Request) -> None:
    assert decode(request.SerializeToString(), ("uci",)).message() == request


@given(
    st.one_of(
        st.binary(max_size=60),
        st.binary(max_size=30).map(lambda data: data + METHOD),
        st.lists(st.sampled_from([*OLD.values(), b"\x1a", b"\x28", b"\x32\x02\xff"])).map(b"".join),
    ),
    st.sampled_from(["", "uci"]),
)
def test_any_bytes_are_decoded_or_undecodable(data: bytes, service: str) -> None:
    fast = read_texts(data)
    if fast is not None:
        assert fast.message() == kept(pb.Request.FromString(data))
    try:
        assert decode(data, (service,)).message() is not None
    except Undecodable:
        assert fast is None


# --- Requests of texts only ---


@given(TEXTS, TEXTS, TEXT, TEXT, LOGID, TEXT)
def test_requests_of_texts_are_decoded_as_by_the_library(
    key: list[str], value: list[str], name: str, method: str, logid: int, clientip: str
) -> None:
    for keys, values in ((key, value), (key[:1], value[:1])):
        request = pb.Request(
            key=keys, value=values, name=name, method=method, logid=logid, clientip=clientip
        )
        data = request.SerializeToString()
        call = read_texts(data)
        known = logid >= 0 and bool(method or clientip) and len(data) <= 256 << 10
        assert (call is not None) == known
        if call is not None:
            assert call.message() == kept(request)
            assert call.nbytes == len(data)
            assert call.feed in (None, dict(zip(keys, values, strict=False)))


@given(st.data())
def test_a_damaged_request_is_decoded_as_by_the_library_or_left_to_it(data: st.DataObject) -> None:
    size = st.sampled_from([0, 1, 127, 128, 300])
    request = pb.Request(
        key=["k" * data.draw(size)], value=["v" * data.draw(size)], name="echo", method="m"
    )
    raw = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, min(len(raw), 8)) | st.integers(0, len(raw)))
        change = data.draw(st.sampled_from(["cut", "put", "change"]))
        if change == "cut":
            del raw[position : position + data.draw(st.integers(1, 300))]
        elif change == "put":
            raw[position:position] = data.draw(st.binary(max_size=3))
        else:
            raw[position : position + 1] = data.draw(
                st.sampled_from([b"\n", b"\x12", b"\x1a", b"\xff"])
            )
    call = read_texts(bytes(raw))
    if call is not None:
        assert call.message() == kept(pb.Request.FromString(bytes(raw)))
        assert call.nbytes == len(raw)


# --- Replies ---


@given(TEXTS, TEXTS)
def test_replies_of_texts_are_encoded_as_by_the_library(key: list[str], value: list[str]) -> None:
    written = write_texts(key, value)
    assert written == pb.Response(key=key, value=value).SerializeToString(deterministic=True)


class Own(str):
    """A subclass of str, as users may have."""

    __slots__ = ()


ITEM = TEXT | st.builds(Own, TEXT) | st.sampled_from(["\ud800", 1, None, ["a"], np.ones(2)])


@given(st.dictionaries(TEXT | st.builds(Own, TEXT) | st.sampled_from(["\udfff", 1]), ITEM))
def test_a_result_is_encoded_directly_as_its_reply_or_not_at_all(value: dict[Any, Any]) -> None:
    written = write_texts(value, value.values())
    try:
        reply = paddle.pack(value, typed=False, keep_text=True)
    except PackageError:
        assert written is None
        return
    assert written in (None, encode(reply))
    parts = [*value, *value.values()]
    plain = {*map(type, parts)} <= {str} and all(map(is_unicode, parts))
    assert (written is not None) == plain


def is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(err_no=5000, err_msg="no", key=["x"], value=["1"]),
        Reply(err_msg="no", key=["x"], value=["1"]),
        Reply(key=["x"], value=["1"], tensors=[WireTensor("x")]),
        Reply(50, "no", ["a"], ["1"], [tensors.of_message(pb.Tensor(name="t", shape=[1]))]),
    ],
    ids=["an error", "a text of an error", "an empty tensor", "all"],
)
def test_a_reply_is_encoded_as_by_the_library(reply: Reply) -> None:
    message = pb.Response(
        err_no=reply.err_no,
        err_msg=reply.err_msg,
        key=reply.key,
        value=reply.value,
        tensors=[tensor.message() for tensor in reply.tensors],
    )
    assert encode(reply) == encode(message) == message.SerializeToString(deterministic=True)


# Fields that a service adds


def has_own(name: str) -> tuple[str, ...]:
    return ("user", "top_scores", "topScores") if name == "own" else ()


@pytest.mark.parametrize("method", ["", "prediction"])
def test_fields_that_a_service_adds_are_in_its_own_message(method: str) -> None:
    tensor = {"name": "t", "elem_type": 1, "shape": [1], "float_data": [0.5]}
    sent = own_messages.Request(
        key=["x"], value=["1"], tensors=[tensor], name="own", method=method, clientip="1.2.3.4",
        user="ada", top_scores=[1, 300],
    )  # fmt: skip
    call = decode(sent.SerializeToString(), ("own",), own_fields=has_own)
    assert call.message(own_messages.Request) == sent


def test_an_old_request_has_its_own_fields_too() -> None:
    texts = b"\x0a\x01x" + b"\x12\x011" + b"\x1a\x03own" + b"\x22\x01m" + b"\x28\x07"
    user = own_messages.Request(user="ada").SerializeToString()
    call = decode(texts + user, ("own",), own_fields=has_own)
    expected = own_messages.Request(
        key=["x"], value=["1"], name="own", method="m", logid=7, user="ada"
    )
    assert call.message(own_messages.Request) == expected


def test_unknown_fields_of_other_services_are_not_kept() -> None:
    sent = own_messages.Request(key=["x"], value=["1"], name="other", user="ada")
    call = decode(sent.SerializeToString(), ("other",), own_fields=has_own)
    assert call.own == b""


def test_an_invalid_field_of_a_service_is_an_error_of_the_request() -> None:
    number_as_text = (
        b"\x22\x03own" + own_messages.Request(top_scores=[1]).SerializeToString()[:-2] + b"\x01\xff"
    )
    call = decode(number_as_text, ("own",), own_fields=has_own)
    with pytest.raises(PackageError, match="a field of the request is invalid"):
        call.message(own_messages.Request)
