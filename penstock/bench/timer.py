"""A timer that wakes an event loop with microsecond precision.

The loop's own timers are rounded to milliseconds, which would be counted as latency.
Source: Linux timerfd_create(2); Python has it from 3.13 on.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_CLOCK_MONOTONIC: Final = 1  # the clock of time.monotonic
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK
_ABSOLUTE: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Times(ctypes.Structure):
    """A ``struct itimerspec``."""

    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    )


class PreciseTimer:
    """Calls ``act`` on the running loop at the time set last. Use on the loop's thread only.

    Raises:
        OSError: the timer cannot be created.
    """

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._fd = _libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._wake)

    def set(self, at: float) -> None:
        """Set the time in monotonic seconds; a past time means at once."""
        seconds = max(0, int(at))
        # Zero would switch it off.
        times = _Times(0, 0, seconds, max(1, int((at - seconds) * 1e9)))
        if _libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(times), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Close the timer."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # the timer was set again meanwhile
            os.read(self._fd, 8)
            self._act()
