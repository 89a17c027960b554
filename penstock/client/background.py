"""The thread whose event loop serves every threaded client of this process.

It is started by the first call of any and ends when the last line that it carries is closed, at the
latest when the interpreter exits. A forked child forgets its parent's and starts one of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.client.endpoints import Endpoint
from penstock.client.line import Line
from penstock.client.tls import Security

_PATIENCE_SECONDS = 5.0
"""How long a caller of ``close`` waits for the thread: more than all farewells take."""


class Background:
    """An event loop in a thread of its own. Any thread, but for what says otherwise."""

    def __init__(self) -> None:
        import uvloop  # here, so that importing a client stays cheap

        self._loop = uvloop.new_event_loop()
        self._handed: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._woken = False
        self._stopped = False
        self._users = 0
        self._lines: set[Line] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="penstock-client", daemon=True)
        self._thread.start()

    def hand_over(self, act: Callable[[Any], None], argument: object) -> None:
        """Have the thread call ``act(argument)``, after all that was handed over before.

        Takes no lock, so that a finalizer may call it. After the thread's end the caller's own
        thread runs it: the lines are closed by then, and say so.
        """
        self._handed.append((act, argument))
        if not self._woken:
            # Only who finds the thread asleep wakes it: once for many calls.
            self._woken = True
            if not self._stopped:
                try:
                    self._loop.call_soon_threadsafe(self._drain)
                except RuntimeError:  # the loop was closed this very moment
                    self._stopped = True
        if self._stopped:
            self._drain()

    def close(self, line: Line) -> None:
        """Close a line and wait until it is; on the loop's own thread, do not wait."""
        done = threading.Event()
        self.hand_over(self._close, (line, done))
        if threading.current_thread() is not self._thread:
            done.wait(_PATIENCE_SECONDS)
            if self._users == 0:
                self._thread.join(_PATIENCE_SECONDS)

    def forsake(self, line: Line) -> None:
        """Close a line that nobody can use any more. For finalizers: it waits for nothing."""
        self.hand_over(self._close, (line, threading.Event()))

    def stop(self) -> None:
        """Close everything and end the thread."""
        self.hand_over(self._close_all, None)
        self._thread.join(_PATIENCE_SECONDS)

    def descriptors(self) -> list[tuple[int, int]]:
        """Number and inode of all sockets in use."""
        return [found for line in list(self._lines) for found in line.descriptors()]

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
            self._stopped = True
            self._drain()

    def _drain(self) -> None:
        # Lowered first: who adds something afterwards wakes again.
        self._woken = False
        handed = self._handed
        while handed:
            try:
                act, argument = handed.popleft()
            except IndexError:  # several threads may drain what came too late
                return
            act(argument)

    def _close(self, order: tuple[Line, threading.Event]) -> None:
        line, done = order
        line.close()
        if self._stopped:
            done.set()
            return
        task = self._loop.create_task(self._see_off(line, done))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _see_off(self, line: Line, done: threading.Event) -> None:
        await line.closed()
        if line in self._lines:
            self._lines.discard(line)
            if _give_back(self):
                self._loop.stop()
        done.set()

    def _close_all(self, _: None) -> None:
        for line in list(self._lines):
            self._close((line, threading.Event()))
        if not self._lines:
            self._loop.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "running"
        return f"<Background {state}, {len(self._lines)} lines>"


_lock = threading.Lock()
_running: Background | None = None
_forgotten: list[Background] = []  # of parents; to free one would end what it shares with them


def open_line(endpoint: Endpoint, security: Security | None) -> tuple[Background, Line]:
    """A line on this process's thread, which is started if it does not run."""
    global _running
    with _lock:
        if _running is None:
            _running = Background()
        background = _running
        background._users += 1
        line = Line(endpoint, background._loop, security)
        background._lines.add(line)
        return background, line


def _give_back(background: Background) -> bool:
    """Count one user less; True when it was the last one."""
    global _running
    with _lock:
        background._users -= 1
        if background._users:
            return False
        if _running is background:
            _running = None
        return True


def _at_exit() -> None:
    if _running is not None:
        _running.stop()


def _forget_the_parents() -> None:
    """In a forked child: leave the parent's loop as it is, and let go of the parent's sockets.

    Each of the child's copies becomes the null device in place, so that the parent alone decides
    when a connection ends, and whoever still knows the number closes nothing else.
    """
    global _lock, _running
    former, _running = _running, None
    _lock = threading.Lock()
    if former is None:
        return
    _forgotten.append(former)
    descriptors = former.descriptors()
    if descriptors:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number, inode in descriptors:
            # The number may be another file's, when the parent was just closing the socket.
            with suppress(OSError):
                if os.fstat(number).st_ino == inode:
                    os.dup2(null, number, inheritable=False)
        os.close(null)


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forget_the_parents)
