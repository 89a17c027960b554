"""A template: a process that has run the changed program up to its service, and forks its engines
and workers.

So a reload runs the program once, and a process that is replaced later has the code of its
siblings, whatever was written to the program's files meanwhile. The forks become children of the
supervisor at once (see ``fork_for``), which reaps and kills them like its own.

Until the program has reached its service, what it writes to standard error passes through the
supervisor, which gets the reason of a failure from there.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final, NoReturn, TypeAlias

from penstock.errors import StartupError
from penstock.executors.executor import OpSource
from penstock.observe.logs import write_while_accepted
from penstock.repository.served import Served
from penstock.supervisor.child_processes import (
    Child,
    ParentDeath,
    end_now,
    fork,
    fork_for,
    spared_pages,
)
from penstock.supervisor.code import Leave, Start
from penstock.supervisor.engine_id import EngineId
from penstock.supervisor.messages import Fork, Forked, Loaded, Message, Refused, receive, send

Listeners: TypeAlias = Mapping[str, socket.socket]

_NAME: Final = "the template"
_ERRORS: Final = 2  # the descriptor of standard error
_ORDER_BYTES: Final = 512  # of a packet, so that the socket has room for an order of each engine
_TAIL: Final = 4_000  # bytes of standard error that are kept
_MOST_REASON: Final = 900  # characters of it in a message

LONGEST_ANSWER = 30.0
"""Seconds in which a template must answer, or it is killed. A fork takes milliseconds, but the
template's memory may have to be read from the disk before. A guess."""


class Template:
    """A template, as its supervisor has it.

    Args:
        main: runs the program in a fork of this process, with the template's end of the socket and
            the descriptor of the real standard error; calls exec.
        leave: closes descriptors of the supervisor and its children, in the fork.

    Attributes:
        child: its process.
        control: our end of the socket.
        errors: what the program writes to standard error until it has reached its service; None
            once it is closed there.
        due: when its next answer is; infinity if there is none to come.
        is_connected: whether it may still send messages.
        is_lost: whether it has ended.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, main: Callable[[socket.socket, int], int], leave: Leave) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader, writer = os.pipe2(os.O_CLOEXEC)

        def run() -> int:
            real = os.dup(_ERRORS)
            os.dup2(writer, _ERRORS)
            return main(theirs, real)

        def leave_all() -> None:
            leave()
            ours.close()
            os.close(reader)

        try:
            with theirs:
                self.child = fork(_NAME, run, leave_all, stoppable=True, spawns=True)
        except OSError:
            ours.close()
            os.close(reader)
            raise
        finally:
            os.close(writer)
        ours.setblocking(False)
        self.control = ours
        self.due = math.inf
        self.is_connected = True
        self.is_lost = False
        self._orders: dict[int, Child] = {}  # without an answer, by number
        self._numbers = itertools.count(1)
        self.errors: int | None = reader
        os.set_blocking(reader, False)
        self._tail = b""

    def receive(self) -> Message | None:
        """Its next message; None if it has ended."""
        try:
            received = receive(self.control)
        except OSError:
            return None
        return None if received is None else received.message

    def pass_on(self) -> None:
        """Write to our standard error what the program has written to its own. Like lines of our
        log, what a full pipe does not accept is lost.
        """
        while self.errors is not None:
            try:
                data = os.read(self.errors, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                os.close(self.errors)
                self.errors = None
                return
            self._tail = (self._tail + data)[-_TAIL:]
            with suppress(OSError):
                write_while_accepted(_ERRORS, data)

    @property
    def last_words(self) -> str:
        """The end of what the program has written to standard error."""
        self.pass_on()
        return last_words(self._tail.decode(errors="replace"))

    def fork(
        self,
        start: Start,
        fds: Sequence[int],
        versions: Sequence[Mapping[str, Any]] = (),
        listeners: Sequence[str] = (),
    ) -> Child:
        """Order it to start an engine or a worker; ``answered`` returns the child when its start is
        reported.

        Args:
            start: what to start.
            fds: the descriptors of the process's socket, and of the engine's sockets.
            versions: see ``Fork``.
            listeners: likewise.

        Raises:
            StartupError: the order cannot be sent.
            OSError: no descriptor is available.
        """
        death = ParentDeath()
        order = Fork(next(self._numbers), asdict(start), versions, listeners)
        try:
            send(self.control, order, (fds[0], death.reader, *fds[1:]), _ORDER_BYTES)
        except OSError as error:
            death.close()
            text = "the process that has the code of the last reload gets no order"
            raise StartupError(f"{start.name} cannot be started: {text}: {error}") from error
        finally:
            death.keep()
        child = self._orders[order.number] = Child(start.name, death)
        if math.isinf(self.due):
            self.postpone()
        return child

    def answered(self, answer: Forked | Refused) -> tuple[Child, str | None]:
        """The child of an answer, which has started, or the reason why it never will."""
        child = self._orders.pop(answer.number)
        self.postpone()
        if isinstance(answer, Refused):
            return child, answer.reason
        try:
            child.started(answer.pid)
        except OSError as error:
            return child, f"{child.name} cannot be started: {error}"
        return child, None

    def postpone(self) -> None:
        """Its next answer may take the whole time from now on."""
        self.due = time.monotonic() + LONGEST_ANSWER if self._orders else math.inf

    @property
    def ordered(self) -> list[Child]:
        """The children whose start has not been reported."""
        return [*self._orders.values()]

    def kill(self) -> None:
        """Kill it; its end is reported by its ``pidfd``."""
        self.is_connected = False
        self.due = math.inf
        self.child.kill()

    def close(self) -> None:
        """Close our descriptors of it; its siblings also do so after their fork."""
        self.child.close()
        self.close_files()

    def reap(self) -> int:
        """Wait for its end; returns its wait status."""
        self.is_lost = True
        self.pass_on()
        self.close_files()
        return self.child.reap()

    def close_files(self) -> None:
        """Close the socket and the program's standard error."""
        self.control.close()
        if self.errors is not None:
            os.close(self.errors)
            self.errors = None


