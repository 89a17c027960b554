"""An engine process, as its supervisor has it: the child, the socket to it, and its state."""

from __future__ import annotations

import logging
import math
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.supervisor.child_processes import Child
from penstock.supervisor.code import Code
from penstock.supervisor.engine_id import EngineId
from penstock.supervisor.messages import Leave, Message, Ping, Serve, Stop, receive, send

_log = logging.getLogger(__name__)

_DISCARD: Final = 5.0  # seconds for a process that has never served to end; a guess


class EngineProcess:
    """A running engine process, and the socket to it.

    Args:
        control: our end of the socket.
        code: its code, of which its workers are started.
        epoch: that of the version table when it was started.
        stop_timeout: seconds for it to end after ``Leave`` or ``Stop``.
        answer_timeout: seconds for it to answer a ping, while it is ready.

    Attributes:
        failure: its reason for a failed start, if any.
        lines: those with which it has reported that it is ready; None before.
        is_ready: it has, and has every version that the others serve.
        is_leaving: it was sent ``Leave``, because a replacement serves.
        kill_at: when it will be killed; None if it need not end, or has been killed.
        waits: it belongs to a reload that is not over, so it does not serve when it is ready.
        is_discarded: it is ended, because its reload has failed, or another one has taken its place
            before it was ready.
        is_connected: whether its socket is open.
        check_at: when ``check`` has something to do: a ping or its answer is due.
    """

    def __init__(
        self,
        engine_id: EngineId,
        child: Child,
        control: socket.socket,
        code: Code,
        epoch: int = 0,
        stop_timeout: float = math.inf,
        answer_timeout: float = math.inf,
    ) -> None:
        self.engine_id = engine_id
        self.child = child
        self.control = control
        self.code = code
        self.epoch = epoch
        self.failure: str | None = None
        self.is_connected = True
        self.lines: Sequence[str] | None = None
        self.is_ready = False
        self.is_leaving = False
        self.waits = False
        self.is_discarded = False
        self.kill_at: float | None = None
        self.check_at = math.inf
        self._stop_timeout = stop_timeout
        self._answer_timeout = answer_timeout
        self._ping_pending = False
        self._serves_since: float | None = None

    @property
    def serves(self) -> bool:
        """Whether it was sent ``Serve``, and its socket is open."""
        return self._serves_since is not None and self.is_connected

    def has_served(self, seconds: float) -> bool:
        """Whether it was sent ``Serve`` at least ``seconds`` ago."""
        since = self._serves_since
        return since is not None and time.monotonic() - since >= seconds

    def check(self, now: float) -> bool:
        """Ping it, if due; returns False if it has not answered the last ping in time."""
        if now < self.check_at or self.kill_at is not None or not self.is_connected:
            return True
        if self._ping_pending:
            return False
        self._ping_pending = True
        self.check_at = now + self._answer_timeout
        self.send(Ping())
        return True

    def postpone_check(self) -> None:
        """Ping it later: its loop runs, or the machine was suspended."""
        self._ping_pending = False
        self.check_at = time.monotonic() + self._answer_timeout / 2

    def serve(self) -> None:
        """Make it accept connections."""
        self._serves_since = time.monotonic()
        self.send(Serve())

    def leave(self) -> None:
        """Make it finish its requests and end, since another engine accepts in its place."""
        self.is_leaving = True
        self._set_kill_time()
        self.send(Leave())
        if not self.is_connected:
            self.child.signal(signal.SIGTERM)

    def stop(self, *, hurry: bool) -> None:
        """Make it end with the service."""
        self._set_kill_time()
        if self.is_ready:
            self.send(Stop(hurry))
        if not self.is_ready or not self.is_connected:  # it cannot receive the message
            self.child.signal(signal.SIGTERM)

    def discard(self) -> None:
        """End it before it has served."""
        self.is_discarded = True
        self.waits = False
        self._stop_timeout = min(self._stop_timeout, _DISCARD)
        self.stop(hurry=True)

    def kill(self) -> None:
        """Kill it."""
        self.kill_at = None
        self.check_at = math.inf
        self.child.kill()

    def _set_kill_time(self) -> None:
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self._stop_timeout

    def messages(self) -> Iterator[Message]:
        """Receive its messages, those that have arrived."""
        while self.is_connected:
            try:
                received = receive(self.control)
            except BlockingIOError:
                return
            except OSError:
                received = None
            if received is None:
                self.is_connected = False
                return
            if received.message is not None:
                yield received.message

    def send(self, message: Message, *fds: int) -> None:
        """Send a message. The caller keeps the descriptors."""
        if not self.is_connected:
            return
        try:
            send(self.control, message, fds)
        except OSError as error:
            self.is_connected = False
            if not isinstance(error, ConnectionError):  # it does not read, but has not closed it
                _log.error("a message to the engine cannot be sent, and it is killed: %s", error)
                self.child.kill()

    def close(self) -> None:
        """Close the socket."""
        self.is_connected = False
        self.control.close()
