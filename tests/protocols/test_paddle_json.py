import json
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PackageError, RequestError, Undecodable
from penstock.protocols import (
    paddle,
    paddle_json,
    paddle_message,
    pb,
    protobuf,
    tensors,
)
from penstock.protocols.paddle import OnePair
from penstock.protocols.paddle_json import encode, gateway_error, write_texts
from penstock.protocols.status import GrpcCode
from tests.kit import own_messages


def decode(body: bytes) -> paddle.Call:
    return paddle_json.decode(body, name="uci", method="prediction")


def test_a_body_of_one_pair_is_decoded() -> None:
    body = b'{"key":["x"],"value":["0.1,0.2"]}'
    call = decode(body)
    assert (call.key, call.value, [*call.tensors]) == (["x"], ["0.1,0.2"], [])
    assert (call.name, call.method, call.logid, call.clientip) == ("uci", "prediction", 0, "")
    assert call.nbytes == len(body)


@given(st.lists(st.text(), max_size=2), st.lists(st.text(), max_size=2))
def test_a_body_of_texts_is_the_same_call_with_other_members(
    key: list[str], value: list[str]
) -> None:
    call = decode(json.dumps({"key": key, "value": value}).encode())
    with_more = decode(json.dumps({"key": key, "value": value, "logid": 0}).encode())
    assert call.message() == with_more.message()
    assert call.decoded_bytes() == with_more.decoded_bytes()
    assert (type(call) is OnePair) == (len(key) == len(value) == 1)
    if call.feed is not None:
        assert paddle.unpack(with_more) == (call.feed, False)


def test_the_pair_that_requests_a_profile_is_removed() -> None:
    call = decode(json.dumps({"key": [paddle.PROFILE_KEY], "value": ["1"]}).encode())
    assert call.feed is None
    assert paddle.unpack(call) == ({}, True)


@pytest.mark.parametrize("body", [b"", b" \r\n", b"null", b" null ", b"{}"])
def test_an_empty_body_is_an_empty_request(body: bytes) -> None:
    call = decode(body)
    assert (call.key, call.value, call.tensors, call.name) == ([], [], [], "uci")


def test_names_in_the_url_have_precedence_over_the_body() -> None:
    call = decode(b'{"name":"other","method":"other"}')
    assert (call.name, call.method) == ("uci", "prediction")


def test_null_means_absent_and_unknown_members_are_ignored() -> None:
    members = "key value tensors name method logid clientip".split()  # noqa: SIM905
    body = {**dict.fromkeys(members), "appid": {"deep": [1, None]}}
    call = decode(json.dumps(body).encode())
    assert (call.key, call.logid, call.clientip) == ([], 0, "")


def test_the_last_of_equal_members_is_used() -> None:
    assert decode(b'{"logid":1,"logid":2}').logid == 2
    call = decode(b'{"tensors":[{"float_data":[1],"floatData":[2,3]}]}')
    assert list(call.message().tensors[0].float_data) == [2, 3]


@pytest.mark.parametrize("logid", ["7", '"7"', "7.0", "70e-1"])
def test_a_log_id_is_a_whole_number_or_its_text(logid: str) -> None:
    assert decode(f'{{"logid":{logid}}}'.encode()).logid == 7


def test_log_ids_have_64_bits() -> None:
    assert decode(b'{"logid":"-9223372036854775808"}').logid == -(2**63)
    assert decode(b'{"logid":9223372036854775807}').logid == 2**63 - 1


def test_a_long_client_ip_is_truncated() -> None:
    assert decode(b'{"clientip":"' + b"9" * 1000 + b'"}').clientip == "9" * 64


