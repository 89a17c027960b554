"""Ports that are bound before they listen, by one process or by several."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from penstock.door.budget import ByteBudget
from penstock.door.door import Door, DoorLimits
from penstock.door.listeners import accept_backlog, bind, bind_shared, bind_unix, port_of
from penstock.errors import StartupError
from tests.door.applications import EchoApplication

HOST = "127.0.0.1"
CLIENTS = 200
REQUEST = b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def status(port: int) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(REQUEST)
    answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n", 1)[0]


def new_door() -> Door:
    echo_app = EchoApplication()
    echo_app.loop = asyncio.get_running_loop()
    return Door(echo_app, DoorLimits(), ByteBudget(1 << 20))


async def test_no_connection_enters_the_backlog_once_it_is_accepted_for_the_last_time() -> None:
    with bind(HOST, 0, "http_port") as listener, socket.socket() as early, socket.socket() as late:
        listener.listen(8)
        late.setblocking(False)
        address = listener.getsockname()
        early.connect(address)
        loop = asyncio.get_running_loop()
        loop.add_reader(listener, lambda: listener.accept()[0].close())
        await accept_backlog([listener], 5.0)
        loop.remove_reader(listener)
        # Over loopback a connection is complete, and in the backlog, when this returns.
        assert late.connect_ex(address) == errno.EINPROGRESS
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert early.recv(1) == b""


def test_an_address_of_another_machine_is_an_error_about_host() -> None:
    with pytest.raises(StartupError, match="set host to an address of this machine"):
        bind("192.0.2.1", 0, "http_port")


async def test_doors_share_the_connections_of_a_port_and_one_continues_alone() -> None:
    first = bind(HOST, 0, "port", shared=True)
    port = port_of(first)
    doors = [new_door(), new_door()]
    await doors[0].listen(first, None)
    await doors[1].listen(bind(HOST, port, "port", shared=True), None)
    answers = await asyncio.gather(*(status(port) for _ in range(CLIENTS)))
    assert set(answers) == {b"HTTP/1.1 200 OK"}
    parts = [door.statistics().accepted for door in doors]
    assert sum(parts) == CLIENTS
    assert min(parts) > CLIENTS // 10
    await doors[0].close(1.0)
    answers = await asyncio.gather(*(status(port) for _ in range(20)))
    assert set(answers) == {b"HTTP/1.1 200 OK"}
    await doors[1].close(1.0)


def test_a_port_that_is_not_shared_cannot_be_bound_twice() -> None:
    with bind(HOST, 0, "port") as first:
        port = port_of(first)
        first.listen()
        for shared in (False, True):
            with pytest.raises(StartupError, match=f"port {port} on"):
                bind(HOST, port, "port", shared=shared)


@pytest.mark.parametrize(
    ("what", "run", "serve"),
    [("http_port", "--http-port", "--port"), ("rpc_port", "--rpc-port", "--grpc_port")],
)
def test_the_error_of_a_port_in_use_names_the_flags_of_each_command(
    what: str, run: str, serve: str
) -> None:
    with bind(HOST, 0, what) as first:
        first.listen()
        with pytest.raises(StartupError) as caught:
            bind(HOST, port_of(first), what)
    assert str(caught.value).endswith(
        f"; choose another port: {run} of penstock run, {serve} of a model server, or the key"
        f" {what}"
    )


def test_a_shared_port_that_another_process_listens_on_is_refused() -> None:
    with bind(HOST, 0, "port", shared=True) as other:
        other.listen()
        with pytest.raises(StartupError, match="cannot be bound"):
            bind_shared(HOST, port_of(other), "port", 2)


def test_an_existing_unix_socket_is_named_in_the_error_and_not_removed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "penstock.sock"
    bind_unix(path, "door.unix_socket").close()  # without removing it, as when killed
    with pytest.raises(StartupError, match=r"penstock\.sock cannot be bound: another program"):
        bind_unix(path, "door.unix_socket")
    assert path.is_socket()
    file = tmp_path / "app.py"
    file.write_text("")
    with pytest.raises(StartupError, match=r"app\.py cannot be bound: a file .* is no socket"):
        bind_unix(file, "door.unix_socket")
    assert file.is_file()
    with pytest.raises(StartupError, match="cannot be bound: No such file or directory"):
        bind_unix(tmp_path / "none" / "penstock.sock", "door.unix_socket")


def test_each_socket_of_a_shared_port_gets_connections() -> None:
    listeners = bind_shared(HOST, 0, "port", 3)
    try:
        (port,) = {port_of(each) for each in listeners}
        for each in listeners:
            each.listen()
            each.settimeout(0)
        clients = [socket.create_connection((HOST, port), 10) for _ in range(CLIENTS)]
        for each in clients:
            each.close()
        for each in listeners:
            each.accept()[0].close()
    finally:
        for each in listeners:
            each.close()


def test_a_single_socket_does_not_share_its_port() -> None:
    (only,) = bind_shared(HOST, 0, "port", 1)
    with only:
        assert not only.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
