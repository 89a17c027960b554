"""An HTTP/1.1 answer whose body is used as it arrives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.http_answer import AnswerReader, BrokenAnswer

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
WITH_LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde"
TO_THE_END = b"HTTP/1.0 200 OK\r\n\r\nabcde"


@given(
    answer=st.sampled_from([CHUNKED, WITH_LENGTH, TO_THE_END]),
    cuts=st.lists(st.integers(0, 100), max_size=8),
    interim=st.booleans(),
)
def test_a_body_is_the_same_however_its_bytes_are_split(
    answer: bytes, cuts: list[int], interim: bool
) -> None:
    if interim:
        answer = b"HTTP/1.1 100 Continue\r\n\r\n" + answer
    reader, body, at = AnswerReader(), b"", 0
    for cut in [*sorted(min(each, len(answer)) for each in cuts), len(answer)]:
        body += b"".join(reader.receive(answer[at:cut]))
        at = cut
    assert reader.ended == (not reader.ends_with_connection)
    reader.eof()
    assert body == b"abcde"
    assert reader.ended


@given(answer=st.sampled_from([CHUNKED, WITH_LENGTH]), size=st.integers(0, 200))
def test_a_truncated_answer_is_never_complete(answer: bytes, size: int) -> None:
    reader = AnswerReader()
    reader.receive(answer[: min(size, len(answer) - 1)])
    assert not reader.ended
    with pytest.raises(BrokenAnswer, match="cut off"):
        reader.eof()


def test_the_end_of_a_connection_is_that_of_a_body_without_a_length() -> None:
    reader = AnswerReader()
    reader.receive(TO_THE_END)
    assert not reader.ended
    assert reader.ends_with_connection
    reader.eof()
    assert reader.ended


def test_fields_are_found_in_any_case() -> None:
    reader = AnswerReader()
    reader.receive(b"HTTP/1.1 200 OK\r\nCONTENT-Type:  text/plain \r\n\r\n")
    assert reader.head is not None
    assert reader.head.field("content-type") == "text/plain"
    assert reader.head.field("type") == ""


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_other_bytes_are_no_answer(answer: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        AnswerReader().receive(answer)


def test_bytes_behind_the_end_are_an_error() -> None:
    reader = AnswerReader()
    reader.receive(CHUNKED)
    with pytest.raises(BrokenAnswer, match="behind its end"):
        reader.receive(b"HTTP/1.1 200 OK\r\n")
