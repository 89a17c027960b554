from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.heads import Headers
from penstock.protocols.http1 import Http1Data, Http1Head, LineCache
from penstock.protocols.http1.head import UNREAD
from tests.protocols.http1.driving import (
    chunked,
    connection,
    described,
    failures,
    play,
    request,
    single_bytes,
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


def test_events_have_the_requests_head_and_body() -> None:
    server = connection()
    (head, data) = server.receive(request(b"abc", b"X-Y:  z \t", line=b"PUT /a/b?c=d HTTP/1.1"))
    assert isinstance(head, Http1Head)
    assert isinstance(data, Http1Data)
    assert (head.head.method, head.head.path, head.head.query) == ("PUT", b"/a/b", b"c=d")
    assert head.head.headers == ((b"host", b"x"), (b"x-y", b"z"), (b"content-length", b"3"))
    assert (head.head.authority, head.head.version, head.head.content_length) == (b"x", "1.1", 3)
    assert (head.ended, data.data, data.ended) == (False, b"abc", True)
    assert server.keep_alive


def test_short_lines_are_cached_in_bounded_number() -> None:
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


def test_lines_that_differ_each_time_are_not_cached_and_evict_nothing() -> None:
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
def test_a_line_with_a_cached_name_is_validated_as_without_cache(line: bytes) -> None:
    cache = LineCache()
    for n in range(LineCache.LINES):
        connection(cache).receive(request(b"", b"X: %d" % n))
    assert cache.varying == {b"X": b"x"}
    without_cache, with_cache = (
        connection(each).receive(request(b"", line)) for each in (LineCache(), cache)
    )
    assert repr(without_cache) == repr(with_cache)
    assert [getattr(e, "head", UNREAD).headers for e in without_cache] == [
        getattr(e, "head", UNREAD).headers for e in with_cache
    ]


def test_non_ascii_letters_are_allowed_in_values() -> None:
    (event,) = connection().receive(request(b"", "X-Name:  Zoë ".encode()))
    assert event.head.fields[b"x-name"] == "Zoë".encode()


def test_a_complete_request_takes_the_fast_path() -> None:
    server = connection()
    first, second = request(b"abc"), request(b"abcd", line=b"POST /a/ HTTP/1.1")
    odd_ones = (first[:-1], first + b"x", first[:-4], b"\r\n" + first, b"\0", b"")
    for odd in (*odd_ones, first[1:] + b"x", b"x" * len(first), b"\r\n\r\n"):
        assert server.whole(odd) is None
        assert server.idle
    for each in (first, first, second, first, request()):
        assert server.whole(each) == each.partition(b"\r\n\r\n")[2]
        assert each.startswith(server.head.raw)
        assert server.body_ended
        assert server.whole(each) is None  # the request has not been answered
        answer = server.conclude(200, JSON, b"{}")
        assert answer is not None
        assert answer.endswith(b"\r\ncontent-length: 2\r\n\r\n{}")
        assert server.idle


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([200, 204, 304, 404, 503]),
    st.sampled_from([(), JSON, (*JSON, (b"connection", b"close"))]),
    st.binary(max_size=3),
    st.data(),
)
def test_the_fast_path_makes_the_same_answer(
    status: int, headers: Headers, body: bytes, data: st.DataObject
) -> None:
    first, *others = data.draw(st.lists(one_request, min_size=1, max_size=3), label="requests")
    stream = b"".join([first, *others])
    cut = data.draw(st.just(len(first)) | st.integers(0, len(stream)), label="cut")
    ends = data.draw(st.booleans(), label="ends")
    fast, slow = connection(), connection()
    for server in (fast, slow):
        server.receive(stream[:cut])
        if ends:
            server.eof()
    answer = fast.conclude(status, headers, body) if fast.body_ended else None
    if answer is not None:
        assert answer == slow.respond(status, headers, body)
        assert slow.next() == []
    for server in (fast, slow):
        assert (server.idle, server.keep_alive) == (slow.idle, slow.keep_alive)
        assert server.wants_data == slow.wants_data
    assert described(fast.receive(stream[cut:])) == described(slow.receive(stream[cut:]))


@pytest.mark.parametrize(("status", "name"), [(100, b"x"), (200, b"x y")])
def test_the_fast_path_refuses_invalid_answers_and_leaves_the_request_open(
    status: int, name: bytes
) -> None:
    server = connection()
    server.receive(request())
    with pytest.raises(ValueError, match=r"cannot be sent|is not the status"):
        server.conclude(status, ((name, b""),), b"")
    assert server.conclude(500, (), b"") is not None


