"""The engine's end of the control connection; the test is the supervisor."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import signal
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from penstock.errors import StartupError
from penstock.executors.executor import OpSource
from penstock.executors.processes.spawner import Exited, Spawned
from penstock.supervisor.client import SupervisorClient, report_failure
from penstock.supervisor.messages import (
    MOST_BYTES,
    Answer,
    Answers,
    Ask,
    Failed,
    Forked,
    Leave,
    Leaving,
    Message,
    Order,
    Ready,
    Refused,
    Serve,
    Spawn,
    Stop,
    decode,
    encode,
    send,
)

an_op = OpSource(op="op", label="op")


class Supervisor:
    """The other end of the connection, controlled by the test."""

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self.line = line
        self.ends: list[socket.socket] = []

    async def receive(self) -> Message:
        """The next message."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.line, readable.set)
        await asyncio.wait_for(readable.wait(), 10)
        loop.remove_reader(self.line)
        return decode(self.line.recv(MOST_BYTES))

    async def receive_spawn(self) -> Spawn:
        message = await self.receive()
        assert isinstance(message, Spawn)
        return message

    def forked(self, number: int, pid: int) -> socket.socket:
        """Reports a forked worker; returns the worker's end. The pidfd is this process's."""
        ours, theirs = socket.socketpair()
        pidfd = os.pidfd_open(os.getpid())
        socket.send_fds(self.line, [encode(Forked(number, pid))], [ours.fileno(), pidfd])
        os.close(pidfd)
        ours.close()
        theirs.settimeout(10)
        self.ends.append(theirs)
        return theirs

    def send_message(self, message: Message) -> None:
        self.line.send(encode(message))


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, Supervisor]]:
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    supervisor = Supervisor(ours)
    with theirs, ours:
        yield theirs, supervisor
    for each in supervisor.ends:
        each.close()


@pytest.fixture
async def client(line: tuple[socket.socket, Supervisor]) -> AsyncIterator[SupervisorClient]:
    client = SupervisorClient(line[0], asyncio.get_running_loop())
    yield client
    client.close()


@pytest.fixture
def supervisor(line: tuple[socket.socket, Supervisor]) -> Supervisor:
    return line[1]


def close_worker(worker: Spawned) -> None:
    worker.socket.close()
    os.close(worker.pidfd)


async def test_a_spawned_worker_has_its_socket_and_pidfd(
    client: SupervisorClient, supervisor: Supervisor
) -> None:
    spawning = asyncio.create_task(client.spawn(OpSource(op="detect"), 3))
    wanted = await supervisor.receive_spawn()
    assert (wanted.op, wanted.index) == ("detect", 3)
    supervisor.forked(wanted.number, 4711).send(b"hello")
    worker = await spawning
    assert worker.pid == 4711
    assert worker.socket.recv(9) == b"hello"
    assert not worker.socket.getblocking()
    signal.pidfd_send_signal(worker.pidfd, 0)
    for fd in (worker.pidfd, worker.socket.fileno()):
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    close_worker(worker)


async def test_spawns_are_requested_one_after_the_other(
    client: SupervisorClient, supervisor: Supervisor
) -> None:
    spawning = [asyncio.create_task(client.spawn(an_op, index)) for index in range(3)]
    for index in range(3):
        wanted = await supervisor.receive_spawn()
        assert wanted.index == index
        assert not select.select([supervisor.line], [], [], 0)[0]
        supervisor.forked(wanted.number, 100 + index)
    workers = await asyncio.gather(*spawning)
    assert [worker.pid for worker in workers] == [100, 101, 102]
    for worker in workers:
        close_worker(worker)


async def test_a_refused_spawn_raises_the_reason(
    client: SupervisorClient, supervisor: Supervisor
) -> None:
    spawning = asyncio.create_task(client.spawn(an_op, 0))
    supervisor.send_message(Refused((await supervisor.receive_spawn()).number, "no room"))
    with pytest.raises(StartupError, match="no room"):
        await spawning


