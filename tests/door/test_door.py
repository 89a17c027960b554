"""Listeners, protocol detection, the limit of connections, and closing a door."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.door import door
from penstock.door.listeners import bind, port_of
from penstock.instrument import Instrument, Instruments
from tests.door.test_http1_session import check_refusal, chunks, head_of, request
from tests.kit import baidu_std
from tests.kit import frames as f
from tests.kit.certificates import make_certificate
from tests.kit.http1 import Connection, connected
from tests.kit.http2 import GRPC, client_of, linked
from tests.service.scripts import BackgroundCall, until
from tests.services.door import QUICK, TIMEOUT, Site

Opened = Callable[..., Site]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "DNS:localhost,IP:127.0.0.1")


@pytest.fixture
def server_tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def connected_tls(
    port: int, certificate: tuple[Path, Path], *protocols: str
) -> tuple[ssl.SSLSocket, str | None]:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    if protocols:
        context.set_alpn_protocols(list(protocols))
    plain = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
    link = context.wrap_socket(plain, server_hostname="localhost")
    return link, link.selected_alpn_protocol()


def test_one_listener_serves_http1_and_http2(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as one, linked(site.port) as two:
        assert two.ask("/echo", b"two").body == b"two"
        one.send(request("/echo", b"one"))
        assert one.reply().body == b"one"
    assert site.echo_app.begun == ["/echo", "/echo"]
    assert site.statistics().accepted == 2


def test_a_door_listens_on_a_unix_socket(opened: Opened, tmp_path: Path) -> None:
    site = opened(site={"folder": tmp_path})
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(TIMEOUT)
        link.connect(site.unix)
        link.sendall(request("/echo", b"one"))
        assert link.recv(1000).endswith(b"\r\n\r\none")
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(site.unix)
        assert client_of(link).ask("/echo", b"two").body == b"two"


@pytest.mark.parametrize("at_once", [False, True], ids=["waits", "sends at once"])
def test_the_http_version_is_negotiated_with_tls(
    opened: Opened,
    server_tls: ssl.SSLContext,
    certificate: tuple[Path, Path],
    at_once: bool,
) -> None:
    site = opened(site={"tls": server_tls})
    for protocols, chosen in (
        (("h2", "http/1.1"), "h2"),
        (("http/1.1",), "http/1.1"),
        ((), None),
    ):
        link, negotiated = connected_tls(site.port, certificate, *protocols)
        with link:
            assert negotiated == chosen
            if not at_once:
                assert site.until(lambda seen: seen.open == 1)
            if chosen == "h2":
                assert client_of(link).ask("/echo", b"x" * 100_000).body == b"x" * 100_000
            else:
                link.sendall(request("/echo", b"one"))
                assert link.recv(1000).endswith(b"\r\n\r\none")
        site.until(lambda seen: seen.open == 0)
    assert server_tls.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_baidu_std_is_served_over_tls(
    opened: Opened, server_tls: ssl.SSLContext, certificate: tuple[Path, Path]
) -> None:
    site = opened(site={"tls": server_tls})
    link, _ = connected_tls(site.port, certificate)
    with link:
        client = baidu_std.Connection(link)
        for size in (3, 300_000):
            sent = baidu_std.request(b"x" * size, service="echo", method="x")
            assert client.ask(sent).payload == b"x" * size


def test_an_http2_preface_after_negotiating_http1_is_refused(
    opened: Opened, server_tls: ssl.SSLContext, certificate: tuple[Path, Path]
) -> None:
    site = opened(site={"tls": server_tls})
    link, _ = connected_tls(site.port, certificate, "http/1.1")
    with link:
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert link.recv(1000).startswith(b"HTTP/1.1 505 ")


def test_the_application_gets_the_peers_address_and_certificate(
    opened: Opened, server_tls: ssl.SSLContext, certificate: tuple[Path, Path]
) -> None:
    server_tls.verify_mode = ssl.CERT_OPTIONAL
    server_tls.load_verify_locations(certificate[0])
    with connected(opened().port) as plain:
        plain.send(request("/peer"))
        port = plain.socket.getsockname()[1]
        assert plain.reply().body == f"127.0.0.1 {port} None".encode()
    context = ssl.create_default_context(cafile=str(certificate[0]))
    context.load_cert_chain(*certificate)
    port = opened(site={"tls": server_tls}).port
    with connected(port) as secure:
        secure.socket = context.wrap_socket(secure.socket, server_hostname="localhost")
        secure.send(request("/peer"))
        assert b"(('commonName', 'localhost'),)" in secure.reply().body


def test_tls_handshakes_are_limited_in_time_and_number(
    opened: Opened, server_tls: ssl.SSLContext, certificate: tuple[Path, Path]
) -> None:
    site = opened(site={"tls": server_tls}, tls_timeout=1.0, max_connections=4)
    silent_client = [
        socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT) for _ in "1234"
    ]
    site.until(lambda seen: seen.open == 4)
    with Connection(site.port).socket as fifth:
        assert closed(fifth)
    assert all(closed(link) for link in silent_client)
    seen = site.until(lambda seen: seen.open == 0)
    assert (seen.tls_failed, seen.refused) == (4, 1)
    for link in silent_client:
        link.close()
    link, _ = connected_tls(site.port, certificate)
    with link:
        link.sendall(request("/echo", b"one"))
        assert link.recv(1000).endswith(b"\r\n\r\none")


def closed(link: socket.socket) -> bool:
    link.settimeout(TIMEOUT)
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True


def test_plain_bytes_end_the_tls_handshake(opened: Opened, server_tls: ssl.SSLContext) -> None:
    site = opened(site={"tls": server_tls})
    with connected(site.port) as connection:
        connection.send(request("/echo", b"plain"))
        while True:
            try:
                connection._more()
            except AssertionError:
                break
        assert not connection._data.startswith(b"HTTP")
    assert site.until(lambda seen: seen.open == 0).tls_failed == 1


def test_connections_beyond_max_connections_get_503_and_others_continue(opened: Opened) -> None:
    site = opened(max_connections=4)
    with connected(site.port) as good:
        good.send(request("/echo", b"first"))
        good.reply()
        idle = [Connection(site.port) for _ in range(3)]
        site.until(lambda seen: seen.open == 4)
        for _ in range(20):
            with connected(site.port) as over:
                check_refusal(over.reply(), 503)
                assert over.is_closed()
        good.send(request("/echo", b"again"))
        assert good.reply().body == b"again"
        for connection in idle:
            connection.socket.close()
    site.until(lambda seen: seen.open == 0)
    with connected(site.port) as connection:
        connection.send(request("/echo"))
        assert connection.reply().status == 200
    seen = site.statistics()
    assert (seen.accepted, seen.refused) == (5, 20)


def test_a_listener_at_its_limit_does_not_block_other_listeners(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    site = opened(max_connections=16)
    other = bind("127.0.0.1", 0, "rpc_port")
    port = port_of(other)
    site.run(site.door.listen(other))
    idle = [Connection(site.port) for _ in range(14)]
    site.until(lambda seen: seen.open == 14)
    with connected(site.port) as over:
        check_refusal(over.reply(), 503)
    assert caplog.messages == [
        "1 connection was refused: 14 are open, and the limit is 16 (max_connections), of which"
        " each port and Unix socket keeps 2 for itself"
    ]
    for _ in range(3):  # closed connections do not count
        with connected(port) as one, connected(port) as two:
            for connection in (one, two):
                connection.send(request("/echo", b"served"))
                assert connection.reply().body == b"served"
            with connected(port) as over:
                check_refusal(over.reply(), 503)
        site.until(lambda seen: seen.open == 14)
    for connection in idle:
        connection.socket.close()


def test_a_draining_door_closes_each_connection_after_its_next_answer(opened: Opened) -> None:
    site = opened()
    with (
        connected(site.port) as busy,
        connected(site.port) as idle,
        linked(site.port) as streams,
    ):
        busy.send(request("/hold"))
        held = streams.open("/hold", end=True)
        idle.send(request("/echo"))
        assert idle.reply().header("connection") is None
        assert site.echo_app.began.acquire(timeout=TIMEOUT)
        site.until(lambda seen: len(site.echo_app.holding) == 2)
        site.call(site.door.drain)
        streams.until(lambda: bool(streams.goaways))
        assert streams.goaways[0] == ((1 << 31) - 1, 0)
        streams.until(lambda: len(streams.goaways) == 2)
        assert streams.goaways[1] == (held, 0)
        for connection in (idle, Connection(site.port)):  # new connections are still served
            connection.send(request("/echo", b"x"))
            reply = connection.reply()
            assert (reply.body, reply.header("connection")) == (b"x", "close")
            assert connection.is_closed()
            connection.socket.close()
        site.call(site.echo_app.release_held)
        assert busy.reply().header("connection") == "close"
        assert streams.answer(held).body == b"held"
        streams.until_closed()


def test_a_draining_door_names_the_last_stream_to_clients_of_http_2_when_none_is_open(
    opened: Opened,
) -> None:
    site = opened()
    with linked(site.port) as idle, linked(site.port) as busy:
        last = idle.open("/echo", end=True)
        idle.answer(last)
        held = busy.open("/hold", end=True)
        site.until(lambda seen: len(site.echo_app.holding) == 1)
        site.call(site.door.drain)
        site.call(site.echo_app.release_held)
        assert busy.answer(held).body == b"held"
        for client, stream in ((idle, last), (busy, held)):
            client.until_closed()
            assert client.goaways == [(stream, 0)]


def test_a_draining_door_answers_calls_opened_before_the_goaway_was_read(opened: Opened) -> None:
    site = opened()
    site.run(site.door.drain_acknowledged())  # there are no connections
    with (
        connected(site.port),
        linked(site.port) as streams,
        linked(site.port) as left,
    ):
        grpc = (b"content-type", b"application/grpc")
        for client in (streams, left):
            client.answer(client.open("/echo", grpc, end=True))
        site.call(site.door.drain)
        late = streams.open("/echo", grpc, end=True)  # the client has not read the GOAWAY
        left.socket.close()
        with pytest.raises(TimeoutError):
            site.run(asyncio.wait_for(site.door.drain_acknowledged(), 0.05))
        streams.answer(late)
        assert streams.content(late).http_status == 200
        site.run(site.door.drain_acknowledged())


def test_a_silent_client_does_not_delay_a_drain(opened: Opened) -> None:
    site = opened()
    with linked(site.port) as silent_client:
        silent_client.answer(silent_client.open("/echo", end=True))
        site.call(site.door.drain)
        site.run(site.door.drain_acknowledged())


def test_closing_waits_for_requests_in_flight_and_closes_idle_connections_at_once(
    opened: Opened,
) -> None:
    site = opened()
    with (
        connected(site.port) as busy,
        connected(site.port) as idle,
        connected(site.port) as silent_client,
        linked(site.port) as streams,
    ):
        busy.send(request("/hold"))
        held = streams.open("/hold", end=True)
        idle.send(request("/echo"))
        idle.reply()
        site.until(lambda seen: seen.open == 4 and len(site.echo_app.holding) == 2)
        closing = threading.Thread(target=site.run, args=(site.door.close(TIMEOUT),))
        closing.start()
        assert idle.is_closed()
        assert silent_client.is_closed()
        streams.until(lambda: bool(streams.goaways))
        assert closing.is_alive()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT)
        site.call(site.echo_app.release_held)
        assert busy.reply().body == b"held"
        assert busy.is_closed()
        assert streams.answer(held).body == b"held"
        streams.until_closed()
        streams.socket.close()
        busy.socket.close()
        closing.join(TIMEOUT)
        assert not closing.is_alive()
    assert site.statistics().cut == 0


def test_a_door_that_accepts_no_more_serves_whom_it_has_accepted(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as quiet, connected(site.port) as late:
        site.until(lambda seen: seen.open == 2)
        site.call(site.door.drain)
        quiet.send(request("/echo", b"before"))
        assert quiet.reply().body == b"before"
        # It waits for what a client that has connected is about to send.
        ending = asyncio.run_coroutine_threadsafe(
            site.door.end_accepting(TIMEOUT), site.echo_app.loop
        )
        until_refused(site.port)
        late.send(request("/echo", b"after"))
        assert late.reply().body == b"after"
        ending.result(TIMEOUT)
    site.run(site.door.end_accepting(TIMEOUT))  # again: nothing more to do


def test_a_silent_client_does_not_delay_the_end_of_accepting(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as silent_client:
        site.until(lambda seen: seen.open == 1)
        site.run(site.door.end_accepting(TIMEOUT))
        silent_client.send(request("/echo", b"later"))
        assert silent_client.reply().body == b"later"


def test_who_connects_during_a_drain_is_waited_for_at_the_end_of_accepting(opened: Opened) -> None:
    site = opened()
    site.call(site.door.drain)
    with linked(site.port) as late:
        late.answer(late.open("/echo", GRPC, end=True))
        site.run(site.door.end_accepting(TIMEOUT))
        with pytest.raises(TimeoutError):  # its client has not acknowledged the GOAWAY
            site.run(asyncio.wait_for(site.door.drain_acknowledged(), 0.05))
        late.until(lambda: bool(late.goaways))
        site.run(site.door.drain_acknowledged())


def until_refused(port: int) -> None:
    """Returns when no connection is accepted."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.05).close()
        except (ConnectionRefusedError, TimeoutError):
            return


