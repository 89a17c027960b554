"""baidu_std through a door, over real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from penstock.door.baidu_std import BaiduStdSession
from penstock.protocols.http2 import Http2Limits
from tests.kit.baidu_std import Closed, connected, field, frame, request, request_meta
from tests.kit.http1 import connected as http1
from tests.services.door import QUICK, TIMEOUT, Site

Opened = Callable[..., Site]

EREQUEST, ERPCTIMEDOUT, EINTERNAL, ELOGOFF = 1003, 1008, 2001, 2003
SLOW = {"body_pace": 1 << 20}


def request_to(word: str, payload: bytes = b"", id: int = 1, method: str = "x") -> bytes:
    return request(payload, service=word, method=method, id=id)


def test_messages_are_answered_on_one_connection(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        for id, payload in enumerate((b"one", b"", b"x" * 300_000, b"four"), 2**62):
            for word in ("echo", "later"):
                answer = client.ask(request_to(word, payload, id))
                assert (answer.id, answer.code, answer.payload) == (id, 0, payload)
    assert site.statistics().requests == 8


def test_answers_are_sent_when_ready_in_any_order(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        client.send(
            request_to("hold", id=1),
            request_to("later", b"b", id=2),
            request_to("echo", b"c", id=3),
        )
        assert {client.read().id, client.read().id} == {2, 3}
        site.call(site.echo_app.release_held)
        held = client.read()
        assert (held.id, held.payload) == (1, b"held")


def test_a_message_in_single_bytes_is_answered(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        client.send(*[bytes([octet]) for octet in request_to("echo", b"slowly")])
        assert client.read().payload == b"slowly"
    # After three bytes the protocol is not known yet.
    with http1(site.port) as other:
        other.send(b"PR", b"OPFIND /echo HTTP/1.1\r\nhost: a\r\n\r\n")
        assert other.reply().status == 200


def test_http_and_baidu_std_share_a_port(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client, http1(site.port) as other:
        assert client.ask(request_to("echo", b"a")).payload == b"a"
        other.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nb")
        assert other.reply().body == b"b"


def test_an_error_of_the_application_fails_one_call(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        client.send(request_to("hold", id=1), request_to("raise", method="body", id=2))
        answer = client.read()
        assert (answer.id, answer.code, answer.text) == (2, EINTERNAL, "internal error")
        site.call(site.echo_app.release_held)
        assert client.read().payload == b"held"
    assert site.statistics().errors == 1
    assert site.statistics().error_answers == {"EINTERNAL": 1}


def test_an_http_error_of_an_application_becomes_an_error_code(opened: Opened) -> None:
    site = opened(max_calls=1)
    with connected(site.port) as client:
        client.send(request_to("hold", id=1), request_to("echo", id=2))
        answer = client.read()
        assert (answer.id, answer.code, answer.text) == (2, ELOGOFF, "too many")


def test_a_streamed_answer_is_sent_as_one_message(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        assert len(client.ask(request_to("flood", method="5")).payload) == 5 * 16384
        broken = client.ask(request_to("broken"))
        assert (broken.code, broken.payload) == (EINTERNAL, b"")


# Limits.


def test_reading_is_paused_at_max_streams(opened: Opened) -> None:
    site = opened(http2=Http2Limits(max_streams=3))
    with connected(site.port) as client:
        client.send(b"".join(request_to("hold", id=id) for id in range(10)))
        site.until(lambda seen: seen.calls == 3)
        assert site.budget.used == 7 * len(request_to("hold"))
        client.send(request_to("echo", b"last", id=10))
        assert site.statistics().calls == 3
        seen = set()
        for _ in range(3):
            site.until(lambda seen: seen.calls == 3)
            site.call(site.echo_app.release_held)
            seen |= {client.read().id for _ in range(3)}
        site.until(lambda seen: seen.requests == 11)
        site.call(site.echo_app.release_held)
        seen |= {client.read().id for _ in range(2)}
        assert seen == {*range(11)}
    assert site.budget.used == 0


def test_large_payloads_are_read_with_a_limit_of_one_call(opened: Opened) -> None:
    site = opened(http2=Http2Limits(max_streams=1))
    with connected(site.port) as client:
        client.send(
            request_to("size", bytes(3 << 20), id=1), request_to("size", bytes(3 << 20), id=2)
        )
        assert [client.read().id, client.read().id] == [1, 2]


def test_reading_is_paused_while_a_client_does_not_read(opened: Opened) -> None:
    site = opened()
    with connected(site.port, room=4096) as client:
        client.send(b"".join(request_to("large", method="3000000", id=id) for id in range(4)))
        seen = site.until(lambda seen: seen.unsent > 1 << 20)
        began = seen.requests
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.send(request_to("echo", bytes(60_000)) * 300)
        assert site.statistics().requests == began
        client.socket.settimeout(TIMEOUT)
        assert [len(client.read().payload) for _ in range(4)] == [3_000_000] * 4


def test_many_small_calls_do_not_block_other_connections(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client, connected(site.port) as other:
        client.send(b"".join(request_to("echo", id=id) for id in range(1, 5000)))
        assert other.ask(request_to("echo", b"me")).payload == b"me"
        assert [client.read().id for _ in range(1, 5000)] == [*range(1, 5000)]


def test_a_client_that_does_not_read_its_answer_is_disconnected(opened: Opened) -> None:
    site = opened(write_timeout=QUICK, body_pace=1 << 30)
    with connected(site.port, room=4096) as client:
        client.send(request_to("large", method="9000000"))
        site.until(lambda seen: seen.stalled == 1)
        with pytest.raises(Closed):
            client.read()


# Time.


def test_an_incomplete_header_times_out(opened: Opened) -> None:
    site = opened(header_timeout=QUICK)
    with connected(site.port) as client:
        client.send(b"PRPC\0")
        assert client.ends()
    seen = site.statistics()
    assert (seen.heads_late, seen.malformed) == (1, 0)


def test_open_calls_are_answered_after_an_incomplete_header_times_out(opened: Opened) -> None:
    site = opened(header_timeout=QUICK)
    with connected(site.port) as client:
        client.send(request_to("hold"), b"PRPC")
        site.until(lambda seen: seen.heads_late == 1)
        site.call(site.echo_app.release_held)
        assert client.read().payload == b"held"
        assert client.ends()


def test_an_incomplete_payload_fails_its_call_then_the_connection_is_closed(opened: Opened) -> None:
    site = opened(body_timeout=QUICK, **SLOW)
    with connected(site.port) as client:
        client.send(request_to("hold", id=1), request_to("echo", bytes(100), id=2)[:-50])
        late = client.read()
        assert (late.id, late.code) == (2, ERPCTIMEDOUT)
        site.call(site.echo_app.release_held)
        assert client.read().id == 1
        assert client.ends()
    assert site.statistics().bodies_late == 1


def test_a_payload_after_its_calls_deadline_is_discarded(opened: Opened) -> None:
    site = opened()
    meta = request_meta("own", "x", id=7)
    with connected(site.port) as client:
        site.echo_app.begin = with_short_deadline(site.echo_app.begin)  # type: ignore[method-assign]
        client.send(frame(meta, b"", body=len(meta) + 4), b"ab")
        assert client.read().code == ERPCTIMEDOUT
        client.send(b"cd", request_to("echo", b"next", id=8))
        assert client.read().payload == b"next"


def with_short_deadline(begin: Callable[..., object]) -> Callable[..., object]:
    def begin_with_deadline(exchange: object) -> object:
        exchange.deadline = time.monotonic() + 0.1  # type: ignore[attr-defined]
        return begin(exchange)

    return begin_with_deadline


def test_an_idle_connection_is_closed(opened: Opened) -> None:
    site = opened(http2_idle=QUICK)
    with connected(site.port) as client:
        assert client.ask(request_to("echo", b"a")).payload == b"a"
        client.send(request_to("hold"))
        site.until(lambda seen: seen.calls == 1)
        time.sleep(2 * QUICK)  # longer than the idle timeout
        site.call(site.echo_app.release_held)
        assert client.read().payload == b"held"
        assert client.ends()
    assert site.statistics().idle == 1


# Errors, and the end of connections.


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        frame(b"\xff\xff"),
        frame(b"", body=1 << 20)[:-4] + b"\0\1\0\0",
        frame(field(2, b"")),
        frame(b""),
    ],
    ids=["other", "meta", "long", "answer", "empty"],
)
def test_bytes_that_are_no_request_close_the_connection(opened: Opened, data: bytes) -> None:
    site = opened()
    with connected(site.port) as client:
        assert client.ask(request_to("echo", b"a")).payload == b"a"
        client.send(request_to("hold"), data)
        assert client.ends()
    seen = site.until(lambda seen: seen.open == 0)
    assert (seen.malformed, seen.gone, seen.errors) == (1, 1, 0)
    assert site.echo_app.gone.acquire(timeout=TIMEOUT)


def test_calls_of_a_disconnected_client_are_cancelled(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        client.send(
            request_to("hold", id=1),
            request_to("hold", id=2),
            request_to("echo", bytes(99), id=3)[:-9],
        )
        site.until(lambda seen: seen.calls == 3)
    seen = site.until(lambda seen: seen.open == 0)
    assert (seen.gone, seen.calls) == (3, 0)
    for _ in range(3):
        assert site.echo_app.gone.acquire(timeout=TIMEOUT)


def test_refusing_a_large_message_closes_the_connection_after_open_answers(opened: Opened) -> None:
    site = opened()
    big = request_to("refuse", bytes(2 << 20), id=2, method="")
    with connected(site.port) as client:
        site.echo_app.begin = refusing(site.echo_app.begin)  # type: ignore[method-assign]
        client.send(request_to("hold", id=1), big[: 1 << 10])
        assert (client.read().id, site.statistics().calls) == (2, 1)
        site.call(site.echo_app.release_held)
        assert client.read().id == 1
        assert client.ends()
    with connected(site.port) as client:
        # A smaller message is read to its end.
        assert client.ask(request_to("refuse", bytes(500_000), id=2)).code == EREQUEST
        assert client.ask(request_to("echo", b"on")).payload == b"on"


def refusing(begin: Callable[..., object]) -> Callable[..., object]:
    def refuse(exchange: object) -> object:
        if exchange.head.path.startswith(b"/refuse"):  # type: ignore[attr-defined]
            exchange.reply(400, (), b"no")  # type: ignore[attr-defined]
            return None
        return begin(exchange)

    return refuse


def test_a_draining_door_refuses_calls_and_closes_idle_connections(opened: Opened) -> None:
    site = opened(keep_alive=QUICK)
    with connected(site.port) as idle, connected(site.port) as busy:
        assert idle.ask(request_to("echo", b"a")).payload == b"a"
        busy.send(request_to("hold", id=1))
        site.until(lambda seen: seen.calls == 1)
        site.call(site.door.drain)
        refused_call = busy.ask(request_to("echo", bytes(300_000), id=2))
        assert (refused_call.id, refused_call.code, refused_call.text) == (
            2,
            ELOGOFF,
            "the service is shutting down",
        )
        assert idle.ends()
        # A new client is served until its connection is checked.
        with connected(site.port) as late:
            assert late.ask(request_to("echo", b"in time")).payload == b"in time"
            until = time.monotonic() + TIMEOUT
            while late.ask(request_to("echo")).code != ELOGOFF:
                assert time.monotonic() < until
        site.call(site.echo_app.release_held)
        assert busy.read().payload == b"held"
        assert busy.ends()


def test_an_incomplete_message_is_refused_when_the_door_closes(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        client.send(request_to("hold", id=1), request_to("echo", bytes(99), id=2)[:-9])
        site.until(lambda seen: seen.calls == 2)
        site.call(site.door.refuse_partial)
        refused = client.read()
        assert (refused.id, refused.code) == (2, ELOGOFF)
        client.send(bytes(9), request_to("echo", b"whole", id=3))
        assert client.read().payload == b"whole"
        site.call(site.echo_app.release_held)
        assert client.read().id == 1


def test_an_internal_error_of_a_session_closes_only_its_connection(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = opened()
    with connected(site.port) as client, connected(site.port) as other:
        assert other.ask(request_to("echo", b"a")).payload == b"a"
        monkeypatch.setattr(BaiduStdSession, "_begin", lambda self, event: 1 / 0)
        client.send(request_to("echo"))
        assert client.ends()
        monkeypatch.undo()
        assert other.ask(request_to("echo", b"b")).payload == b"b"
    assert site.statistics().errors == 1


def test_a_half_close_on_a_unix_socket_cancels_the_call(opened: Opened, tmp_path: object) -> None:
    site = opened(site={"folder": tmp_path})
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(site.unix)
        link.settimeout(TIMEOUT)
        link.sendall(request_to("hold"))
        site.until(lambda seen: seen.calls == 1)
        link.shutdown(socket.SHUT_WR)  # brpc clients only do this when they disconnect
        assert link.recv(1) == b""
    assert site.until(lambda seen: seen.open == 0).gone == 1
