"""The kernel ends children with their parent; the parent here is the test, which closes its end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from penstock.supervisor.child_processes import ParentDeath
from tests.supervisor.supervised import has_ended


def child_of(parent_death: ParentDeath, run: Callable[[], object]) -> int:
    """Forks a child that holds ``parent_death``; returns its pid once it does."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            parent_death.hold()
            os.write(write_end, b"!")
            run()
        finally:
            os._exit(77)
    parent_death.keep()
    os.close(write_end)
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    assert poll.poll(10_000)
    os.close(read_end)
    return pid


def status_within(pid: int, timeout: float) -> int:
    pidfd = os.pidfd_open(pid)
    try:
        assert has_ended(pidfd, timeout)
    finally:
        os.close(pidfd)
        os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def wait_forever() -> None:
    while True:
        signal.pause()


def test_a_child_is_killed_when_the_writer_is_closed() -> None:
    parent_death = ParentDeath()
    pid = child_of(parent_death, wait_forever)
    parent_death.close()
    assert status_within(pid, 1) == -signal.SIGKILL


def test_a_child_is_not_killed_while_the_writer_is_open() -> None:
    parent_death = ParentDeath()
    pid = child_of(parent_death, lambda: None)
    assert status_within(pid, 10) == 77
    parent_death.close()


def test_a_child_s_own_children_are_killed_with_it() -> None:
    parent_death = ParentDeath()
    read_end, write_end = os.pipe()
    program = f"import os, signal; os.write({write_end}, b'!'); signal.pause()"

    def start_a_program() -> None:
        subprocess.run([sys.executable, "-c", program], pass_fds=[write_end])

    pid = child_of(parent_death, start_a_program)
    os.close(write_end)
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    assert poll.poll(10_000)
    assert os.read(read_end, 1) == b"!"
    parent_death.close()
    started = time.monotonic()
    assert poll.poll(1000), "the program holds its end of the pipe"
    assert os.read(read_end, 1) == b""
    assert time.monotonic() - started < 1
    os.close(read_end)
    status_within(pid, 1)


def test_a_child_whose_parent_has_ended_is_killed_before_it_begins() -> None:
    parent_death = ParentDeath()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(write_end)
            os.setpgid(0, 0)
            os.read(read_end, 1)  # until the parent has closed its end
            parent_death.hold()
        finally:
            os._exit(77)
    parent_death.keep()
    parent_death.close()
    os.close(write_end)
    os.close(read_end)
    pidfd = os.pidfd_open(pid)
    assert has_ended(pidfd, 10)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
