"""Formats of answers in pieces."""

import json

import pytest

from penstock.protocols.pieces import EVENTS, LINES, OF_EVENTS, OF_LINES, OF_LIST, format_for


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, EVENTS),
        ("*/*", EVENTS),
        ("text/event-stream", EVENTS),
        ("application/json", "application/json"),
        ("application/x-ndjson", LINES),
        ("application/json;q=0.5, application/x-ndjson", LINES),
        ("text/html", EVENTS),
    ],
)
def test_accept_chooses_the_format_and_events_are_the_default(
    accept: str | None, kind: str
) -> None:
    assert format_for(accept).kind == kind


def test_bytes_are_sent_as_they_are_unless_another_format_is_asked_for() -> None:
    octets = ("application/octet-stream",)
    assert format_for(None, octets).kind == "application/octet-stream"
    assert format_for("*/*", octets).piece(b"ab", first=False) == b"ab"
    assert format_for("text/event-stream", octets).kind == EVENTS


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_is_json_when_it_has_ended_and_only_then(count: int) -> None:
    bodies = [b"%d" % n for n in range(count)]
    text = b"".join(OF_LIST.piece(each, first=n == 0) for n, each in enumerate(bodies))
    assert not bodies or OF_LIST.pieces(bodies, first=True) == text
    whole = text + OF_LIST.last(empty=count == 0)
    assert json.loads(whole) == [*range(count)]
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_events_and_lines_end_with_each_piece() -> None:
    assert OF_EVENTS.piece(b'{"a":1}', first=True) == b'data: {"a":1}\n\n'
    assert OF_LINES.piece(b'{"a":1}', first=True) == b'{"a":1}\n'
    assert OF_EVENTS.pieces([b"1", b"2"], first=False) == b"data: 1\n\ndata: 2\n\n"
    assert OF_LINES.pieces([b"1", b"2"], first=False) == b"1\n2\n"
    assert OF_EVENTS.last(empty=True) == OF_LINES.last(empty=True) == b""


def test_only_events_can_tell_an_error_from_a_piece() -> None:
    assert OF_EVENTS.error(b"{}") == b"event: error\ndata: {}\n\n"
    assert OF_LINES.error(b"{}") == OF_LIST.error(b"{}") == b""
