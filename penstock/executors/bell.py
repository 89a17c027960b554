"""A bell between threads that is rung without holding the interpreter's lock.

Who is woken through a lock or a queue runs into the interpreter's lock, which the waker still
holds: two needless switches at each end of a hand-over. Here the waker gives the lock up for the
length of its one system call, and whoever it wakes finds it free.
Source: Linux eventfd(2); where there is none, a pipe counts the same way.
"""

from __future__ import annotations

import os
import weakref

_ONE = b"\1"
_MANY = 4096
_EVENTS = hasattr(os, "eventfd")


class Bell:
    """Counts rings. Any thread may ring; others wait in ``wait``, or a loop watches ``fileno``.

    Args:
        watched: whether a loop watches it, which hears all rings so far at once; otherwise each is
            heard once, by one of those who wait.
    """

    __slots__ = ("__weakref__", "_from", "_to")

    def __init__(self, *, watched: bool = False) -> None:
        if _EVENTS:
            kind = os.EFD_NONBLOCK if watched else os.EFD_SEMAPHORE
            self._from = self._to = os.eventfd(0, os.EFD_CLOEXEC | kind)
        else:
            self._from, self._to = os.pipe()
            os.set_blocking(self._from, not watched)
            weakref.finalize(self, os.close, self._to)
        # Closed with the last thread that knows it: its number would be another file's by then.
        weakref.finalize(self, os.close, self._from)

    def fileno(self) -> int:
        """What a loop watches; readable while there are rings not heard."""
        return self._from

    def ring(self) -> None:
        """Wake one who waits, or the loop."""
        if _EVENTS:
            os.eventfd_write(self._to, 1)
        else:
            os.write(self._to, _ONE)

    def wait(self) -> None:
        """Block until a ring that nobody else has heard."""
        if not _EVENTS:
            os.read(self._from, 1)
            return
        while True:
            try:
                os.eventfd_read(self._from)
            except InterruptedError:  # a signal; of this call Python does not begin anew by itself
                continue
            return

    def clear(self) -> None:
        """The loop's: hear all rings so far; it may have been woken for none."""
        try:
            if _EVENTS:
                os.eventfd_read(self._from)
            else:
                os.read(self._from, _MANY)
        except BlockingIOError:
            return
