"""Children that cannot be waited for yet, and children that nobody here has started."""

from __future__ import annotations

import subprocess
import sys

from tests.service.tracer import traced

PROLOGUE = """
import ctypes, math, os, signal, subprocess, sys
from pathlib import Path
from penstock.service.children import fork
from penstock.service.children import Reaper

def zombies():
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in pids if ") Z " in Path(f"/proc/{pid}/stat").read_text()]
"""


def outcome(script: str) -> list[str]:
    """What a script writes."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROLOGUE + script],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


TRACED = """
given = os.dup(0)  # children have another standard input
mine = fork("thing", lambda: os.read(given, 1)[0], lambda: None, stoppable=True)
print(mine.pid, flush=True)
reaper = Reaper(adopts=False)
assert reaper.poll_interval == math.inf
status = reaper.take(mine)
print(os.waitstatus_to_exitcode(status), mine.is_reaped)
reaper.reap(())
print(reaper.poll_interval, zombies() == [str(mine.pid)], flush=True)
while reaper.poll_interval < math.inf:
    reaper.reap(())
print(zombies())
"""


def test_a_child_that_is_traced_holds_nobody_up_and_is_reaped_when_it_is_let_go() -> None:
    command = [sys.executable, "-X", "dev", "-c", PROLOGUE + TRACED]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with traced(int(process.stdout.readline())):
                process.stdin.write("\x07")
                process.stdin.flush()
                assert process.stdout.readline() == "7 False\n"
                assert process.stdout.readline() == "1.0 True\n"
            assert process.stdout.readline() == "[]\n"
            assert process.wait(10) == 0
        finally:
            process.kill()


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
print(os.waitstatus_to_exitcode(reaper.take(mine)), scripts.wait(), zombies())
"""


def test_who_has_lost_its_parent_is_reaped_and_nobody_elses_child() -> None:
    assert outcome(ADOPTED) == ["10.0", "2", "5 3 []"]
