"""baidu_std through a door, over real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from penstock.door.baidu_std import BaiduStdSession
from penstock.protocols.http2 import Http2Limits
from tests.door.site import QUICK, TIMEOUT, Site
from tests.kit.baidu_std import Closed, connected, field, frame, request, request_meta
from tests.kit.http1 import connected as http1

Opened = Callable[..., Site]

EREQUEST, ERPCTIMEDOUT, EINTERNAL, ELOGOFF = 1003, 1008, 2001, 2003
SLOW = {"body_pace": 1 << 20}


def ask(word: str, payload: bytes = b"", id: int = 1, method: str = "x") -> bytes:
    return request(payload, service=word, method=method, id=id)


def test_messages_are_answered_on_one_connection(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        for id, payload in enumerate((b"one", b"", b"x" * 300_000, b"four"), 2**62):
            for word in ("echo", "later"):
                answer = client.ask(ask(word, payload, id))
                assert (answer.id, answer.code, answer.payload) == (id, 0, payload)
    assert site.statistics().requests == 8


def test_answers_come_as_they_are_ready_and_not_in_their_order(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        client.send(ask("hold", id=1), ask("later", b"b", id=2), ask("echo", b"c", id=3))
        assert {client.read().id, client.read().id} == {2, 3}
        site.call(site.parrot.let_go)
        held = client.read()
        assert (held.id, held.payload) == (1, b"held")


def test_a_message_may_come_byte_by_byte(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        client.send(*[bytes([octet]) for octet in ask("echo", b"slowly")])
        assert client.read().payload == b"slowly"
    # Three bytes may still be the beginning of anything.
    with http1(site.port) as other:
        other.send(b"PR", b"OPFIND /echo HTTP/1.1\r\nhost: a\r\n\r\n")
        assert other.reply().status == 200


def test_http_and_baidu_std_share_a_port(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client, http1(site.port) as other:
        assert client.ask(ask("echo", b"a")).payload == b"a"
        other.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nb")
        assert other.reply().body == b"b"


def test_a_fault_of_the_application_fails_one_call(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        client.send(ask("hold", id=1), ask("raise", method="body", id=2))
        answer = client.read()
        assert (answer.id, answer.code, answer.text) == (2, EINTERNAL, "internal error")
        site.call(site.parrot.let_go)
        assert client.read().payload == b"held"
    assert site.statistics().errors == 1
    assert site.statistics().error_answers == {"EINTERNAL": 1}


def test_an_error_of_an_application_that_knows_http_alone(opened: Opened) -> None:
    site = opened(max_calls=1)
    with connected(site.port) as client:
        client.send(ask("hold", id=1), ask("echo", id=2))
        answer = client.read()
        assert (answer.id, answer.code, answer.text) == (2, ELOGOFF, "too many")


def test_an_answer_in_pieces_is_one_message(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        assert len(client.ask(ask("flood", method="5")).payload) == 5 * 16384
        broken = client.ask(ask("broken"))
        assert (broken.code, broken.payload) == (EINTERNAL, b"")


# Numbers and room.


def test_with_many_calls_open_nothing_more_is_read(opened: Opened) -> None:
    site = opened(http2=Http2Limits(max_streams=3))
    with connected(site.port) as client:
        client.send(b"".join(ask("hold", id=id) for id in range(10)))
        site.until(lambda seen: seen.calls == 3)
        assert site.budget.used == 7 * len(ask("hold"))
        client.send(ask("echo", b"last", id=10))
        assert site.statistics().calls == 3
        seen = set()
        for _ in range(3):
            site.until(lambda seen: seen.calls == 3)
            site.call(site.parrot.let_go)
            seen |= {client.read().id for _ in range(3)}
        site.until(lambda seen: seen.requests == 11)
        site.call(site.parrot.let_go)
        seen |= {client.read().id for _ in range(2)}
        assert seen == {*range(11)}
    assert site.budget.used == 0


def test_one_call_at_once_may_have_a_payload_in_parts(opened: Opened) -> None:
    site = opened(http2=Http2Limits(max_streams=1))
    with connected(site.port) as client:
        client.send(ask("size", bytes(3 << 20), id=1), ask("size", bytes(3 << 20), id=2))
        assert [client.read().id, client.read().id] == [1, 2]


def test_a_client_that_does_not_read_is_not_read_either(opened: Opened) -> None:
    site = opened()
    with connected(site.port, room=4096) as client:
        client.send(b"".join(ask("large", method="3000000", id=id) for id in range(4)))
        seen = site.until(lambda seen: seen.unsent > 1 << 20)
        began = seen.requests
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.send(ask("echo", bytes(60_000)) * 300)
        assert site.statistics().requests == began
        client.socket.settimeout(TIMEOUT)
        assert [len(client.read().payload) for _ in range(4)] == [3_000_000] * 4


def test_a_flood_of_small_calls_lets_others_have_their_turn(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client, connected(site.port) as other:
        client.send(b"".join(ask("echo", id=id) for id in range(1, 5000)))
        assert other.ask(ask("echo", b"me")).payload == b"me"
        assert [client.read().id for _ in range(1, 5000)] == [*range(1, 5000)]


def test_answers_that_nobody_reads_are_cut(opened: Opened) -> None:
    site = opened(write_timeout=QUICK, body_pace=1 << 30)
    with connected(site.port, room=4096) as client:
        client.send(ask("large", method="9000000"))
        site.until(lambda seen: seen.stalled == 1)
        with pytest.raises(Closed):
            client.read()


# Time.


def test_silence_and_a_slow_header(opened: Opened) -> None:
    site = opened(header_timeout=QUICK)
    with connected(site.port) as client:
        client.send(b"PRPC\0")
        assert client.ends()
    seen = site.statistics()
    assert (seen.heads_late, seen.malformed) == (1, 0)


def test_a_header_that_stops_lets_other_calls_be_answered(opened: Opened) -> None:
    site = opened(header_timeout=QUICK)
    with connected(site.port) as client:
        client.send(ask("hold"), b"PRPC")
        site.until(lambda seen: seen.heads_late == 1)
        site.call(site.parrot.let_go)
        assert client.read().payload == b"held"
        assert client.ends()


def test_a_payload_that_stops_ends_its_call_and_then_the_connection(opened: Opened) -> None:
    site = opened(body_timeout=QUICK, **SLOW)
    with connected(site.port) as client:
        client.send(ask("hold", id=1), ask("echo", bytes(100), id=2)[:-50])
        late = client.read()
        assert (late.id, late.code) == (2, ERPCTIMEDOUT)
        site.call(site.parrot.let_go)
        assert client.read().id == 1
        assert client.ends()
    assert site.statistics().bodies_late == 1


def test_a_payload_that_is_late_for_its_call_is_thrown_away(opened: Opened) -> None:
    site = opened()
    meta = request_meta("own", "x", id=7)
    with connected(site.port) as client:
        site.parrot.begin = hurried(site.parrot.begin)  # type: ignore[method-assign]
        client.send(frame(meta, b"", body=len(meta) + 4), b"ab")
        assert client.read().code == ERPCTIMEDOUT
        client.send(b"cd", ask("echo", b"next", id=8))
        assert client.read().payload == b"next"


def hurried(begin: Callable[..., object]) -> Callable[..., object]:
    def hurry(exchange: object) -> object:
        exchange.deadline = time.monotonic() + 0.1  # type: ignore[attr-defined]
        return begin(exchange)

    return hurry


def test_an_idle_connection_is_closed(opened: Opened) -> None:
    site = opened(http2_idle=QUICK)
    with connected(site.port) as client:
        assert client.ask(ask("echo", b"a")).payload == b"a"
        client.send(ask("hold"))
        site.until(lambda seen: seen.calls == 1)
        time.sleep(2 * QUICK)  # longer than an idle connection would have lived
        site.call(site.parrot.let_go)
        assert client.read().payload == b"held"
        assert client.ends()
    assert site.statistics().idle == 1


# What is wrong, and the end.


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
def test_what_is_no_request_ends_the_connection(opened: Opened, data: bytes) -> None:
    site = opened()
    with connected(site.port) as client:
        assert client.ask(ask("echo", b"a")).payload == b"a"
        client.send(ask("hold"), data)
        assert client.ends()
    seen = site.until(lambda seen: seen.open == 0)
    assert (seen.malformed, seen.gone, seen.errors) == (1, 1, 0)
    assert site.parrot.gone.acquire(timeout=TIMEOUT)


def test_the_calls_of_a_client_that_leaves_are_cancelled(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        client.send(ask("hold", id=1), ask("hold", id=2), ask("echo", bytes(99), id=3)[:-9])
        site.until(lambda seen: seen.calls == 3)
    seen = site.until(lambda seen: seen.open == 0)
    assert (seen.gone, seen.calls) == (3, 0)
    for _ in range(3):
        assert site.parrot.gone.acquire(timeout=TIMEOUT)


def test_a_large_message_that_is_refused_ends_the_connection_in_order(opened: Opened) -> None:
    site = opened()
    big = ask("refuse", bytes(2 << 20), id=2, method="")
    with connected(site.port) as client:
        site.parrot.begin = refusing(site.parrot.begin)  # type: ignore[method-assign]
        client.send(ask("hold", id=1), big[: 1 << 10])
        assert (client.read().id, site.statistics().calls) == (2, 1)
        site.call(site.parrot.let_go)
        assert client.read().id == 1
        assert client.ends()
    with connected(site.port) as client:
        # A smaller one is read to its end.
        assert client.ask(ask("refuse", bytes(500_000), id=2)).code == EREQUEST
        assert client.ask(ask("echo", b"on")).payload == b"on"


def refusing(begin: Callable[..., object]) -> Callable[..., object]:
    def refuse(exchange: object) -> object:
        if exchange.head.path.startswith(b"/refuse"):  # type: ignore[attr-defined]
            exchange.reply(400, (), b"no")  # type: ignore[attr-defined]
            return None
        return begin(exchange)

    return refuse


def test_a_draining_door_tells_who_calls_and_closes_what_idles(opened: Opened) -> None:
    site = opened(keep_alive=QUICK)
    with connected(site.port) as idle, connected(site.port) as busy:
        assert idle.ask(ask("echo", b"a")).payload == b"a"
        busy.send(ask("hold", id=1))
        site.until(lambda seen: seen.calls == 1)
        site.call(site.door.drain)
        told = busy.ask(ask("echo", bytes(300_000), id=2))
        assert (told.id, told.code, told.text) == (2, ELOGOFF, "the service is shutting down")
        assert idle.ends()
        # Who connects now is served until the connection is looked at.
        with connected(site.port) as late:
            assert late.ask(ask("echo", b"in time")).payload == b"in time"
            until = time.monotonic() + TIMEOUT
            while late.ask(ask("echo")).code != ELOGOFF:
                assert time.monotonic() < until
        site.call(site.parrot.let_go)
        assert busy.read().payload == b"held"
        assert busy.ends()


def test_a_message_that_is_not_whole_when_the_door_closes_is_refused(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as client:
        client.send(ask("hold", id=1), ask("echo", bytes(99), id=2)[:-9])
        site.until(lambda seen: seen.calls == 2)
        site.call(site.door.refuse_partial)
        refused = client.read()
        assert (refused.id, refused.code) == (2, ELOGOFF)
        client.send(bytes(9), ask("echo", b"whole", id=3))
        assert client.read().payload == b"whole"
        site.call(site.parrot.let_go)
        assert client.read().id == 1


def test_a_broken_session_ends_alone(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    site = opened()
    with connected(site.port) as client, connected(site.port) as other:
        assert other.ask(ask("echo", b"a")).payload == b"a"
        monkeypatch.setattr(BaiduStdSession, "_begin", lambda self, event: 1 / 0)
        client.send(ask("echo"))
        assert client.ends()
        monkeypatch.undo()
        assert other.ask(ask("echo", b"b")).payload == b"b"
    assert site.statistics().errors == 1


def test_over_a_unix_socket_and_in_half(opened: Opened, tmp_path: object) -> None:
    site = opened(site={"folder": tmp_path})
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(site.unix)
        link.settimeout(TIMEOUT)
        link.sendall(ask("hold"))
        site.until(lambda seen: seen.calls == 1)
        link.shutdown(socket.SHUT_WR)  # which a client of brpc never does unless it leaves
        assert link.recv(1) == b""
    assert site.until(lambda seen: seen.open == 0).gone == 1
