"""An engine's client of its supervisor."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock.errors import StartupError
from penstock.executors.executor import OpSource
from penstock.executors.processes.spawner import Exited, Spawned
from penstock.repository.served import Served
from penstock.supervisor.messages import (
    Abort,
    Answer,
    Answers,
    Ask,
    Asked,
    AskPast,
    Change,
    Changed,
    Commit,
    Committed,
    Failed,
    Forked,
    Held,
    Hold,
    Keep,
    Leave,
    Leaving,
    Message,
    Order,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Ready,
    Refused,
    Reload,
    Reloaded,
    Restore,
    Restored,
    Retire,
    Retired,
    Serve,
    Spawn,
    Stale,
    Stop,
    Switched,
    receive,
    send,
)


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

    def ready(self, lines: Sequence[str] = ()) -> None:
        """Report that this engine is ready, with lines of text about its ops and models."""
        self._send_message(Ready([*lines]))

    def leaving(self) -> None:
        """Report that this engine got a signal to stop, and request a replacement.

        Raises:
            StartupError: the supervisor is gone.
        """
        self._send_message(Leaving())

    def switched(self) -> None:
        """Report that this engine accepts connections, or, once it is to leave, no more.

        Raises:
            StartupError: the supervisor is gone.
        """
        self._send_message(Switched())

    async def spawn(self, source: OpSource, index: int) -> Spawned:
        """Start a worker.

        Raises:
            StartupError: the supervisor cannot start one, or is gone.
        """
        async with self._turn:
            spawned: Spawned = await self._ask(Spawn.of(next(self._numbers), source, index))
            return spawned

    async def ask(self, query: str, seconds: float = 0.0, *, kept: bool = False) -> list[Any]:
        """Ask all other engines; each may take ``seconds``. Returns the answers that came in time;
        if ``kept``, the kept ones of all engines.

        Raises:
            StartupError: the supervisor is gone.
        """
        answers: bytes = await self._ask(Ask(next(self._numbers), query, seconds, kept))
        values: list[Any] = json.loads(answers)
        return values

    def answer(self, number: int, answer: Any, *, kept: bool = False) -> None:
        """Send the answer to another engine's query.

        Args:
            number: of the query; 0 if nobody asked.
            answer: a JSON value.
            kept: whether the supervisor keeps it.

        Raises:
            StartupError: the supervisor is gone, or there is no memory for the answer.
        """
        self._send_message(Answer(number, kept, json.dumps(answer).encode()))

    def keep(self, number: int, point: bytes) -> None:
        """Let the supervisor keep a numbered point of this engine's history, in JSON.

        Raises:
            StartupError: the supervisor is gone, or there is no memory for the point.
        """
        self._send_message(Keep(number, point))

    async def past(self, after: int) -> bytes:
        """The points of engines that have ended whose numbers are larger, as a JSON array.

        Raises:
            StartupError: the supervisor is gone.
        """
        points: bytes = await self._ask(AskPast(next(self._numbers), after))
        return points

    async def change(
        self, base: int, state: Served, *, ended: bool = False, held: Sequence[str] = ()
    ) -> Stale | None:
        """Serve a new state of a name in every engine; returns when all do.

        Args:
            base: the number of the state of which it was made.
            state: the wanted one.
            ended: whether to wait until removed versions have ended.
            held: versions that end before the new ones are made ready; see ``Change``.

        Returns:
            the present state, if that has another number.

        Raises:
            StartupError: no engine does, with the reason; or the supervisor is gone.
        """
        wanted = Change(next(self._numbers), base, state.plain(), ended, [*held])
        answer: Stale | None = await self._ask(wanted)
        return answer

    async def reload(self) -> None:
        """Let the program be run again, and serve in place of this one; returns when it does.

        Raises:
            StartupError: nothing has changed, with the reason; or the supervisor is gone.
        """
        await self._ask(Reload(next(self._numbers)))

    def held(self, change: int) -> None:
        """Report that the held versions of a change have ended.

        Raises:
            StartupError: the supervisor is gone.
        """
        self._send_message(Held(change))

    def restored(self, change: int, problem: str | None) -> None:
        """Report that the held versions of a change serve again, or why one cannot.

        Raises:
            StartupError: the supervisor is gone.
        """
        self._send_message(Restored(change, problem))

    def prepared(self, change: int, problem: str | None) -> None:
        """Report that the versions of a change are ready, or why one cannot be.

        Raises:
            StartupError: the supervisor is gone.
        """
        self._send_message(Prepared(change, problem))

    def committed(self, change: int) -> None:
        """Report that this engine serves the state of a change.

        Raises:
            StartupError: the supervisor is gone.
        """
        self._send_message(Committed(change))

    def retired(self, change: int) -> None:
        """Report that the versions that a change has removed have ended.

        Raises:
            StartupError: the supervisor is gone.
        """
        self._send_message(Retired(change))

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

    async def _ask(self, message: Spawn | Ask | AskPast | Change | Reload) -> Any:
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

    def _send_message(self, message: Message) -> None:
        if self._lost is not None:
            raise StartupError(self._lost)
        try:
            send(self._control, message)
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
            case Answers(number, answers):
                self._answer(number, answers)
            case Changed(number, problem) | Reloaded(number, problem):
                self._answer(number, None if problem is None else StartupError(problem))
            case Stale(number):
                self._answer(number, message)
            case Exited(pid):
                if pid in self._exits:
                    self._exits[pid].set_result(message)
            case Ping():
                with suppress(StartupError):  # gone, or it will repeat the request
                    self._send_message(Pong())
            case Serve() | Leave() | Stop() | Asked():
                self._handle_order(message)
            case Hold() | Prepare() | Commit() | Abort() | Restore() | Retire():
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
