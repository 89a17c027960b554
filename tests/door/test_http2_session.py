"""HTTP/2 through a door, over real sockets."""

from __future__ import annotations

import json
import logging
import socket
import struct
import time
from collections.abc import Callable

import grpc
import pytest

from penstock.protocols.http2 import Http2Limits
from tests.kit import frames as f
from tests.kit.http2 import Link, linked
from tests.services.door import QUICK, TIMEOUT, Site

Opened = Callable[..., Site]

NARROW = Http2Limits(connection_window=65_535, stream_window=65_535, max_streams=8)

NO_ERROR, INTERNAL_ERROR, REFUSED, CANCEL, CALM = 0, 2, 7, 8, 11


def test_bodies_are_echoed_on_one_connection(opened: Opened) -> None:
    site = opened()
    with linked(site.port) as client:
        for body in (b"one", b"", b"x" * 300_000):
            for path in ("/echo", "/later"):
                answer = client.ask(path, body)
                assert answer.http_status == 200
                assert answer.body == body
                assert answer.headers.get("content-length", "0") == str(len(body))
                assert answer.reset is None
    assert site.statistics().requests == 6


def test_streams_are_answered_when_ready_in_any_order(opened: Opened) -> None:
    site = opened()
    with linked(site.port) as client:
        held = client.open("/hold", end=True)
        assert client.ask("/echo", b"quick").body == b"quick"
        site.call(site.echo_app.release_held)
        assert client.answer(held).body == b"held"


def test_an_early_answer_resets_the_stream_with_no_error(opened: Opened) -> None:
    site = opened()
    with linked(site.port) as client:
        stream = client.open("/refuse")
        answer = client.content(stream)
        client.until(lambda: answer.reset is not None)
        assert (answer.http_status, answer.body, answer.reset) == (404, b"no", NO_ERROR)
        assert client.ask("/echo", b"next").body == b"next"


def test_a_streamed_answer_gets_back_pressure_from_its_window(opened: Opened) -> None:
    site = opened()
    with linked(site.port) as client:
        client.acknowledges = False
        stream = client.open("/stream/200", end=True)
        answer = client.content(stream)
        client.until(lambda: len(answer.body) == 65_535)
        seen = site.until(lambda seen: seen.unsent > 0)
        assert seen.unsent <= 128 << 10
        assert site.echo_app.sent < 100 * 16384
        client.acknowledges = True
        client.acknowledge(stream, 65_535)
        assert len(client.answer(stream).body) == 200 * 16384
        site.until(lambda seen: seen.unsent == 0)


def test_a_streamed_answer_gets_back_pressure_from_its_socket(opened: Opened) -> None:
    site = opened()
    window = (1 << 31) - 1
    with linked(site.port, window=window, room=4096) as client:
        stream = client.open("/stream/2000", end=True)
        site.until(lambda seen: seen.unsent > 0)
        assert site.echo_app.sent < 1000 * 16384
        assert len(client.answer(stream).body) == 2000 * 16384


def test_unsent_bytes_of_answers_blocked_by_windows_are_counted(opened: Opened) -> None:
    site = opened(max_unsent=1 << 20)
    with linked(site.port) as client:
        client.acknowledges = False
        first = client.open(f"/large/{2 << 20}", end=True)
        client.until(lambda: len(client.content(first).body) == 65_535)
        seen = site.until(lambda seen: seen.unsent > 1 << 20)
        assert seen.unsent == (2 << 20) - 65_535
        assert site.budget.used == 2 << 20, "all of it is kept until the last of it has gone"
        assert client.answer(client.open("/echo", end=True)).reset == REFUSED
        assert site.statistics().streams_refused == 1
        client.send(f.reset(first))
        site.until(lambda seen: seen.unsent == 0)


def test_an_answer_without_back_pressure_is_aborted_at_max_unsent(opened: Opened) -> None:
    site = opened(max_unsent=1 << 20)
    with linked(site.port) as client:
        client.acknowledges = False
        answer = client.answer(client.open("/flood/2000", end=True))
        assert answer.reset == INTERNAL_ERROR
        assert site.statistics().overrun == 1
        assert client.ask("/echo").http_status == 200
    assert site.echo_app.gone.acquire(timeout=TIMEOUT)