def test_refuse_partial_refuses_incomplete_requests_only(opened: Opened) -> None:
    site = opened()
    with (
        connected(site.port) as half,
        connected(site.port) as whole,
        connected(site.port) as begun,
        linked(site.port) as streams,
    ):
        half.send(request("/echo", b"whole")[:-1])
        whole.send(request("/hold", b"x"))
        begun.send(request("/duplex", b"ab")[:-1])
        part = streams.open("/echo")
        streams.upload(part, b"part", end=False)
        call = streams.open("/echo", GRPC)
        held = streams.open("/hold", end=True)
        patient = streams.open("/patient")
        site.until(lambda seen: seen.calls == 7 and len(site.echo_app.holding) == 2)

        site.call(site.door.refuse_partial)

        reply = half.reply()
        assert (reply.status, reply.header("connection")) == (503, "close")
        assert reply.json()["message"] == "the service is shutting down"
        assert half.is_closed()
        streams.answer(part)
        assert streams.content(part).http_status == 503
        streams.answer(call)
        assert streams.content(call).headers["grpc-status"] == "14"
        assert site.statistics().calls == 4
        site.call(site.echo_app.release_held)
        assert whole.reply().body == b"held"
        assert streams.answer(held).body == b"held"
        begun.send(b"b")
        assert head_of(begun).startswith(b"HTTP/1.1 200 ")
        assert chunks(begun) == b"ab"
        streams.upload(patient, b"any time")
        assert streams.answer(patient).body == b"any time"
        half.socket.close()
        begun.socket.close()


