"""Ends a process, and those that it has started, with the supervisor, whatever they are doing.

A child has the read end of a pipe whose write end the supervisor alone holds. When the supervisor
ends, even by SIGKILL, the kernel closes the write end, and kills the child's process group as it
was asked to: no Python code has to run for it, so native code that holds the interpreter's lock
does not delay it.
Source: Linux fcntl(2), F_SETOWN, F_SETSIG and O_ASYNC. PR_SET_PDEATHSIG would do for the child
alone, but cannot be set from Python's standard library.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal


class Lifeline:
    """One child's pipe, from before the fork."""

    __slots__ = ("_reader", "_writer")

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)

    def __repr__(self) -> str:
        return f"<Lifeline reader={self._reader} writer={self._writer}>"

    def hold(self, *, passed_on: bool = False) -> None:
        """The child's step, as leader of its process group: from now on, that group is bound.

        The descriptor stays open until the process ends.

        Args:
            passed_on: and when the process becomes another program.
        """
        os.close(self._writer)
        reader = self._reader
        os.set_inheritable(reader, passed_on)
        fcntl.fcntl(reader, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
        told = select.poll()
        told.register(reader, select.POLLIN)
        if told.poll(0):  # the supervisor ended before the kernel was asked
            os.killpg(0, signal.SIGKILL)

    def keep(self) -> None:
        """The supervisor's step after the fork."""
        os.close(self._reader)

    def close(self) -> None:
        """The supervisor's, once the child has ended; and that of the child's younger siblings."""
        os.close(self._writer)
