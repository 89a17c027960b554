from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.heads import Headers
from penstock.protocols.http1 import Http1Data, Http1Head, LineCache
from penstock.protocols.http1.head import UNREAD
from tests.protocols.http1.driving import (
    bytewise,
    chunked,
    connection,
    failures,
    play,
    request,
    told,
)

JSON = ((b"content-type", b"application/json"),)
CHUNKS = b"3;a=b\r\nabc\r\n0002\r\nde\r\n0\r\nX: y\r\nContent-Length: 9\r\n\r\n"


one_request = st.sampled_from(
    [
        request(),
        b"\r\n" + request(),
        request(b"abc"),
        request(b"abc", b"X: " + b"a" * 3000),
        chunked(CHUNKS),
        chunked(b"0\r\n\r\n"),
        request(b"ab", b"Expect: 100-continue"),
        request(b"", b"Connection: close"),
        request(b"", b"Connection: keep-alive", line=b"GET http://y/ HTTP/1.0"),
        request(line=b"HEAD / HTTP/1.1"),
    ]
)


def test_a_request_and_its_body_are_told() -> None:
    door = connection()
    (head, data) = door.receive(request(b"abc", b"X-Y:  z \t", line=b"PUT /a/b?c=d HTTP/1.1"))
    assert isinstance(head, Http1Head)
    assert isinstance(data, Http1Data)
    assert (head.head.method, head.head.path, head.head.query) == ("PUT", b"/a/b", b"c=d")
    assert head.head.headers == ((b"host", b"x"), (b"x-y", b"z"), (b"content-length", b"3"))
    assert (head.head.authority, head.head.version, head.head.content_length) == (b"x", "1.1", 3)
    assert (head.ended, data.data, data.ended) == (False, b"abc", True)
    assert door.keep_alive


def test_short_lines_are_remembered_and_their_number_is_bounded() -> None:
    cache = LineCache()
    one, two = (connection(cache).receive(request(b"", b"X: 1"))[0].head for _ in range(2))
    assert one.headers[1] is two.headers[1]
    for n in range(3 * LineCache.MOST):
        connection(cache).receive(request(b"", b"X: %d" % n, line=b"GET /%d HTTP/1.1" % n))
        assert len(cache.fields) <= LineCache.MOST
        assert len(cache.requests) <= LineCache.MOST
    before = len(cache.fields)
    connection(cache).receive(request(b"", b"X: " + b"a" * LineCache.LONGEST))
    assert len(cache.fields) == before


def test_lines_that_differ_each_time_are_not_remembered_and_push_nothing_out() -> None:
    cache = LineCache()
    kept = connection(cache).receive(request(b"", b"X: 1"))[0].head.headers[1]
    for n in range(3 * LineCache.MOST):
        (event,) = connection(cache).receive(request(b"", b"X: 1", b"Trace-Id: \t%d " % n))
        assert event.head.headers[1] is kept
        assert event.head.fields[b"trace-id"] == b"%d" % n
    assert len(cache.fields) < 2 * LineCache.LINES


@pytest.mark.parametrize(
    "line",
    [b"X", b"X:", b"X: a\rb", b"X: a\nb", b"X: a\0", b"X: a\x7f", b"X : a", b"X:a:b", b"x: a"],
)
def test_a_line_whose_name_is_remembered_is_judged_as_any_other(line: bytes) -> None:
    cache = LineCache()
    for n in range(LineCache.LINES):
        connection(cache).receive(request(b"", b"X: %d" % n))
    assert cache.varying == {b"X": b"x"}
    fresh, known = (connection(each).receive(request(b"", line)) for each in (LineCache(), cache))
    assert repr(fresh) == repr(known)
    assert [getattr(e, "head", UNREAD).headers for e in fresh] == [
        getattr(e, "head", UNREAD).headers for e in known
    ]


def test_letters_beyond_ascii_are_allowed_in_values() -> None:
    (event,) = connection().receive(request(b"", "X-Name:  Zoë ".encode()))
    assert event.head.fields[b"x-name"] == "Zoë".encode()


