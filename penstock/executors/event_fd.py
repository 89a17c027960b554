"""An event between threads that is signalled without holding the GIL.

A thread that is woken through a lock or a queue blocks on the GIL, which the waker still holds: two
needless context switches at each end of a hand-over. Here the waker releases the GIL during its one
system call, so that the woken thread finds it free.
Source: Linux eventfd(2).
"""

from __future__ import annotations

import os
import select
import weakref


class EventFd:
    """Counts signals. Any thread may send one; others ``wait``, or a loop watches ``fileno``.

    Args:
        watched: whether a loop watches it, which consumes all signals at once; otherwise each
            signal wakes one waiting thread.
    """

    def __init__(self, *, watched: bool = False) -> None:
        kind = os.EFD_NONBLOCK if watched else os.EFD_SEMAPHORE
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | kind)
        # Closed with the last thread that uses it: the descriptor's number may be reused.
        weakref.finalize(self, os.close, self._fd)

    def fileno(self) -> int:
        """The descriptor for a loop to watch; readable while signals are unconsumed."""
        return self._fd

    def signal(self) -> None:
        """Wake one waiting thread, or the loop."""
        os.eventfd_write(self._fd, 1)

    def wait(self) -> None:
        """Block until a signal, and consume it."""
        while True:
            try:
                os.eventfd_read(self._fd)
            except InterruptedError:  # a signal; Python does not repeat this call by itself
                continue
            return

    def wait_for(self, milliseconds: int) -> None:
        """The same, at most that long."""
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        if waiting.poll(milliseconds):
            self.wait()

    def clear(self) -> None:
        """For the loop: consume all signals so far, of which there may be none."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return
