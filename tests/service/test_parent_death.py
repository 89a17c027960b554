"""The kernel ends children with their parent; the parent here is the test, which lets go."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from penstock.service.children import ParentDeath
from tests.service.supervised import gone


def child_of(parent_death: ParentDeath, live: Callable[[], object]) -> int:
    """Fork a child that holds the parent_death, and say that it does."""
    heard, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            parent_death.hold()
            os.write(said, b"!")
            live()
        finally:
            os._exit(77)
    parent_death.keep()
    os.close(said)
    poll = select.poll()
    poll.register(heard, select.POLLIN)
    assert poll.poll(10_000)
    os.close(heard)
    return pid


def status_within(pid: int, timeout: float) -> int:
    pidfd = os.pidfd_open(pid)
    try:
        assert gone(pidfd, timeout)
    finally:
        os.close(pidfd)
        os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def wait_for_ever() -> None:
    while True:
        signal.pause()


def test_a_child_is_killed_when_the_writer_is_closed() -> None:
    parent_death = ParentDeath()
    pid = child_of(parent_death, wait_for_ever)
    parent_death.close()
    assert status_within(pid, 1) == -signal.SIGKILL


def test_a_child_lives_while_the_writer_is_open() -> None:
    parent_death = ParentDeath()
    pid = child_of(parent_death, lambda: None)
    assert status_within(pid, 10) == 77
    parent_death.close()


def test_what_a_child_has_started_is_killed_with_it() -> None:
    parent_death = ParentDeath()
    heard, said = os.pipe()
    program = f"import os, signal; os.write({said}, b'!'); signal.pause()"

    def start_a_program() -> None:
        subprocess.run([sys.executable, "-c", program], pass_fds=[said])

    pid = child_of(parent_death, start_a_program)
    os.close(said)
    poll = select.poll()
    poll.register(heard, select.POLLIN)
    assert poll.poll(10_000)
    assert os.read(heard, 1) == b"!"
    parent_death.close()
    started = time.monotonic()
    assert poll.poll(1000), "the program holds its end of the pipe"
    assert os.read(heard, 1) == b""
    assert time.monotonic() - started < 1
    os.close(heard)
    status_within(pid, 1)


def test_a_child_whose_parent_is_gone_already_does_not_begin() -> None:
    parent_death = ParentDeath()
    go_on, gone_on = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(gone_on)
            os.setpgid(0, 0)
            os.read(go_on, 1)  # until the parent has let go
            parent_death.hold()
        finally:
            os._exit(77)
    parent_death.keep()
    parent_death.close()
    os.close(gone_on)
    os.close(go_on)
    pidfd = os.pidfd_open(pid)
    assert gone(pidfd, 10)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