def test_streams_of_a_client_that_opens_no_window_are_reset(opened: Opened) -> None:
    site = opened(write_timeout=QUICK)
    with linked(site.port) as client:
        client.acknowledges = False
        answer = client.answer(client.open("/large/1000000", end=True))
        assert answer.reset == CANCEL
        answer = client.answer(client.open("/stream/100", end=True))
        assert answer.reset == CANCEL
        assert site.echo_app.gone.acquire(timeout=TIMEOUT)
        seen = site.until(lambda seen: seen.unsent == 0)
        assert (seen.stalled, seen.open) == (2, 1)


def test_a_client_that_does_not_read_is_disconnected(opened: Opened) -> None:
    site = opened(write_timeout=QUICK)
    window = (1 << 31) - 1
    with linked(site.port, window=window, room=4096) as client:
        client.open("/hold", end=True)
        client.open("/large/20000000", end=True)
        assert site.until(lambda seen: seen.stalled == 1)
        assert site.until(lambda seen: seen.open == 0).unsent == 0
    assert site.echo_app.gone.acquire(timeout=TIMEOUT)


def test_a_paused_sender_continues_later(opened: Opened) -> None:
    site = opened(body_timeout=QUICK)
    window = Http2Limits().stream_window
    with linked(site.port) as client:
        client.ask("/echo")
        stream = client.open("/lazy")
        client.upload(stream, bytes(window), end=False)
        assert client.ask("/echo").http_status == 200
        assert client.room(stream) == 0
        site.until(lambda seen: bool(site.echo_app.holding))
        site.call(site.echo_app.release_held)
        client.upload(stream, bytes(window))
        assert client.answer(stream).body == b"%d" % (2 * window)
    assert site.statistics().bodies_late == 0


def send_at_once(client: Link, path: str, body: bytes) -> int:
    """Send head, data and end together, as clients do with small messages."""
    stream = client.open(path)
    client.until(lambda: client.room(stream) >= len(body))
    client.send_data(stream, body, end=True)
    return stream


@pytest.mark.parametrize("size", [4000, 16_000])
def test_pending_messages_do_not_use_up_the_connections_window(opened: Opened, size: int) -> None:
    site = opened(http2=NARROW)
    with linked(site.port) as client:
        held = [send_at_once(client, "/hold", bytes(size)) for _ in range(7)]
        assert client.ask("/echo", bytes(100_000)).body == bytes(100_000)
        site.call(site.echo_app.release_held)
        for stream in held:
            assert client.answer(stream).http_status == 200


def test_an_incomplete_body_gets_408(opened: Opened) -> None:
    site = opened(body_timeout=QUICK)
    with linked(site.port) as client:
        stream = client.open("/echo")
        client.upload(stream, b"half", end=False)
        answer = client.content(stream)
        client.until(lambda: answer.reset is not None)
        assert (answer.http_status, answer.reset) == (408, NO_ERROR)
        assert list(json.loads(answer.body)) == ["error", "code", "message", "details"]
        assert client.ask("/echo").http_status == 200
    assert site.statistics().bodies_late == 1
    assert site.echo_app.late_count == 1
    assert site.echo_app.gone.acquire(timeout=TIMEOUT)


def test_the_application_can_answer_a_late_body_itself(opened: Opened) -> None:
    site = opened(body_timeout=QUICK)
    with linked(site.port) as client:
        stream = client.open("/own")
        assert client.answer(stream).body == b"too late"


def test_client_and_server_can_stream_at_once(opened: Opened) -> None:
    site = opened()
    with linked(site.port) as client:
        stream = client.open("/duplex")
        answer = client.content(stream)
        for body in (b"one", b"two"):
            client.upload(stream, body, end=False)
            client.until(lambda body=body: answer.body.endswith(body))  # type: ignore[misc]
        client.send(f.headers(stream, f.block([(b"x-trailer", b"1")]), end=True))
        assert client.answer(stream).body == b"onetwo"


def test_trailers_are_sent(opened: Opened) -> None:
    site = opened()
    with linked(site.port) as client:
        for path in ("/trailers", "/sum"):
            answer = client.ask(path, b"abc")
            assert (answer.body, answer.trailers) == (b"abc", {"x-sum": "3"})


