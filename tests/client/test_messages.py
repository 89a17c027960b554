import io
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import errors
from penstock.client.errors import CallFailed
from penstock.client.messages import (
    decode_reply,
    encode_request,
    pack_request,
    raise_for_error,
    response_arrays,
)
from penstock.protocols import pb, tensors
from penstock.protocols.status import GrpcCode

INT64 = st.integers(-(2**63), 2**63 - 1)


def pack(feed: object, fetch: object = None, **options: Any) -> pb.Request:
    return pack_request(feed, fetch, own_address=lambda: "10.0.0.1", **options)


def message(**fields: Any) -> pb.Request:
    return pb.Request(clientip="10.0.0.1", **fields)


def test_the_bytes_of_a_text_request() -> None:
    request = pack({"x": "1", "logid": 7, "clientip": "c"}, name="n", method="m")
    expected = b'\n\x01x\x12\x011"\x01n*\x01m0\x07:\x01c'
    assert encode_request(request) == expected


def test_texts_are_sent_unchanged() -> None:
    feed = {"words": "我爱北京", "empty": "", "code": "__import__('os')"}
    assert pack(feed) == message(key=list(feed), value=list(feed.values()))


def test_arrays_are_sent_as_the_text_that_numpy_prints() -> None:
    feed = {"x": np.array([[1.5, 2.0]], dtype=np.float32), "ids": np.array([1, 2])}
    assert pack(feed) == message(
        key=["x", "ids"], value=["array([[1.5, 2. ]], dtype=float32)", "array([1, 2])"]
    )


def test_lists_are_sent_as_the_text_of_arrays() -> None:
    feed = {"x": [0.0137, -0.1136], "ids": [[1], [2]]}
    assert list(pack(feed).value) == ["array([ 0.0137, -0.1136])", "array([[1],\n       [2]])"]


def test_long_arrays_are_never_summarised_and_print_options_stay_unchanged() -> None:
    with np.printoptions(threshold=3, precision=1):
        before = np.get_printoptions()
        (text,) = pack({"x": np.arange(5000) + 0.125}).value
        assert np.get_printoptions() == before
    assert "..." not in text
    assert text.count("125") >= 5000


def test_profile_adds_a_last_pair_to_text_requests_only() -> None:
    packed = pack({"x": "1"}, profile=True)
    assert packed == message(key=["x", "pipeline.profile"], value=["1", "1"])
    assert not pack({"x": "1"}, profile=True, pack_tensor_format=True).key


def test_a_text_is_sent_as_a_string_tensor() -> None:
    (tensor,) = pack({"words": "爱"}, pack_tensor_format=True).tensors
    assert (tensor.name, tensor.elem_type, list(tensor.str_data)) == ("words", 12, ["爱"])


def test_arrays_are_sent_as_npy_bytes_with_use_tensor_bytes() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    (tensor,) = pack({"x": array}, pack_tensor_format=True, use_tensor_bytes=True).tensors
    assert (tensor.name, tensor.elem_type) == ("x", 13)
    assert not tensor.float_data
    back = np.load(io.BytesIO(tensor.byte_data), allow_pickle=False)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_a_lod_is_sent_in_its_tensor_not_as_a_tensor() -> None:
    feed = {"x": np.array([[1], [2], [3]]), "x.lod": [0, 2, 2, 3], "lonely.lod": [0, 1]}
    tensor = pb.Tensor(name="x", elem_type=0, shape=[3, 1], int64_data=[1, 2, 3], lod=[0, 2, 2, 3])
    assert pack(feed, pack_tensor_format=True) == message(tensors=[tensor])


@pytest.mark.parametrize("value", [1, 1.5, None, b"x", np.float32(1), {"a": 1}, (1, 2)])
def test_a_value_of_another_type_is_refused_as_the_original_does(value: object) -> None:
    with pytest.raises(TypeError, match=r"only str and np.ndarray type is supported: <class"):
        pack({"x": value})


def test_lists_are_refused_as_tensors() -> None:
    with pytest.raises(TypeError, match=r"only str and np.ndarray type is supported: .*list"):
        pack({"x": [1]}, pack_tensor_format=True)


@pytest.mark.parametrize("feed", [None, [("x", "1")], "x"])
def test_a_feed_must_be_a_dict(feed: object) -> None:
    with pytest.raises(TypeError, match="feed_dict must be a dict"):
        pack(feed)


def test_names_must_be_texts() -> None:
    with pytest.raises(TypeError, match="names in feed_dict must be texts"):
        pack({1: "x"})


def test_fetch_is_validated_but_has_no_effect() -> None:
    assert pack({"x": "1"}, ["y"]) == pack({"x": "1"}, [])
    with pytest.raises(TypeError, match="fetch must be None or a list"):
        pack({"x": "1"}, "y")


