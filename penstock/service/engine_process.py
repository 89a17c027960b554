"""An engine process as its supervisor sees it, and the line to it, on which nobody waits."""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from penstock.executors.processes.control import (
    MOST_BYTES,
    Forked,
    Leave,
    Message,
    Refused,
    Serve,
    Stop,
    decode,
    encode,
)
from penstock.executors.processes.passing import lacks
from penstock.service.forking import Child
from penstock.service.place import Place

_log = logging.getLogger(__name__)


class EngineProcess:
    """An engine that lives, and the line to it.

    Args:
        place: which of the service's engines it is.
        child: the process.
        control: our end of the line.
        patience: seconds that it may take to end, once it is told to.

    Attributes:
        place: which of the service's engines it is.
        child: the process.
        control: our end of the line.
        failure: why it cannot start, if it has said so.
        is_ready: it has said that it could serve.
        is_leaving: it was told to leave its place to another.
        kill_at: when it should have ended; None when it need not end, or has been killed.
    """

    def __init__(
        self, place: Place, child: Child, control: socket.socket, patience: float = math.inf
    ) -> None:
        self.place = place
        self.child = child
        self.control = control
        self.failure: str | None = None
        self.is_ready = False
        self.is_leaving = False
        self.kill_at: float | None = None
        self._patience = patience
        self._serves_since: float | None = None
        self._talks = True
        # Bounded by the workers that live: while something waits, no further wish is heard.
        self._waiting: deque[tuple[bytes, list[int]]] = deque()

    def __repr__(self) -> str:
        state = "leaving" if self.is_leaving else "ready" if self.is_ready else "starting"
        return f"<EngineProcess {self.child} {state} waiting={len(self._waiting)}>"

    @property
    def events(self) -> int:
        """What to wait for on its line."""
        if self._waiting:
            return select.POLLOUT
        return select.POLLIN if self._talks else 0

    def has_served(self, seconds: float) -> bool:
        """Whether it was told to serve so long ago."""
        since = self._serves_since
        return since is not None and time.monotonic() - since >= seconds

    def serve(self) -> None:
        """Have it accept connections."""
        self._serves_since = time.monotonic()
        self.say(Serve())

    def leave(self) -> None:
        """Have it finish what it has and end, since another engine accepts in its place."""
        self.is_leaving = True
        self._expect_the_end()
        self.say(Leave())
        if not self._talks:
            self.child.signal(signal.SIGTERM)

    def stop(self, *, hurry: bool) -> None:
        """Have it end with the service."""
        self._expect_the_end()
        if self.is_ready:
            self.say(Stop(hurry))
        if not self.is_ready or not self._talks:  # nobody hears at that end
            self.child.signal(signal.SIGTERM)

    def kill(self) -> None:
        """It has not ended in time."""
        self.kill_at = None
        self.child.kill()

    def _expect_the_end(self) -> None:
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self._patience

    def messages(self) -> Iterator[Message]:
        """What it has said, as long as it takes the answers.

        Raises:
            ControlError: that is no message.
        """
        while self._talks and not self._waiting:
            try:
                data = self.control.recv(MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._talks = False
                return
            yield decode(data)

    def say(self, message: Message, *fds: int) -> None:
        """Send it, now or when there is room. The descriptors stay the caller's.

        Raises:
            OSError: no descriptor is left for what may have to wait.
        """
        if self._talks:
            duplicates: list[int] = []
            try:
                duplicates.extend(os.dup(fd) for fd in fds)
            except OSError:
                _close_all(duplicates)
                raise
            self._waiting.append((encode(message), duplicates))
            self.send_waiting()

    def send_waiting(self) -> None:
        """Send what there is room for."""
        while self._waiting:
            data, fds = self._waiting[0]
            try:
                socket.send_fds(self.control, [data], fds)
            except BlockingIOError:
                return
            except OSError as error:
                if fds and lacks(error):
                    self._waiting[0] = _refused(data, fds, error), []
                    continue
                self._talks = False
                self._drop_waiting()
                if not isinstance(error, ConnectionError):  # it has not hung up, and would wait
                    _log.error("the engine cannot be answered, and is killed: %s", error)
                    self.child.kill()
                return
            self._waiting.popleft()
            _close_all(fds)

    def close(self) -> None:
        """Close the line; nothing can be said any more."""
        self._talks = False
        self._drop_waiting()
        self.control.close()

    def _drop_waiting(self) -> None:
        for _, fds in self._waiting:
            _close_all(fds)
        self._waiting.clear()


def _refused(data: bytes, fds: list[int], error: OSError) -> bytes:
    """What the engine is told instead of a worker whose descriptors cannot be sent: that ends."""
    forked = decode(data)
    assert isinstance(forked, Forked)
    _, pidfd = fds
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    _close_all(fds)
    return encode(Refused(forked.number, f"it cannot be passed on: {error}"))


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
