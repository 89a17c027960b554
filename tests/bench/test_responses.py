"""HTTP/1.1 answers: their end, and whether the connection stays open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.responses import Response, ResponseReader
from penstock.client.http_answer import BrokenAnswer

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\ntrailer: x\r\n\r\n"
)
ANSWERS = {
    PLAIN: Response(200, b"hello", True),
    CHUNKED: Response(200, b"hello", True),
    b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN: Response(200, b"hello", True),
    b"HTTP/1.1 204 No Content\r\n\r\n": Response(204, b"", True),
    b"HTTP/1.1 503 \r\nconnection: close\r\ncontent-length: 1\r\n\r\nx": Response(503, b"x", False),
    b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n": Response(200, b"", False),
}


@given(st.sampled_from(sorted(ANSWERS)), st.integers(1, 70))
def test_answers_split_at_any_offsets_are_read(wire: bytes, size: int):
    reader = ResponseReader()
    found = None
    for at in range(0, len(wire), size):
        assert found is None
        found = reader.receive(wire[at : at + size])
    assert found == ANSWERS[wire]


def test_consecutive_answers_are_read():
    reader = ResponseReader()
    for wire in (PLAIN, CHUNKED, PLAIN):
        assert reader.receive(wire) == ANSWERS[wire]


def test_an_answer_without_a_length_ends_with_the_connection():
    reader = ResponseReader()
    assert reader.receive(b"HTTP/1.1 200 OK\r\n\r\nhel") is None
    assert reader.receive(b"lo") is None
    assert reader.eof() == Response(200, b"hello", False)


def test_a_truncated_answer_is_not_returned():
    reader = ResponseReader()
    assert reader.receive(PLAIN[:-1]) is None
    assert reader.eof() is None


def test_a_connection_with_bytes_after_an_answer_is_not_reused():
    assert ResponseReader().receive(PLAIN + b"x") == Response(200, b"hello", False)


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_an_invalid_answer_raises_broken_answer(wire: bytes):
    with pytest.raises(BrokenAnswer):
        ResponseReader().receive(wire)
