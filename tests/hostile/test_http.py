"""Bad HTTP over real sockets gets the documented answer, and the next request a good one."""

from __future__ import annotations

import time
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

from tests.hostile.bad_http import GOOD, MOST_BYTES, Case, cases, chunked
from tests.hostile.holding import held
from tests.kit.http1 import Connection, Reply, ask, check_good, connected, pairs, request

pytestmark = pytest.mark.real

CASES = cases()
PLAIN = (404, 405)  # as the original's gateway answers them


def check_form(reply: Reply) -> None:
    """An error is JSON in the gateway's form, and says nothing about us."""
    if reply.status == 200:
        return
    if reply.status in PLAIN:
        assert reply.header("content-type") == "text/plain; charset=utf-8"
        return
    assert reply.header("content-type") == "application/json"
    document = reply.json()
    assert list(document) == ["error", "code", "message", "details"]
    assert document["error"] == document["message"] != ""
    assert isinstance(document["code"], int)
    assert document["code"] != 0
    assert document["details"] == []
    text = document["error"]
    assert len(text) < 200
    assert not any(mark in text for mark in ("<class", "Traceback", "0x", "penstock", "uvicorn"))


def check_ends(connection: Connection, reply: Reply) -> None:
    assert reply.header("connection") == "close"
    assert connection.is_closed()


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({case.rule for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_bad_request_gets_its_answer(case: Case, http_port: int) -> None:
    with connected(http_port) as connection:
        connection.send_until_refused(case.data, 1)
        reply = connection.reply()
        assert reply.status in case.status
        check_form(reply)
        if case.stays:
            assert reply.header("connection") is None
            connection.send(request(pairs(x="still here")))
            assert connection.reply().json()["value"] == ["still here"]
        else:
            check_ends(connection, reply)
    check_good(http_port)


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.stays], ids=lambda case: case.rule
)
def test_nothing_behind_a_request_that_closed_is_read(case: Case, http_port: int) -> None:
    with connected(http_port) as connection:
        connection.send_until_refused(case.data + request(pairs(x="smuggled")), 1)
        reply = connection.reply()
        assert b"smuggled" not in reply.body
        check_ends(connection, reply)


def test_requests_sent_byte_by_byte_are_answered(http_port: int) -> None:
    with connected(http_port) as connection:
        data = request(GOOD)
        connection.send(*(data[n : n + 1] for n in range(len(data))))
        assert connection.reply().status == 200


def test_a_known_path_with_another_verb_names_the_right_one(http_port: int) -> None:
    assert ask(http_port, b"", method=b"GET").header("allow") == "POST"
    assert ask(http_port, b"", target=b"/readyz").header("allow") == "GET, HEAD"


def test_a_percent_escape_is_decoded_once(http_port: int) -> None:
    assert ask(http_port, GOOD, target=b"/%75ci/%252e%252e").status == 200


@pytest.mark.parametrize(
    "target", [b"http://x/uci/prediction", b"/uci/prediction?a=1&key=2", b"/uci/prediction?"]
)
def test_other_legal_targets_are_understood(target: bytes, http_port: int) -> None:
    assert ask(http_port, GOOD, target=target).json()["value"] == ["1"]


def test_blanks_around_values_are_no_part_of_them(http_port: int) -> None:
    length = b"Content-Length: \t %d \t" % len(GOOD)
    reply = ask(http_port, GOOD, length, b"Grpc-Timeout: 9S ", host=b"Host:  x ", length=False)
    assert reply.json()["value"] == ["1"]


@pytest.mark.parametrize("content_type", [b"text/html", b"image/png; charset=utf-16", b""])
def test_the_content_type_is_ignored(content_type: bytes, http_port: int) -> None:
    reply = ask(http_port, GOOD, b"Content-Type: " + content_type)
    assert reply.json()["value"] == ["1"]
    assert reply.header("content-type") == "application/json"


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
def test_an_upgrade_is_ignored_with_a_body_and_without(upgrade: bytes, http_port: int) -> None:
    ask_for_it = (b"Connection: Upgrade", b"Upgrade: " + upgrade)
    with connected(http_port) as connection:
        for n in range(3):
            connection.send(request(pairs(x=str(n)), *ask_for_it))
            assert connection.reply().json()["value"] == [str(n)]
        connection.send(request(b"", *ask_for_it, method=b"GET", target=b"/livez", length=False))
        assert connection.reply().status == 200
        connection.send(request(chunk_of(GOOD), b"Transfer-Encoding: chunked", length=False))
        assert connection.reply().json()["value"] == ["1"]


