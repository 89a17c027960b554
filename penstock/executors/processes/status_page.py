"""What a worker process is doing, where the engine can see it at any moment, whatever it does.

Two numbers in memory that both share: the batch that is running, and when its ``process`` call
began. The worker writes, the engine reads; each is one aligned word, so there is no half of one. A
worker that hangs or is killed leaves it as it was, which tells what it died of. Behind them
``faulthandler`` writes the stacks of a worker that a signal ends.
"""

from __future__ import annotations

import faulthandler
import fcntl
import mmap
import os
from typing import Final

_SIZE: Final = mmap.PAGESIZE
_STACKS_AT: Final = 64
_MOST_STACKS: Final = 32 << 10  # bytes that are read of them


class StatusPage:
    """See the module.

    Args:
        descriptor: of the memory; None makes new. Closed with this.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("penstock-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, _SIZE)
            # Shorter it would kill its readers; longer it becomes with the stacks.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _SIZE)
        view = memoryview(self._map)
        self._number = view[:8].cast("Q")
        self._started = view[8:16].cast("d")

    @property
    def number(self) -> int:
        """The number of the batch that runs, or ran last; 0 before the first."""
        return self._number[0]

    @number.setter
    def number(self, number: int) -> None:
        self._number[0] = number

    @property
    def started(self) -> float | None:
        """When the running call began, in monotonic seconds, which all processes share; or None."""
        return self._started[0] or None

    @started.setter
    def started(self, when: float | None) -> None:
        self._started[0] = when or 0.0

    def take_stacks(self) -> None:
        """Let ``faulthandler`` write here: the worker's."""
        os.lseek(self.descriptor, _STACKS_AT, os.SEEK_SET)
        faulthandler.enable(self.descriptor)

    def stacks(self) -> list[str]:
        """What it wrote, line by line."""
        written = os.pread(self.descriptor, _MOST_STACKS, _STACKS_AT)
        return written.rstrip(b"\0").decode(errors="replace").splitlines()

    def close(self) -> None:
        """Give the memory back."""
        self._number.release()
        self._started.release()
        self._map.close()
        os.close(self.descriptor)
