"""The engine's connection to its supervisor, which starts the worker processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.errors import StartupError
from penstock.executors.processes.channel import receive
from penstock.executors.processes.control import (
    MOST_BYTES,
    ControlError,
    Exited,
    Failed,
    Forked,
    Leave,
    Leaving,
    Message,
    Order,
    Ping,
    Pong,
    Ready,
    Refused,
    Report,
    ReportWanted,
    Serve,
    Spawn,
    Stop,
    Sum,
    SumWanted,
    decode,
    encode,
)

_MOST_FDS: Final = 2


@dataclass(frozen=True, slots=True)
class Spawned:
    """A worker process that has just been started.

    Attributes:
        pid: its number, which ``exited`` wants.
        pidfd: to be signalled by, without ever meaning a later process of the same number; readable
            when the worker has ended. The receiver's to close.
        socket: the engine's end of the pair, not blocking. The receiver's to close.
    """

    pid: int
    pidfd: int
    socket: socket.socket


class Spawner(Protocol):
    """Starts worker processes."""

    async def spawn(self, op: str, index: int) -> Spawned:
        """Start one; its model is not open yet.

        Raises:
            StartupError: none can be started.
        """

    async def exited(self, pid: int) -> Exited:
        """How it has ended, when it has; asked once for each."""


class SupervisorClient:
    """Asks the supervisor for workers, and hears of their ends.

    Args:
        control: the engine's end of the line, taken over.
        loop: the engine's loop.
        obey: called with what the supervisor wants of the engine.

    Threads: the loop's only.
    """

    def __init__(
        self,
        control: socket.socket,
        loop: asyncio.AbstractEventLoop,
        obey: Callable[[Order], None] = lambda order: None,
    ) -> None:
        control.setblocking(False)
        self._control = control
        self._loop = loop
        self._obey = obey
        self._numbers = itertools.count(1)
        # One request at a time: the supervisor serves them one after the other anyhow, and so its
        # queue, which would refuse at some length, stays short.
        self._turn = asyncio.Lock()
        self._wanted: dict[int, asyncio.Future[Spawned]] = {}
        self._exits: dict[int, asyncio.Future[Exited]] = {}
        self._sums: dict[int, asyncio.Future[str]] = {}
        self._lost: str | None = None
        loop.add_reader(control, self._hear)

    def __repr__(self) -> str:
        wanted, workers = len(self._wanted), len(self._exits)
        return f"<SupervisorClient {wanted=} {workers=} lost={self._lost!r}>"

    def ready(self) -> None:
        """Tell the supervisor that this engine could serve."""
        self._say(Ready())

    def leaving(self) -> None:
        """Tell it that this engine is to stop, and ask for another in its place.

        Raises:
            StartupError: it cannot be asked.
        """
        self._say(Leaving())

    async def spawn(self, op: str, index: int) -> Spawned:
        """Have a worker started.

        Raises:
            StartupError: the supervisor cannot start one, or is gone.
        """
        async with self._turn:
            number = next(self._numbers)
            wanted: asyncio.Future[Spawned] = self._loop.create_future()
            self._wanted[number] = wanted
            try:
                self._say(Spawn(number, op, index))
                return await wanted
            except BaseException:
                # Cancelled in the very turn of the loop in which the worker came.
                if wanted.done() and not wanted.cancelled() and wanted.exception() is None:
                    self._forget(wanted.result())
                raise
            finally:
                self._wanted.pop(number, None)

    def report(self, number: int, text: str) -> None:
        """Give the report that was wanted.

        Raises:
            StartupError: the supervisor is gone.
        """
        self._say(Report(number, text))

    async def sum_up(self, text: str) -> str:
        """The sum of all engines' reports, of which this is our own.

        Raises:
            StartupError: the supervisor is gone.
        """
        number = next(self._numbers)
        wanted: asyncio.Future[str] = self._loop.create_future()
        self._sums[number] = wanted
        try:
            self._say(SumWanted(number, text))
            return await wanted
        finally:
            self._sums.pop(number, None)

    async def exited(self, pid: int) -> Exited:
        """Wait until a worker has ended; how, with its wait status as ``os.waitpid`` gives it.

        To be asked once for each worker: the answer is not kept.

        Raises:
            LookupError: there is no such worker, or it was asked before.
            StartupError: the supervisor is gone.
        """
        exit_ = self._exits[pid]
        try:
            return await asyncio.shield(exit_)
        finally:
            if exit_.done() and self._exits.get(pid) is exit_:
                del self._exits[pid]

    def close(self) -> None:
        """Hang up. Workers live on; who waits for one hears that the supervisor is gone."""
        self._lose("the line to the supervisor is closed")

    def _say(self, message: Message) -> None:
        if self._lost is not None:
            raise StartupError(self._lost)
        try:
            self._control.send(encode(message))
        except (OSError, ControlError) as error:
            raise StartupError(f"the supervisor cannot be asked: {error}") from error

    def _hear(self) -> None:
        try:
            data, fds, lost = receive(self._control, MOST_BYTES, _MOST_FDS)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"the supervisor is gone: {error}")
            return
        if not data:
            self._lose("the supervisor is gone")
            return
        try:
            message = decode(data)
            if lost and isinstance(message, Forked):
                # The worker ends when it finds that nobody holds the other end.
                _close(fds)
                message, fds = Refused(message.number, "the engine has no descriptor left"), []
            self._heard(message, fds)
        except ControlError as error:
            _close(fds)
            self._lose(f"the supervisor is not understood: {error}")

    def _heard(self, message: Message, fds: list[int]) -> None:
        match message:
            case Forked(number, pid) if len(fds) == _MOST_FDS:
                self._exits[pid] = self._loop.create_future()
                worker = Spawned(pid, fds[1], socket.socket(fileno=fds[0]))
                worker.socket.setblocking(False)
                wanted = self._wanted.get(number)
                if wanted is None or wanted.done():
                    self._forget(worker)
                else:
                    wanted.set_result(worker)
            case Refused(number, reason) if not fds:
                wanted = self._wanted.get(number)
                if wanted is not None and not wanted.done():
                    wanted.set_exception(StartupError(reason))
            case Exited(pid) if not fds:
                exit_ = self._exits.get(pid)
                if exit_ is not None and not exit_.done():
                    exit_.set_result(message)
            case Ping() if not fds:
                with suppress(StartupError):  # gone, or it will ask again
                    self._say(Pong())
            case Sum(number, text) if not fds:
                sum_ = self._sums.get(number)
                if sum_ is not None and not sum_.done():
                    sum_.set_result(text)
            case Serve() | Leave() | Stop() | ReportWanted() if not fds:
                self._obey(message)
            case _:
                raise ControlError(f"{message} with {len(fds)} descriptors")

    def _forget(self, worker: Spawned) -> None:
        """Nobody waits for it any more: it ends when it finds its socket closed."""
        worker.socket.close()
        os.close(worker.pidfd)
        self._exits.pop(worker.pid, None)

    def _lose(self, why: str) -> None:
        if self._lost is not None:
            return
        self._lost = why
        self._loop.remove_reader(self._control)
        self._control.close()
        waited: list[asyncio.Future[Any]] = [
            *self._wanted.values(),
            *self._exits.values(),
            *self._sums.values(),
        ]
        for future in waited:
            if not future.done():
                future.set_exception(StartupError(why))
                future.exception()  # nobody may be waiting, and that is no fault


def report_failure(control: socket.socket, reason: str) -> bool:
    """Tell the supervisor why this engine cannot start; whether that could be said.

    Args:
        control: the engine's end of the line.
        reason: for whoever starts the service.
    """
    try:
        control.send(encode(Failed(reason)))
    except OSError:  # it has gone, or the line is closed
        return False
    return True


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
