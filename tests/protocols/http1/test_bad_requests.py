"""Every bad request is refused with its status, split at any offsets. h11 is compared."""

from __future__ import annotations

import h11
import pytest

from tests.protocols.http1.bad_requests import BAD_REQUESTS, Bad
from tests.protocols.http1.driving import connection, failures, play, request, single_bytes

SMUGGLED = request(line=b"GET /smuggled HTTP/1.1")


def h11_refuses(data: bytes) -> bool:
    """Whether h11's server has an error before the request is complete."""
    peer = h11.Connection(h11.SERVER, max_incomplete_event_size=24 << 10)
    peer.receive_data(data)
    try:
        while (event := peer.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.EndOfMessage):
                return False
    except h11.RemoteProtocolError:
        return True
    return False


def test_all_rules_have_different_names() -> None:
    assert len({bad.rule for bad in BAD_REQUESTS}) == len(BAD_REQUESTS)


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.rule)
def test_a_bad_request_is_refused_and_nothing_after_it_is_read(bad: Bad) -> None:
    server = connection()
    events = server.receive(bad.data + SMUGGLED)
    (failed,) = failures(events)
    assert events[-1] is failed
    assert (failed.status, failed.answered) == (bad.status, False)
    assert not server.keep_alive
    assert server.receive(SMUGGLED) == []
    answer = server.respond(failed.status, (), b"no")
    assert answer.startswith(b"HTTP/1.1 %d " % bad.status)
    assert b"\r\nconnection: close\r\n" in answer
    assert server.next() == []
    assert server.eof() == []


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.rule)
def test_a_bad_request_split_into_bytes_is_refused_alike(bad: Bad) -> None:
    data = bad.data[:50_000]
    assert play(single_bytes(data)) == play([data])


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.rule)
def test_a_bad_request_after_a_good_one_is_refused_after_its_answer(bad: Bad) -> None:
    server = connection()
    assert failures(server.receive(request() + bad.data)) == []
    assert server.respond(200, (), b"") == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    assert [event.status for event in failures(server.next())] == [bad.status]


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.rule)
def test_h11_refuses_the_same_requests_except_those_marked(bad: Bad) -> None:
    assert h11_refuses(bad.data) is not bad.h11_accepts


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.rule)
def test_texts_of_refusals_are_short_and_printable(bad: Bad) -> None:
    (failed,) = failures(connection().receive(bad.data))
    assert failed.text.isprintable()
    assert len(failed.text) < 80
