"""HTTP/1.1 through a door, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

import pytest

from penstock.door.budget import Reservation
from tests.kit.http1 import Connection, Reply, connected
from tests.services.door import QUICK, TIMEOUT, Site

Opened = Callable[..., Site]


def request(path: str = "/echo", body: bytes = b"", *fields: bytes, method: str = "POST") -> bytes:
    head = [f"{method} {path} HTTP/1.1".encode(), b"Host: x", *fields]
    if body or method == "POST":
        head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def chunks(connection: Connection) -> bytes:
    """The body of a chunked answer whose head has been read."""
    body = []
    while True:
        while b"\r\n" not in connection._data:
            connection._more()
        size, _, connection._data = connection._data.partition(b"\r\n")
        size_of_chunk = int(size, 16)
        while len(connection._data) < size_of_chunk + 2:
            connection._more()
        body.append(connection._data[:size_of_chunk])
        connection._data = connection._data[size_of_chunk + 2 :]
        if not size_of_chunk:
            return b"".join(body)


def head_of(connection: Connection) -> bytes:
    while b"\r\n\r\n" not in connection._data:
        connection._more()
    head, _, connection._data = connection._data.partition(b"\r\n\r\n")
    return head


def check_refusal(reply: Reply, status: int) -> None:
    assert reply.status == status
    assert reply.header("connection") == "close"
    assert list(reply.json()) == ["error", "code", "message", "details"]


def test_bodies_are_echoed_on_one_connection(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as connection:
        for body in (b"one", b"", b"x" * 300_000):
            for path in ("/echo", "/later"):
                connection.send(request(path, body))
                reply = connection.reply()
                assert (reply.status, reply.body) == (200, body)
                assert reply.header("connection") is None
    assert site.statistics().requests == 6


def test_pipelined_requests_are_answered_one_after_the_other(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as connection:
        paths = ["/later", "/echo", "/hold", "/echo"]
        connection.send(b"".join(request(path, b"%d" % n) for n, path in enumerate(paths)))
        assert [connection.reply().body for _ in range(2)] == [b"0", b"1"]
        assert all(site.echo_app.began.acquire(timeout=TIMEOUT) for _ in range(3))
        assert site.echo_app.begun == paths[:3]
        site.call(site.echo_app.release_held)
        assert [connection.reply().body for _ in range(2)] == [b"held", b"3"]


def test_many_pipelined_requests_wait_in_bounded_memory(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as connection:
        connection.send(request("/hold"))
        connection.socket.settimeout(0.3)
        more = request("/echo", b"x" * 10_000) * 2000
        with pytest.raises(TimeoutError):  # they are not read
            connection.socket.sendall(more)
        assert site.echo_app.begun == ["/hold"]
        site.call(site.echo_app.release_held)
        assert connection.reply().body == b"held"
        assert connection.reply().body == b"x" * 10_000


def test_unsent_bytes_of_a_large_answer_are_counted(opened: Opened) -> None:
    site = opened()
    size = 16 << 20
    with connected(site.port, patience=20) as connection:
        connection.send(request(f"/large/{size}"))
        seen = site.until(lambda seen: seen.unsent > 0)
        assert seen.unsent <= site.budget.used <= size + 1024
        assert len(connection.reply().body) == size
        site.until(lambda seen: seen.unsent == 0)
        site.until(lambda seen: site.budget.used == 0)


def test_pipelined_requests_are_not_begun_while_the_client_does_not_read(opened: Opened) -> None:
    site = opened()
    many = b"".join(request(f"/large/{1 << 20}") for _ in range(200))
    with connected(site.port, patience=20) as connection:
        connection.send(many)
        seen = site.until(lambda seen: seen.unsent > 0)
        assert seen.unsent < 3 << 20
        assert len(site.echo_app.begun) < 50
        for _ in range(200):
            assert len(connection.reply().body) == 1 << 20


def test_a_streamed_answer_gets_back_pressure_from_its_reader(opened: Opened) -> None:
    site = opened()
    with connected(site.port, patience=20) as connection:
        connection.send(request("/stream/2000") + request("/echo", b"next"))
        site.until(lambda seen: seen.unsent > 0)
        assert site.echo_app.sent < 2000 * 16384
        assert b"transfer-encoding: chunked" in head_of(connection)
        assert len(chunks(connection)) == 2000 * 16384
        assert connection.reply().body == b"next"


def test_an_application_can_answer_while_the_body_is_received(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as connection:
        connection.send(b"POST /duplex HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.send(b"3\r\none\r\n")
        head_of(connection)
        while b"one" not in connection._data:
            connection._more()
        connection.send(b"3\r\ntwo\r\n0\r\n\r\n")
        assert chunks(connection) == b"onetwo"


@pytest.mark.parametrize("path", ["/trailers", "/sum"])
def test_trailers_are_sent(opened: Opened, path: str) -> None:
    site = opened()
    with connected(site.port) as connection:
        connection.send(request(path, b"abc"))
        while b"x-sum: 3\r\n\r\n" not in connection._data:
            connection._more()


def test_an_early_answer_closes_the_connection_only_if_the_body_is_incomplete(
    opened: Opened,
) -> None:
    site = opened()
    with connected(site.port) as connection:
        connection.send(request("/refuse", b"all here"))
        assert connection.reply().header("connection") is None
        connection.send(request("/refuse", b"not all here")[:-1])
        assert connection.reply().header("connection") == "close"
        assert connection.is_closed()


def test_a_client_that_sends_a_large_body_before_it_reads_gets_the_answer(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as connection:
        connection.send(request("/refuse", bytes(20 << 20)))
        assert connection.reply().status == 404
        assert connection.is_closed()


def test_a_paused_sender_continues_later(opened: Opened) -> None:
    site = opened(body_timeout=QUICK)
    size = 30 << 20
    with connected(site.port, patience=20) as connection:
        connection.socket.setblocking(False)
        data = memoryview(request("/lazy", bytes(size)))
        sent = 0
        while not site.echo_app.holding or sent < 1 << 20:
            try:
                sent += connection.socket.send(data[sent:])
            except BlockingIOError:
                continue
        assert sent < size
        site.until(lambda seen: bool(site.echo_app.holding))
        connection.socket.settimeout(TIMEOUT)
        site.call(site.echo_app.release_held)
        connection.socket.sendall(data[sent:])
        assert connection.reply().body == b"%d" % size
    assert site.statistics().bodies_late == 0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (request("/echo", b"", b"Transfer-Encoding: chunked", method="PUT") + b"zz\r\n", 400),
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(99), 400),
        (b"PRI * HTTP/2.0\r\n\r\nnot the preface", 505),
    ],
)
def test_an_invalid_request_is_refused_and_the_connection_closed(
    opened: Opened, data: bytes, status: int
) -> None:
    site = opened()
    with connected(site.port) as connection:
        connection.send_until_refused(data, 1)
        check_refusal(connection.reply(), status)
        assert connection.is_closed()
    assert site.statistics().malformed == 1
    assert site.echo_app.gone.acquire(blocking=False) == (b"chunked" in data)


def test_a_refusal_is_sent_after_the_earlier_answer(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as connection:
        connection.send(request("/hold") + b"nonsense\r\n\r\n")
        site.echo_app.arrived.acquire(timeout=TIMEOUT)
        site.call(site.echo_app.release_held)
        assert connection.reply().body == b"held"
        check_refusal(connection.reply(), 400)
        assert connection.is_closed()


def test_a_silent_connection_is_closed_without_an_answer(opened: Opened) -> None:
    site = opened(header_timeout=QUICK)
    with connected(site.port) as connection:
        assert connection.is_closed()
    assert site.statistics().heads_late == 1


@pytest.mark.parametrize("start", [b"P", b"PRI * H", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_an_incomplete_head_gets_408(opened: Opened, start: bytes) -> None:
    site = opened(header_timeout=QUICK)
    with connected(site.port) as connection:
        connection.send(start)
        check_refusal(connection.reply(), 408)
        assert connection.is_closed()
    assert site.statistics().heads_late == 1


def test_each_head_has_its_own_timeout(opened: Opened) -> None:
    site = opened(header_timeout=QUICK, keep_alive=60)
    with connected(site.port) as connection:
        connection.send(request("/echo"), request("/echo")[:10])
        assert connection.reply().status == 200
        check_refusal(connection.reply(), 408)


def test_empty_lines_do_not_keep_a_connection_open(opened: Opened) -> None:
    site = opened(header_timeout=QUICK, keep_alive=QUICK)
    with connected(site.port) as connection:
        connection.send(request("/echo"))
        connection.reply()
        connection.socket.settimeout(0.02)
        received = None
        while received is None:
            try:
                connection.socket.sendall(b"\r\n")
                received = connection.socket.recv(10)
            except TimeoutError:
                continue
            except OSError:
                break
    site.until(lambda seen: seen.open == 0)


def test_an_incomplete_body_gets_408_and_the_application_is_notified(
    opened: Opened,
) -> None:
    site = opened(body_timeout=QUICK)
    with connected(site.port) as connection:
        connection.send(request("/echo", b"whole")[:-1])
        check_refusal(connection.reply(), 408)
        assert connection.is_closed()
    assert site.statistics().bodies_late == 1
    assert site.echo_app.late_count == 1
    assert site.echo_app.gone.acquire(timeout=TIMEOUT)


def test_the_application_can_remove_a_bodys_timeout(opened: Opened) -> None:
    site = opened(body_timeout=QUICK, header_timeout=QUICK)
    data = request("/patient", b"whole")
    with connected(site.port) as silent, connected(site.port) as connection:
        connection.send(data[:-1])
        assert site.echo_app.began.acquire(timeout=TIMEOUT)
        assert silent.is_closed()
        connection.send(data[-1:])
        assert connection.reply().body == b"whole"


def test_received_bytes_extend_a_bodys_timeout(opened: Opened) -> None:
    site = opened(body_timeout=QUICK, body_pace=1)
    data = request("/echo", b"whole")
    with connected(site.port) as silent, connected(site.port) as connection:
        connection.send(data[:-1])  # four bytes, so four seconds more
        silent.send(request("/echo", b"whole")[:-5])
        check_refusal(silent.reply(), 408)
        connection.send(data[-1:])
        assert connection.reply().body == b"whole"


def test_an_idle_connection_is_closed(opened: Opened) -> None:
    site = opened(keep_alive=QUICK)
    with connected(site.port) as connection:
        connection.send(request("/echo"))
        assert connection.reply().header("connection") is None
        assert connection.is_closed()
    assert site.statistics().idle == 1


def test_a_connection_that_waits_for_its_answer_is_not_idle(opened: Opened) -> None:
    site = opened(keep_alive=QUICK, header_timeout=QUICK, body_timeout=QUICK)
    with connected(site.port) as connection:
        for _ in range(2):
            with connected(site.port) as silent:
                connection.send(request("/hold", b"x"))
                assert site.echo_app.arrived.acquire(timeout=TIMEOUT)
                assert silent.is_closed()
            site.call(site.echo_app.release_held)
            assert connection.reply().body == b"held"


def with_small_buffer(port: int) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.settimeout(TIMEOUT)
    return client


@pytest.mark.parametrize("path", ["/large/20000000", "/stream/2000"])
def test_a_client_that_does_not_read_is_disconnected(opened: Opened, path: str) -> None:
    site = opened(write_timeout=QUICK)
    with with_small_buffer(site.port) as client:
        client.sendall(request(path))
        site.until(lambda seen: seen.stalled == 1)
        assert site.until(lambda seen: seen.open == 0).unsent == 0
    if path.startswith("/stream"):
        assert site.echo_app.gone.acquire(timeout=TIMEOUT)


@pytest.mark.parametrize("fields", [(), (b"Connection: close",)], ids=["kept", "closing"])
def test_a_disconnected_client_gets_a_reset_and_the_kernel_keeps_no_data(
    opened: Opened, fields: tuple[bytes, ...]
) -> None:
    site = opened(write_timeout=QUICK)
    with with_small_buffer(site.port) as link:
        link.sendall(request(f"/large/{16 << 20}", b"", *fields))
        site.until(lambda seen: seen.stalled == 1)
        reset = select.poll()
        reset.register(link, 0)  # errors are always reported
        assert reset.poll(1000 * TIMEOUT) == [(link.fileno(), select.POLLERR | select.POLLHUP)]


def test_a_client_that_reads_too_slowly_is_disconnected(opened: Opened) -> None:
    site = opened(write_timeout=QUICK)
    with with_small_buffer(site.port) as client:
        client.sendall(request("/large/20000000"))
        began = time.monotonic()
        while not site.statistics().stalled and time.monotonic() < began + TIMEOUT:
            assert client.recv(10)
            time.sleep(0.01)  # the client's rate of reading
        seen = site.until(lambda seen: seen.open == 0)
        assert seen.stalled == 1


def test_at_the_budgets_limit_the_client_with_most_unsent_bytes_is_disconnected(
    opened: Opened,
) -> None:
    site = opened(site={"budget": 40 << 20})
    clients = [with_small_buffer(site.port) for _ in range(4)]
    for client, size in zip(clients, (8, 20, 9, 10), strict=True):
        client.sendall(request(f"/large/{size << 20}"))
        site.until(lambda seen, size=size: seen.overrun or seen.unsent > size << 18)
    seen = site.until(lambda seen: seen.overrun > 0 and seen.open == 3)
    assert seen.overrun == 1
    assert site.budget.used <= 40 << 20
    cut = []
    for client, size in zip(clients, (8, 20, 9, 10), strict=True):
        with client:
            cut.append(not is_complete(client, size << 20))
    assert cut == [False, True, False, False]


def test_announced_bytes_do_not_cause_a_disconnect(opened: Opened) -> None:
    site = opened(site={"budget": 16 << 20})
    others = Reservation(site.budget)
    site.call(lambda: others.announce(5 << 20))
    with with_small_buffer(site.port) as client:
        client.sendall(request(f"/large/{12 << 20}"))
        site.until(lambda seen: seen.unsent > 8 << 20)
        assert site.budget.used > site.budget.limit
        assert site.statistics().overrun == 0
        assert is_complete(client, 12 << 20)
    site.call(others.release)


def is_complete(client: socket.socket, size: int) -> bool:
    """Whether an answer with a body of this size is complete."""
    got = 0
    try:
        while got < size and (more := len(client.recv(1 << 20))):
            got += more
    except ConnectionResetError:
        return False
    return got >= size


def test_an_answer_without_back_pressure_is_aborted_at_max_unsent(opened: Opened) -> None:
    site = opened(max_unsent=1 << 20)
    with with_small_buffer(site.port) as client:
        client.sendall(request("/flood/2000"))
        seen = site.until(lambda seen: seen.overrun > 0)
        assert seen.overrun == 1
        assert seen.unsent < 8 << 20
        site.until(lambda seen: seen.open == 0)
    assert site.echo_app.gone.acquire(timeout=TIMEOUT)


@pytest.mark.parametrize("end", ["reset", "close"])
def test_the_application_is_notified_once_of_a_disconnect(opened: Opened, end: str) -> None:
    site = opened(half_close_probe=end == "close")
    connection = Connection(site.port)
    connection.send(request("/hold"))
    assert site.echo_app.arrived.acquire(timeout=TIMEOUT)
    if end == "reset":
        connection.reset()
    else:
        connection.socket.close()
    assert site.echo_app.gone.acquire(timeout=1.0)
    site.until(lambda seen: seen.open == 0)
    assert site.statistics().gone == 1
    site.call(site.echo_app.release_held)  # these answers are discarded
    assert not site.echo_app.gone.acquire(blocking=False)


@pytest.mark.parametrize("probe", [False, True])
def test_a_half_closed_client_gets_its_answers(opened: Opened, probe: bool) -> None:
    site = opened(half_close_probe=probe)
    with connected(site.port) as connection:
        connection.send(request("/later", b"1") + request("/hold") + request("/echo", b"3"))
        connection.half_close()
        assert connection.reply().body == b"1"
        if probe:
            assert connection.reply().status == 100  # the half-close probe
        site.until(lambda seen: bool(site.echo_app.holding))
        site.call(site.echo_app.release_held)
        assert connection.reply().body == b"held"
        assert connection.reply().body == b"3"
        assert connection.is_closed()
    assert site.statistics().gone == 0


def test_a_half_close_in_an_incomplete_request_ends_the_connection(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as connection:
        connection.send(request("/echo", b"whole")[:-1])
        assert site.echo_app.began.acquire(timeout=TIMEOUT)
        connection.half_close()
        assert connection.is_closed()
    assert site.echo_app.gone.acquire(timeout=TIMEOUT)


@pytest.mark.parametrize("path", ["/raise", "/raise/body"])
def test_an_error_of_the_application_fails_one_request(
    opened: Opened, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = opened()
    with connected(site.port) as other, connected(site.port) as connection:
        other.send(request("/hold"))
        assert site.echo_app.arrived.acquire(timeout=TIMEOUT)
        connection.send(request(path, b"x"))
        check_refusal(connection.reply(), 500)
        assert connection.is_closed()
        site.call(site.echo_app.release_held)
        assert other.reply().body == b"held"
    assert site.statistics().errors == 1
    faults = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(faults) == 1


@pytest.mark.parametrize("path", ["/begun", "/broken"])
def test_an_aborted_answer_is_truncated(opened: Opened, path: str) -> None:
    site = opened()
    with connected(site.port) as connection:
        connection.send(request(path))
        head_of(connection)
        assert b"some" in connection._data or not connection._more()
        while b"some" not in connection._data:
            connection._more()
        connection._data = b""
        assert connection.is_closed()


def test_the_budget_is_released_after_answers_and_disconnects(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as connection:
        connection.send(request("/count", b"x" * 1000))
        assert connection.reply().body == b"1000"
        assert site.budget.used == 0
        connection.send(request("/count", b"x" * 1000)[:-1])
        site.until(lambda seen: site.budget.used == 999)
        connection.reset()
        site.until(lambda seen: site.budget.used == 0)


def test_buffered_chunks_wait_while_the_sender_is_paused(opened: Opened) -> None:
    site = opened(body_timeout=QUICK)
    start = b"POST /lazy HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(site.port) as silent, connected(site.port) as connection:
        connection.send(start + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")
        site.until(lambda seen: bool(site.echo_app.holding))
        silent.send(request("/echo", b"whole")[:-1])
        check_refusal(silent.reply(), 408)
        assert site.echo_app.arrived.acquire(timeout=TIMEOUT)
        assert site.echo_app.arrived.acquire(timeout=TIMEOUT)  # of the second client
        assert not site.echo_app.arrived.acquire(blocking=False)
        site.call(site.echo_app.release_held)
        assert connection.reply().body == b"5000"
    assert site.statistics().bodies_late == 1


def test_a_limited_number_of_pipelined_requests_is_begun_in_each_turn(opened: Opened) -> None:
    site = opened()
    most = 0

    async def watch() -> None:
        nonlocal most
        before = 0
        while before < 3000:
            begun = len(site.echo_app.begun)
            most = max(most, begun - before)
            before = begun
            await asyncio.sleep(0)

    with connected(site.port) as connection:
        watcher = asyncio.run_coroutine_threadsafe(watch(), site.echo_app.loop)
        connection.send(b"".join(request(f"/{n}", b"%d" % n) for n in range(3000)))
        for n in range(3000):
            assert connection.reply().body == b"%d" % n
        watcher.result(TIMEOUT)
    assert most <= 32
    assert site.statistics().requests == 3000


def test_closing_answers_the_current_one_of_pipelined_requests(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as connection:
        connection.send(request("/hold") + request("/echo", b"x") * 1000)
        assert site.echo_app.arrived.acquire(timeout=TIMEOUT)
        closing = asyncio.run_coroutine_threadsafe(site.door.close(TIMEOUT), site.echo_app.loop)
        site.call(site.echo_app.release_held)
        assert connection.reply().header("connection") == "close"
        assert connection.is_closed()
        closing.result(TIMEOUT)
    assert site.echo_app.begun == ["/hold"]


def test_only_http_1_1_clients_get_the_half_close_probe(opened: Opened) -> None:
    site = opened(half_close_probe=True)
    for line, probed in ((b"POST /hold HTTP/1.0", False), (b"POST /hold HTTP/1.1", True)):
        with connected(site.port) as connection:
            connection.send(line + b"\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
            assert site.echo_app.arrived.acquire(timeout=TIMEOUT)
            connection.half_close()
            connection.socket.settimeout(0.2)
            try:
                seen = connection.socket.recv(100)
            except TimeoutError:
                seen = b""
            assert seen == (b"HTTP/1.1 100 Continue\r\n\r\n" if probed else b"")
            site.call(site.echo_app.release_held)
            assert connection.reply().body == b"held"
            assert connection.is_closed()


def test_every_answer_has_a_date(opened: Opened) -> None:
    site = opened()
    with connected(site.port) as connection:
        for path in ("/echo", "/later", "/refuse"):
            connection.send(request(path, b"x"))
            date = connection.reply().header("date")
            assert date is not None
            assert abs(parsedate_to_datetime(date).timestamp() - time.time()) < 5
        connection.send(b"no request\r\n\r\n")
        assert connection.reply().header("date") is not None
    with connected(site.port) as connection:
        connection.send(request("/trailers", b"x"))
        assert b"\r\ndate: " in head_of(connection)


def test_a_body_times_out_at_the_requests_deadline(opened: Opened) -> None:
    site = opened(body_timeout=20.0)
    with connected(site.port) as connection:
        began = time.monotonic()
        connection.send(request("/soon", b"12345")[:-1])
        check_refusal(connection.reply(), 408)
        assert time.monotonic() - began < 3
    assert site.statistics().bodies_late == 1
