"""The line between an engine and its supervisor: what they say, and the engine's end of it.

One message a packet, in JSON; the socket keeps the bounds of packets (SOCK_SEQPACKET). The engine
says ``Spawn`` for each worker that it wants, and then ``Ready`` or ``Failed``. It accepts
connections from ``Serve`` on, until it hears ``Leave`` or ``Stop``; an engine that somebody else
told to stop says ``Leaving`` and serves on until then. The supervisor answers each ``Spawn`` with
``Forked`` or ``Refused`` of the same number, and says ``Exited`` when a worker has ended. With
``Forked`` come two descriptors: the engine's end of the worker's socket pair, and a pidfd of the
worker. A ready engine answers each ``Ping`` with a ``Pong``. An engine that says ``SumWanted``,
with its own report, is given a ``Sum`` of the same number: the supervisor says ``ReportWanted`` to
the others, and each says ``Report``. In the same way an engine that says ``Ask`` is given the
``Answers`` of the others, whatever their size: the supervisor says ``Asked``, and each says
``Answer``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias, get_args

from penstock.errors import StartupError
from penstock.executors.processes.channel import receive

MOST_BYTES: Final = 131_072
"""Of one message."""

MOST_TEXT: Final = 60_000
"""Characters of a report, all of them ASCII, of which JSON may write each in two bytes."""

MOST_FDS: Final = 253
"""Of one message: what Linux passes at once."""

_MOST_REASON: Final = 1_000  # characters, each of which JSON may write in twelve bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine's workers can work: it could serve these models, each in a line for people."""

    models: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine cannot start, and ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """The engine is to stop, though perhaps not the service: another should take its place."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Accept connections."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Another engine accepts the connections from now on: finish those that are open, and end."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The service stops; in a hurry when it was told so a second time."""

    hurry: bool


@dataclass(frozen=True, slots=True)
class Ping:
    """The supervisor asks whether the engine's loop runs."""


@dataclass(frozen=True, slots=True)
class Pong:
    """It does."""


@dataclass(frozen=True, slots=True)
class Spawn:
    """A worker is wanted."""

    number: int
    op: str
    index: int


@dataclass(frozen=True, slots=True)
class Forked:
    """It runs. The two descriptors come with this."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class Refused:
    """It could not be started."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker has ended, with this wait status; ``peak`` is the most memory it ever had, bytes."""

    pid: int
    status: int
    peak: int


@dataclass(frozen=True, slots=True)
class SumWanted:
    """The engine wants the sum of all engines' reports; this is its own."""

    number: int
    report: str


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum that was wanted, or that of those who have answered in time."""

    number: int
    report: str


@dataclass(frozen=True, slots=True)
class ReportWanted:
    """The engine is to give its report."""

    number: int


@dataclass(frozen=True, slots=True)
class Report:
    """The engine's report, in JSON."""

    number: int
    report: str