def test_closing_does_not_wait_for_incomplete_requests(opened: Opened) -> None:
    site = opened(linger=QUICK)
    with connected(site.port) as half, linked(site.port) as streams:
        half.send(request("/echo", b"whole")[:-1])
        part = streams.open("/echo")
        site.until(lambda seen: seen.calls == 2)
        closing = asyncio.run_coroutine_threadsafe(site.door.close(60.0), site.echo_app.loop)
        assert half.reply().status == 503
        streams.answer(part)
        assert streams.content(part).http_status == 503
        closing.result(TIMEOUT)
    assert site.statistics().cut == 0


def test_closing_aborts_connections_after_its_timeout(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as busy, linked(site.port) as streams:
        busy.send(request("/hold"))
        streams.open("/hold", end=True)
        site.until(lambda seen: len(site.echo_app.holding) == 2)
        site.run(site.door.close(QUICK))
        assert closed(busy.socket)
        streams.until_closed()
    seen = site.statistics()
    assert (seen.cut, seen.open, seen.gone) == (2, 0, 2)
    assert site.echo_app.gone.acquire(blocking=False)
    assert site.echo_app.gone.acquire(blocking=False)


def closing(site: Site, connected: threading.Event) -> Future[None]:
    """Close the door when the event is set; until then its loop is blocked."""
    blocked = threading.Event()

    async def close() -> None:
        blocked.set()
        assert connected.wait(TIMEOUT)
        await site.door.close(60.0, for_good=True)

    future = asyncio.run_coroutine_threadsafe(close(), site.echo_app.loop)
    assert blocked.wait(TIMEOUT)
    return future


def test_a_request_that_arrived_on_an_idle_connection_is_answered_when_the_door_closes(
    opened: Opened,
) -> None:
    site = opened()
    with connected(site.port) as client:
        client.send(request("/echo", b"first"))
        assert client.reply().body == b"first"
        all_sent = threading.Event()
        closed = closing(site, all_sent)
        client.send(request("/echo", b"second"))
        all_sent.set()
        reply = client.reply()
        assert (reply.body, reply.header("connection")) == (b"second", "close")
        assert client.is_closed()
    closed.result(TIMEOUT)


def test_clients_in_the_backlog_are_answered_when_the_door_closes_for_good(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_FIRST_BYTES_TIMEOUT", 60.0)
    site = opened(linger=QUICK)
    all_connected = threading.Event()
    closed = closing(site, all_connected)
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(site.port)) for _ in range(50)]
        for one in clients:
            one.send(request("/echo", b"x"))
        half = stack.enter_context(connected(site.port))
        half.send(request("/echo", b"half")[:-1])
        streams = stack.enter_context(linked(site.port))
        stream = streams.open("/echo", end=True)
        late = stack.enter_context(connected(site.port))
        all_connected.set()
        for one in clients:
            reply = one.reply()
            assert (reply.body, reply.header("connection")) == (b"x", "close")
            assert one.is_closed()
            one.socket.close()
        late.send(request("/echo", b"late"))
        reply = late.reply()
        assert (reply.body, reply.header("connection")) == (b"late", "close")
        assert half.reply().status == 503
        assert streams.answer(stream).http_status == 200
        streams.until_closed()
        streams.socket.close()
    closed.result(TIMEOUT)
    assert site.statistics().cut == 0


