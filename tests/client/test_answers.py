import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import answers
from penstock.client.errors import CallFailed
from penstock.protocols.grpc import GrpcError
from penstock.protocols.heads import ResponseHead
from penstock.protocols.http2 import ErrorCode
from penstock.protocols.status import GrpcCode

GRPC = ((b"content-type", b"application/grpc"),)


@pytest.mark.parametrize("kind", [b"application/grpc", b"application/grpc+proto"])
def test_a_head_of_grpc_goes_on(kind: bytes) -> None:
    assert answers.of_head(ResponseHead(200, ((b"content-type", kind),))) is None


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (200, GrpcCode.UNKNOWN),
        (302, GrpcCode.UNKNOWN),
        (404, GrpcCode.UNIMPLEMENTED),
        (429, GrpcCode.UNAVAILABLE),
        (431, GrpcCode.UNKNOWN),
        (503, GrpcCode.UNAVAILABLE),
    ],
)
def test_an_answer_that_is_no_grpc_is_a_failure_that_was_sent(status: int, code: GrpcCode) -> None:
    head = ResponseHead(status, ((b"content-type", b"text/html"),))
    for failure in (answers.of_head(head), answers.of_whole_head(head)):
        assert isinstance(failure, CallFailed)
        assert (failure.status, failure.sent) == (code, True)


def test_a_head_alone_tells_the_status() -> None:
    head = ResponseHead(200, (*GRPC, (b"grpc-status", b"5"), (b"grpc-message", b"no%20such")))
    failure = answers.of_whole_head(head)
    assert (failure.status, str(failure)) == (GrpcCode.NOT_FOUND, "NOT_FOUND: no such")


@pytest.mark.parametrize("fields", [(), ((b"grpc-status", b"0"),)])
def test_a_head_alone_is_never_a_reply(fields: tuple[tuple[bytes, bytes], ...]) -> None:
    assert isinstance(answers.of_whole_head(ResponseHead(200, (*GRPC, *fields))), CallFailed)


def test_ok_with_a_message_is_the_message() -> None:
    assert answers.of_end({b"grpc-status": b"0"}, b"") == b""


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({b"grpc-status": b"0"}, GrpcCode.INTERNAL),
        ({}, GrpcCode.UNKNOWN),
        ({b"grpc-status": b"17"}, GrpcCode.UNKNOWN),
        ({b"grpc-status": b"-1"}, GrpcCode.UNKNOWN),
        ({b"grpc-status": b"16"}, GrpcCode.UNAUTHENTICATED),
    ],
)
def test_an_end_without_a_message_is_a_failure(fields: dict[bytes, bytes], code: GrpcCode) -> None:
    failure = answers.of_end(fields, None)
    assert isinstance(failure, CallFailed)
    assert failure.status is code


def test_a_status_with_a_message_is_the_status() -> None:
    failure = answers.of_end({b"grpc-status": b"13"}, b"half a reply")
    assert isinstance(failure, CallFailed)
    assert failure.status is GrpcCode.INTERNAL


@pytest.mark.parametrize(
    ("reset", "code", "sent"),
    [
        (ErrorCode.REFUSED_STREAM, GrpcCode.UNAVAILABLE, False),
        (ErrorCode.CANCEL, GrpcCode.CANCELLED, True),
        (ErrorCode.ENHANCE_YOUR_CALM, GrpcCode.RESOURCE_EXHAUSTED, True),
        (ErrorCode.INADEQUATE_SECURITY, GrpcCode.PERMISSION_DENIED, True),
        (ErrorCode.NO_ERROR, GrpcCode.INTERNAL, True),
        (2**32 - 1, GrpcCode.INTERNAL, True),
    ],
)
def test_a_reset_means_what_grpc_says(reset: int, code: GrpcCode, sent: bool) -> None:
    failure = answers.of_reset(reset, "", by_peer=True)
    assert (failure.status, failure.sent) == (code, sent)


def test_a_reset_of_our_own_names_the_broken_rule() -> None:
    failure = answers.of_reset(ErrorCode.PROTOCOL_ERROR, "DATA before a head", by_peer=False)
    assert (failure.status, failure.sent) == (GrpcCode.INTERNAL, True)
    assert "DATA before a head" in str(failure)


def test_only_a_message_over_the_limit_is_one_too_large() -> None:
    large = answers.of_bad_message(GrpcError(GrpcCode.RESOURCE_EXHAUSTED, "5 over 4"))
    packed = answers.of_bad_message(GrpcError(GrpcCode.UNIMPLEMENTED, "compressed"))
    assert (large.status, packed.status) == (GrpcCode.RESOURCE_EXHAUSTED, GrpcCode.INTERNAL)


@given(
    st.dictionaries(
        st.sampled_from([b"grpc-status", b"grpc-message", b"grpc-retry-pushback-ms", b"x"]),
        st.binary(max_size=20),
    ),
    st.none() | st.binary(max_size=3),
)
def test_whatever_the_trailers_say_there_is_one_outcome(
    fields: dict[bytes, bytes], message: bytes | None
) -> None:
    outcome = answers.of_end(fields, message)
    assert outcome == message if isinstance(outcome, bytes) else isinstance(outcome, CallFailed)
