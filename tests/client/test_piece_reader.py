"""From the bytes of an HTTP answer to its pieces: events, lines, bytes, and every kind of end."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import piece_reader
from penstock.client.errors import CallFailed
from penstock.client.piece_reader import Event, EventReader, PieceReader, value_of
from penstock.protocols.pieces import OF_EVENTS, OF_LINES
from penstock.protocols.status import GrpcCode

EVENTS, LINES = "text/event-stream", "application/x-ndjson"
URL = "http://service/spell"


def answer(kind: str, *parts: bytes, end: bool = True, status: int = 200, more: str = "") -> bytes:
    """A chunked answer; without its last chunk if it has no end."""
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}transfer-encoding: chunked\r\n\r\n"
    )
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return head.encode() + chunks + b"0\r\n\r\n" * end


def read(data: bytes, cuts: Sequence[int] = ()) -> PieceReader:
    """A reader that has received this, cut at these places, and the end of the connection."""
    reader, at = PieceReader(URL), 0
    for cut in [*sorted(min(each, len(data)) for each in cuts), len(data)]:
        if cut > at:
            reader.receive(data[at:cut])
        at = cut
    reader.receive(b"")
    return reader


def failure(reader: PieceReader) -> CallFailed:
    assert isinstance(reader.end, CallFailed)
    return reader.end


@given(
    texts=st.lists(st.text(max_size=20), max_size=6),
    cuts=st.lists(st.integers(0, 600), max_size=12),
    form=st.sampled_from([OF_EVENTS, OF_LINES]),
)
def test_pieces_are_those_that_the_service_wrote_however_the_bytes_are_split(
    texts: list[str], cuts: list[int], form: piece_reader.Any
) -> None:
    bodies = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
    parts = [form.piece(body, first=number == 0) for number, body in enumerate(bodies)]
    reader = read(answer(form.kind, *parts, *([form.idle] if form.idle else [])), cuts)
    assert [value_of(each) for each in reader.pieces] == texts
    assert reader.end is True


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_events_are_read_as_the_standard_says(end: str, at_once: int) -> None:
    lines = (
        ": a comment", "data: one", "", "event: add", "data:two", "data:  three", "id: 7", "",
        "event: lost", "", "data", "", "retry: 5", "unknown: x", "data: é", "", "data: no end",
    )  # fmt: skip
    data = ("\ufeff" + "".join(line + end for line in lines)).encode()
    reader, found = EventReader(), []
    for at in range(0, len(data), at_once):
        found += reader.feed(data[at : at + at_once])
    assert found == [
        Event("message", "one"),
        Event("add", "two\n three"),
        Event("message", ""),
        Event("message", "é"),
    ]
    assert reader.held


def test_an_error_event_ends_an_answer_with_its_message() -> None:
    error = json.dumps({"error": "im_a_teapot", "message": "there is no 2", "id": "17"}).encode()
    reader = read(answer(EVENTS, b"data: 1\n\n", OF_EVENTS.error(error), b"data: 3\n\n", end=False))
    assert [*reader.pieces] == ["1"]
    assert str(failure(reader)) == (
        f"UNKNOWN: {URL}: after 1 piece: there is no 2 (im_a_teapot, id 17)"
    )
    assert not failure(reader).retryable


OF_OPENAI = b'data: {"error":{"message":"no 2","type":"server_error","code":"failed"}}\n\n'
OF_TRITON = b'data: {"error":"no 2"}\n\n'


@pytest.mark.parametrize(
    ("parts", "end", "text"),
    [
        ([OF_OPENAI], False, "no 2 (failed)"),
        ([OF_OPENAI, b"data: [DONE]\n\n"], True, "no 2 (failed)"),
        ([OF_OPENAI], True, "no 2 (failed)"),
        ([OF_TRITON], False, "no 2"),
        ([OF_TRITON], True, "no 2"),
    ],
)
def test_an_error_that_looks_like_a_piece_is_told_by_what_follows(
    parts: list[bytes], end: bool, text: str
) -> None:
    reader = read(answer(EVENTS, b"data: 1\n\n", *parts, end=end))
    assert [*reader.pieces] == ["1"]
    assert str(failure(reader)) == f"UNKNOWN: {URL}: after 1 piece: {text}"


@pytest.mark.parametrize("last", ['{"error":"no","n":2}', '{"error":0.5}', '{"error":null}'])
def test_a_piece_that_looks_like_an_error_is_one_if_the_answer_goes_on_or_it_has_more(
    last: str,
) -> None:
    data = f"data: {last}\n\n".encode()
    reader = read(answer(EVENTS, OF_TRITON, b"data: 1\n\n", data))
    assert [*reader.pieces] == ['{"error":"no 2"}', "1", last]
    assert reader.end is True


def test_a_last_line_that_lacks_its_end_follows_a_piece_that_looks_like_an_error() -> None:
    reader = read(answer(LINES, b'{"error":"no 2"}\n', b"1"))
    assert [*reader.pieces] == ['{"error":"no 2"}', "1"]
    assert reader.end is True


@pytest.mark.parametrize(
    ("kind", "parts", "pieces"),
    [
        (EVENTS, [b"data: 1\n\n"], ["1"]),
        (EVENTS, [b"data: 1\n\ndata: 2"], ["1"]),
        (EVENTS, [b"data: 1\n\ndata: 2\n"], ["1"]),
        (LINES, [b"1\n"], ["1"]),
        (LINES, [b"1\n2"], ["1"]),
        ("application/octet-stream", [b"abc"], [b"abc"]),
    ],
)
def test_a_truncated_answer_is_an_error_behind_its_pieces(
    kind: str, parts: list[bytes], pieces: list[str | bytes]
) -> None:
    reader = read(answer(kind, *parts, end=False))
    assert [*reader.pieces] == pieces
    assert str(failure(reader)) == f"UNAVAILABLE: {URL}: after 1 piece: the answer was cut off"
    assert not failure(reader).retryable


def test_an_event_without_its_end_is_truncated_also_if_the_answer_is_complete() -> None:
    reader = read(answer(EVENTS, b"data: 1\n\ndata: 2"))
    assert [*reader.pieces] == ["1"]
    assert "cut off" in str(failure(reader))


def test_the_last_line_may_lack_its_end_only_where_the_answer_has_one() -> None:
    assert [*read(answer(LINES, b"1\n\n2")).pieces] == ["1", "2"]
    head = b"HTTP/1.0 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n"
    whole = read(head + b"1\n2\n")
    assert ([*whole.pieces], whole.end) == (["1", "2"], True)
    cut = read(head + b"1\n2")
    assert [*cut.pieces] == ["1"]
    assert "cut off" in str(failure(cut))


@pytest.mark.parametrize("end", [True, False])
def test_the_mark_at_the_end_of_openais_streams_is_no_piece_but_the_end(end: bool) -> None:
    reader = read(answer(EVENTS, b'data: {"a":1}\n\ndata: [DONE]\n\n', end=end))
    assert [*reader.pieces] == ['{"a":1}']
    assert reader.end is True


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"", GrpcCode.UNAVAILABLE, "the connection was lost before the answer"),
        (b"HTTP/1.1 200", GrpcCode.UNAVAILABLE, "the connection was lost before the answer"),
        (b"SSH-2.0-x\r\n\r\n", GrpcCode.UNKNOWN, "no HTTP answer: it begins with b'SSH-2.0-x"),
        (answer("application/json", b"[1]"), GrpcCode.UNIMPLEMENTED, "it is application/json"),
        (b"HTTP/1.1 204 X\r\n\r\n", GrpcCode.UNIMPLEMENTED, "it is empty"),
        (
            answer("application/json", b'{"error":"a","message":"b"}', status=422),
            GrpcCode.UNKNOWN,
            "HTTP 422: b (a)",
        ),
        (
            answer("application/json", b'{"error":{"message":"b","code":"a"}}', status=404),
            GrpcCode.UNIMPLEMENTED,
            "HTTP 404: b (a)",
        ),
        (answer("application/json", b'{"error":"b"}', status=400), GrpcCode.INTERNAL, "400: b"),
        (answer("application/json", b'{"error":[]}', status=400), GrpcCode.INTERNAL, ': {"error'),
        (answer("text/plain", b"busy\n", status=503), GrpcCode.UNAVAILABLE, "HTTP 503: busy"),
        (
            answer("text/plain", b"full", status=503, end=False),
            GrpcCode.UNAVAILABLE,
            "HTTP 503: full",
        ),
        (answer("text/plain", b"x" * 99_999, status=500), GrpcCode.UNKNOWN, "HTTP 500: xxx"),
        (answer("text/html", status=307), GrpcCode.UNKNOWN, "HTTP 307"),
        (
            answer(EVENTS, b"\x1f\x8b", more="content-encoding: gzip\r\n"),
            GrpcCode.UNKNOWN,
            "the answer is packed with gzip",
        ),
        (answer(EVENTS, end=False) + b"zz\r\n", GrpcCode.UNKNOWN, "no HTTP answer"),
    ],
)
def test_an_answer_without_pieces_is_an_error(data: bytes, code: GrpcCode, words: str) -> None:
    reader = read(data)
    assert not reader.pieces
    failed = failure(reader)
    assert failed.status is code
    assert words in str(failed)
    assert len(str(failed)) < 2000
    assert failed.retryable == (code is GrpcCode.UNAVAILABLE)


def test_a_piece_without_an_end_is_not_kept_without_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(piece_reader, "MAX_PIECE_BYTES", 1000)
    for kind, begin in ((EVENTS, b"data: "), (LINES, b"")):
        reader = PieceReader(URL)
        reader.receive(answer(kind, begin + b"x" * 900, end=False))
        assert reader.end is None
        reader.receive(b"c8\r\n" + b"x" * 200 + b"\r\n")
        assert "a piece is too large" in str(failure(reader))


def test_the_value_of_a_piece_is_its_json() -> None:
    assert value_of('{"a":[1,"é"]}') == {"a": [1, "é"]}
    assert value_of(b"\x00") == b"\x00"
    with pytest.raises(CallFailed, match="a piece is no JSON: 'a b'"):
        value_of("a b")