def test_nul_is_allowed_in_texts() -> None:
    assert decode(b'{"key":["a\\u0000"]}').key == ["a\0"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"value":["a",1.5]}', "value[1] must be a text, got a number"),
        (b'{"key":["x"],"value":[null]}', "value[0] must be a text, got null"),
        (b'{"key":"x"}', "key must be a list, got a text"),
        (b'{"logid":true}', "logid must be a whole number, got a truth value"),
        (b"[]", "the body must be an object, got a list"),
        (b'{"tensors":[{},3]}', "tensors[1] must be an object, got a number"),
        (
            b'{"tensors":[{"shape":[1,"x"]}]}',
            "tensors[0].shape[1] must be a whole number, got a text that is no number",
        ),
        (b'{"tensors":[{"bool_data":[1]}]}', "tensors[0].bool_data[0] must be true or false"),
        (b'{"tensors":[{"float_data":[0,4e38]}]}', "tensors[0].float_data[1] is too large"),
        (b'{"tensors":[{"byte_data":"*"}]}', "tensors[0].byte_data must be a base64 text"),
        (b'{"key":["x"],}', "the body is not a JSON document (line 1, "),
    ],
)
def test_an_error_names_the_element(body: bytes, text: str) -> None:
    with pytest.raises(Undecodable) as caught:
        decode(body)
    assert str(caught.value).startswith(text)


nan = st.just(float("nan"))
# json_format itself cannot read the shortest digits of the largest float32.
finite32 = st.floats(-(2.0**127), 2.0**127, width=32)
floats32 = finite32 | nan | st.sampled_from([float("inf"), -float("inf")])
floats64 = st.floats(allow_nan=False) | nan
int32s = st.integers(-(2**31), 2**31 - 1)
any_tensor = st.builds(
    pb.Tensor,
    int64_data=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2),
    float_data=st.lists(floats32, max_size=2),
    int_data=st.lists(int32s, max_size=2),
    float64_data=st.lists(floats64, max_size=2),
    uint32_data=st.lists(st.integers(0, 2**32 - 1), max_size=2),
    bool_data=st.lists(st.booleans(), max_size=2),
    complex64_data=st.lists(finite32, max_size=2),
    complex128_data=st.lists(st.floats(allow_nan=False), max_size=2),
    str_data=st.lists(st.text(max_size=5), max_size=2),
    byte_data=st.binary(max_size=10),
    elem_type=int32s,
    shape=st.lists(int32s, max_size=2),
    lod=st.lists(int32s, max_size=2),
    name=st.text(max_size=5),
)
requests = st.builds(
    pb.Request,
    key=st.lists(st.text(max_size=5), max_size=2),
    value=st.lists(st.text(max_size=5), max_size=2),
    tensors=st.lists(any_tensor, max_size=2),
    name=st.just("uci"),
    method=st.just("prediction"),
    logid=st.integers(-(2**63), 2**63 - 1),
    clientip=st.text(max_size=64),
)
responses = st.builds(
    pb.Response,
    err_no=int32s,
    err_msg=st.text(max_size=5),
    key=st.lists(st.text(max_size=5), max_size=2),
    value=st.lists(st.text(max_size=5), max_size=2),
    tensors=st.lists(any_tensor, max_size=2),
)


def same(left: pb.Request | pb.Response, right: pb.Request | pb.Response) -> bool:
    """Equal byte for byte, so that NaN equals NaN and 0.0 is not -0.0."""
    return left.SerializeToString(deterministic=True) == right.SerializeToString(deterministic=True)


@given(requests, st.booleans(), st.booleans())
def test_requests_are_decoded_as_by_protobuf(
    request: pb.Request, proto_names: bool, defaults: bool
) -> None:
    body = json_format.MessageToJson(
        request,
        preserving_proto_field_name=proto_names,
        always_print_fields_with_no_presence=defaults,
    )
    assert same(decode(body.encode()).message(), request)


@given(responses)
def test_encoded_replies_are_read_by_protobuf(response: pb.Response) -> None:
    body = encode(response)
    assert same(json_format.Parse(body, pb.Response()), response)
    written = json.loads(body)
    assert list(written) == ["err_no", "err_msg", "key", "value", "tensors"]
    for tensor in written["tensors"]:
        assert list(tensor) == [field.name for field in pb.Tensor.DESCRIPTOR.fields]
        assert all(type(number) is str for number in tensor["int64_data"])