def test_tls_clients_in_the_backlog_are_answered_when_the_door_closes_for_good(
    opened: Opened,
    server_tls: ssl.SSLContext,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "_FIRST_BYTES_TIMEOUT", 60.0)
    site = opened(site={"tls": server_tls}, linger=QUICK)
    context = ssl.create_default_context(cafile=str(certificate[0]))
    all_connected = threading.Event()
    closed = closing(site, all_connected)
    plain = [socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT) for _ in range(4)]
    all_connected.set()
    for each in plain:
        with context.wrap_socket(each, server_hostname="localhost") as link:
            link.sendall(request("/echo", b"x"))
            answer = b""
            while not answer.endswith(b"\r\n\r\nx"):
                answer += link.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in answer
    closed.result(TIMEOUT)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_silent_client_does_not_delay_closing(
    secure: bool, opened: Opened, server_tls: ssl.SSLContext
) -> None:
    site = opened(site={"tls": server_tls} if secure else None, linger=QUICK)
    all_connected = threading.Event()
    closed = closing(site, all_connected)
    with connected(site.port) as silent_client, connected(site.port) as part:
        part.send(request("/echo", b"x")[:-6])
        all_connected.set()
        assert silent_client.is_closed()
        if not secure:
            assert part.reply().status == 408
        part.socket.close()
        closed.result(TIMEOUT)
    assert site.statistics().cut == 0


