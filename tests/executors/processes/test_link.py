"""The engine's end of a worker's sockets: what wakes it, what it hears, and what ends it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.executors.processes.frame import Frame, FrameError, Kind, header
from penstock.executors.processes.link import Link
from penstock.executors.processes.passing import NoDescriptorError

SECONDS = 20.0


def frame(kind: Kind, number: int, body: bytes = b"") -> bytes:
    return header(kind, number, len(body)) + body


class Line:
    """A link, and the worker's ends of its sockets."""

    def __init__(self) -> None:
        ours, self.channel = socket.socketpair()
        answers, self.answers = socket.socketpair()
        self.heard: list[int] = []
        self.ended: asyncio.Future[FrameError | None] = asyncio.get_running_loop().create_future()
        self.new = asyncio.Event()
        self.link = Link(
            ours, asyncio.get_running_loop(), 1 << 20, self._hear, self.ended.set_result
        )
        self.engines_end = answers
        self.link.take_answers(os.dup(answers.fileno()))

    def _hear(self, frames: Sequence[Frame]) -> None:
        for kind, number, _ in frames:
            if self.link.over:
                return
            if kind is Kind.ANSWERS:
                self.link.read_answers()
            else:
                self.heard.append(number)
            self.new.set()

    async def next(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self.new.wait()
        self.new.clear()

    async def end(self) -> FrameError | None:
        async with asyncio.timeout(SECONDS):
            return await self.ended

    def close(self) -> None:
        self.link.close()
        self.channel.close()
        self.answers.close()
        self.engines_end.close()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    line = Line()
    yield line
    line.close()


async def test_answers_are_heard_in_order_when_they_are_announced_and_not_before(
    line: Line,
) -> None:
    for number in range(3):
        line.answers.sendall(frame(Kind.DONE, number))
    line.channel.sendall(frame(Kind.READY, 7))
    await line.next()
    assert line.heard == [7]
    line.channel.sendall(frame(Kind.ANSWERS, 0))
    await line.next()
    assert line.heard == [7, 0, 1, 2]


async def test_answers_can_be_asked_for(line: Line) -> None:
    line.link.read_answers()
    line.answers.sendall(frame(Kind.DONE, 1)[:-3])
    line.link.read_answers()
    assert line.heard == []
    line.answers.sendall(frame(Kind.DONE, 1)[-3:])
    line.link.read_answers()
    assert line.heard == [1]


async def test_whoever_hangs_up_is_heard_to_the_end(line: Line) -> None:
    line.answers.sendall(frame(Kind.DONE, 1))
    line.channel.close()
    assert await line.end() is None
    assert line.heard == [1]


async def test_answers_without_end_leave_the_loop_to_others(line: Line) -> None:
    async def flood() -> None:
        line.answers.setblocking(False)
        loop = asyncio.get_running_loop()
        for number in range(200):
            await loop.sock_sendall(line.answers, frame(Kind.DONE, number, bytes(100_000)))

    async with asyncio.timeout(SECONDS):
        flooding = asyncio.create_task(flood())
        while not flooding.done():
            line.link.read_answers()
            await asyncio.sleep(0)
        line.link.read_answers()
        while len(line.heard) < 200:
            await asyncio.sleep(0)
    assert line.heard == list(range(200))


async def test_a_socket_that_its_other_owner_made_blocking_does_not_stop_us(line: Line) -> None:
    line.engines_end.setblocking(True)
    line.link.read_answers()  # would hang
    line.answers.sendall(frame(Kind.DONE, 5))
    line.link.read_answers()
    assert line.heard == [5]


async def test_answers_that_are_no_frames_end_the_link_and_nothing_more_is_heard(
    line: Line,
) -> None:
    line.answers.sendall(frame(Kind.DONE, 1) + b"GET / HTTP/1.1\r\n")
    line.channel.sendall(frame(Kind.ANSWERS, 0) + frame(Kind.READY, 9))
    assert "no frame" in str(await line.end())
    assert 9 not in line.heard


async def test_what_is_no_such_socket_is_refused_and_closed(line: Line) -> None:
    read, write = os.pipe()
    other = socket.socket(socket.AF_INET, socket.SOCK_STREAM).detach()
    for descriptor, text in ((read, "no socket"), (other, "another kind")):
        with pytest.raises(FrameError, match=text):
            line.link.take_answers(descriptor)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    os.close(write)


async def test_descriptors_that_nobody_took_are_closed_with_the_link(line: Line) -> None:
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(line.answers, [frame(Kind.DONE, 1)], [line.answers.fileno()])
    line.link.read_answers()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    line.link.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2  # both sockets, too


async def test_a_link_ends_without_blame_when_no_descriptor_can_be_on_its_way(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> int:
        raise OSError(errno.ETOOMANYREFS, "too many are on their way")

    monkeypatch.setattr(socket, "send_fds", no_room)
    line.link.send([frame(Kind.SLAB, 1)], [line.answers.fileno()])
    assert type(await line.end()) is NoDescriptorError


async def test_what_is_sent_at_once_is_there_at_once_or_never(line: Line) -> None:
    assert line.link.send_at_once(b"first")
    assert line.channel.recv(1 << 16) == b"first"
    line.link.send([bytes(4 << 20)])
    assert not line.link.send_at_once(b"second")
    line.link.close()
    assert not line.link.send_at_once(b"third")
    left = b"".join(iter(lambda: line.channel.recv(1 << 16), b""))
    assert b"second" not in left


async def test_a_full_socket_takes_no_part_of_what_is_sent_at_once(line: Line) -> None:
    while line.link.send_at_once(b"abcdefgh" * 5):
        pass
    line.link.close()
    left = b"".join(iter(lambda: line.channel.recv(1 << 16), b""))
    assert len(left) % 40 == 0
