"""The priority of a process that opens a model while others serve."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os
import threading

from penstock.service.priority import in_background

if {user}:
    os.setuid({user})
nice = lambda task=0: os.getpriority(os.PRIO_PROCESS, task)
before, end, seen = nice(), threading.Event(), []
with in_background():
    seen.append(nice() - before)
    pool = threading.Thread(target=end.wait)  # as a library's, which stays
    pool.start()
    seen.append(nice(pool.native_id) - before)
seen += [nice() - before, nice(pool.native_id) - before]
end.set()
print(*seen)
"""
NOBODY = 65534


def steps(user: int = 0) -> list[int]:
    """The niceness that a process adds: in the block, of a thread that is started there, and
    afterwards of both.
    """
    command = [sys.executable, "-c", SCRIPT.format(user=user)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [int(each) for each in done.stdout.split()]


def may_return() -> bool:
    """Whether a process as this one has the capability CAP_SYS_NICE, or a limit that suffices."""
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20:  # for a niceness of 0
        return True
    status = Path("/proc/self/status").read_text()
    (capable,) = (line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(capable, 16) >> 23 & 1)


def test_others_go_first_until_the_model_is_open() -> None:
    assert steps() == ([10, 10, 0, 0] if may_return() else [0] * 4)


def test_a_process_that_could_not_go_back_keeps_its_priority() -> None:
    if os.getuid() == 0:
        assert steps(NOBODY) == [0] * 4
    elif may_return():
        pytest.skip("this user may always go back")
    else:
        assert steps() == [0] * 4
