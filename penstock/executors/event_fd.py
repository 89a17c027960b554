"""An event between threads that is signalled without holding the interpreter's lock.

A thread that is woken through a lock or a queue runs into the interpreter's lock, which the waker
still holds: two needless switches at each end of a hand-over. Here the waker gives the lock up for
the length of its one system call, and whoever it wakes finds it free.
Source: Linux eventfd(2).
"""

from __future__ import annotations

import os
import weakref


class EventFd:
    """Counts signals. Any thread may send one; others ``wait``, or a loop watches ``fileno``.

    Args:
        watched: whether a loop watches it, which takes all signals so far at once; otherwise each
            wakes one of those that wait.
    """

    def __init__(self, *, watched: bool = False) -> None:
        kind = os.EFD_NONBLOCK if watched else os.EFD_SEMAPHORE
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | kind)
        # Closed with the last thread that knows it: its number would be another file's by then.
        weakref.finalize(self, os.close, self._fd)

    def fileno(self) -> int:
        """What a loop watches; readable while there are signals that nobody has taken."""
        return self._fd

    def signal(self) -> None:
        """Wake one thread that waits, or the loop."""
        os.eventfd_write(self._fd, 1)

    def wait(self) -> None:
        """Block until a signal that nobody else has taken."""
        while True:
            try:
                os.eventfd_read(self._fd)
            except InterruptedError:  # a signal; Python does not repeat this call by itself
                continue
            return

    def clear(self) -> None:
        """The loop's: take all signals so far; it may have been woken for none."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return
