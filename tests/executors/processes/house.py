"""Real worker processes for tests, each an interpreter of its own: no fork of the test runner.

python -m tests.executors.processes.house OP INDEX FD
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import faulthandler
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.arrays import empty, take_room_from
from penstock.executors.process import ProcessExecutor
from penstock.executors.processes.board import Board
from penstock.executors.processes.child import Child
from penstock.executors.processes.control import Exited
from penstock.executors.processes.frame import Kind, header
from penstock.executors.work import BoundOp, WorkOptions
from penstock.ops.op import Op

ROOT = Path(__file__).parents[3]
SLABS = 64 << 20
KEPT: list[bytes] = []
OWN: dict[str, Any] = {}


class Odd:
    """A value that only workers open."""

    def __init__(self, name: str) -> None:
        self.name = name


class Fatal:
    """A value that ends whoever opens it."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


class Sour:
    """A value whose opening raises."""

    def __reduce__(self) -> Any:
        return _raise, ("sour",)


class Crowded:
    """A socket of a user who has too many descriptors on their way, every other time."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self._asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def sendmsg(self, *message: Any) -> int:
        self._asked += 1
        if self._asked % 2:
            raise OSError(errno.ETOOMANYREFS, "too many are on their way")
        return self._real.sendmsg(*message)


def wait(entered: Path, gate: Path) -> None:
    entered.touch()
    while not gate.exists():
        time.sleep(0.005)  # another process cannot tell us


def _raise(text: str) -> None:
    raise ValueError(text)


class Colour(StrEnum):
    """Texts that are more than that."""

    RED = "red"


class Acting(Op):
    """Does what the feed's ``do`` says, and answers with its process and what it was fed."""

    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        (feed,) = feed_batch
        do = feed.get("do")
        if self.name == "on a card" and os.environ["BAD_CARD"] == OWN["index"]:
            os._exit(7)
        if do == "segfault":
            ctypes.string_at(0)
        elif do == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif do == "exit":
            os._exit(7)
        elif do == "wipe the board":  # as a stray write in native code may
            for each in gc.get_objects():
                if type(each) is Board:
                    each.batch_cell[0] = 0
            os._exit(7)
        elif do == "raise":
            raise ValueError("as told")
        elif do in ("wait", "wait deaf"):
            if do == "wait deaf":
                signal.signal(signal.SIGABRT, signal.SIG_IGN)
            wait(Path(feed["entered"]), Path(feed["gate"]))
        elif do == "leave a child":
            child = os.fork()
            if child == 0:
                os.setsid()
                signal.pause()
            return {"child": child}
        elif do == "write":
            os.write(2, feed["text"].encode())
            os._exit(7)
        elif do == "grow":
            KEPT.append(b"x" * (feed["mib"] << 20))
        elif do == "balloon":
            while True:
                KEPT.append(b"x" * (10 << 20))
                time.sleep(0.01)
        elif do == "odd":
            return {"odd": Odd("mine")}
        elif do == "unpicklable":
            return {"odd": lambda: None}
        elif do == "odd keys":
            return {np.str_("a"): 1, Colour.RED: 2}
        elif do == "number as key":
            return {1: 2}
        elif do == "open":
            return {"name": feed["odd"].name}
        elif do == "array":
            return {"sum": int(feed["x"].sum()), "x": feed["x"] + 1}
        elif do == "in place":
            array = empty(feed["shape"])
            array[...] = np.arange(array.size).reshape(array.shape) + feed["start"]
            return {"x": array, **{str(n): row for n, row in enumerate(array)}}
        elif do == "in place again":  # what was given on is changed
            OWN.setdefault("array", empty(feed["shape"]))[...] = feed["start"]
            return {"x": OWN["array"]}
        elif do == "sum":
            return {"sum": int(feed["x"].sum()), "owned": feed["x"].flags.owndata}
        elif do == "lengthen":
            return {"text": feed["text"] * feed["times"]}
        return {**feed, "pid": os.getpid()}


class Spawned(NamedTuple):
    """See ``penstock.executors.process.Spawned``."""

    pid: int
    pidfd: int
    socket: socket.socket