def test_one_call_reads_a_limited_number_of_chunks() -> None:
    server = connection(at_once=10)
    body = bytes(range(25))
    coded = b"".join(b"1\r\n%c\r\n" % octet for octet in body)
    description = described(server.receive(chunked(coded)))
    assert description[1:] == [("data", body[:10], False)]
    assert server.unread
    assert not server.wants_data
    assert described(server.receive(b"0\r\n\r\n")) == [("data", body[10:20], False)]
    assert server.eof() == []
    assert described(server.go_on()) == [("data", body[20:], True)]
    assert not server.unread
    assert server.go_on() == []
    server.respond(200, (), b"")
    assert server.next() == []
    assert not server.keep_alive


@pytest.mark.parametrize("chunk", [b"1\r\na\r\n", b"1;x\r\na\r\n", b"1\r\na\r\n2\r\nbc\r\n"])
def test_the_time_for_small_chunks_is_linear(chunk: bytes) -> None:
    def seconds(count: int) -> float:
        data = chunked(chunk * count)
        best = 1e9
        for _ in range(3):
            server = connection(at_once=50)
            begin = time.thread_time()
            server.receive(data)
            while server.unread:
                server.go_on()
            best = min(best, time.thread_time() - begin)
        return best

    assert seconds(24_000) < 8 * 4 * seconds(3_000)


def test_the_time_for_pipelined_requests_is_linear() -> None:
    def seconds(count: int) -> float:
        data = request() * count
        best = 1e9
        for _ in range(3):
            server = connection()
            begin = time.thread_time()
            events = server.receive(data)
            while events:
                events = server.next()
            best = min(best, time.thread_time() - begin)
        return best

    assert seconds(32_000) < 16 * 3 * seconds(2_000)


@pytest.mark.parametrize("coded", [chunked(CHUNKS), request(b"abcde")])
def test_a_body_is_the_same_with_any_framing_and_split(coded: bytes) -> None:
    for pieces in ([coded], single_bytes(coded)):
        description, keep_alive = play(pieces)
        assert description[1:] == [("data", b"abcde", True)]
        assert keep_alive


def test_a_large_body_is_passed_on_in_the_pieces_received() -> None:
    server = connection()
    server.receive(request(b"", b"Content-Length: 300000"))
    piece = bytes(100_000)
    (event,) = server.receive(piece)
    assert isinstance(event, Http1Data)
    assert event.data is piece
    assert described(server.receive(piece)) == [("data", piece, False)]
    assert described(server.receive(piece)) == [("data", piece, True)]


def test_framing_fields_in_trailers_are_ignored() -> None:
    trailers = b"0\r\nContent-Length: 5\r\nTransfer-Encoding: gzip\r\nHost: y\r\n\r\n"
    description, keep_alive = play([chunked(trailers) + request()])
    assert [word[0] for word in description] == ["head", "data", "head"]
    assert keep_alive


def test_pipelined_requests_are_reported_one_after_the_other() -> None:
    server = connection()
    three = b"".join(request(b"ab", line=b"POST /%d HTTP/1.1" % n) for n in range(3))
    seen = described(server.receive(three))
    for _ in range(3):
        assert server.receive(b"") == []
        server.respond(200, (), b"")
        seen += described(server.next())
    assert [word[2] for word in seen if word[0] == "head"] == [b"/0", b"/1", b"/2"]
    assert server.idle


def test_reading_is_paused_at_max_kept_bytes() -> None:
    server = connection(max_kept_bytes=90)
    server.receive(request())
    assert server.wants_data
    server.receive(request() * 3)
    assert not server.wants_data
    for _ in range(3):
        server.respond(200, (), b"")
        server.next()
    assert server.wants_data
    server.respond(200, (), b"")
    assert server.next() == []
    assert server.idle


