"""What a worker process is doing, where the engine can see it at any moment, whatever it does.

Two numbers in memory that both share: the batch that is running, and when its ``process`` call
began. The worker writes, the engine reads; each is one aligned word, so there is no half of one.
A worker that hangs or is killed leaves it as it was, which tells what it died of. A third number
is the engine's, by which it calls a worker to its socket. The rest of that memory is for what the
worker has answered and not sent (kept.py).
"""

from __future__ import annotations

import fcntl
import mmap
import os
from time import monotonic
from typing import Final

from penstock.executors.processes.frame import FrameError
from penstock.executors.processes.passing import unusable

_SIZE: Final = 64 << 10
_CELLS: Final = 64  # bytes
_SEEN: Final = 20e-6
"""Seconds, far more than it takes until a processor sees what another one has written."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Board:
    """See the module; made by ``create`` in the worker and by ``attach`` in the engine.

    Attributes:
        batch_cell: of one element, what ``batch`` says.
        started_cell: likewise for ``started``, where 0 is None.
        calls_cell: of one element, how often ``call`` was called.
        kept: for answers that are not sent yet.
    """

    __slots__ = ("_calls", "_map", "batch_cell", "calls_cell", "kept", "started_cell")

    def __init__(self, shared: mmap.mmap) -> None:
        view = memoryview(shared)
        self._map = shared
        self.batch_cell = view[:8].cast("Q")
        self.started_cell = view[8:16].cast("d")
        self.calls_cell = view[16:24].cast("Q")
        self.kept = view[_CELLS:]
        self._calls = 0  # who shares the memory may have written there, too

    @classmethod
    def create(cls) -> tuple[Board, int]:
        """A new one, and the descriptor to be sent to the engine and closed."""
        descriptor = os.memfd_create("penstock board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, _SIZE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return cls(mmap.mmap(descriptor, _SIZE)), descriptor

    @classmethod
    def attach(cls, descriptor: int) -> Board:
        """The worker's; takes the descriptor.

        Raises:
            FrameError: it is no such memory, or its size could change under us.
        """
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise FrameError("the worker's board is not sealed")
            if os.fstat(descriptor).st_size != _SIZE:
                raise FrameError("the worker's board has another size")
            return cls(mmap.mmap(descriptor, _SIZE))
        except OSError as error:
            raise unusable("the worker's board cannot be mapped", error) from error
        finally:
            os.close(descriptor)

    @property
    def batch(self) -> int:
        """The number of the batch that runs, or ran last; 0 before the first."""
        return self.batch_cell[0]

    @batch.setter
    def batch(self, number: int) -> None:
        self.batch_cell[0] = number

    @property
    def started(self) -> float | None:
        """When the running call began, in monotonic seconds, which all processes share; or None.

        What is no time, or one to come, is None: nothing is to be counted from it.

        A worker that lies here evades the ``timeout`` of its calls, for which no bound from the
        hand-over on can stand in: nobody limits how many calls a batch makes, nor how long the
        hooks around them take, so that it would end honest workers, too. What does not hang on its
        word is the deadline at which the caller is answered, and the hang limit from then on.
        """
        when = self.started_cell[0]
        return when if 0.0 < when <= monotonic() else None

    @started.setter
    def started(self, when: float | None) -> None:
        self.started_cell[0] = when or 0.0

    def call(self) -> None:
        """The engine's: something is in the socket that the worker is to read before it goes on.

        When this returns, a batch of which ``batch`` does not tell yet will not begin before that
        is read. The worker writes there, then looks whether it is called, and no call of the system
        lies between, which would keep the two in order. So this returns only when what it wrote
        before it could miss the call must long be seen here.
        """
        self._calls += 1
        self.calls_cell[0] = self._calls
        until = monotonic() + _SEEN
        while monotonic() < until:
            pass

    def close(self) -> None:
        """Give the memory back."""
        self.batch_cell.release()
        self.started_cell.release()
        self.calls_cell.release()
        self.kept.release()
        self._map.close()
