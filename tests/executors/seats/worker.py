"""A worker process whose steps a test controls, over a socket.

python -m tests.executors.seats.worker OP INDEX FD"""

from __future__ import annotations

import os
import signal
import socket
import sys
from multiprocessing.connection import Client
from typing import Any

from penstock.errors import HttpError
from penstock.executors.processes.child import ProcessChild
from penstock.executors.seats.steps import Steps
from penstock.executors.work import BoundOp, WorkOptions
from penstock.request import Feed
from tests.executors.seats import harness


def main(op: str, index: int, descriptor: int) -> None:
    control = Client(os.environ["CONTROL"], "AF_UNIX", authkey=harness.KEY)
    kind = getattr(harness, os.environ["KIND"])

    class Told(kind):  # type: ignore[misc, valid-type]
        """Says what happens, and asks for the results of its steps."""

        def join(self, feed: Feed) -> Feed:
            if feed.get("dies"):
                os.kill(os.getpid(), signal.SIGKILL)
            state: Feed = super().join(feed)
            control.send(("join", feed["name"]))
            return state

        def step(self, running: list[Feed]) -> Any:
            control.send(("step", running))
            good, results = control.recv()
            if not good:
                raise HttpError(results, "out of memory")
            if results == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            return results

        def leave(self, state: Feed) -> None:
            control.send(("leave", state["name"]))
            super().leave(state)

    usual = Steps.wait_for_others
    Steps.wait_for_others = lambda self: harness.PATIENCE * bool(usual(self))  # type: ignore[method-assign]
    with socket.socket(fileno=descriptor) as channel:
        child = ProcessChild(channel)
        child.ready({"pid": os.getpid(), "model": None})
        options = WorkOptions(seats=int(os.environ["SEATS"]))
        child.serve(BoundOp(harness.SeatedOp(Told()), None, options, index))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
