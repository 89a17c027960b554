"""Listeners, greetings, the cap on connections, and the end of a door."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.door import door
from penstock.door.listeners import bind, port_of
from penstock.instrument import Instrument, Instruments
from tests.door.http2_client import Client, joined
from tests.door.site import QUICK, TIMEOUT, Site
from tests.door.test_http1_session import check_refusal, chunks, head_of, request
from tests.kit import baidu_std
from tests.kit.http1 import Connection, connected
from tests.peers.programs import program
from tests.service.scripts import Later, until

Opened = Callable[..., Site]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = program("openssl")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    ask = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    name = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [openssl, *ask.split(), *name, "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.fixture
def server_tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def secured(
    port: int, certificate: tuple[Path, Path], *protocols: str
) -> tuple[ssl.SSLSocket, str | None]:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    if protocols:
        context.set_alpn_protocols(list(protocols))
    plain = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
    link = context.wrap_socket(plain, server_hostname="localhost")
    return link, link.selected_alpn_protocol()


def test_one_listener_speaks_both_versions_of_http(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as one, joined(site.port) as two:
        assert two.ask("/echo", b"two").body == b"two"
        one.send(request("/echo", b"one"))
        assert one.reply().body == b"one"
    assert site.parrot.begun == ["/echo", "/echo"]
    assert site.statistics().accepted == 2


def test_a_unix_socket_is_listened_on(opened: Opened, tmp_path: Path) -> None:
    site = opened(site={"folder": tmp_path})
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(TIMEOUT)
        link.connect(site.unix)
        link.sendall(request("/echo", b"one"))
        assert link.recv(1000).endswith(b"\r\n\r\none")
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(site.unix)
        assert Client(link).ask("/echo", b"two").body == b"two"


@pytest.mark.parametrize("early", [False, True], ids=["waits", "sends at once"])
def test_tls_agrees_on_the_version_of_http(
    opened: Opened,
    server_tls: ssl.SSLContext,
    certificate: tuple[Path, Path],
    early: bool,
) -> None:
    site = opened(site={"tls": server_tls})
    for protocols, chosen in (
        (("h2", "http/1.1"), "h2"),
        (("http/1.1",), "http/1.1"),
        ((), None),
    ):
        link, agreed = secured(site.port, certificate, *protocols)
        with link:
            assert agreed == chosen
            if not early:
                assert site.until(lambda seen: seen.open == 1)
            if chosen == "h2":
                assert Client(link).ask("/echo", b"x" * 100_000).body == b"x" * 100_000
            else:
                link.sendall(request("/echo", b"one"))
                assert link.recv(1000).endswith(b"\r\n\r\none")
        site.until(lambda seen: seen.open == 0)
    assert server_tls.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_baidu_std_over_tls(
    opened: Opened, server_tls: ssl.SSLContext, certificate: tuple[Path, Path]
) -> None:
    site = opened(site={"tls": server_tls})
    link, _ = secured(site.port, certificate)
    with link:
        client = baidu_std.Connection(link)
        for size in (3, 300_000):
            sent = baidu_std.request(b"x" * size, service="echo", method="x")
            assert client.ask(sent).payload == b"x" * size


def test_a_preface_that_was_not_agreed_on_is_refused(
    opened: Opened, server_tls: ssl.SSLContext, certificate: tuple[Path, Path]
) -> None:
    site = opened(site={"tls": server_tls})
    link, _ = secured(site.port, certificate, "http/1.1")
    with link:
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert link.recv(1000).startswith(b"HTTP/1.1 505 ")


def test_the_application_sees_who_asks(
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


def test_handshakes_are_bounded_in_time_and_number(
    opened: Opened, server_tls: ssl.SSLContext, certificate: tuple[Path, Path]
) -> None:
    site = opened(site={"tls": server_tls}, tls_timeout=1.0, max_connections=4)
    silent = [socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT) for _ in "1234"]
    site.until(lambda seen: seen.open == 4)
    with Connection(site.port).socket as fifth:
        assert closed(fifth)
    assert all(closed(link) for link in silent)
    seen = site.until(lambda seen: seen.open == 0)
    assert (seen.tls_failed, seen.refused) == (4, 1)
    for link in silent:
        link.close()
    link, _ = secured(site.port, certificate)
    with link:
        link.sendall(request("/echo", b"one"))
        assert link.recv(1000).endswith(b"\r\n\r\none")


def closed(link: socket.socket) -> bool:
    link.settimeout(TIMEOUT)
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True


def test_what_is_no_tls_ends_the_handshake(opened: Opened, server_tls: ssl.SSLContext) -> None:
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


def test_connections_beyond_the_cap_get_503_and_the_others_are_left_alone(opened: Opened) -> None:
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


def test_who_fills_one_listener_keeps_nobody_from_the_other(
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
    for _ in range(3):  # and whoever leaves gives the place back
        with connected(port) as one, connected(port) as two:
            for connection in (one, two):
                connection.send(request("/echo", b"served"))
                assert connection.reply().body == b"served"
            with connected(port) as over:
                check_refusal(over.reply(), 503)
        site.until(lambda seen: seen.open == 14)
    for connection in idle:
        connection.socket.close()


def test_a_draining_door_ends_each_connection_with_its_next_answer(opened: Opened) -> None:
    site = opened()
    with (
        connected(site.port) as busy,
        connected(site.port) as idle,
        joined(site.port) as streams,
    ):
        busy.send(request("/hold"))
        held = streams.open("/hold", end=True)
        idle.send(request("/echo"))
        assert idle.reply().header("connection") is None
        assert site.parrot.began.acquire(timeout=TIMEOUT)
        site.until(lambda seen: len(site.parrot.holding) == 2)
        site.call(site.door.drain)
        streams.until(lambda: bool(streams.goaways))
        assert streams.goaways[0] == ((1 << 31) - 1, 0)
        streams.until(lambda: len(streams.goaways) == 2)
        assert streams.goaways[1] == (held, 0)
        for connection in (idle, Connection(site.port)):  # new ones are still served
            connection.send(request("/echo", b"x"))
            reply = connection.reply()
            assert (reply.body, reply.header("connection")) == (b"x", "close")
            assert connection.is_closed()
            connection.socket.close()
        site.call(site.parrot.let_go)
        assert busy.reply().header("connection") == "close"
        assert streams.wait(held).body == b"held"
        streams.wait_closed()


def test_a_draining_door_waits_for_what_crossed_with_its_word(opened: Opened) -> None:
    site = opened()
    site.run(site.door.drain_acknowledged())  # nobody is to be told
    with connected(site.port), joined(site.port) as streams, joined(site.port) as left:
        for client in (streams, left):
            client.wait(client.open("/echo", end=True))
        site.call(site.door.drain)
        late = streams.open("/echo", end=True)  # it has not read the GOAWAY
        left.socket.close()
        with pytest.raises(TimeoutError):
            site.run(asyncio.wait_for(site.door.drain_acknowledged(), 0.05))
        streams.wait(late)
        assert streams.answers[late].status == 200
        site.run(site.door.drain_acknowledged())


def test_a_client_that_is_not_heard_again_does_not_hold_a_drain_up(opened: Opened) -> None:
    site = opened()
    with joined(site.port) as silent:
        silent.wait(silent.open("/echo", end=True))
        site.call(site.door.drain)
        site.run(site.door.drain_acknowledged())


def test_closing_waits_for_open_exchanges_and_closes_the_others_at_once(opened: Opened) -> None:
    site = opened()
    with (
        connected(site.port) as busy,
        connected(site.port) as idle,
        connected(site.port) as silent,
        joined(site.port) as streams,
    ):
        busy.send(request("/hold"))
        held = streams.open("/hold", end=True)
        idle.send(request("/echo"))
        idle.reply()
        site.until(lambda seen: seen.open == 4 and len(site.parrot.holding) == 2)
        closing = threading.Thread(target=site.run, args=(site.door.close(TIMEOUT),))
        closing.start()
        assert idle.is_closed()
        assert silent.is_closed()
        streams.until(lambda: bool(streams.goaways))
        assert closing.is_alive()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT)
        site.call(site.parrot.let_go)
        assert busy.reply().body == b"held"
        assert busy.is_closed()
        assert streams.wait(held).body == b"held"
        streams.wait_closed()
        streams.socket.close()
        busy.socket.close()
        closing.join(TIMEOUT)
        assert not closing.is_alive()
    assert site.statistics().cut == 0


def test_requests_that_are_not_whole_are_refused_and_the_others_go_on(opened: Opened) -> None:
    site = opened()
    with (
        connected(site.port) as half,
        connected(site.port) as whole,
        connected(site.port) as begun,
        joined(site.port) as streams,
    ):
        half.send(request("/echo", b"whole")[:-1])
        whole.send(request("/hold", b"x"))
        begun.send(request("/duplex", b"ab")[:-1])
        part = streams.open("/echo")
        streams.send(part, b"part", end=False)
        call = streams.open("/echo", ("content-type", "application/grpc"))
        held = streams.open("/hold", end=True)
        patient = streams.open("/patient")
        site.until(lambda seen: seen.calls == 7 and len(site.parrot.holding) == 2)

        site.call(site.door.refuse_partial)

        reply = half.reply()
        assert (reply.status, reply.header("connection")) == (503, "close")
        assert reply.json()["message"] == "the service is shutting down"
        assert half.is_closed()
        streams.wait(part)
        assert streams.answers[part].status == 503
        streams.wait(call)
        assert streams.answers[call].headers["grpc-status"] == "14"
        assert site.statistics().calls == 4
        site.call(site.parrot.let_go)
        assert whole.reply().body == b"held"
        assert streams.wait(held).body == b"held"
        begun.send(b"b")
        assert head_of(begun).startswith(b"HTTP/1.1 200 ")
        assert chunks(begun) == b"ab"
        streams.send(patient, b"any time")
        assert streams.wait(patient).body == b"any time"
        half.socket.close()
        begun.socket.close()


def test_closing_does_not_wait_for_the_rest_of_a_request(opened: Opened) -> None:
    site = opened(linger=QUICK)
    with connected(site.port) as half, joined(site.port) as streams:
        half.send(request("/echo", b"whole")[:-1])
        part = streams.open("/echo")
        site.until(lambda seen: seen.calls == 2)
        closing = asyncio.run_coroutine_threadsafe(site.door.close(60.0), site.parrot.loop)
        assert half.reply().status == 503
        streams.wait(part)
        assert streams.answers[part].status == 503
        closing.result(TIMEOUT)
    assert site.statistics().cut == 0


def test_closing_cuts_off_what_does_not_end(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as busy, joined(site.port) as streams:
        busy.send(request("/hold"))
        streams.open("/hold", end=True)
        site.until(lambda seen: len(site.parrot.holding) == 2)
        site.run(site.door.close(QUICK))
        assert closed(busy.socket)
        streams.wait_closed()
    seen = site.statistics()
    assert (seen.cut, seen.open, seen.gone) == (2, 0, 2)
    assert site.parrot.gone.acquire(blocking=False)
    assert site.parrot.gone.acquire(blocking=False)


def closing(site: Site, connected: threading.Event) -> Future[None]:
    """A door that closes as soon as that is set, and does nothing at all before."""
    stands_still = threading.Event()

    async def close() -> None:
        stands_still.set()
        assert connected.wait(TIMEOUT)
        await site.door.close(60.0, for_good=True)

    future = asyncio.run_coroutine_threadsafe(close(), site.parrot.loop)
    assert stands_still.wait(TIMEOUT)
    return future


def test_whoever_has_connected_when_the_door_closes_for_good_is_answered(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_FIRST_BYTES_TIMEOUT", 60.0)
    site = opened(linger=QUICK)
    everybody = threading.Event()
    closed = closing(site, everybody)
    with ExitStack() as stack:
        some = [stack.enter_context(connected(site.port)) for _ in range(50)]
        for one in some:
            one.send(request("/echo", b"x"))
        half = stack.enter_context(connected(site.port))
        half.send(request("/echo", b"half")[:-1])
        streams = stack.enter_context(joined(site.port))
        asked = streams.open("/echo", end=True)
        late = stack.enter_context(connected(site.port))
        everybody.set()
        for one in some:
            reply = one.reply()
            assert (reply.body, reply.header("connection")) == (b"x", "close")
            assert one.is_closed()
            one.socket.close()
        late.send(request("/echo", b"late"))
        reply = late.reply()
        assert (reply.body, reply.header("connection")) == (b"late", "close")
        assert half.reply().status == 503
        assert streams.wait(asked).status == 200
        streams.wait_closed()
        streams.socket.close()
    closed.result(TIMEOUT)
    assert site.statistics().cut == 0


def test_who_has_connected_with_tls_may_shake_hands_when_the_door_closes_for_good(
    opened: Opened,
    server_tls: ssl.SSLContext,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "_FIRST_BYTES_TIMEOUT", 60.0)
    site = opened(site={"tls": server_tls}, linger=QUICK)
    context = ssl.create_default_context(cafile=str(certificate[0]))
    everybody = threading.Event()
    closed = closing(site, everybody)
    plain = [socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT) for _ in range(4)]
    everybody.set()
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
def test_who_says_nothing_does_not_hold_a_closing_door_up(
    secure: bool, opened: Opened, server_tls: ssl.SSLContext
) -> None:
    site = opened(site={"tls": server_tls} if secure else None, linger=QUICK)
    everybody = threading.Event()
    closed = closing(site, everybody)
    with connected(site.port) as silent, connected(site.port) as part:
        part.send(request("/echo", b"x")[:-6])
        everybody.set()
        assert silent.is_closed()
        if not secure:
            assert part.reply().status == 408
        part.socket.close()
        closed.result(TIMEOUT)
    assert site.statistics().cut == 0


def test_a_closing_door_leaves_a_socket_alone_that_others_accept_on(opened: Opened) -> None:
    site = opened()
    with site.listening[0].dup() as heir:
        site.run(site.door.close(TIMEOUT))
        with connected(site.port) as link:
            accepted, _ = heir.accept()
            with accepted:
                accepted.sendall(b"!")
                assert link.socket.recv(1) == b"!"


def test_the_application_knows_when_too_many_requests_are_open(opened: Opened) -> None:
    site = opened(max_calls=2)
    with joined(site.port) as client, connected(site.port) as connection:
        held = client.open("/hold", end=True)
        waits = client.open("/patient")  # its body has not come
        site.until(lambda seen: seen.calls == 2)
        assert client.ask("/probe").status == 200
        assert client.ask("/echo").status == 503
        connection.send(request("/echo"))
        assert connection.reply().status == 503
        client.h2.reset_stream(waits)
        client.flush()
        site.until(lambda seen: seen.calls == 1)
        connection.send(request("/echo"))
        assert connection.reply().status == 200
        site.call(site.parrot.let_go)
        assert client.wait(held).body == b"held"
        site.until(lambda seen: seen.calls == 0)


def test_a_door_that_hands_over_serves_its_connections_and_accepts_no_other(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as busy, connected(site.port) as idle, joined(site.port) as streams:
        busy.send(request("/hold"))
        idle.send(request("/echo"))
        idle.reply()
        streams.ask("/echo")
        site.until(lambda seen: seen.open == 3 and len(site.parrot.holding) == 1)
        handing = Later(lambda: site.run(site.door.hand_over(TIMEOUT)))
        streams.until(lambda: bool(streams.goaways))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT)
        idle.send(request("/echo", b"late"))
        late = idle.reply()
        assert late.body == b"late"
        assert ("connection", "close") in late.headers
        assert idle.is_closed()
        streams.wait_closed()
        streams.socket.close()
        site.call(site.parrot.let_go)
        assert busy.reply().body == b"held"
        assert busy.is_closed()
        idle.socket.close()
        busy.socket.close()
        assert handing.result() is True


def test_handing_over_has_an_end(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as busy:
        busy.send(request("/hold"))
        site.until(lambda seen: len(site.parrot.holding) == 1)
        assert site.run(site.door.hand_over(0.01)) is False
        site.call(site.parrot.let_go)
        assert busy.reply().body == b"held"


def test_a_socket_that_is_handed_over_stays_with_who_else_has_it(opened: Opened) -> None:
    site = opened()
    heirs = [each.dup() for each in site.listening]
    assert site.run(site.door.hand_over(TIMEOUT)) is True
    with socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT) as link:
        accepted, _ = heirs[0].accept()
        with accepted:
            accepted.sendall(b"!")
            assert link.recv(1) == b"!"
    heirs[0].close()


def test_handshakes_under_way_are_not_broken_off_by_handing_over(
    opened: Opened, server_tls: ssl.SSLContext, certificate: tuple[Path, Path]
) -> None:
    site = opened(site={"tls": server_tls})
    context = ssl.create_default_context(cafile=str(certificate[0]))
    plain = socket.create_connection(("127.0.0.1", site.port), timeout=TIMEOUT)
    site.until(lambda seen: seen.open == 1)
    handing = Later(lambda: site.run(site.door.hand_over(TIMEOUT)))
    until(lambda: not can_connect(site.port), "it accepts no more")
    with context.wrap_socket(plain, server_hostname="localhost") as link:
        link.sendall(request("/echo", b"one"))
        assert link.recv(1000).endswith(b"\r\n\r\none")
    assert handing.result() is True


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT).close()
    except (ConnectionRefusedError, ConnectionResetError):  # it closed, or closes this moment
        return False
    return True


def test_connections_over_the_limit_are_logged_once_in_a_while(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    site = opened(max_connections=1)
    with connected(site.port) as taken:
        taken.send(request("/echo", b"x"))
        taken.reply()
        for _ in range(20):
            with connected(site.port) as other:
                check_refusal(other.reply(), 503)
        assert site.statistics().refused == 20
    lines = [record.getMessage() for record in caplog.records if "refused" in record.message]
    assert lines == ["1 connection was refused: 1 are open, and the limit is 1 (max_connections)"]
    site.call(lambda: setattr(site.door._shared, "_log_refusals_at", 0.0))
    site.call(site.door._shared._tick)
    assert "19 connections were refused" in caplog.records[-1].getMessage()


def test_instruments_hear_of_connections(opened: Opened) -> None:
    heard: list[tuple[str, object]] = []

    class Listener(Instrument):
        def connection_opened(self, peer: object, now: float) -> None:
            heard.append(("opened", peer))

        def connection_closed(self, peer: object, now: float) -> None:
            heard.append(("closed", peer))

    site = opened(site={"instruments": Instruments([Listener()])})
    for _ in range(2):
        with connected(site.port) as connection:
            connection.send(request("/echo", b"x"))
            connection.reply()
        site.until(lambda seen: seen.open == 0)
    assert heard == [("opened", "127.0.0.1"), ("closed", "127.0.0.1")] * 2