def chunk_of(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def test_fields_of_framing_in_trailers_are_ignored(http_port: int) -> None:
    trailers = b"Host: y\r\nContent-Encoding: gzip\r\nGrpc-Timeout: soon\r\n"
    body = b"%x;ext=1\r\n%s\r\n0\r\n%s\r\n" % (len(GOOD), GOOD, trailers)
    with connected(http_port) as connection:
        connection.send(chunked(body) + request(pairs(x="next")))
        assert connection.reply().json()["value"] == ["1"]
        assert connection.reply().json()["value"] == ["next"]


@pytest.mark.parametrize(
    "piece",
    [b"X: " + b"y" * 1000 + b"\r\n", b"y" * 1000],
    ids=["trailers", "one trailer's name"],
)
def test_trailers_over_8_kib_are_refused(piece: bytes, http_port: int) -> None:
    with connected(http_port) as connection:
        connection.send(chunked(b""), b"2\r\n{}\r\n0\r\n")
        connection.send_until_refused(piece, 2000)
        reply = connection.reply()
        assert reply.status == 400
        check_ends(connection, reply)


def test_a_chunk_extension_without_end_is_refused(http_port: int) -> None:
    with connected(http_port) as connection:
        connection.send(chunked(b""), b"2;a=")
        connection.send_until_refused(b"b" * 10_000, 1000)
        reply = connection.reply()
        assert reply.status == 400
        check_ends(connection, reply)


@pytest.mark.parametrize(
    ("start", "piece", "status"),
    [
        (b"POST /uci/", b"a" * 4000, 414),
        (b"POST /uci/prediction HTTP/1.1\r\n", b"X: " + b"a" * 4000 + b"\r\n", 431),
        (b"POST /uci/prediction HTTP/1.1\r\nX: ", b"a" * 4000, 431),
    ],
    ids=["target", "fields", "one field"],
)
def test_a_head_without_end_is_refused(
    start: bytes, piece: bytes, status: int, http_port: int
) -> None:
    with connected(http_port) as connection:
        connection.send(start)
        connection.send_until_refused(piece, 1000)
        reply = connection.reply()
        # A field whose name or value has not ended yet cannot be told from a long target.
        assert reply.status in {status, 414}
        check_ends(connection, reply)


def test_a_body_is_asked_for_only_when_it_will_be_read(http_port: int) -> None:
    with connected(http_port) as connection:
        head = request(b"", b"Expect: 100-continue", b"Content-Length: 2", length=False)
        connection.send(head)
        assert connection.reply().status == 100
        connection.send(b"{}")
        assert connection.reply().status == 200


@pytest.mark.parametrize(
    ("target", "status"), [("/uci/prediction", 413), ("/nowhere", 404)], ids=["413", "404"]
)
def test_a_client_that_sends_before_it_reads_gets_the_answer_and_no_broken_pipe(
    target: str, status: int, http_port: int
) -> None:
    for _ in range(3):
        client = HTTPConnection("127.0.0.1", http_port, timeout=5)
        client.request("POST", target, body=bytes(20 * MOST_BYTES))
        reply = client.getresponse()
        assert reply.status == status
        assert reply.getheader("connection") == "close"
        client.close()


def test_pipelined_requests_are_answered_in_order(http_port: int) -> None:
    with connected(http_port, patience=20) as connection:
        many = b"".join(request(pairs(x=str(n))) for n in range(1000))
        sender = Thread(target=connection.send, args=(many,))
        sender.start()
        answers = [connection.reply().json()["value"] for _ in range(1000)]
        sender.join()
    assert answers == [[str(n)] for n in range(1000)]


def test_pipelined_upgrades_are_ignored(http_port: int) -> None:
    fields = (b"Connection: Upgrade", b"Upgrade: h2c")
    with connected(http_port) as connection:
        connection.send(b"".join(request(pairs(x=str(n)), *fields) for n in range(500)))
        assert [connection.reply().json()["value"] for _ in range(500)] == [
            [str(n)] for n in range(500)
        ]


@pytest.mark.parametrize(
    "bad",
    [b"\0\1\2\r\n\r\n", chunked(b"zz"), b"POST / HTTP/1.1\r\nHost : x\r\n\r\n"],
    ids=["garbage", "a bad chunk", "a bad field"],
)
def test_a_refusal_never_takes_the_place_of_an_earlier_answer(bad: bytes, http_port: int) -> None:
    with connected(http_port) as connection:
        connection.send(request(pairs(x="1")) + request(pairs(x="2")) + bad)
        assert connection.reply().json()["value"] == ["1"]
        second = connection.reply()
        assert second.json()["value"] == ["2"]
        if second.header("connection") != "close":
            assert connection.reply().status == 400
        assert connection.is_closed()
    check_good(http_port)


def test_a_head_without_end_behind_a_running_request_is_bounded(http_port: int, pipe: Path) -> None:
    with connected(http_port) as connection:
        connection.send(request(pairs(x="1", do="hold")), b"GET /livez HTTP/1.1\r\n")
        with held(pipe):
            connection.send_until_refused(b"X: " + b"y" * 1000 + b"\r\n", 1000)
        reply = connection.reply()
        assert reply.json()["value"] == ["1"]
        if reply.header("connection") != "close":
            reply = connection.reply()
            assert reply.status == 431
        check_ends(connection, reply)


def test_silence_is_ended(http_port: int) -> None:
    with connected(http_port) as connection:
        assert connection.is_closed()


@pytest.mark.parametrize(
    "start",
    [b"P", b"POST /uci/prediction HTTP/1.1\r\nHost: x\r\n", request(GOOD)[:-1]],
    ids=["line", "fields", "body"],
)
def test_a_request_that_stops_half_way_is_ended(start: bytes, http_port: int) -> None:
    with connected(http_port) as connection:
        connection.send(start)
        reply = connection.reply()
        assert reply.status == 408
        check_form(reply)
        check_ends(connection, reply)


def test_a_head_that_trickles_is_ended(http_port: int) -> None:
    with connected(http_port) as connection:
        connection.send(b"POST /uci/prediction HTTP/1.1\r\n")
        began = time.monotonic()
        while time.monotonic() - began < 3:
            connection.send_until_refused(b"X: y\r\n", 1)
            time.sleep(0.02)  # the pace of the trickle, not a wait
        assert connection.reply().status == 408


def test_line_ends_alone_do_not_keep_a_connection(http_port: int) -> None:
    with connected(http_port) as connection:
        connection.send(request(GOOD))
        connection.reply()
        began = time.monotonic()
        ended = False
        while not ended and time.monotonic() - began < 4:
            try:
                connection.send(b"\r\n")
            except OSError:
                ended = True
            time.sleep(0.02)  # the pace of the trickle, not a wait
        assert ended


def test_an_idle_connection_is_closed(http_port: int) -> None:
    with connected(http_port) as connection:
        connection.send(request(GOOD))
        assert connection.reply().header("connection") is None
        assert connection.is_closed()


def test_a_client_that_stops_sending_half_way_is_let_go(http_port: int) -> None:
    with connected(http_port) as connection:
        connection.send(request(GOOD)[:-1])
        connection.half_close()
        assert connection.is_closed()
    check_good(http_port)


def test_too_many_connections_get_503_and_the_good_ones_are_left_alone(http_port: int) -> None:
    with connected(http_port) as good:
        good.send(request(GOOD))
        good.reply()
        idle = [Connection(http_port) for _ in range(40)]
        refused = 0
        try:
            for connection in idle[32:]:
                reply = connection.reply()
                assert reply.status == 503
                check_form(reply)
                refused += 1
            good.send(request(GOOD))
            assert good.reply().status == 200
        finally:
            for connection in idle:
                connection.socket.close()
        assert refused == 8
    check_good(http_port)
