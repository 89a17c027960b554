"""Ends this process together with its parent, by Linux."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # Source: prctl(2)


def end_with_parent(parent: int) -> None:
    """Be killed when the thread that started this process ends; stays so when it executes another
    program. Does not return if it has ended.

    Args:
        parent: the id of its process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
