"""How much memory another process has."""

from __future__ import annotations

import os
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """That of one process, whose number may be another's after its end: this one's never is."""

    __slots__ = ("_descriptor",)

    def __init__(self, pid: int) -> None:
        try:
            self._descriptor = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # it has ended already, or no descriptor is left
            self._descriptor = -1

    def resident(self) -> int | None:
        """Bytes of it that are in memory, with what it shares; None if that cannot be told."""
        try:
            pages = os.pread(self._descriptor, 128, 0).split()[1]
        except (OSError, IndexError):
            return None
        return int(pages) * _PAGE

    def close(self) -> None:
        """Ask no more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