@pytest.mark.parametrize(
    ("line", "fields", "keeps_alive"),
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
def test_version_and_connection_field_decide_on_keep_alive(
    line: bytes, fields: tuple[bytes, ...], keeps_alive: bool
) -> None:
    server = connection()
    server.receive(request(b"", *fields, line=line) + request(line=b"GET /next HTTP/1.1"))
    answer = server.respond(200, (), b"")
    assert server.keep_alive is keeps_alive
    assert (b"connection: close" in answer) is not keeps_alive
    assert (b"connection: keep-alive" in answer) is (keeps_alive and b"1.0" in line)
    assert bool(server.next()) is keeps_alive
    assert server.idle is False


def test_an_answer_can_close_the_connection() -> None:
    for headers, close in (((), True), (((b"connection", b"close"),), False)):
        server = connection()
        server.receive(request() * 2)
        answer = server.respond(200, headers, b"", close=close)
        assert answer.count(b"connection: close\r\n") == 1
        assert server.next() == []
        assert server.receive(request()) == []


def test_an_answer_to_head_has_the_length_but_no_body() -> None:
    server = connection()
    server.receive(request(line=b"HEAD / HTTP/1.1"))
    expected = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n"
    assert server.respond(200, JSON, b"abc") == expected


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_with_a_status_without_body_has_no_length(status: int) -> None:
    server = connection()
    server.receive(request())
    answer = server.respond(status, (), b"abc")
    assert answer.endswith(b"\r\n\r\n")
    assert b"content-length" not in answer


def test_a_streamed_answer_is_chunked() -> None:
    server = connection()
    server.receive(request())
    answer = server.start(200, JSON) + server.chunk(b"x" * 16) + server.chunk(b"")
    answer += server.finish(((b"x", b"y"),))
    assert answer == (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        b"10\r\nxxxxxxxxxxxxxxxx\r\n0\r\nx: y\r\n\r\n"
    )
    assert server.keep_alive


def test_a_streamed_answer_in_http_1_0_ends_with_the_connection() -> None:
    server = connection()
    server.receive(request(b"", b"Connection: keep-alive", line=b"GET / HTTP/1.0"))
    answer = server.start(200, ()) + server.chunk(b"abc") + server.finish()
    assert answer == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nabc"
    assert not server.keep_alive


def test_a_streamed_answer_to_head_has_no_body() -> None:
    server = connection()
    server.receive(request(line=b"HEAD / HTTP/1.1"))
    assert server.start(200, ()).endswith(b"\r\n\r\n")
    assert server.chunk(b"abc") + server.finish() == b""


@pytest.mark.parametrize(
    "headers", [((b"x", b"a\r\nb: c"),), ((b"x y", b"a"),), ((b"x", b"\0"),), ((b"", b"a"),)]
)
def test_a_header_with_line_breaks_is_refused(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    server = connection()
    server.receive(request())
    with pytest.raises(ValueError, match="cannot be sent"):
        server.respond(200, headers, b"")


def test_framing_headers_of_an_application_are_replaced() -> None:
    server = connection()
    server.receive(request())
    answer = server.respond(
        200, ((b"content-length", b"7"), (b"transfer-encoding", b"chunked")), b"abc"
    )
    assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"


def test_a_client_that_expects_100_continue_gets_it_once() -> None:
    server = connection()
    waiting_request = request(b"", b"Content-Length: 3", b"Expect: 100-Continue")
    server.receive(waiting_request)
    assert server.proceed() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert server.proceed() == b""
    assert described(server.receive(b"abc")) == [("data", b"abc", True)]
    server.respond(200, (), b"")
    assert server.keep_alive


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
def test_100_continue_is_not_sent_without_need(data: bytes) -> None:
    server = connection()
    server.receive(data)
    assert server.proceed() == b""


def test_a_final_answer_instead_of_100_continue_closes_the_connection() -> None:
    server = connection()
    server.receive(request(b"", b"Content-Length: 3", b"Expect: 100-continue"))
    assert b"connection: close" in server.respond(413, (), b"")
    assert server.proceed() == b""
    assert server.next() == []
    assert server.receive(request()) == []


@pytest.mark.parametrize("rest", [b"3\r\nabc\r\n0\r\n\r\n", b"5\r\nab"])
def test_the_rest_of_a_body_is_discarded_after_the_answer(rest: bytes) -> None:
    server = connection()
    server.receive(chunked(b"2\r\nab\r\n"))
    server.respond(200, (), b"")
    assert server.next() == []
    assert server.keep_alive
    events = server.receive(rest + (b"" if rest.endswith(b"ab") else request()))
    assert [type(event) for event in events] == ([] if rest.endswith(b"ab") else [Http1Head])


def test_an_error_in_the_body_of_an_answered_request_is_not_answered() -> None:
    server = connection()
    server.receive(chunked(b"2\r\nab\r\n"))
    server.respond(200, (), b"")
    server.next()
    (failed,) = failures(server.receive(b"zz\r\n"))
    assert failed.answered
    assert not server.keep_alive


@pytest.mark.parametrize(
    "data", [b"P", b"\r", request()[:-1], request(b"abc")[:-1], chunked(CHUNKS)[:-1]]
)
def test_a_truncated_request_fails(data: bytes) -> None:
    description, keep_alive = play([data], ends=True)
    assert description[-1] == ("failed", 400, "the request is cut short", False)
    assert not keep_alive


def test_complete_requests_are_answered_after_the_clients_end() -> None:
    server = connection()
    server.receive(request() * 2)
    assert server.eof() == []
    assert b"close" not in server.respond(200, (), b"")
    assert len(server.next()) == 1
    server.respond(200, (), b"")
    assert server.next() == []
    assert not server.keep_alive


@pytest.mark.parametrize("data", [b"", b"\r\n", request()])
def test_a_clients_end_between_requests_closes_the_connection(data: bytes) -> None:
    server = connection()
    server.receive(data)
    assert server.eof() == []
    assert not server.keep_alive


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
def test_targets_are_converted_to_origin_form(
    line: bytes, path: bytes, query: bytes, authority: bytes
) -> None:
    (event,) = connection().receive(request(line=line))
    assert isinstance(event, Http1Head)
    head = event.head
    assert (head.path, head.query, head.authority) == (path, query, authority)


@pytest.mark.parametrize("host", [b"x", b"X.Y:80", b"[::1]:80", b"127.0.0.1", b"a_b", b"x:"])
def test_valid_hosts_are_accepted(host: bytes) -> None:
    (event,) = connection().receive(request(host=b"Host:" + host))
    assert isinstance(event, Http1Head)
    assert event.head.authority == host


def test_http_1_0_needs_no_host() -> None:
    (event,) = connection().receive(request(line=b"GET / HTTP/1.0", host=b""))
    assert isinstance(event, Http1Head)
    assert (event.head.authority, event.head.version) == (b"", "1.0")


def test_requests_at_the_limits_are_accepted() -> None:
    line = b"GET /" + b"a" * 8178 + b" HTTP/1.1"
    fields = [b"X-%02d: a" % n for n in range(98)] + [b"Y: " + b"a" * 8189]
    chunks = b"2;" + b"a" * 255 + b"\r\nab\r\n" + b"1\r\n \r\n" * 65_535 + b"0\r\n"
    trailers = b"X: %b\r\n" % (b"a" * 8185) + b"\r\n"
    assert len(trailers) == 8192
    for data in (request(b"", *fields, line=line), chunked(chunks + trailers)):
        description, keep_alive = play([data])
        assert description[-1][-1] is True
        assert keep_alive


@settings(deadline=None, max_examples=300)
@given(st.lists(one_request, min_size=1, max_size=4), st.data())
def test_requests_split_at_any_offsets_give_the_same_events(
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
    assert play(single_bytes(raw), ends=True) == whole
    for deferred in (False, True):
        assert play([raw], ends=True, at_once=1, deferred=deferred) == whole
        assert play(pieces, ends=True, at_once=1, deferred=deferred) == whole
    memo = LineCache()
    for _ in range(2):
        assert play(pieces, ends=True, memo=memo, fast_path=True) == whole
        assert play(requests, fast_path=True, memo=memo) == play([b"".join(requests)])


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_without_an_exception(data: bytes, behind_a_head: bool) -> None:
    raw = (chunked(b"") if behind_a_head else b"") + data
    assert play(single_bytes(raw), ends=True) == play([raw], ends=True)


def test_the_time_for_a_head_in_single_bytes_is_linear() -> None:
    def seconds(count: int) -> float:
        pieces = single_bytes(request(b"", *[b"X: " + b"a" * 995] * count))
        best = 1e9
        for _ in range(3):
            server = connection(max_header_bytes=1 << 20)
            begin = time.thread_time()
            for piece in pieces:
                server.receive(piece)
            best = min(best, time.thread_time() - begin)
        return best

    assert seconds(80) < 8 * 4 * seconds(10)


def test_a_head_without_an_end_is_not_buffered() -> None:
    server = connection()
    for _ in range(1000):
        server.receive(b"GET / HTTP/1.1\r\n" if server.idle else b"X: a\r\n" * 3)
    assert not server.keep_alive
    assert len(server._buffer) == server._at
