"""The status page: shared memory that shows the engine a worker's running batch at any time.

It has four numbers: the running batch, the start time of its ``process`` call, and for a worker
with seats, the batch whose request joins, which the worker writes and the engine reads; and the
batch whose stream was cancelled, which the engine writes and the worker reads. A worker with seats
counts its steps behind them. Each number is one aligned word, so reads are atomic. It survives a
worker that hangs or is killed, and so shows which batch killed it. After the numbers
``faulthandler`` writes the stacks of a worker that a signal ends.
"""

from __future__ import annotations

import faulthandler
import fcntl
import mmap
import os
from typing import Final

from penstock.executors.seats.counts import SIZE

_SIZE: Final = mmap.PAGESIZE
_STEPS_AT: Final = 32
_STACKS_AT: Final = _STEPS_AT + 8 * SIZE
_MOST_STACKS: Final = 32 << 10  # most bytes of stacks that are read


class StatusPage:
    """See the module.

    Args:
        descriptor: of the memory; None creates it. Closed with this.

    Attributes:
        steps: the counts of a worker with seats; see ``StepCounts``.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("penstock-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, _SIZE)
            # If it shrank, reading would kill the engine; it grows with the stacks.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _SIZE)
        view = memoryview(self._map)
        self._number = view[:8].cast("Q")
        self._started = view[8:16].cast("d")
        self._joining = view[16:24].cast("Q")
        self._cancelled = view[24:32].cast("Q")
        self.steps = view[_STEPS_AT:_STACKS_AT].cast("Q")

    @property
    def number(self) -> int:
        """The number of the running or the last batch; 0 before the first."""
        return self._number[0]

    @number.setter
    def number(self, number: int) -> None:
        self._number[0] = number

    @property
    def cancelled(self) -> int:
        """The number of the batch whose stream was cancelled last; 0 before the first. The engine
        writes it.
        """
        return self._cancelled[0]

    @cancelled.setter
    def cancelled(self, number: int) -> None:
        self._cancelled[0] = number

    @property
    def started(self) -> float | None:
        """Start of the running call in monotonic seconds, the same in all processes; or None."""
        return self._started[0] or None

    @started.setter
    def started(self, when: float | None) -> None:
        self._started[0] = when or 0.0

    @property
    def joining(self) -> int:
        """The number of the batch whose request is joining; 0 if none is."""
        return self._joining[0]

    @joining.setter
    def joining(self, number: int) -> None:
        self._joining[0] = number

    def take_stacks(self) -> None:
        """For the worker: let ``faulthandler`` write here."""
        os.lseek(self.descriptor, _STACKS_AT, os.SEEK_SET)
        faulthandler.enable(self.descriptor)

    def stacks(self) -> list[str]:
        """The stacks that it wrote, as lines."""
        written = os.pread(self.descriptor, _MOST_STACKS, _STACKS_AT)
        return written.rstrip(b"\0").decode(errors="replace").splitlines()

    def close(self) -> None:
        """Unmap the memory."""
        self._number.release()
        self._started.release()
        self._joining.release()
        self._cancelled.release()
        self.steps.release()
        self._map.close()
        os.close(self.descriptor)
