"""The scheduling priority of a process that opens a model while others serve."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Final

_LOWER: Final = 10
"""Steps of niceness: a tenth of the CPU time of a process that serves, where both want all."""


@contextmanager
def in_background() -> Iterator[None]:
    """Let other processes go first during the block, threads that are started in it included.

    Does nothing where the system does not let the process take its priority back, which needs the
    capability ``CAP_SYS_NICE``, or a limit as of systemd's ``LimitNICE=0``.
    """
    before = _niceness()
    if not _can_return(before):
        yield
        return
    os.setpriority(os.PRIO_PROCESS, 0, before + _LOWER)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
        for task in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, int(task), before)


def _niceness() -> int:
    """That of this thread."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def _can_return(before: int) -> bool:
    """Whether this process may take back a lower priority.

    Capabilities do not tell it in a container with a user namespace of its own. So a thread tries
    it, which has its own niceness and ends.
    """
    found = []

    def attempt() -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before + 1)
            os.setpriority(os.PRIO_PROCESS, 0, before)
            found.append(_niceness() == before)

    thread = Thread(target=attempt, name="priority")
    thread.start()
    thread.join()
    return found == [True]
