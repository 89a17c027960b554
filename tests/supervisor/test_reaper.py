"""Reaping children that this process did not start."""

from __future__ import annotations

import subprocess
import sys

PROLOGUE = """
import ctypes, math, os, signal, subprocess, sys
from pathlib import Path
from penstock.supervisor.child_processes import fork
from penstock.supervisor.child_processes import Reaper

def zombies():
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in pids if ") Z " in Path(f"/proc/{pid}/stat").read_text()]
"""


def outcome(script: str) -> list[str]:
    """The lines that a script writes."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROLOGUE + script],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


ADOPTED = """
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER: as process 1
scripts = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
reaper = Reaper(adopts=True)
print(reaper.poll_interval)
mine = fork("thing", lambda: 5, lambda: None, stoppable=True)
for child in (scripts.pid, mine.pid):
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
orphans = "import os; print(os.fork() and os.fork(), flush=True)"
subprocess.run([sys.executable, "-c", orphans], capture_output=True)
while len(zombies()) < 4:
    pass
reaper.reap([mine.pid])
print(len(zombies()))
print(os.waitstatus_to_exitcode(mine.reap()), scripts.wait(), zombies())
"""


def test_orphans_are_reaped_and_children_of_others_are_not() -> None:
    assert outcome(ADOPTED) == ["10.0", "2", "5 3 []"]