@pytest.mark.parametrize("way", ["reset", "close", "goaway"])
def test_the_application_is_notified_once_of_a_disconnect(opened: Opened, way: str) -> None:
    site = opened()
    with linked(site.port) as client:
        streams = [client.open("/hold", end=True) for _ in range(3)]
        assert all(site.echo_app.arrived.acquire(timeout=TIMEOUT) for _ in streams)
        if way == "reset":
            for stream in streams:
                client.send(f.reset(stream))
        elif way == "close":
            client.socket.close()
        else:  # an invalid frame
            client.socket.sendall(b"\0\0\0\4\0\0\0\0\1")
        assert all(site.echo_app.gone.acquire(timeout=TIMEOUT) for _ in streams)
        assert site.until(lambda seen: seen.gone == 3).errors == 0
        site.call(site.echo_app.release_held)  # these answers are discarded
        assert not site.echo_app.gone.acquire(blocking=False)
        if way == "reset":
            assert client.ask("/echo").http_status == 200


@pytest.mark.parametrize("path", ["/raise", "/raise/body", "/begun", "/broken"])
def test_an_error_of_the_application_fails_one_stream(
    opened: Opened, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = opened()
    with linked(site.port) as client:
        held = client.open("/hold", end=True)
        answer = client.ask(path, b"x") if path != "/raise" else client.answer(client.open(path))
        if path.startswith("/raise"):
            assert answer.http_status == 500
        else:
            assert answer.reset == INTERNAL_ERROR
        site.until(lambda seen: len(site.echo_app.holding) == 1)
        site.call(site.echo_app.release_held)
        assert client.answer(held).body == b"held"
    assert site.statistics().errors == (path != "/broken")
    faults = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(faults) == (path != "/broken")


def test_an_error_in_a_grpc_call_is_a_grpc_status(opened: Opened) -> None:
    site = opened()
    with grpc.insecure_channel(f"127.0.0.1:{site.port}") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/raise")(b"x", timeout=TIMEOUT)
        assert caught.value.code() is grpc.StatusCode.INTERNAL


def ping(number: int) -> bytes:
    return b"\0\0\x08\x06\0\0\0\0\0" + struct.pack("!Q", number)


def test_pings_within_the_budget_are_accepted_repeatedly(opened: Opened) -> None:
    site = opened(header_timeout=QUICK)
    with linked(site.port) as client:
        for _ in range(2):
            client.socket.sendall(b"".join(ping(n) for n in range(15)))
            assert client.ask("/patient").http_status == 200
            wait_for_the_next_second(site)
    assert site.statistics().calmed == 0


def wait_for_the_next_second(site: Site) -> None:
    """Wait with silent connections, which the door closes after its header timeout."""
    began = time.monotonic()
    while time.monotonic() < began + 1.5:
        with socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT) as silent:
            assert silent.recv(1) == b""


def test_a_connection_without_streams_is_closed_at_the_idle_timeout(opened: Opened) -> None:
    site = opened(http2_idle=QUICK)
    with linked(site.port) as client:
        held = client.open("/hold", end=True)
        patient = client.open("/patient")
        assert site.echo_app.began.acquire(timeout=TIMEOUT)
        with linked(site.port) as other:
            other.until_closed()
            assert other.goaways[-1] == (0, NO_ERROR)
        site.call(site.echo_app.release_held)
        assert client.answer(held).body == b"held"
        client.upload(patient, b"")
        assert client.answer(patient).http_status == 200
        client.until_closed()
        assert client.goaways[-1] == (patient, NO_ERROR)
    assert site.statistics().idle == 2


def test_an_incomplete_header_block_closes_the_connection(opened: Opened) -> None:
    site = opened(header_timeout=QUICK)
    with linked(site.port) as client:
        client.ask("/echo")  # so that its acknowledgement is not sent within the block
        held = client.open("/hold", end=True)
        site.until(lambda seen: bool(site.echo_app.holding))
        client.socket.sendall(b"\0\0\1\1\0\0\0\0\5\x82")  # HEADERS without its end
        client.until_closed()
        assert client.goaways[-1] == (held, CALM)
    assert site.echo_app.gone.acquire(timeout=TIMEOUT)
    assert site.statistics().heads_late == 1


