"""Scripts with a supervisor, run as processes, which report events to the test.

A script defines ``serve(zygote)``, the engine's coroutine, and may define ``worker_main`` and the
number of ``engines``; ``here`` is an engine's id, and ``orders`` has the supervisor's messages to
it. All its processes write lines to one pipe, whose end of file means that they all have ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

DONE = 7
"""The exit status of an engine after a successful test: an unrequested exit with 0 counts as a
failure."""

PROLOGUE = """
done = 7
from penstock.executors.executor import OpSource
import asyncio, os, signal, socket, subprocess, sys, uvloop
from penstock.supervisor.client import SupervisorClient
from penstock.supervisor.signals import signals_stop_the_start
from penstock.supervisor.supervisor import Supervisor

an_op = OpSource(op="op", label="op")

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def engine_main(engine_id, control):
    global here
    here = engine_id

    async def main():
        loop = asyncio.get_running_loop()
        return await serve(SupervisorClient(control, loop, orders.put_nowait))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())

def worker_main(engine_id, op, index, channel):
    say("worker", os.getpid())
    channel.recv(1)
    return 0

def let_go(worker):
    worker.socket.close()
    os.close(worker.pidfd)

async def for_ever():
    await asyncio.Event().wait()

listeners = ()
engines = 1
of_each = None
stop_timeout = answer_timeout = float("inf")
options = {}
orders = asyncio.Queue()  # of the supervisor, in an engine

def open_ports(models):
    say("open")
"""
EPILOGUE = """
def main(start, line):
    if start.source is None:
        return engine_main(start.engine_id, line)
    return worker_main(start.engine_id, start.source, start.index, line)

with signals_stop_the_start() as signals:
    of_each = of_each or [listeners] * engines
    limits = stop_timeout, answer_timeout
    of_all = Supervisor(main, of_each, open_ports, *limits, **options)
    status = of_all.run(signals)
say("over", status)
sys.exit(status)
"""


class Supervised:
    """A running script."""

    def __init__(self, folder: Path, script: str) -> None:
        self.errors = folder / "stderr.txt"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "dev", "-c", PROLOGUE + script + EPILOGUE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self._lines = self.process.stdout
        self._heard = b""
        self._pidfds: list[int] = []

    def __enter__(self) -> Supervised:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._lines.close()
        for pidfd in self._pidfds:
            os.close(pidfd)

    def expect(self, word: str, timeout: float = 20) -> list[str]:
        """Skips lines until one starts with the word; returns the rest of that line."""
        deadline = time.monotonic() + timeout
        while True:
            first, *rest = self.next_line(deadline - time.monotonic())
            if first == word:
                return rest

    def next_line(self, timeout: float = 20) -> list[str]:
        """The words of the next line."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._heard:
            assert self._more(deadline), f"no more lines: {self.errors.read_text()}"
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode().split(" ")

    def pid(self, word: str) -> int:
        """The number after the word."""
        return int(self.expect(word)[0])

    def rest(self, timeout: float = 20) -> str:
        """The remaining output, once every process has ended."""
        deadline = time.monotonic() + timeout
        while self._more(deadline):
            pass
        return self._heard.decode()

    def status(self, timeout: float = 20) -> int:
        """The script's exit status, once every process has ended."""
        self.rest(timeout)
        return self.process.wait(timeout)

    def signal(self, number: signal.Signals) -> None:
        """Sends the supervisor a signal."""
        self.process.send_signal(number)

    def watch(self, pid: int) -> int:
        """A pidfd of one of the processes, for ``has_ended``."""
        pidfd = os.pidfd_open(pid)
        self._pidfds.append(pidfd)
        return pidfd

    def _more(self, deadline: float) -> bool:
        """Reads more output; False at the end of file."""
        poll = select.poll()
        poll.register(self._lines, select.POLLIN)
        left = deadline - time.monotonic()
        assert poll.poll(max(0.0, left) * 1000), f"silent: {self.errors.read_text()}"
        data = os.read(self._lines.fileno(), 65536)
        self._heard += data
        return bool(data)


def has_ended(pidfd: int, timeout: float) -> bool:
    """Whether the process ends within the timeout."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))