async def test_an_exit_reported_before_anyone_waits_is_kept(
    client: SupervisorClient, supervisor: Supervisor
) -> None:
    spawning = asyncio.create_task(client.spawn(an_op, 0))
    number = (await supervisor.receive_spawn()).number
    supervisor.forked(number, 4711)
    supervisor.send_message(Exited(4711, signal.SIGSEGV, 5))
    worker = await spawning
    assert await client.exited(worker.pid) == Exited(4711, signal.SIGSEGV, 5)
    with pytest.raises(LookupError):
        await client.exited(worker.pid)
    close_worker(worker)


async def test_an_exit_is_kept_for_the_next_after_a_wait_was_cancelled(
    client: SupervisorClient, supervisor: Supervisor
) -> None:
    spawning = asyncio.create_task(client.spawn(an_op, 0))
    supervisor.forked((await supervisor.receive_spawn()).number, 4711)
    worker = await spawning
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.exited(worker.pid), 0)
    waiting = asyncio.create_task(client.exited(worker.pid))
    supervisor.send_message(Exited(4711, 0, 5))
    assert (await waiting).status == 0
    close_worker(worker)


async def test_orders_are_passed_on(line: tuple[socket.socket, Supervisor]) -> None:
    received: asyncio.Queue[Order] = asyncio.Queue()
    client = SupervisorClient(line[0], asyncio.get_running_loop(), received.put_nowait)
    orders: list[Order] = [Serve(), Stop(False), Leave()]
    for order in orders:
        line[1].send_message(order)
    assert [await asyncio.wait_for(received.get(), 10) for _ in orders] == orders
    client.leaving()
    assert await line[1].receive() == Leaving()
    client.close()


def test_a_failed_start_is_reported(line: tuple[socket.socket, Supervisor]) -> None:
    assert report_failure(line[0], "no such model")
    assert decode(line[1].line.recv(MOST_BYTES)) == Failed("no such model")
    line[1].line.close()
    assert not report_failure(line[0], "no such model")


async def test_readiness_is_reported(client: SupervisorClient, supervisor: Supervisor) -> None:
    client.ready(["a model"])
    assert await supervisor.receive() == Ready(["a model"])


async def test_waiting_calls_fail_when_the_supervisor_has_died(
    client: SupervisorClient, supervisor: Supervisor
) -> None:
    spawning = asyncio.create_task(client.spawn(an_op, 0))
    supervisor.forked((await supervisor.receive_spawn()).number, 4711)
    worker = await spawning
    ending = asyncio.create_task(client.exited(worker.pid))
    spawning = asyncio.create_task(client.spawn(an_op, 1))
    await supervisor.receive_spawn()
    supervisor.line.close()
    for waiting in (spawning, ending):
        with pytest.raises(StartupError, match="supervisor"):
            await waiting
    with pytest.raises(StartupError, match="supervisor"):
        await client.spawn(an_op, 2)
    close_worker(worker)


async def test_a_closed_connection_sends_nothing_more(
    client: SupervisorClient, supervisor: Supervisor
) -> None:
    client.close()
    client.close()
    with pytest.raises(StartupError, match="closed"):
        client.ready()
    assert supervisor.line.recv(1) == b""


async def test_a_query_gets_its_answers_whatever_their_size(
    client: SupervisorClient, supervisor: Supervisor
) -> None:
    asking = asyncio.create_task(client.ask("a query", 0.5))
    asked = await supervisor.receive()
    assert isinstance(asked, Ask)
    assert (asked.query, asked.seconds, asked.kept) == ("a query", 0.5, False)
    large = ["é" * MOST_BYTES, None]
    send(supervisor.line, Answers(asked.number, json.dumps(large).encode()))
    assert await asking == large


async def test_an_answer_is_sent_as_json(client: SupervisorClient, supervisor: Supervisor) -> None:
    client.answer(7, {"a": [1.5, "é"]}, kept=True)
    assert await supervisor.receive() == Answer(7, True, b'{"a": [1.5, "\\u00e9"]}')