def test_closing_a_door_keeps_a_shared_listener_usable_for_others(opened: Opened) -> None:
    site = opened()
    with site.listening[0].dup() as other_process:
        site.run(site.door.close(TIMEOUT))
        with connected(site.port) as link:
            accepted, _ = other_process.accept()
            with accepted:
                accepted.sendall(b"!")
                assert link.socket.recv(1) == b"!"


def test_over_limit_is_set_beyond_max_calls(opened: Opened) -> None:
    site = opened(max_calls=2)
    with linked(site.port) as client, connected(site.port) as connection:
        held = client.open("/hold", end=True)
        waits = client.open("/patient")  # its body has not been sent
        site.until(lambda seen: seen.calls == 2)
        assert client.ask("/probe").http_status == 200
        assert client.ask("/echo").http_status == 503
        connection.send(request("/echo"))
        assert connection.reply().status == 503
        client.send(f.reset(waits))
        site.until(lambda seen: seen.calls == 1)
        connection.send(request("/echo"))
        assert connection.reply().status == 200
        site.call(site.echo_app.release_held)
        assert client.answer(held).body == b"held"
        site.until(lambda seen: seen.calls == 0)


def test_a_door_that_hands_over_serves_its_connections_but_accepts_none(opened: Opened) -> None:
    site = opened()
    with (
        connected(site.port) as busy,
        connected(site.port) as idle,
        linked(site.port) as streams,
    ):
        busy.send(request("/hold"))
        idle.send(request("/echo"))
        idle.reply()
        streams.ask("/echo")
        site.until(lambda seen: seen.open == 3 and len(site.echo_app.holding) == 1)
        handover = BackgroundCall(lambda: site.run(site.door.hand_over(TIMEOUT)))
        streams.until(lambda: bool(streams.goaways))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT)
        idle.send(request("/echo", b"late"))
        late = idle.reply()
        assert late.body == b"late"
        assert ("connection", "close") in late.headers
        assert idle.is_closed()
        streams.until_closed()
        streams.socket.close()
        site.call(site.echo_app.release_held)
        assert busy.reply().body == b"held"
        assert busy.is_closed()
        idle.socket.close()
        busy.socket.close()
        assert handover.result() is True