def test_a_reply_always_has_five_members_in_order() -> None:
    reply = paddle.Reply(key=["price"], value=["[[18.901152]]"])
    assert encode(reply) == (
        b'{"err_no":0,"err_msg":"","key":["price"],"value":["[[18.901152]]"],"tensors":[]}'
    )
    assert encode(pb.Response()) == (b'{"err_no":0,"err_msg":"","key":[],"value":[],"tensors":[]}')


results = st.dictionaries(
    st.text() | st.sampled_from(["\udfff", 1]),
    st.text() | st.sampled_from(["\ud800", 1, None, ["a"], np.str_("a"), np.ones(2)]),
)


@given(results)
def test_a_result_is_encoded_directly_as_its_reply_or_not_at_all(value: dict[Any, Any]) -> None:
    written = write_texts(value, value.values())
    try:
        reply = paddle.pack(value, typed=False, keep_text=True)
    except PackageError:
        assert written is None
        return
    assert written in (None, encode(reply))
    texts = [*value, *value.values()]
    assert (written is not None) == all(type(text) is str and is_unicode(text) for text in texts)


def is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def test_a_tensor_in_a_reply_has_every_member() -> None:
    array = np.array([0.1, np.nan, -np.inf], np.float32)
    reply = paddle.Reply(tensors=[tensors.encode("x", array, lod=[0, 3])])
    assert encode(reply) == (
        b'{"err_no":0,"err_msg":"","key":[],"value":[],"tensors":[{"int64_data":[],'
        b'"float_data":[0.1,"NaN","-Infinity"],"int_data":[],"float64_data":[],"uint32_data":[],'
        b'"bool_data":[],"complex64_data":[],"complex128_data":[],"str_data":[],"byte_data":"",'
        b'"elem_type":1,"shape":[3],"lod":[0,3],"name":"x"}]}'
    )


def test_64_bit_numbers_are_encoded_as_texts_and_bytes_as_base64() -> None:
    sent = [
        tensors.encode("a", np.array([2**53 + 1])),
        tensors.of_message(pb.Tensor(elem_type=13, byte_data=b"\xfb\xff")),
    ]
    first, second = json.loads(encode(paddle.Reply(tensors=sent)))["tensors"]
    assert first["int64_data"] == ["9007199254740993"]
    assert second["byte_data"] == "+/8="


def test_lone_surrogates_in_a_reply_are_replaced() -> None:
    reply = paddle.Reply(50, "bad \udcff", ["k\ud800"], ["v\udfff"])
    written = json.loads(encode(reply))
    assert written["err_no"] == 50
    assert written["err_msg"].startswith("bad \ufffd")
    assert json.loads(gateway_error(GrpcCode.INTERNAL, "\udcff"))["code"] == 13


