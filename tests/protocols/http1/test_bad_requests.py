"""Every bad request is refused: with its status, at once, however it is cut. h11 is asked too."""

from __future__ import annotations

import h11
import pytest

from tests.protocols.http1.bad_requests import BAD_REQUESTS, Bad
from tests.protocols.http1.driving import bytewise, connection, failures, play, request

SMUGGLED = request(line=b"GET /smuggled HTTP/1.1")


def h11_refuses(data: bytes) -> bool:
    """Whether h11's server has an error before it has a whole request."""
    peer = h11.Connection(h11.SERVER, max_incomplete_event_size=24 << 10)
    peer.receive_data(data)
    try:
        while (event := peer.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.EndOfMessage):
                return False
    except h11.RemoteProtocolError:
        return True
    return False


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({bad.rule for bad in BAD_REQUESTS}) == len(BAD_REQUESTS)


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.rule)
def test_a_bad_request_is_refused_and_nothing_behind_it_is_read(bad: Bad) -> None:
    door = connection()
    events = door.receive(bad.data + SMUGGLED)
    (failed,) = failures(events)
    assert events[-1] is failed
    assert (failed.status, failed.answered) == (bad.status, False)
    assert not door.keep_alive
    assert door.receive(SMUGGLED) == []
    answer = door.respond(failed.status, (), b"no")
    assert answer.startswith(b"HTTP/1.1 %d " % bad.status)
    assert b"\r\nconnection: close\r\n" in answer
    assert door.next() == []
    assert door.eof() == []


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.rule)
def test_the_verdict_does_not_depend_on_how_a_bad_request_is_cut(bad: Bad) -> None:
    data = bad.data[:50_000]
    assert play(bytewise(data)) == play([data])


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.rule)
def test_a_bad_request_behind_a_good_one_is_refused_in_its_turn(bad: Bad) -> None:
    door = connection()
    assert failures(door.receive(request() + bad.data)) == []
    assert door.respond(200, (), b"") == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    assert [event.status for event in failures(door.next())] == [bad.status]


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.rule)
def test_h11_refuses_the_same_or_is_milder_where_the_table_says_so(bad: Bad) -> None:
    assert h11_refuses(bad.data) is not bad.h11_takes


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.rule)
def test_texts_of_refusals_are_ours(bad: Bad) -> None:
    (failed,) = failures(connection().receive(bad.data))
    assert failed.text.isprintable()
    assert len(failed.text) < 80
