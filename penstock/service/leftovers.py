"""Processes that have ended, and that the supervisor has to wait for later, or for nobody's sake.

A child that somebody traces, such as a debugger, cannot be waited for before that has let it go.
And where the supervisor is process 1, as in a container, whatever a worker has started and left
behind is its child in the end, of which nobody else would take note.
"""

from __future__ import annotations

import math
import os
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.service.forking import Child

_TRACED: Final = 1.0  # seconds between two looks
_ADOPTED: Final = 10.0


class Leftovers:
    """See the module.

    Args:
        adopts: whether processes that lose their parent become this one's.

    Attributes:
        patience: seconds until it is to be asked to ``reap`` again, though nothing happens.
    """

    def __init__(self, *, adopts: bool) -> None:
        self._adopts = adopts
        self._traced: set[int] = set()
        # What the script has started it may wait for itself.
        self._scripts = frozenset(_children()) if adopts else frozenset[int]()
        self.patience = _ADOPTED if adopts else math.inf

    def __repr__(self) -> str:
        return f"<Leftovers {len(self._traced)} traced{', adopts' if self._adopts else ''}>"

    def take(self, child: Child) -> int:
        """The wait status of one that has ended; reaped now or later."""
        status = child.reap()
        if not child.is_reaped:
            self._traced.add(child.pid)
            self.patience = min(self.patience, _TRACED)
        return status

    def reap(self, known: Container[int]) -> None:
        """Take note of whoever has ended, but of those who are known."""
        for pid in [each for each in self._traced if _is_reaped(each)]:
            self._traced.discard(pid)
        if self._adopts:
            for pid in _children():
                if pid not in known and pid not in self._scripts and pid not in self._traced:
                    _is_reaped(pid)
        if not self._traced:
            self.patience = _ADOPTED if self._adopts else math.inf


def _is_reaped(pid: int) -> bool:
    """Whether it is no child any more, now or since earlier."""
    with suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return True


def _children() -> Iterable[int]:
    """Of the main thread, to which orphans come; of no other where the system does not tell."""
    with suppress(OSError):
        return map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return ()
