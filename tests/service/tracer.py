"""Traces a process until it is killed itself, as a debugger does that somebody has left open.

python -m tests.service.tracer PID
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_SEIZE = 0x4206  # PTRACE_SEIZE, which stops nobody


@contextmanager
def traced(pid: int) -> Iterator[None]:
    """For the block; the test is skipped where processes may not trace each other."""
    command = [sys.executable, "-m", __name__, str(pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tracer:
        try:
            assert tracer.stdout is not None
            if tracer.stdout.readline() != b"0\n":
                pytest.skip("processes may not trace each other here")
            yield
        finally:
            tracer.kill()


if __name__ == "__main__":
    libc = ctypes.CDLL(None)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    print(libc.ptrace(_SEIZE, int(sys.argv[1]), 0, 0), flush=True)
    signal.pause()