class Processes:
    """A Spawner whose processes are started from scratch."""

    def __init__(self) -> None:
        self._all: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> list[int]:
        """Of all that were started."""
        return list(self._all)

    async def spawn(self, op: str, index: int) -> Spawned:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, op, str(index), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._all[process.pid] = process
        return Spawned(process.pid, os.pidfd_open(process.pid), ours)

    async def exited(self, pid: int) -> Exited:
        # Not in a thread, for which the loop would wait when a test has failed.
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        pidfd = os.pidfd_open(pid)
        loop.add_reader(pidfd, lambda: ended.done() or ended.set_result(None))
        try:
            await ended
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        code = self._all[pid].wait()
        return Exited(pid, code << 8 if code >= 0 else -code, 1 << 20)

    def end(self) -> None:
        """Whatever is left."""
        for process in self._all.values():
            process.kill()
            process.wait()


def executor(processes: Processes, op: str = "acting", workers: int = 1, **more: Any) -> Any:
    return ProcessExecutor(op, workers, processes, asyncio.get_running_loop(), **more)


def main(op: str, index: int, descriptor: int) -> None:
    faulthandler.enable()
    OWN["index"] = str(index)
    gone = Path(os.environ.get("PROCESSES_GONE", os.devnull))
    with socket.socket(fileno=descriptor) as channel:
        if op == "early" or (op == "once" and gone.exists()):
            os._exit(3)
        if op == "once":
            gone.touch()
        if op == "garbage" and index == 0:
            garbage(channel)
            return
        if op == "boasting" and index == 0 and not gone.exists():
            gone.touch()
            boast(channel)
            return
        if op == "babbling" and index == 0 and not gone.exists():
            gone.touch()
            babble(channel)
            return
        if op == "silent" and index == 0 and not gone.exists():
            gone.touch()
            hang_up(channel)
            return
        child = Child(channel, SLABS)
        child.take_stderr()
        take_room_from(child.room)
        if op == "crowded":
            child._answering.socket = Crowded(child._answering.socket)  # type: ignore[assignment]
        if op == "failing" or (op == "one fails" and index == 1):
            child.failed("the model is not there")
            return
        if op == "fickle":
            child.failed("the model is not there")
        if op == "failing for long":
            child.failed("the model is not there")
        if op in ("one fails", "failing for long"):
            signal.pause()
        if op == "slow" or (op == "slow again" and gone.exists() and not gone.read_text()):
            init_op_that_hangs(gone)
        if op == "slow again":
            gone.touch()
        child.ready()
        outside = "op 'next'" if op == "read by others" else None
        child.serve(BoundOp(Acting(name=op), None, WorkOptions(), index), outside)


def init_op_that_hangs(here: Path) -> None:
    here.write_text("hangs")
    signal.pause()


def hang_up(channel: socket.socket) -> None:
    """Ready, and then nothing more; but the process goes on."""
    child = Child(channel, SLABS)
    child.take_stderr()
    child.ready()
    channel.recv(1 << 16)
    channel.shutdown(socket.SHUT_RDWR)
    signal.pause()


def boast(channel: socket.socket) -> None:
    """Ready, and then an answer of 1 GiB to nobody's question, as far as anybody takes it."""
    child = Child(channel, SLABS)
    child.take_stderr()
    child.ready()
    channel.sendall(header(Kind.DONE, 1, 1 << 30))
    while True:
        channel.sendall(bytes(1 << 20))


def babble(channel: socket.socket) -> None:
    """Ready, and then word of answers that are not there, for ever."""
    child = Child(channel, SLABS)
    child.take_stderr()
    child.ready()
    while True:
        channel.sendall(header(Kind.ANSWERS, 0, 0) * 1000)


def garbage(channel: socket.socket) -> None:
    """Ready, and then anything but a frame."""
    child = Child(channel, SLABS)
    child.take_stderr()
    child.ready()
    channel.recv(1 << 16)
    channel.sendall(b"GET / HTTP/1.1\r\n\r\n")
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