def test_a_whole_request_takes_the_short_way() -> None:
    door = connection()
    first, second = request(b"abc"), request(b"abcd", line=b"POST /a/ HTTP/1.1")
    odd_ones = (first[:-1], first + b"x", first[:-4], b"\r\n" + first, b"\0", b"")
    for odd in (*odd_ones, first[1:] + b"x", b"x" * len(first), b"\r\n\r\n"):
        assert door.whole(odd) is None
        assert door.idle
    for each in (first, first, second, first, request()):
        assert door.whole(each) == each.partition(b"\r\n\r\n")[2]
        assert each.startswith(door.head.raw)
        assert door.body_ended
        assert door.whole(each) is None  # it has not been answered
        answer = door.conclude(200, JSON, b"{}")
        assert answer is not None
        assert answer.endswith(b"\r\ncontent-length: 2\r\n\r\n{}")
        assert door.idle


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([200, 204, 304, 404, 503]),
    st.sampled_from([(), JSON, (*JSON, (b"connection", b"close"))]),
    st.binary(max_size=3),
    st.data(),
)
def test_the_short_answer_is_the_long_one(
    status: int, headers: Headers, body: bytes, data: st.DataObject
) -> None:
    first, *others = data.draw(st.lists(one_request, min_size=1, max_size=3), label="requests")
    stream = b"".join([first, *others])
    cut = data.draw(st.just(len(first)) | st.integers(0, len(stream)), label="cut")
    ends = data.draw(st.booleans(), label="ends")
    short, long = connection(), connection()
    for door in (short, long):
        door.receive(stream[:cut])
        if ends:
            door.eof()
    answer = short.conclude(status, headers, body) if short.body_ended else None
    if answer is not None:
        assert answer == long.respond(status, headers, body)
        assert long.next() == []
    for door in (short, long):
        assert (door.idle, door.keep_alive) == (long.idle, long.keep_alive)
        assert door.wants_data == long.wants_data
    assert told(short.receive(stream[cut:])) == told(long.receive(stream[cut:]))


@pytest.mark.parametrize(("status", "name"), [(100, b"x"), (200, b"x y")])
def test_what_cannot_be_sent_is_refused_by_the_short_way_and_leaves_the_request_open(
    status: int, name: bytes
) -> None:
    door = connection()
    door.receive(request())
    with pytest.raises(ValueError, match=r"cannot be sent|is not the status"):
        door.conclude(status, ((name, b""),), b"")
    assert door.conclude(500, (), b"") is not None


def test_so_many_chunks_are_taken_by_one_call() -> None:
    door = connection(at_once=10)
    body = bytes(range(25))
    coded = b"".join(b"1\r\n%c\r\n" % octet for octet in body)
    said = told(door.receive(chunked(coded)))
    assert said[1:] == [("data", body[:10], False)]
    assert door.unread
    assert not door.wants_data
    assert told(door.receive(b"0\r\n\r\n")) == [("data", body[10:20], False)]
    assert door.eof() == []
    assert told(door.go_on()) == [("data", body[20:], True)]
    assert not door.unread
    assert door.go_on() == []
    door.respond(200, (), b"")
    assert door.next() == []
    assert not door.keep_alive


@pytest.mark.parametrize("chunk", [b"1\r\na\r\n", b"1;x\r\na\r\n", b"1\r\na\r\n2\r\nbc\r\n"])
def test_the_cost_of_small_chunks_is_linear(chunk: bytes) -> None:
    def seconds(count: int) -> float:
        data = chunked(chunk * count)
        best = 1e9
        for _ in range(3):
            door = connection(at_once=50)
            begin = time.thread_time()
            door.receive(data)
            while door.unread:
                door.go_on()
            best = min(best, time.thread_time() - begin)
        return best

    assert seconds(24_000) < 8 * 4 * seconds(3_000)


def test_the_cost_of_pipelined_requests_is_linear() -> None:
    def seconds(count: int) -> float:
        data = request() * count
        best = 1e9
        for _ in range(3):
            door = connection()
            begin = time.thread_time()
            events = door.receive(data)
            while events:
                events = door.next()
            best = min(best, time.thread_time() - begin)
        return best

    assert seconds(32_000) < 16 * 3 * seconds(2_000)


@pytest.mark.parametrize("coded", [chunked(CHUNKS), request(b"abcde")])
def test_a_body_is_the_same_however_it_is_framed_or_cut(coded: bytes) -> None:
    for pieces in ([coded], bytewise(coded)):
        said, keep_alive = play(pieces)
        assert said[1:] == [("data", b"abcde", True)]
        assert keep_alive


