"""The protocol between an engine and its supervisor, and the engine's end of it.

One JSON message per packet (SOCK_SEQPACKET); a long one is in a file in memory (memfd), whose
descriptor the packet carries. The engine sends ``Spawn`` for each worker, and then
``Ready`` or ``Failed``. It accepts connections after ``Serve``, until ``Leave`` or ``Stop``; an
engine that got SIGTERM itself sends ``Leaving`` and serves on until then. The supervisor answers
each ``Spawn`` with ``Forked`` or ``Refused`` of the same number, and sends ``Exited`` when a worker
has ended. ``Forked`` carries two descriptors: the engine's end of the worker's socket pair, and a
pidfd of the worker. A ready engine answers each ``Ping`` with a ``Pong``. An engine that sends
``SumWanted``, with its own report, gets a ``Sum`` of the same number: the supervisor sends
``ReportWanted`` to the others, and each answers with ``Report``. In the same way an engine that
sends ``Ask`` gets the ``Answers`` of the others, whatever their size: the supervisor sends
``Asked``, and each answers with ``Answer``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias, get_args

from penstock.errors import StartupError
from penstock.executors.processes.channel import receive as receive_packet

_log = logging.getLogger(__name__)

MOST_BYTES: Final = 16_384
"""Of one packet: a socket's buffer has room for several."""

MOST_FDS: Final = 253
"""Most descriptors of one packet: Linux's limit."""

_IN_FILE: Final = b"in the file"
"""The packet of a long message. Its file is the first of the descriptors."""

_MOST_REASON: Final = 1_000  # characters; JSON may write each as twelve bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine's workers are ready; ``models`` has a line of text for each model."""

    models: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine cannot start, and ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """The engine got a signal to stop, maybe the service did not: replace the engine."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Accept connections."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Another engine accepts connections from now on: finish the open ones, and end."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The service stops; at once after a second signal."""

    hurry: bool


@dataclass(frozen=True, slots=True)
class Ping:
    """The supervisor checks whether the engine's loop runs."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to ``Ping``."""


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a worker."""

    number: int
    op: str
    index: int


@dataclass(frozen=True, slots=True)
class Forked:
    """The worker runs. The packet carries two descriptors."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker could not be started."""

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
    """The engine requests the sum of all engines' reports; this is its own."""

    number: int
    report: str


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum over the engines that answered in time."""

    number: int
    report: str


@dataclass(frozen=True, slots=True)
class ReportWanted:
    """Requests the engine's report."""

    number: int


@dataclass(frozen=True, slots=True)
class Report:
    """The engine's report, in JSON."""

    number: int
    report: str


