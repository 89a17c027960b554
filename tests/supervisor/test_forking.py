"""Properties of a forked child, seen from scripts that fork one and wait for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROLOGUE = """
import logging, os, random, signal, socket, subprocess, sys, threading
from penstock.supervisor.child_processes import fork

def child(main, stoppable=True):
    found = fork("thing", main, lambda: None, stoppable=stoppable)
    return os.waitstatus_to_exitcode(found.reap())
"""


def outcome(script: str, given: str = "") -> tuple[str, str]:
    """A script's standard output and standard error."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROLOGUE + script],
        input=given,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


@pytest.mark.parametrize(
    ("main", "status", "error"),
    [
        ("return 5", 5, ""),
        ("return None", 1, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(4)", 4, ""),
        ("sys.exit('no card')", 1, "no card"),
        ("raise KeyError('lost')", 1, "lost"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_a_child_s_exit_status_reflects_its_end(main: str, status: int, error: str) -> None:
    out, err = outcome(f"def main():\n    {main}\nprint(child(main))\nprint('once')")
    assert out.split("\n") == [str(status), "once"]
    assert error in err
    assert bool(err) == bool(error)


def test_the_peak_memory_of_a_child_is_known_after_its_end() -> None:
    script = """
mine = fork("thing", lambda: len(bytes(200 << 20)) * 0, lambda: None, stoppable=True)
mine.reap()
print(mine.peak >> 20)
"""
    assert 200 <= int(outcome(script)[0]) < 1000


def test_output_before_the_fork_is_written_once() -> None:
    script = """
print("before")
child(lambda: print("inside") or 0)
print("after")
"""
    assert outcome(script)[0].split() == ["before", "inside", "after"]


def test_children_draw_different_random_numbers() -> None:
    script = """
import numpy
random.seed(7)
numpy.random.seed(7)
draw = lambda: print(random.random(), numpy.random.random()) or 0
draw(), child(draw), child(draw)
"""
    drawn = outcome(script)[0].split()
    assert len(set(drawn)) == len(drawn) == 6


def test_generators_of_imported_libraries_are_seeded_in_each_child() -> None:
    script = """
from types import SimpleNamespace

class Generator:
    seed = 7

    def manual_seed(self, seed):
        assert 0 <= seed < 1 << 64
        self.seed = seed

paddle = Generator()
core = SimpleNamespace(default_cpu_generator=lambda: paddle)
sys.modules["paddle.framework.random"] = SimpleNamespace(core=core)
torch = SimpleNamespace(n=7)
torch.default_generator = SimpleNamespace(seed=lambda: setattr(torch, "n", os.getpid()))
sys.modules["torch"] = torch
draw = lambda: print(paddle.seed, torch.n) or 0
draw(), child(draw), child(draw)
"""
    drawn = outcome(script)[0].split()
    assert drawn[:2] == ["7", "7"]
    assert len(set(drawn[::2])) == len(set(drawn[1::2])) == 3


def test_a_child_s_standard_input_is_empty() -> None:
    script = """
child(lambda: print(repr(sys.stdin.read())) or 0)
print(sys.stdin.read())
"""
    assert outcome(script, given="a line")[0].split("\n") == ["''", "a line"]


def test_a_child_has_default_signal_handlers_and_the_parent_s_mask() -> None:
    script = """
signal.signal(signal.SIGTERM, print)
signal.signal(signal.SIGINT, print)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def main():
    for number in (signal.SIGTERM, signal.SIGINT):
        print(format(signal.getsignal(number)))
    print([each.name for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])])
    return 0
child(main)
"""
    terminate, interrupt, mask = outcome(script)[0].split("\n")
    assert terminate == str(int(signal.SIG_DFL))
    assert interrupt == format(signal.default_int_handler)
    assert mask == "['SIGUSR1']"


def test_signals_do_not_stop_an_unstoppable_child_but_end_its_children() -> None:
    script = """
def end(pid):
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def main():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.raise_signal(number)
    program = subprocess.Popen(["sleep", "60"])
    program.terminate()
    print(program.wait())
    heard, said = os.pipe()
    forked = os.fork()
    if forked == 0:
        os.write(said, b"!")
        signal.pause()
        os._exit(77)
    os.read(heard, 1)
    os.close(heard), os.close(said)
    print(end(forked))
    return 5

print(child(main, stoppable=False))
"""
    assert outcome(script)[0].split() == ["-15", "-15", "5"]


def test_a_child_s_own_children_end_with_it() -> None:
    script = """
heard, said = os.pipe()
def main():
    subprocess.Popen(["sleep", "60"], pass_fds=[said])
    os._exit(0)
child(main)
os.close(said)
print(os.read(heard, 1))
os.close(heard)
"""
    assert outcome(script)[0] == "b''"