@given(argument=st.none() | INT64, fed=st.none() | INT64 | INT64.map(str))
def test_the_log_id_is_the_argument_else_that_of_the_feed_else_zero(
    argument: int | None, fed: int | str | None
) -> None:
    given_ids = [int(v) for v in (argument, fed) if v is not None]
    request = pack({"x": "1", "logid": fed}, log_id=argument)
    assert request.logid == (given_ids[0] if given_ids else 0)
    assert list(request.key) == ["x"]


@pytest.mark.parametrize("log_id", [2**63, -(2**63) - 1, "x"])
def test_a_log_id_outside_int64_is_refused(log_id: int | str) -> None:
    with pytest.raises(ValueError, match=r"log id|invalid literal"):
        pack({"logid": log_id})


def test_a_log_id_is_never_rounded() -> None:
    with pytest.raises(TypeError):
        pack({"logid": 1.5})


@pytest.mark.parametrize("options", [{}, {"pack_tensor_format": True}])
def test_the_clients_address_is_that_of_the_feed_else_looked_up(options: dict[str, bool]) -> None:
    def forbidden() -> str:
        raise AssertionError("asked for an address that the feed gives")

    feed = {"x": "1", "clientip": "192.168.0.7"}
    assert pack_request(feed, own_address=forbidden, **options).clientip == "192.168.0.7"
    assert pack({"x": "1"}, **options).clientip == "10.0.0.1"


def test_a_clientip_that_is_not_a_string_is_refused() -> None:
    with pytest.raises(TypeError, match="clientip must be a text"):
        pack({"clientip": 127})


@pytest.mark.parametrize(
    "options",
    [{}, {"pack_tensor_format": True}, {"pack_tensor_format": True, "use_tensor_bytes": True}],
)
def test_the_callers_dict_and_arrays_stay_unchanged(options: dict[str, bool]) -> None:
    array = np.array([[1.0], [2.0]])
    array.flags.writeable = False
    lod = [0, 2]
    feed = {"logid": 3, "clientip": "c", "x": array, "x.lod": lod, "t": "text"}
    before = dict(feed)
    pack(feed, log_id=9, profile=True, **options)
    assert list(feed) == list(before)
    assert all(feed[key] is before[key] for key in before)
    assert lod == [0, 2]


def test_a_valid_reply_is_decoded() -> None:
    response = pb.Response(key=["y"], value=["1"])
    assert decode_reply(response.SerializeToString()) == response


@given(st.binary(max_size=200))
@example(b"\n\x05ab")  # cut
@example(b"\x0b" * 100_000)  # groups in groups
@example(b"<html>not here</html>")
def test_any_bytes_decode_to_a_reply_or_raise_call_failed(reply: bytes) -> None:
    try:
        response = decode_reply(reply)
    except CallFailed as error:
        assert (error.status, error.retryable) == (GrpcCode.INTERNAL, True)  # noqa: PT017
        return
    try:
        response_arrays(response)
    except errors.PenstockError:
        return


@pytest.mark.parametrize(
    ("err_no", "cls"),
    [
        (3002, errors.UnknownService),
        (3004, errors.ServiceBusy),
        (6000, errors.DeadlineExceeded),
        (8000, errors.PackageError),
        (777, errors.ProductError),
        (-1, errors.ProductError),
    ],
)
def test_an_error_number_raises_its_exception(err_no: int, cls: type[errors.RequestError]) -> None:
    with pytest.raises(cls, match="too hot"):
        raise_for_error(pb.Response(err_no=err_no, err_msg="too hot"))


def test_response_arrays_have_names_and_lods() -> None:
    array = np.array([[1.5], [2.5]], dtype=np.float32)
    response = pb.Response(
        tensors=[
            tensors.encode("y", array, lod=[0, 2]).message(),
            tensors.encode("raw", array, as_bytes=True).message(),
            tensors.encode("t", "text").message(),
        ]
    )
    results = response_arrays(response)
    assert list(results) == ["y", "y.lod", "raw", "t"]
    assert results["t"] == "text"
    for name in ("y", "raw"):
        value = results[name]
        assert isinstance(value, np.ndarray)
        assert value.dtype == np.float32
        assert np.array_equal(value, array)
    assert np.asarray(results["y.lod"]).reshape(-1).tolist() == [0, 2]


def test_the_last_of_two_results_with_one_name_is_returned() -> None:
    response = pb.Response(
        tensors=[tensors.encode("y", "first").message(), tensors.encode("y", "last").message()]
    )
    assert response_arrays(response) == {"y": "last"}