def test_a_failed_call_has_the_gateways_form() -> None:
    assert gateway_error(GrpcCode.INVALID_ARGUMENT, "no JSON") == (
        b'{"error":"no JSON","code":3,"message":"no JSON","details":[]}'
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["1", "NaN", "Infinity", "AA==", "-1"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("key", "value", "tensors", "name", "logid", "clientip", "x", "shape"),
                    *("lod", "elem_type", "float_data", "intData", "bool_data", "byteData"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_decoded_or_undecodable(value: object) -> None:
    try:
        call = decode(json.dumps(value).encode())
    except Undecodable:
        return
    assert all(type(text) is str for text in [*call.key, *call.value])
    assert call.message() is not None


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_undecodable(data: bytes) -> None:
    try:
        assert isinstance(decode(data), paddle.Call)
    except Undecodable:
        return


@given(st.lists(st.text(max_size=40), max_size=3), st.integers(0, 40))
def test_a_large_reply_encoded_in_pieces_has_the_same_bytes(texts: list[str], size: int) -> None:
    array = np.arange(size) - 3
    sent = [tensors.encode("x", each) for each in (array, array / 7, array > 2)]
    reply = paddle.Reply(0, "", texts, texts, sent)
    try:
        whole = encode(reply)
    except UnicodeEncodeError:
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(paddle_json, "LARGE", 0)
        patched.setattr(paddle_json, "_BLOCK", 7)
        assert encode(reply) == whole


@given(st.lists(st.text(max_size=40), max_size=3))
def test_a_long_text_encoded_in_pieces_has_the_same_bytes(texts: list[str]) -> None:
    reply = paddle.Reply(0, "no", texts, texts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(protobuf, "_BLOCK", 7)
        assert (
            paddle_message.encode(reply)
            == pb.Response(err_msg="no", key=texts, value=texts).SerializeToString()
        )


@pytest.mark.parametrize(
    "body",
    [
        {"keys": ["x"], "features": ["1"]},
        {"keys": ["x"], "value": ["1"]},
        {"key": ["x"], "values": ["1"], "logid": 1},
    ],
)
def test_the_error_for_unknown_members_names_them_and_shows_an_example(
    body: dict[str, Any],
) -> None:
    with pytest.raises(Undecodable) as caught:
        decode(json.dumps(body).encode())
    text = str(caught.value)
    unknown = [name for name in body if name not in ("key", "value", "logid")]
    assert all(repr(name) in text for name in unknown)
    assert '{"key": ["x"], "value": ["1.0"]}' in text


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (
            {"name": "x", "shape": [2], "elem_type": 1, "data": [1, 2]},
            "tensor 'x': the shape [2] needs 2 elements, got 0 (unknown members: 'data')",
        ),
        (
            {"name": "x", "shape": [1], "dtype": "FP32", "values": [1]},
            "got 0 (unknown members: 'dtype', 'values')",
        ),
        ({"names": "x", "float_data": [1]}, "got one of 0 (unknown members: 'names')"),
    ],
)
def test_the_error_for_missing_members_of_a_tensor_names_unknown_ones(
    tensor: dict[str, Any], text: str
) -> None:
    call = decode(json.dumps({"tensors": [tensor]}).encode())
    with pytest.raises(RequestError) as caught:
        paddle.unpack(call)
    assert text in str(caught.value)


# Fields that a service adds


def own_call(body: bytes) -> paddle.Call:
    names = ("user", "topScores", "top_scores")
    return paddle_json.decode(body, name="own", method="m", own_fields=lambda _: names)


@pytest.mark.parametrize("member", ["top_scores", "topScores"])
@pytest.mark.parametrize("padding", [0, 100_000])
def test_fields_that_a_service_adds_are_in_its_own_message(member: str, padding: int) -> None:
    body = {"key": ["x"], "value": ["1"], "user": "a" * (padding + 1), member: [1, 2], "else": 1}
    message = own_call(json.dumps(body).encode()).message(own_messages.Request)
    assert message.user == "a" * (padding + 1)
    assert [*message.top_scores] == [1, 2]
    assert (message.key, message.name) == (["x"], "own")


def test_a_request_may_have_fields_of_its_service_only() -> None:
    assert own_call(b'{"user": "ada"}').message(own_messages.Request).user == "ada"
    with pytest.raises(Undecodable, match="no 'key' and 'value', but 'other'"):
        own_call(b'{"user": "ada", "other": 1}')
    with pytest.raises(PackageError, match="a field of the request is invalid"):
        own_call(b'{"user": 7}').message(own_messages.Request)


def test_a_large_list_of_a_service_s_own_field_is_refused() -> None:
    with pytest.raises(Undecodable, match=r"'top_scores' has more than 256 KiB: send it by gRPC"):
        own_call(b'{"user": "a", "top_scores": [%b1]}' % (b"1," * 200_000))


def test_own_fields_of_a_reply_follow_the_others() -> None:
    reply = own_messages.Response(key=["x"], value=["1"], cost=0.5)
    sent = json.loads(paddle_json.encode(reply))
    assert list(sent) == ["err_no", "err_msg", "key", "value", "tensors", "cost"]
    assert (sent["cost"], reply.value) == (0.5, ["1"])
    assert json.loads(paddle_json.encode(own_messages.Response()))["cost"] == 0.0
