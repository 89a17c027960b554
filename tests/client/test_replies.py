import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import errors
from penstock.client.errors import CallFailed
from penstock.client.replies import decode_reply, raise_for_error, response_arrays
from penstock.protocols import pb, tensors
from penstock.protocols.status import GrpcCode


def test_a_good_reply_is_read() -> None:
    response = pb.Response(key=["y"], value=["1"])
    assert decode_reply(response.SerializeToString()) == response


@pytest.mark.parametrize(
    "reply",
    [
        b"\xff",
        b"\n\x05ab",  # cut
        b"\x12\x02\xff\xff",  # err_msg is no UTF-8
        b"\x0c" * 200,  # ends of groups that never began
        b"\x0b" * 100_000,  # groups in groups
        b"\x12\xff\xff\xff\xff\x0f",  # a length of 4 GiB
        b"<html>not here</html>",
    ],
)
def test_bytes_that_are_no_reply_fail_the_call(reply: bytes) -> None:
    with pytest.raises(CallFailed) as caught:
        decode_reply(reply)
    assert caught.value.status is GrpcCode.INTERNAL
    assert not caught.value.retryable


@given(st.binary(max_size=200))
def test_any_bytes_are_a_reply_or_a_failed_call(reply: bytes) -> None:
    try:
        response = decode_reply(reply)
    except CallFailed:
        return
    try:
        response_arrays(response)
    except errors.PenstockError:
        return


def test_a_reply_without_an_error_raises_nothing() -> None:
    raise_for_error(pb.Response(err_msg="ignored"))


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
def test_an_error_number_becomes_the_error_it_means(
    err_no: int, cls: type[errors.RequestError]
) -> None:
    with pytest.raises(cls, match="too hot"):
        raise_for_error(pb.Response(err_no=err_no, err_msg="too hot"))


def test_results_are_read_by_name_with_their_lods() -> None:
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


def test_of_two_results_with_one_name_the_last_wins() -> None:
    response = pb.Response(
        tensors=[tensors.encode("y", "first").message(), tensors.encode("y", "last").message()]
    )
    assert response_arrays(response) == {"y": "last"}


@pytest.mark.parametrize(
    "tensor",
    [
        pb.Tensor(name="y", elem_type=99, shape=[1]),
        pb.Tensor(name="y", elem_type=1, shape=[2**31 - 1] * 4),
        pb.Tensor(name="y", elem_type=0, shape=[-1], int64_data=[1]),
        pb.Tensor(name="y", elem_type=13, byte_data=b"\x80\x04cos\nsystem\n"),
    ],
)
def test_a_hostile_tensor_is_refused(tensor: pb.Tensor) -> None:
    with pytest.raises(errors.PackageError):
        response_arrays(pb.Response(tensors=[tensor]))