class TemplateCode:
    """The code of a template. See ``Code``.

    Args:
        template: has loaded its program.
        listeners: the sockets of each engine.
        changed: returns the states of names that an engine which starts now is to serve.
    """

    def __init__(
        self,
        template: Template,
        listeners: Sequence[Listeners],
        changed: Callable[[], Sequence[Served]],
    ) -> None:
        self.template = template
        self._listeners = listeners
        self._changed = changed

    @property
    def is_lost(self) -> bool:
        """Whether the template has ended."""
        return self.template.is_lost

    def start(self, start: Start, line: socket.socket, leave: Leave) -> Child:
        """See Code."""
        if self.is_lost:
            raise StartupError(f"{start.name} cannot be started: the template has died")
        if start.source is not None:
            return self.template.fork(start, (line.fileno(),))
        own = self._listeners[start.engine_id.index]
        changed = [each.plain() for each in self._changed()]
        fds = line.fileno(), *(each.fileno() for each in own.values())
        return self.template.fork(start, fds, changed, [*own])


Main: TypeAlias = Callable[[Start, socket.socket, Listeners, Sequence[Served]], int]
"""Runs an engine or a worker, with its socket, and the engine's listeners and changed states;
returns the exit status."""


def become_template(control: socket.socket, loaded: Loaded, errors: int, main: Main) -> NoReturn:
    """In the template: report that the program has reached its service, and fork as the supervisor
    orders, until it closes the socket.

    Args:
        control: the template's end of the socket.
        loaded: the report.
        errors: the descriptor of the real standard error.
        main: runs a process.
    """
    os.dup2(errors, _ERRORS)
    os.close(errors)
    with spared_pages(), suppress(OSError):
        send(control, loaded)
        while (received := receive(control)) is not None:
            if isinstance(received.message, Fork):
                send(control, _forked(control, received.message, received.fds, main))
    end_now(0)


def _forked(control: socket.socket, order: Fork, fds: list[int], main: Main) -> Message:
    start = _start_of(order.start)
    if len(fds) != 2 + len(order.listeners):
        for each in fds:
            os.close(each)
        return Refused(order.number, f"{start.name}: the template has no descriptor left")
    line, reader, *listening = fds

    def run() -> int:
        sockets = [socket.socket(fileno=each) for each in listening]
        listeners = dict(zip(order.listeners, sockets, strict=True))
        versions = [*map(Served.of_plain, order.versions)]
        return main(start, socket.socket(fileno=line), listeners, versions)

    try:
        pid = fork_for(start.name, run, control.close, reader, stoppable=start.stoppable)
    except OSError as error:
        return Refused(order.number, f"{start.name} cannot be started: {error}")
    finally:
        for each in fds:
            os.close(each)
    return Forked(order.number, pid)


def _start_of(plain: Mapping[str, Any]) -> Start:
    source = plain["source"]
    return Start(
        EngineId(**plain["engine_id"]),
        None if source is None else OpSource(**source),
        plain["index"],
    )


def last_words(text: str) -> str:
    """The end of a program's messages on standard error, of which lines of our log may be JSON."""
    lines = [_plain(line) for line in text.rstrip().splitlines()]
    return "\n".join(lines)[-_MOST_REASON:].strip()


def _plain(line: str) -> str:
    if line.startswith("{"):
        with suppress(ValueError, KeyError, TypeError):
            entry: dict[str, Any] = json.loads(line)
            return str(entry["message"]).rstrip()
    return line
