"""Workers elsewhere for tests: threads of this process, which connect over TCP."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from penstock.executors.elsewhere.executor import ElsewhereExecutor
from penstock.executors.elsewhere.opening import Opening, Program
from penstock.executors.executor import OpSource
from penstock.executors.kinds import ExecutorSpec
from penstock.executors.work import BoundOp, WorkOptions
from penstock.executors.workers.child import Child
from penstock.executors.workers.watchdog import Supervision
from tests.executors.harness import BodyOp

OPENING = Opening(
    program=Program(arguments=("service.py",), folder="/"),
    service=0,
    engine={"index": 0},
    source=OpSource(op="op", label="op"),
)

Body = Callable[[Child, BoundOp, Opening], None]


class Odd:
    """A value that only a pickle could send."""


def serve(child: Child, bound: BoundOp, opening: Opening) -> None:
    """What a worker does after its op is open."""
    loaded: dict[str, Any] = {"model": None}
    if child.decides:
        loaded["batching"] = {"decided by": opening.index}
    child.ready(loaded)
    child.serve(bound, None, lambda plain: setattr(bound.op, "told", plain))


class Hosted:
    """A worker in a thread. ``kill`` ends its connection only, like the loss of its machine."""

    def __init__(self, opening: Opening, body: Body, bound: BoundOp) -> None:
        self.opening = opening
        self.where = f"thread {opening.index}"
        self.node: dict[str, str] | None = None
        self.was_killed = False
        self._link = socket.create_connection((opening.host, opening.port))
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self.thread = threading.Thread(target=self._run, args=(body, bound), daemon=True)
        self.thread.start()

    async def ended(self) -> str:
        await self._end.wait()
        return "as told"

    def kill(self) -> None:
        self.was_killed = self.was_killed or not self._end.is_set()
        self.disconnect()

    def disconnect(self) -> None:
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def _run(self, body: Body, bound: BoundOp) -> None:
        with self._link, suppress(ConnectionError):
            self._link.sendall(self.opening.token.encode())
            body(Child(self._link), bound, self.opening)
        with suppress(RuntimeError):  # after a failed test
            self._loop.call_soon_threadsafe(self._end.set)


class Hosts:
    """Starts the workers of one op, which does what the feed's ``do`` names.

    Attributes:
        started: every worker, in order.
        refuse: raised instead of starting one, if set.
        nodes: where workers are, by their index, as far as that is known.
        entered: set when a call waits for ``gate``.
    """

    def __init__(self, body: Body = serve, options: WorkOptions | None = None) -> None:
        self.started: list[Hosted] = []
        self.refuse: Exception | None = None
        self.nodes = {0: {"id": "ab", "address": "192.0.2.7", "host": "one"}}
        self.entered, self.gate = threading.Event(), threading.Event()
        self._op = BodyOp(self._act)
        self._body = body
        self._options = options or WorkOptions()

    async def start(self, opening: Opening) -> Hosted:
        if self.refuse is not None:
            raise self.refuse
        bound = BoundOp(self._op, None, self._options, opening.index)
        self.started.append(Hosted(opening, self._body, bound))
        self.started[-1].node = self.nodes.get(opening.index)
        return self.started[-1]

    def executor(self, workers: int = 1, **supervision: Any) -> ElsewhereExecutor:
        spec = ExecutorSpec(
            op="op",
            workers=workers,
            loop=asyncio.get_running_loop(),
            ops=(),
            opening=OPENING,
            supervision=Supervision(**supervision),
        )
        return ElsewhereExecutor(spec, self.start)

    def _runner(self) -> Hosted:
        """The worker that calls this."""
        return next(each for each in self.started if each.thread is threading.current_thread())

    def _act(self, feed: dict[str, Any]) -> dict[str, Any]:
        match feed.get("do"):
            case "die":
                self._runner().disconnect()
            case "die slowly":
                self._runner().disconnect()
                assert self.gate.wait(30.0)
            case "raise":
                raise ValueError("as told")
            case "odd":
                return {"x": np.asarray(feed.get("x", 1)), "odd": Odd()}
            case "wait":
                self.entered.set()
                assert self.gate.wait(30.0)
        return {"n": feed["n"], "x": np.asarray(feed.get("x", 1)) * 2}