@dataclass(frozen=True, slots=True)
class Ask:
    """The engine asks all others; each needs so many seconds for its answer."""

    number: int
    question: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Asked:
    """Another engine asks."""

    number: int
    question: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine answers. The descriptor of a file with its text comes with this."""

    number: int


@dataclass(frozen=True, slots=True)
class Answers:
    """What the others have answered in time. A descriptor for each comes with this."""

    number: int


Order: TypeAlias = Serve | Leave | Stop | ReportWanted | Asked
Message: TypeAlias = (
    Ready | Failed | Leaving | Ping | Pong | Spawn | Forked | Refused | Exited
    | SumWanted | Sum | Report | Ask | Answer | Answers | Order
)  # fmt: skip

_KINDS: Final = {cls.__name__: cls for cls in get_args(Message)}


def encode(message: Message) -> bytes:
    """One packet."""
    if isinstance(message, Refused | Failed):
        message = replace(message, reason=message.reason[:_MOST_REASON])
    return json.dumps([type(message).__name__, *astuple(message)]).encode()


def decode(data: bytes) -> Message:
    """The message of one packet. Both ends are ours: what they say is not checked."""
    name, *values = json.loads(data)
    message: Message = _KINDS[name](*values)
    return message


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
        self._asked: dict[int, asyncio.Future[Any]] = {}  # by the number of the question
        self._exits: dict[int, asyncio.Future[Exited]] = {}
        self._lost: str | None = None
        loop.add_reader(control, self._hear)

    def ready(self, models: Sequence[str] = ()) -> None:
        """Tell the supervisor that this engine could serve, and which models it has opened."""
        self._say(Ready([*models]))

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
            spawned: Spawned = await self._ask(Spawn(next(self._numbers), op, index))
            return spawned

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
        summed: str = await self._ask(SumWanted(next(self._numbers), text))
        return summed

    async def ask_others(self, question: str, seconds: float) -> list[str]:
        """Ask all other engines, each of which needs so long; the answers of those in time.

        Raises:
            StartupError: the supervisor is gone.
        """
        files: list[int] = await self._ask(Ask(next(self._numbers), question, seconds))
        return [_read(each) for each in files]

    def answer(self, number: int, text: str) -> None:
        """Give the answer that another engine asked for.

        Raises:
            StartupError: the supervisor is gone.
            OSError: there is no memory for it.
        """
        with open(os.memfd_create("penstock-answer", os.MFD_CLOEXEC), "w+") as file:
            file.write(text)
            file.flush()
            self._say(Answer(number), file.fileno())

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

    async def _ask(self, message: Spawn | SumWanted | Ask) -> Any:
        answer = self._asked[message.number] = self._loop.create_future()
        try:
            self._say(message)
            return await answer
        except asyncio.CancelledError:
            # In the very turn of the loop in which a worker came, perhaps.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._forget(answer.result())
            raise
        finally:
            del self._asked[message.number]

    def _say(self, message: Message, *fds: int) -> None:
        if self._lost is not None:
            raise StartupError(self._lost)
        try:
            socket.send_fds(self._control, [encode(message)], fds)
        except OSError as error:
            raise StartupError(f"the supervisor cannot be asked: {error}") from error

    def _hear(self) -> None:
        try:
            data, fds, lost = receive(self._control, MOST_BYTES, MOST_FDS)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"the supervisor is gone: {error}")
            return
        if not data:
            self._lose("the supervisor is gone")
            return
        message = decode(data)
        match message:
            case Forked(number) if lost:
                # The worker ends when it finds that nobody holds the other end.
                for fd in fds:
                    os.close(fd)
                self._answer(number, StartupError("the engine has no descriptor left"))
            case Forked(number, pid):
                self._exits[pid] = self._loop.create_future()
                worker = Spawned(pid, fds[1], socket.socket(fileno=fds[0]))
                worker.socket.setblocking(False)
                self._answer(number, worker)
            case Refused(number, reason):
                self._answer(number, StartupError(reason))
            case Sum(number, text):
                self._answer(number, text)
            case Answers(number):
                self._answer(number, fds)
            case Exited(pid):
                if pid in self._exits:
                    self._exits[pid].set_result(message)
            case Ping():
                with suppress(StartupError):  # gone, or it will ask again
                    self._say(Pong())
            case Serve() | Leave() | Stop() | ReportWanted() | Asked():
                self._obey(message)

    def _answer(self, number: int, answer: Any) -> None:
        asked = self._asked.get(number)
        if asked is None or asked.done():
            self._forget(answer)
        elif isinstance(answer, StartupError):
            asked.set_exception(answer)
        else:
            asked.set_result(answer)

    def _forget(self, answer: Any) -> None:
        """Nobody waits for it any more; a worker ends when it finds its socket closed."""
        if isinstance(answer, Spawned):
            answer.socket.close()
            os.close(answer.pidfd)
            self._exits.pop(answer.pid, None)
        elif isinstance(answer, list):
            for file in answer:
                os.close(file)

    def _lose(self, why: str) -> None:
        if self._lost is not None:
            return
        self._lost = why
        self._loop.remove_reader(self._control)
        self._control.close()
        for future in (*self._asked.values(), *self._exits.values()):
            if not future.done():
                future.set_exception(StartupError(why))
                future.exception()  # nobody may be waiting, and that is no fault


def _read(file: int) -> str:
    """The text of a file in memory, which is closed."""
    with open(file) as answer:
        answer.seek(0)
        return answer.read()


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