@dataclass(frozen=True, slots=True)
class Ask:
    """The engine asks all others; each may take ``seconds`` for its answer."""

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
    """The engine's answer. The packet carries the descriptor of a file with its text."""

    number: int


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers that came in time. The packet carries a descriptor for each."""

    number: int


Order: TypeAlias = Serve | Leave | Stop | ReportWanted | Asked
Message: TypeAlias = (
    Ready | Failed | Leaving | Ping | Pong | Spawn | Forked | Refused | Exited
    | SumWanted | Sum | Report | Ask | Answer | Answers | Order
)  # fmt: skip

_KINDS: Final = {cls.__name__: cls for cls in get_args(Message)}


def encode(message: Message) -> bytes:
    """Encode a message."""
    if isinstance(message, Refused | Failed):
        message = replace(message, reason=message.reason[:_MOST_REASON])
    return json.dumps([type(message).__name__, *astuple(message)]).encode()


def decode(data: bytes) -> Message:
    """Decode a message. Not validated: both ends are trusted."""
    name, *values = json.loads(data)
    message: Message = _KINDS[name](*values)
    return message


def send(control: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send a message. The caller keeps the descriptors.

    Raises:
        OSError: the socket is closed or full, or there is no memory for a long message.
    """
    data = encode(message)
    if len(data) <= MOST_BYTES:
        socket.send_fds(control, [data], fds)
        return
    with open(os.memfd_create("penstock-message", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(data)
        socket.send_fds(control, [_IN_FILE], (file.fileno(), *fds))


@dataclass(frozen=True, slots=True)
class Received:
    """A packet.

    Attributes:
        message: None if its file was lost, because this process has no descriptor left.
        fds: its descriptors, which the receiver closes.
        lost: whether some of them were lost.
    """

    message: Message | None
    fds: list[int]
    lost: bool = False


def receive(control: socket.socket) -> Received | None:
    """Receive a message; None if the other end is closed.

    Raises:
        OSError: as ``recvmsg``.
    """
    data, fds, lost = receive_packet(control, MOST_BYTES, MOST_FDS)
    if not data:
        return None
    if data == _IN_FILE:
        if not fds:
            _log.error("a message was lost: this process has no descriptor left")
            return Received(None, [], lost)
        data = _read(fds.pop(0)).encode()
    return Received(decode(data), fds, lost)


@dataclass(frozen=True, slots=True)
class Spawned:
    """A new worker process.

    Attributes:
        pid: its process id, the argument of ``exited``.
        pidfd: for signals, without the risk of a reused pid; readable when the worker has ended.
            The receiver closes it.
        socket: the engine's end of the pair, non-blocking. The receiver closes it.
    """

    pid: int
    pidfd: int
    socket: socket.socket


class Spawner(Protocol):
    """Starts worker processes."""

    async def spawn(self, op: str, index: int) -> Spawned:
        """Start one; it has yet to open its model.

        Raises:
            StartupError: it cannot be started.
        """

    async def exited(self, pid: int) -> Exited:
        """Wait for its end, and return its wait status; called once for each."""


class SupervisorClient:
    """The engine's client of its supervisor: starts workers, and waits for their ends.

    Args:
        control: the engine's end of the socket; closed with this.
        loop: the engine's loop.
        obey: called with the supervisor's commands.

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
        self._handle_order = obey
        self._numbers = itertools.count(1)
        # One request at a time: the supervisor serves them one after the other anyhow, and so its
        # queue, which would refuse at some length, stays short.
        self._turn = asyncio.Lock()
        self._pending: dict[int, asyncio.Future[Any]] = {}  # by the number of the request
        self._exits: dict[int, asyncio.Future[Exited]] = {}
        self._lost: str | None = None
        loop.add_reader(control, self._read_messages)

    def ready(self, models: Sequence[str] = ()) -> None:
        """Report that this engine is ready, and its open models."""
        self._send_message(Ready([*models]))

    def leaving(self) -> None:
        """Report that this engine got a signal to stop, and request a replacement.

        Raises:
            StartupError: the supervisor is gone.
        """
        self._send_message(Leaving())

    async def spawn(self, op: str, index: int) -> Spawned:
        """Start a worker.

        Raises:
            StartupError: the supervisor cannot start one, or is gone.
        """
        async with self._turn:
            spawned: Spawned = await self._ask(Spawn(next(self._numbers), op, index))
            return spawned

    def report(self, number: int, text: str) -> None:
        """Send the requested report.

        Raises:
            StartupError: the supervisor is gone.
        """
        self._send_message(Report(number, text))

    async def sum_up(self, text: str) -> str:
        """Return the sum of all engines' reports; ``text`` is this engine's own.

        Raises:
            StartupError: the supervisor is gone.
        """
        summed: str = await self._ask(SumWanted(next(self._numbers), text))
        return summed

    async def ask_others(self, question: str, seconds: float) -> list[str]:
        """Ask all other engines; each may take ``seconds``. Returns the answers that came in time.

        Raises:
            StartupError: the supervisor is gone.
        """
        files: list[int] = await self._ask(Ask(next(self._numbers), question, seconds))
        return [_read(each) for each in files]

    def answer(self, number: int, text: str) -> None:
        """Send the answer to another engine's question.

        Raises:
            StartupError: the supervisor is gone.
            OSError: there is no memory for it.
        """
        with open(os.memfd_create("penstock-answer", os.MFD_CLOEXEC), "w+") as file:
            file.write(text)
            file.flush()
            self._send_message(Answer(number), file.fileno())

    async def exited(self, pid: int) -> Exited:
        """Wait until a worker has ended, and return its wait status, as of ``os.waitpid``.

        To be called once for each worker: the status is not stored.

        Raises:
            LookupError: there is no such worker, or this was called before.
            StartupError: the supervisor is gone.
        """
        exit_ = self._exits[pid]
        try:
            return await asyncio.shield(exit_)
        finally:
            if exit_.done() and self._exits.get(pid) is exit_:
                del self._exits[pid]

    def close(self) -> None:
        """Close the socket. Workers live on; pending calls fail with StartupError."""
        self._lose("the connection to the supervisor is closed")

    async def _ask(self, message: Spawn | SumWanted | Ask) -> Any:
        answer = self._pending[message.number] = self._loop.create_future()
        try:
            self._send_message(message)
            return await answer
        except asyncio.CancelledError:
            # Maybe in the same turn of the loop in which a worker was reported.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._forget(answer.result())
            raise
        finally:
            del self._pending[message.number]

    def _send_message(self, message: Message, *fds: int) -> None:
        if self._lost is not None:
            raise StartupError(self._lost)
        try:
            send(self._control, message, fds)
        except OSError as error:
            raise StartupError(f"a message to the supervisor cannot be sent: {error}") from error

    def _read_messages(self) -> None:
        try:
            received = receive(self._control)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"the supervisor is gone: {error}")
            return
        if received is None:
            self._lose("the supervisor is gone")
            return
        message, fds = received.message, received.fds
        match message:
            case Forked(number) if received.lost:
                # The worker ends when it finds the other end closed.
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
                with suppress(StartupError):  # gone, or it will repeat the request
                    self._send_message(Pong())
            case Serve() | Leave() | Stop() | ReportWanted() | Asked():
                self._handle_order(message)

    def _answer(self, number: int, answer: Any) -> None:
        future = self._pending.get(number)
        if future is None or future.done():
            self._forget(answer)
        elif isinstance(answer, StartupError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _forget(self, answer: Any) -> None:
        """Nothing waits for the answer any more; close its descriptors, so that a new worker
        ends.
        """
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
        for future in (*self._pending.values(), *self._exits.values()):
            if not future.done():
                future.set_exception(StartupError(why))
                future.exception()  # marks the exception as retrieved, in case nothing waits


def _read(file: int) -> str:
    """Read the text of a memfd, and close it."""
    with open(file) as text:
        text.seek(0)
        return text.read()


def report_failure(control: socket.socket, reason: str) -> bool:
    """Report to the supervisor why this engine cannot start; returns whether it could be sent.

    Args:
        control: the engine's end of the socket.
        reason: the reason, for the operator.
    """
    try:
        send(control, Failed(reason))
    except OSError:  # it has gone, or the socket is closed
        return False
    return True
