"""Real worker processes for tests, each a new interpreter instead of a fork of the test runner.

python -m tests.executors.processes.workers OP INDEX FD"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from penstock.executors.executor import OpSource
from penstock.executors.probing import VERIFYING
from penstock.executors.processes.child import ProcessChild
from penstock.executors.processes.executor import ProcessExecutor
from penstock.executors.processes.spawner import Exited, Spawned
from penstock.executors.transport.frames import Kind, header
from penstock.executors.work import BoundOp, WorkOptions
from penstock.ops.op import Op

ROOT = Path(__file__).parents[3]
KEPT: list[bytes] = []
BATCHING: list[Any] = []
OWN: dict[str, Any] = {}


class Odd:
    """A value that only workers unpickle."""

    def __init__(self, name: str) -> None:
        self.name = name


class Fatal:
    """A value that ends the process that unpickles it."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


class Unpicklable:
    """A value that raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return _raise, ("sour",)


def wait(entered: Path, gate: Path) -> None:
    entered.touch()
    while not gate.exists():
        time.sleep(0.005)  # the test is another process, and cannot notify us


def _raise(text: str) -> None:
    raise ValueError(text)


class Unreadable(dict[str, Any]):
    """An output whose items cannot be read."""

    def items(self) -> Any:
        raise ValueError("not for you")


class Acting(Op):
    """Does what the feed's ``do`` names, and returns its feed and process id."""

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
        elif do == "number as key":
            return {1: 2}
        elif do == "open":
            return {"name": feed["odd"].name}
        elif do == "array":
            return {"sum": int(feed["x"].sum()), "x": feed["x"] + 1}
        elif do == "items raise":
            return Unreadable(a=1)
        elif do == "echo":
            return {"x": feed["x"]}
        elif do == "batching":
            return {"told": len(BATCHING), "by": BATCHING[-1].get("decided by")}
        elif do == "touch":
            Path(feed["path"]).touch()
        elif do == "sleep":
            time.sleep(feed["seconds"])
        elif do == "sum":
            return {"sum": int(feed["x"].sum()), "owned": feed["x"].flags.owndata}
        elif do == "lengthen":
            return {"text": feed["text"] * feed["times"]}
        return {**feed, "pid": os.getpid()}


class Parts(Acting):
    """Makes a call for each of the feed's ``parts``."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (feed,) = input_dicts.values()
        return [dict(each) for each in feed["parts"]]

    def postprocess(
        self, input_data: Any, fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        (feed,) = input_data.values()
        return {"n": feed["n"], "calls": len(fetch_data)}


class Processes:
    """A Spawner that starts new interpreters.

    Args:
        module: what they run.
        environment: more variables for them.
    """

    def __init__(self, module: str = __name__, **environment: str) -> None:
        self._module = module
        self._environment = environment
        self._all: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> list[int]:
        """The pids of all processes that were started."""
        return list(self._all)

    async def spawn(self, source: OpSource, index: int) -> Spawned:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", self._module, source.op, str(index), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self._environment},
            )
        self._all[process.pid] = process
        return Spawned(process.pid, os.pidfd_open(process.pid), ours)

    async def exited(self, pid: int) -> Exited:
        # Not in a thread, which the loop would wait for after a failed test.
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
        """Kills the remaining processes."""
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
        child = ProcessChild(channel)
        if op == "garbage" and index == 0:
            garbage(child, channel)
        if op == "speaking out of turn" and index == 0:
            send_unexpected_frame(child, channel)
        if op == "failing" or (op == "one fails" and index == 1):
            child.failed("the model is not there")
            return
        if op == "one fails":
            signal.pause()
        if op == "slow" or (op == "slow again" and gone.exists() and not gone.read_text()):
            init_op_that_hangs(gone)
        if op == "slow again":
            gone.touch()
        if op == "probed to death" and child.decides:
            child.step(VERIFYING)
            os.abort()
        loaded: dict[str, Any] = {"pid": os.getpid(), "model": None}
        if op == "deciding" and child.decides:
            loaded["batching"] = {"decided by": index}
        child.ready(loaded)
        outside = "op 'next'" if op == "read by others" else None
        acting = Parts(name=op) if op == "parts" else Acting(name=op)
        child.serve(BoundOp(acting, None, WorkOptions(), index), outside, BATCHING.append)


def init_op_that_hangs(here: Path) -> None:
    here.write_text("hangs")
    signal.pause()


def garbage(child: ProcessChild, channel: socket.socket) -> None:
    """Reports ready, and then sends bytes that are no frame."""
    child.ready({})
    channel.recv(1 << 16)
    channel.sendall(b"GET / HTTP/1.1\r\n\r\n")
    os.eventfd_write(child._event, 1)
    signal.pause()


def send_unexpected_frame(child: ProcessChild, channel: socket.socket) -> None:
    """Reports ready, and then sends a reply to nothing."""
    child.ready({})
    channel.recv(1 << 16)
    channel.sendall(header(Kind.REST, 7, 0))
    os.eventfd_write(child._event, 1)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
