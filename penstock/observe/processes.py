"""Memory and CPU time of processes, from Linux's /proc."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICK: Final = os.sysconf("SC_CLK_TCK")

_UTIME: Final = 11  # index of a field of /proc/<pid>/stat, after the process name
_STIME: Final = 12
_RSS: Final = 21


class ProcessTimes:
    """Sums the CPU time of processes, including ended ones, so that the sum never decreases."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._ended: defaultdict[str, float] = defaultdict(float)

    def forget(self, whose: str) -> None:
        """There is no such group any more."""
        self._seen.pop(whose, None)
        self._ended.pop(whose, None)

    def of(self, whose: str, pids: Collection[int]) -> dict[str, Any]:
        """Bytes of memory and seconds of CPU time of a group of processes.

        Args:
            whose: the group's name; processes of the last call that are missing now have ended.
            pids: the running processes of the group.
        """
        seen, before = {}, self._seen[whose]
        memory = 0
        for pid in pids:
            now = _read(pid)
            if now is not None:
                memory += now[0]
                seen[pid] = now[1]
        self._ended[whose] += sum(before[pid] for pid in before if pid not in seen)
        self._seen[whose] = seen
        return {"memory": memory, "cpu": self._ended[whose] + sum(seen.values())}


def thread_seconds(thread: int) -> float:
    """Seconds of CPU time of a thread of this process; 0 if unknown."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb", buffering=0) as file:
            return int(file.read(64).split()[0]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _read(pid: int) -> tuple[int, float] | None:
    """Bytes and seconds of one process; None if it has ended, or the system has no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        return int(fields[_RSS]) * _PAGE, (int(fields[_UTIME]) + int(fields[_STIME])) / _TICK
    except (OSError, IndexError, ValueError):
        return None
