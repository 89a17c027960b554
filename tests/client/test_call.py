import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.call import Call, Outcome, of_end
from penstock.client.errors import CallFailed
from penstock.protocols.status import GrpcCode

OK = {b"grpc-status": b"0"}


def new_call() -> tuple[Call, list[Outcome]]:
    outcomes: list[Outcome] = []
    return Call(b"request", None, outcomes.append), outcomes


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


@given(st.binary(max_size=3000), st.lists(st.integers(0, 3005), max_size=6))
def test_a_reply_split_at_any_offsets_is_read(message: bytes, cuts: list[int]) -> None:
    call, _ = new_call()
    body = framed(message)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for start, end in zip(edges, edges[1:], strict=False):  # noqa: RUF007 - edges may be equal
        assert call.receive(body[start:end]) is None
    assert call.outcome(OK) == message


@pytest.mark.parametrize("body", [framed(b"a") * 2, framed(b"a") + b"\0", framed(b"abc")[:-1]])
def test_a_body_that_is_not_exactly_one_message_fails_the_call(body: bytes) -> None:
    call, _ = new_call()
    outcome = call.receive(body) or call.outcome(OK)
    assert isinstance(outcome, CallFailed)
    assert outcome.status is GrpcCode.INTERNAL


def test_a_second_message_fails_the_call() -> None:
    call, _ = new_call()
    assert call.receive(framed(b"a")) is None
    failure = call.receive(framed(b"b"))
    assert failure is not None
    assert "more than one message" in str(failure)


def test_only_the_first_outcome_of_a_call_is_reported() -> None:
    call, outcomes = new_call()
    call.end(b"first")
    call.end(b"second")
    call.abandon(CallFailed(GrpcCode.CANCELLED, "late"))
    assert outcomes == [b"first"]
    assert call.ended


def test_detach_discards_the_bytes_received_so_far() -> None:
    call, _ = new_call()
    call.receive(framed(b"old")[:6])
    call.detach()
    call.receive(framed(b"new"))
    assert call.outcome(OK) == b"new"


@pytest.mark.parametrize(
    ("fields", "retryable", "after"),
    [
        ({b"grpc-status": b"8"}, False, None),
        ({b"grpc-status": b"8", b"grpc-retry-pushback-ms": b"100"}, True, 0.1),
        ({b"grpc-status": b"8", b"grpc-retry-pushback-ms": b"-1"}, False, None),
        ({b"grpc-status": b"8", b"grpc-retry-pushback-ms": b"9" * 5000}, False, None),
        ({b"grpc-status": b"14"}, True, None),
        ({b"grpc-status": b"13"}, False, None),
    ],
)
def test_status_and_pushback_decide_whether_a_failure_is_retryable(
    fields: dict[bytes, bytes], retryable: bool, after: float | None
) -> None:
    failed = of_end(fields, None)
    assert isinstance(failed, CallFailed)
    assert failed.retryable is retryable
    assert failed.retry_after == failed.at("host:1").retry_after == after


@given(
    st.dictionaries(
        st.sampled_from([b"grpc-status", b"grpc-message", b"grpc-retry-pushback-ms", b"x"]),
        st.binary(max_size=20),
    ),
    st.none() | st.binary(max_size=3),
)
def test_any_trailers_make_one_outcome(fields: dict[bytes, bytes], message: bytes | None) -> None:
    outcome = of_end(fields, message)
    assert outcome == message if isinstance(outcome, bytes) else isinstance(outcome, CallFailed)


def test_a_failed_call_is_pickled_with_all_its_fields() -> None:
    error = CallFailed(GrpcCode.UNAVAILABLE, "nobody there", retryable=True, sent=False)
    copy = pickle.loads(pickle.dumps(error.at("a:1")))
    assert (copy.status, str(copy)) == (error.status, "UNAVAILABLE: a:1: nobody there")
    assert (copy.retryable, copy.sent) == (True, False)