def test_a_frame_received_too_slowly_closes_the_connection(opened: Opened) -> None:
    site = opened(header_timeout=QUICK)
    with linked(site.port) as client:
        client.ask("/echo")
        client.socket.sendall(b"\0\x40\0\1\5\0\0\0\3")  # HEADERS of 16,384 bytes
        began = time.monotonic()
        while not client.goaways and time.monotonic() < began + TIMEOUT:
            client.socket.sendall(b"\x82")
            client.socket.settimeout(0.01)
            try:
                client.read()
            except TimeoutError:
                continue
        assert client.goaways == [(1, CALM)]
        client.socket.settimeout(TIMEOUT)
        client.until_closed()
    assert site.statistics().heads_late == 1


def test_a_client_silent_after_the_preface_is_disconnected(opened: Opened) -> None:
    site = opened(header_timeout=QUICK)
    with socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT) as link:
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        data = b""
        while more := link.recv(4096):
            data += more
    assert data[-17:] == b"\0\0\x08\7\0\0\0\0\0" + bytes(4) + CALM.to_bytes(4, "big")
    assert site.statistics().heads_late == 1


def test_answers_blocked_by_windows_are_reset_at_the_budgets_limit(
    opened: Opened,
) -> None:
    site = opened(max_unsent=1 << 20, site={"budget": 3 << 20})
    with linked(site.port) as client:
        client.acknowledges = False
        held = [client.open("/hold", end=True) for _ in range(2)]
        streams = [client.open(f"/large/{600_000}", end=True) for _ in range(2)]
        site.until(lambda seen: seen.unsent > 1 << 20)
        assert site.statistics().overrun == 0, "the budget has room"
        site.call(lambda: site.budget.add(2 << 20))
        site.call(site.echo_app.release_held)
        client.until(lambda: client.content(streams[1]).reset == CALM)
        seen = site.until(lambda seen: seen.unsent <= 1 << 20)
        assert seen.overrun == 1
        assert client.content(streams[0]).reset is None, "what fits is kept"
        assert all(client.content(one).reset is None for one in held)
        site.call(lambda: site.budget.release(2 << 20))
        client.acknowledges = True
        client.acknowledge(streams[0], 65_535)
        assert len(client.answer(streams[0]).body) == 600_000


def test_the_budget_is_released_after_answers_and_resets(opened: Opened) -> None:
    site = opened()
    with linked(site.port) as client:
        assert client.ask("/count", b"x" * 1000).body == b"1000"
        assert site.budget.used == 0
        stream = client.open("/count")
        client.upload(stream, b"x" * 999, end=False)
        site.until(lambda seen: site.budget.used == 999)
        client.send(f.reset(stream))
        site.until(lambda seen: site.budget.used == 0)


def test_every_answer_has_a_date(opened: Opened) -> None:
    site = opened()
    with linked(site.port) as client:
        for path in ("/echo", "/later", "/stream/1", "/sum", "/raise"):
            assert client.ask(path, b"x").headers["date"].endswith(" GMT")


def test_a_body_times_out_at_the_requests_deadline(opened: Opened) -> None:
    site = opened(body_timeout=20.0)
    with linked(site.port) as client:
        began = time.monotonic()
        stream = client.open("/soon", end=False)
        client.upload(stream, b"some", end=False)
        assert client.answer(stream).http_status == 408
        assert time.monotonic() - began < 3
    assert site.statistics().bodies_late == 1


def test_a_half_closed_client_gets_the_answers_to_complete_requests(opened: Opened) -> None:
    site = opened()
    with linked(site.port) as client:
        held, partial = client.open("/hold", end=True), client.open("/size", end=False)
        site.until(lambda seen: bool(site.echo_app.holding))
        client.socket.shutdown(socket.SHUT_WR)
        client.acknowledges = False
        site.until(lambda seen: seen.gone == 1)
        site.call(site.echo_app.release_held)
        assert client.answer(held).body == b"held"
        assert client.content(partial).reset is not None
        client.until_closed()


@pytest.mark.parametrize("has_read", [True, False])
def test_a_disconnected_client_is_detected_by_a_ping(opened: Opened, has_read: bool) -> None:
    site = opened()
    with linked(site.port) as client:
        client.open("/hold", end=True)
        site.until(lambda seen: bool(site.echo_app.holding))
        if has_read:  # else its system sends a reset at once
            client.alive()
        client.socket.close()
        site.until(lambda seen: (seen.gone, seen.open) == (1, 0))