def test_a_large_body_is_passed_on_as_it_comes() -> None:
    door = connection()
    door.receive(request(b"", b"Content-Length: 300000"))
    piece = bytes(100_000)
    (event,) = door.receive(piece)
    assert isinstance(event, Http1Data)
    assert event.data is piece
    assert told(door.receive(piece)) == [("data", piece, False)]
    assert told(door.receive(piece)) == [("data", piece, True)]


def test_fields_in_trailers_frame_nothing() -> None:
    trailers = b"0\r\nContent-Length: 5\r\nTransfer-Encoding: gzip\r\nHost: y\r\n\r\n"
    said, keep_alive = play([chunked(trailers) + request()])
    assert [word[0] for word in said] == ["head", "data", "head"]
    assert keep_alive


def test_pipelined_requests_wait_for_their_turn() -> None:
    door = connection()
    three = b"".join(request(b"ab", line=b"POST /%d HTTP/1.1" % n) for n in range(3))
    seen = told(door.receive(three))
    for _ in range(3):
        assert door.receive(b"") == []
        door.respond(200, (), b"")
        seen += told(door.next())
    assert [word[2] for word in seen if word[0] == "head"] == [b"/0", b"/1", b"/2"]
    assert door.idle


def test_reading_stops_while_enough_waits() -> None:
    door = connection(max_kept_bytes=90)
    door.receive(request())
    assert door.wants_data
    door.receive(request() * 3)
    assert not door.wants_data
    for _ in range(3):
        door.respond(200, (), b"")
        door.next()
    assert door.wants_data
    door.respond(200, (), b"")
    assert door.next() == []
    assert door.idle


@pytest.mark.parametrize(
    ("line", "fields", "stays"),
    [
        (b"GET / HTTP/1.1", (), True),
        (b"GET / HTTP/1.1", (b"Connection: close",), False),
        (b"GET / HTTP/1.1", (b"Connection: x, CLOSE",), False),
        (b"GET / HTTP/1.1", (b"Connection: x", b"Connection: close"), False),
        (b"GET / HTTP/1.1", (b"Connection: keep-alive, close",), False),
        (b"GET / HTTP/1.1", (b"Connection: upgrade", b"Upgrade: h2c"), True),
        (b"GET / HTTP/1.0", (), False),
        (b"GET / HTTP/1.0", (b"Connection: Keep-Alive",), True),
        (b"GET / HTTP/1.0", (b"Connection: keep-alive, close",), False),
    ],
)
def test_the_connection_stays_as_version_and_field_say(
    line: bytes, fields: tuple[bytes, ...], stays: bool
) -> None:
    door = connection()
    door.receive(request(b"", *fields, line=line) + request(line=b"GET /next HTTP/1.1"))
    answer = door.respond(200, (), b"")
    assert door.keep_alive is stays
    assert (b"connection: close" in answer) is not stays
    assert (b"connection: keep-alive" in answer) is (stays and b"1.0" in line)
    assert bool(door.next()) is stays
    assert door.idle is False


def test_an_answer_may_end_the_connection() -> None:
    for headers, close in (((), True), (((b"connection", b"close"),), False)):
        door = connection()
        door.receive(request() * 2)
        answer = door.respond(200, headers, b"", close=close)
        assert answer.count(b"connection: close\r\n") == 1
        assert door.next() == []
        assert door.receive(request()) == []


def test_an_answer_to_head_has_the_length_but_no_body() -> None:
    door = connection()
    door.receive(request(line=b"HEAD / HTTP/1.1"))
    expected = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n"
    assert door.respond(200, JSON, b"abc") == expected


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_has_no_length_either(status: int) -> None:
    door = connection()
    door.receive(request())
    answer = door.respond(status, (), b"abc")
    assert answer.endswith(b"\r\n\r\n")
    assert b"content-length" not in answer


def test_an_answer_in_pieces_is_chunked() -> None:
    door = connection()
    door.receive(request())
    answer = door.start(200, JSON) + door.chunk(b"x" * 16) + door.chunk(b"")
    answer += door.finish(((b"x", b"y"),))
    assert answer == (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        b"10\r\nxxxxxxxxxxxxxxxx\r\n0\r\nx: y\r\n\r\n"
    )
    assert door.keep_alive


def test_an_answer_in_pieces_ends_with_the_connection_in_1_0() -> None:
    door = connection()
    door.receive(request(b"", b"Connection: keep-alive", line=b"GET / HTTP/1.0"))
    answer = door.start(200, ()) + door.chunk(b"abc") + door.finish()
    assert answer == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nabc"
    assert not door.keep_alive