def test_handing_over_ends_at_its_timeout(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as busy:
        busy.send(request("/hold"))
        site.until(lambda seen: len(site.echo_app.holding) == 1)
        assert site.run(site.door.hand_over(0.01)) is False
        site.call(site.echo_app.release_held)
        assert busy.reply().body == b"held"


def test_a_request_begins_in_the_first_half_of_a_handover_only(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as busy, connected(site.port) as idle, connected(site.port) as part:
        busy.send(request("/hold"))
        for each in (idle, part):
            each.send(request("/echo"))
            each.reply()
        whole = request("/echo", b"late")
        part.send(whole[:10])
        site.until(lambda seen: seen.open == 3 and len(site.echo_app.holding) == 1)
        handover = BackgroundCall(lambda: site.run(site.door.hand_over(2.0)))
        assert idle.is_closed()
        part.send(whole[10:])
        assert part.reply().body == b"late"
        site.call(site.echo_app.release_held)
        assert busy.reply().body == b"held"
        part.socket.close()
        busy.socket.close()
        handover.result()


def test_a_handed_over_listener_stays_usable_for_others(opened: Opened) -> None:
    site = opened()
    other_processes = [each.dup() for each in site.listening]
    assert site.run(site.door.hand_over(TIMEOUT)) is True
    with socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT) as link:
        accepted, _ = other_processes[0].accept()
        with accepted:
            accepted.sendall(b"!")
            assert link.recv(1) == b"!"
    other_processes[0].close()


def test_tls_handshakes_in_progress_are_completed_during_a_handover(
    opened: Opened, server_tls: ssl.SSLContext, certificate: tuple[Path, Path]
) -> None:
    site = opened(site={"tls": server_tls})
    context = ssl.create_default_context(cafile=str(certificate[0]))
    plain = socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT)
    site.until(lambda seen: seen.open == 1)
    handover = BackgroundCall(lambda: site.run(site.door.hand_over(TIMEOUT)))
    until(lambda: not can_connect(site.port), "it accepts no more")
    with context.wrap_socket(plain, server_hostname="localhost") as link:
        link.sendall(request("/echo", b"one"))
        assert link.recv(1000).endswith(b"\r\n\r\none")
    assert handover.result() is True


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT).close()
    except (ConnectionRefusedError, ConnectionResetError):  # it is closed or just closing
        return False
    return True


def test_refused_connections_are_logged_at_a_limited_rate(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    site = opened(max_connections=1)
    with connected(site.port) as first:
        first.send(request("/echo", b"x"))
        first.reply()
        for _ in range(20):
            with connected(site.port) as other:
                check_refusal(other.reply(), 503)
        assert site.statistics().refused == 20
    lines = [record.getMessage() for record in caplog.records if "refused" in record.message]
    assert lines == ["1 connection was refused: 1 are open, and the limit is 1 (max_connections)"]
    site.call(lambda: setattr(site.door._shared, "_log_refusals_at", 0.0))
    site.call(site.door._shared._tick)
    assert "19 connections were refused" in caplog.records[-1].getMessage()


def test_instruments_are_notified_of_connections(opened: Opened) -> None:
    events: list[tuple[str, object]] = []

    class Listener(Instrument):
        def connection_opened(self, peer: object, now: float) -> None:
            events.append(("opened", peer))

        def connection_closed(self, peer: object, now: float) -> None:
            events.append(("closed", peer))

    site = opened(site={"instruments": Instruments([Listener()])})
    for _ in range(2):
        with connected(site.port) as connection:
            connection.send(request("/echo", b"x"))
            connection.reply()
        site.until(lambda seen: seen.open == 0)
    assert events == [("opened", "127.0.0.1"), ("closed", "127.0.0.1")] * 2
