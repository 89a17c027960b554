import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Undecodable
from penstock.protocols import paddle, pb, tensors
from penstock.protocols.paddle_message import decode, encode
from tests.api.resident import memory, most_memory, take_the_mark_down

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


def old(*fields: str) -> bytes:
    return b"".join(OLD[field] for field in fields)


@pytest.mark.parametrize(
    "member", [b"\x0a\x00", b"\x12\x00", b"\x1a\x00", b"\x7a\x00", b"\x7b\x7c"]
)
@pytest.mark.parametrize("before", [b"", b"\x7b\x7c"], ids=["", "behind a group"])
def test_millions_of_empty_members_are_refused_before_each_is_an_object(
    member: bytes, before: bytes
) -> None:
    data = before + member * 1_000_000 + b"\x2a\x01m"
    take_the_mark_down()
    start = memory()
    with pytest.raises(Undecodable, match="more than 10000"):
        decode(data, ())
    assert most_memory() - start < 4 * len(data)


def test_as_many_members_of_each_kind_as_are_allowed_are_read() -> None:
    data = b"\x0a\x00\x12\x00\x1a\x00" * 10_000 + b"\x2a\x01m"
    call = decode(data, ())
    assert (len(call.key), len(call.value), len(call.tensors)) == (10_000, 10_000, 10_000)


def test_an_old_request_is_told_apart_and_read() -> None:
    call = decode(old(*OLD), ("uci",))
    assert (call.key, call.value, call.tensors) == (["x"], ["1"], [])
    assert (call.name, call.method, call.logid) == ("uci", "prediction", 7)
    assert call.clientip == "10.0.0.1"
    assert call.nbytes == len(old(*OLD))


@pytest.mark.parametrize(
    "fields",
    [
        ("key", "value", "clientip"),
        ("key", "value", "logid"),
        ("key", "value", "logid", "clientip"),
        ("name", "clientip"),
        ("key", "value", "name", "method"),
    ],
    ids=", ".join,
)
def test_one_sign_of_age_is_enough(fields: tuple[str, ...]) -> None:
    call = decode(old(*fields), ("uci",))
    assert call.logid == (7 if "logid" in fields else 0)
    assert call.clientip == ("10.0.0.1" if "clientip" in fields else "")
    assert call.name == ("uci" if "name" in fields else "")
    assert call.tensors == []


def test_an_old_request_for_another_service_keeps_that_name() -> None:
    assert decode(old("name", "method", "logid"), ("ocr",)).name == "uci"


@pytest.mark.parametrize("service", ["ocr", ""])
def test_without_a_sign_only_the_services_own_name_makes_it_old(service: str) -> None:
    with pytest.raises(Undecodable):
        decode(old("key", "value", "name", "method"), (service,))


def test_a_negative_old_log_id_is_negative() -> None:
    data = bytes.fromhex("28 ff ff ff ff ff ff ff ff ff 01")
    assert decode(data, ()).logid == -1


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
def test_a_request_of_today_is_never_taken_for_an_old_one(request_: pb.Request) -> None:
    for service in ("uci", ""):
        call = decode(request_.SerializeToString(), (service,))
        assert call.message() == request_
        assert call.typed == bool(request_.tensors)


def test_unknown_fields_are_ignored() -> None:
    data = pb.Request(key=["x"]).SerializeToString()
    extra = bytes.fromhex("c0 3e 01")  # field 1000, a number
    assert decode(data + extra, ("uci",)).key == ["x"]
    assert decode(old(*OLD) + extra, ("uci",)).name == "uci"


def test_signs_of_both_ages_are_read_as_of_today() -> None:
    call = decode(OLD["logid"] + pb.Request(logid=3).SerializeToString(), ("uci",))
    assert call.logid == 3


def test_a_client_ip_is_cut() -> None:
    data = pb.Request(clientip="9" * 100).SerializeToString()
    assert decode(data, ()).clientip == "9" * 64
    aged = b"\x32\x64" + b"9" * 100
    assert decode(aged, ()).clientip == "9" * 64


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
    logid=st.integers(-(2**63), 2**63 - 1),
    clientip=st.text(max_size=64),
)


@given(requests)
def test_every_request_comes_back(request: pb.Request) -> None:
    assert decode(request.SerializeToString(), ("uci",)).message() == request


@given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(st.sampled_from([*OLD.values(), b"\x1a", b"\x28", b"\x32\x02\xff"])).map(b"".join),
    ),
    st.sampled_from(["", "uci"]),
)
def test_any_bytes_are_a_call_or_undecodable(data: bytes, service: str) -> None:
    try:
        call = decode(data, (service,))
    except Undecodable:
        return
    assert call.message() is not None


def test_a_reply_is_the_message() -> None:
    reply = paddle.Reply(50, "no", ["a"], ["1"], [tensors.of_message(pb.Tensor(name="t"))])
    assert pb.Response.FromString(encode(reply)) == pb.Response(
        err_no=50, err_msg="no", key=["a"], value=["1"], tensors=[pb.Tensor(name="t")]
    )
    message = pb.Response(err_no=3)
    assert encode(message) == message.SerializeToString()


def test_a_text_that_is_no_unicode_still_gets_out() -> None:
    reply = paddle.Reply(50, "bad \udcff", ["k"], ["v\ud800"])
    assert pb.Response.FromString(encode(reply)).err_msg.startswith("bad \ufffd")