def test_an_answer_in_pieces_to_head_is_its_head() -> None:
    door = connection()
    door.receive(request(line=b"HEAD / HTTP/1.1"))
    assert door.start(200, ()).endswith(b"\r\n\r\n")
    assert door.chunk(b"abc") + door.finish() == b""


@pytest.mark.parametrize(
    "headers", [((b"x", b"a\r\nb: c"),), ((b"x y", b"a"),), ((b"x", b"\0"),), ((b"", b"a"),)]
)
def test_an_answer_cannot_be_split_by_a_header(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    door = connection()
    door.receive(request())
    with pytest.raises(ValueError, match="cannot be sent"):
        door.respond(200, headers, b"")


def test_an_application_cannot_frame_its_answer_itself() -> None:
    door = connection()
    door.receive(request())
    answer = door.respond(
        200, ((b"content-length", b"7"), (b"transfer-encoding", b"chunked")), b"abc"
    )
    assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"


def test_a_client_that_waits_is_told_to_proceed_once() -> None:
    door = connection()
    asking = request(b"", b"Content-Length: 3", b"Expect: 100-Continue")
    door.receive(asking)
    assert door.proceed() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert door.proceed() == b""
    assert told(door.receive(b"abc")) == [("data", b"abc", True)]
    door.respond(200, (), b"")
    assert door.keep_alive


@pytest.mark.parametrize(
    "data",
    [
        request(b"abc", b"Expect: 100-continue"),
        request(b"", b"Content-Length: 3", b"Expect: 100-continue") + b"a",
        request(b"", b"Content-Length: 3", b"Expect: miracle"),
        request(b"", b"Expect: 100-continue"),
        request(b"", b"Content-Length: 3", b"Expect: 100-continue", line=b"POST / HTTP/1.0"),
    ],
)
def test_nobody_is_told_to_proceed_who_does_not_wait(data: bytes) -> None:
    door = connection()
    door.receive(data)
    assert door.proceed() == b""


def test_a_final_answer_to_a_client_that_waits_ends_the_connection() -> None:
    door = connection()
    door.receive(request(b"", b"Content-Length: 3", b"Expect: 100-continue"))
    assert b"connection: close" in door.respond(413, (), b"")
    assert door.proceed() == b""
    assert door.next() == []
    assert door.receive(request()) == []


@pytest.mark.parametrize("rest", [b"3\r\nabc\r\n0\r\n\r\n", b"5\r\nab"])
def test_the_rest_of_a_body_is_dropped_when_the_answer_is_out(rest: bytes) -> None:
    door = connection()
    door.receive(chunked(b"2\r\nab\r\n"))
    door.respond(200, (), b"")
    assert door.next() == []
    assert door.keep_alive
    events = door.receive(rest + (b"" if rest.endswith(b"ab") else request()))
    assert [type(event) for event in events] == ([] if rest.endswith(b"ab") else [Http1Head])


def test_a_fault_in_a_body_that_is_answered_already_is_not_answered_again() -> None:
    door = connection()
    door.receive(chunked(b"2\r\nab\r\n"))
    door.respond(200, (), b"")
    door.next()
    (failed,) = failures(door.receive(b"zz\r\n"))
    assert failed.answered
    assert not door.keep_alive


@pytest.mark.parametrize(
    "data", [b"P", b"\r", request()[:-1], request(b"abc")[:-1], chunked(CHUNKS)[:-1]]
)
def test_a_request_that_is_cut_short_fails(data: bytes) -> None:
    said, keep_alive = play([data], ends=True)
    assert said[-1] == ("failed", 400, "the request is cut short", False)
    assert not keep_alive


def test_what_was_complete_before_the_client_ended_is_answered() -> None:
    door = connection()
    door.receive(request() * 2)
    assert door.eof() == []
    assert b"close" not in door.respond(200, (), b"")
    assert len(door.next()) == 1
    door.respond(200, (), b"")
    assert door.next() == []
    assert not door.keep_alive


@pytest.mark.parametrize("data", [b"", b"\r\n", request()])
def test_a_client_that_ends_between_requests_ends_the_connection(data: bytes) -> None:
    door = connection()
    door.receive(data)
    assert door.eof() == []
    assert not door.keep_alive


@pytest.mark.parametrize(
    ("line", "path", "query", "authority"),
    [
        (b"GET http://y/a?b HTTP/1.1", b"/a", b"b", b"y"),
        (b"GET HTTPS://y:80 HTTP/1.1", b"/", b"", b"y:80"),
        (b"GET http://y?b HTTP/1.1", b"/", b"b", b"y"),
        (b"OPTIONS http://y HTTP/1.1", b"*", b"", b"y"),
        (b"OPTIONS * HTTP/1.1", b"*", b"", b"x"),
        (b"GET //y/a HTTP/1.1", b"//y/a", b"", b"x"),
    ],
)
def test_targets_are_told_in_origin_form(
    line: bytes, path: bytes, query: bytes, authority: bytes
) -> None:
    (event,) = connection().receive(request(line=line))
    assert isinstance(event, Http1Head)
    head = event.head
    assert (head.path, head.query, head.authority) == (path, query, authority)


@pytest.mark.parametrize("host", [b"x", b"X.Y:80", b"[::1]:80", b"127.0.0.1", b"a_b", b"x:"])
def test_valid_hosts_are_taken(host: bytes) -> None:
    (event,) = connection().receive(request(host=b"Host:" + host))
    assert isinstance(event, Http1Head)
    assert event.head.authority == host


def test_http_1_0_needs_no_host() -> None:
    (event,) = connection().receive(request(line=b"GET / HTTP/1.0", host=b""))
    assert isinstance(event, Http1Head)
    assert (event.head.authority, event.head.version) == (b"", "1.0")


def test_what_just_fits_the_limits_is_taken() -> None:
    line = b"GET /" + b"a" * 8178 + b" HTTP/1.1"
    fields = [b"X-%02d: a" % n for n in range(98)] + [b"Y: " + b"a" * 8189]
    chunks = b"2;" + b"a" * 255 + b"\r\nab\r\n" + b"1\r\n \r\n" * 65_535 + b"0\r\n"
    trailers = b"X: %b\r\n" % (b"a" * 8185) + b"\r\n"
    assert len(trailers) == 8192
    for data in (request(b"", *fields, line=line), chunked(chunks + trailers)):
        said, keep_alive = play([data])
        assert said[-1][-1] is True
        assert keep_alive


@settings(deadline=None, max_examples=300)
@given(st.lists(one_request, min_size=1, max_size=4), st.data())
def test_events_do_not_depend_on_how_the_bytes_are_cut(
    requests: list[bytes], data: st.DataObject
) -> None:
    stream = bytearray(b"".join(requests))
    for _ in range(data.draw(st.integers(0, 2), label="spoiled bytes")):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream[at : at + 1] = data.draw(st.sampled_from([b"", b"\r", b"\n", b" ", b"\0", b"9"]))
        if not stream:
            return
    raw = bytes(stream)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=8), label="cuts"))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    whole = play([raw], ends=True)
    assert play(pieces, ends=True) == whole
    assert play(bytewise(raw), ends=True) == whole
    for lazily in (False, True):
        assert play([raw], ends=True, at_once=1, lazily=lazily) == whole
        assert play(pieces, ends=True, at_once=1, lazily=lazily) == whole
    memo = LineCache()
    for _ in range(2):
        assert play(pieces, ends=True, memo=memo, shortly=True) == whole
        assert play(requests, shortly=True, memo=memo) == play([b"".join(requests)])


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_make_it_raise(data: bytes, behind_a_head: bool) -> None:
    raw = (chunked(b"") if behind_a_head else b"") + data
    assert play(bytewise(raw), ends=True) == play([raw], ends=True)


def test_the_cost_of_a_head_in_single_bytes_is_linear() -> None:
    def seconds(count: int) -> float:
        pieces = bytewise(request(b"", *[b"X: " + b"a" * 995] * count))
        best = 1e9
        for _ in range(3):
            door = connection(max_header_bytes=1 << 20)
            begin = time.thread_time()
            for piece in pieces:
                door.receive(piece)
            best = min(best, time.thread_time() - begin)
        return best

    assert seconds(80) < 8 * 4 * seconds(10)


def test_a_head_that_never_ends_is_not_kept() -> None:
    door = connection()
    for _ in range(1000):
        door.receive(b"GET / HTTP/1.1\r\n" if door.idle else b"X: a\r\n" * 3)
    assert not door.keep_alive
    assert len(door._buffer) == door._at
