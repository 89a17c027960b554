"""An op with seats under an engine: its steps wait for the test, and clients read or do not."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from penstock.engine.submission import Submission
from penstock.errors import HttpError
from penstock.executors.executor import Executor
from penstock.executors.seats.processes import SeatedProcesses
from penstock.executors.seats.threads import SeatedThreads
from penstock.executors.work import BoundOp, WorkOptions
from penstock.executors.workers.watchdog import Supervision
from penstock.ops.op import Op
from penstock.ops.seats import SeatHooks, hooks_of
from penstock.request import Feed, Outcome
from tests.executors.harness import EngineHarness
from tests.executors.processes.workers import Processes

PATIENCE = 20.0
KEY = b"a test and its workers"


class Reader(Submission):
    """A client that gets pieces one by one."""

    __slots__ = ("feed_name", "got", "outcome", "reads")

    feed_name: str
    got: list[Any]
    outcome: asyncio.Future[Outcome]
    reads: bool

    def piece(self, piece: Feed) -> bool:
        self.got.append(piece["piece"])
        return self.reads

    def whole(self, outcome: Outcome) -> Outcome:
        return outcome

    async def end(self) -> Outcome:
        async with asyncio.timeout(PATIENCE):
            return await self.outcome


class Served:
    """What a user writes: the test lets each step go, with the results that it chooses.

    Attributes:
        steps: the states of the running requests of each step that has begun.
        go: what makes the results of the step of these.
        joins, left: the names, as they join and leave.
    """

    def __init__(self) -> None:
        self.steps: queue.Queue[list[Feed]] = queue.Queue()
        self.go: queue.Queue[Callable[[list[Feed]], Any]] = queue.Queue()
        self.joins: list[str] = []
        self.left: list[str] = []

    def join(self, feed: Feed) -> Feed:
        if "status" in feed:
            raise HttpError(feed["status"], "no such prompt")
        if "gate" in feed:
            Path(feed["gate"]).read_bytes()  # until who has opened this pipe closes it
        self.joins.append(feed["name"])
        return dict(feed)

    def step(self, running: list[Feed]) -> Any:
        self.steps.put(running)
        return self.go.get()(running)

    def leave(self, state: Feed) -> None:
        self.left.append(state["name"])


class Fitting(Served):
    """It has memory for requests of ``size`` up to 10."""

    used = 0

    def fits(self, state: Feed) -> bool:
        if state["size"] > 100:
            raise HttpError(413, "it can never fit")
        if self.used + state["size"] > 10:
            return False
        self.used += state["size"]
        state["runs"] = True
        return True

    def leave(self, state: Feed) -> None:
        super().leave(state)
        self.used -= state["size"] if state.get("runs") else 0


class Leaving(Served):
    """Its ``leave`` raises."""

    def leave(self, state: Feed) -> None:
        super().leave(state)
        raise RuntimeError("it cannot")


class SeatedOp(Op):
    """An op around one of them."""

    seated = True

    def __init__(self, made: Any) -> None:
        super().__init__(name="op")
        self._made = made

    @property
    def seat_hooks(self) -> SeatHooks:
        return hooks_of(self._made, self._made.join, _piece)


def _piece(given: Any) -> Any:
    return {"piece": given} if isinstance(given, int | str) else given


class Controlled(Served):
    """Stands here for the object of one worker process, or several, which connect to a socket and
    say what happens; see ``tests/executors/seats/worker.py``.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._listener = Listener(str(path), "AF_UNIX", authkey=KEY)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: Connection) -> None:
        while True:
            try:
                what, value = connection.recv()
                if what == "step":
                    connection.send(_results(self.step, value))
                    continue
            except (EOFError, OSError):  # the process has ended
                return
            else:
                {"join": self.joins, "leave": self.left}[what].append(value)

    def close(self) -> None:
        self._listener.close()


def _results(step: Callable[[list[Feed]], Any], running: list[Feed]) -> tuple[bool, Any]:
    try:
        return True, step(running)
    except HttpError as error:
        return False, error.status


class SeatHarness(EngineHarness):
    """See the module; one object, which all workers have.

    Args:
        folder: of a socket, for worker processes; None: threads.
    """

    executor: Any

    def __init__(
        self,
        seats: int,
        made: type[Served] = Served,
        *,
        folder: Path | None = None,
        workers: int = 1,
        options: WorkOptions | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        options = options or WorkOptions()
        self.processes: Processes | None = None
        loop = asyncio.get_running_loop()
        executor: Executor
        if folder is None:
            self.made = made()
            ops = [BoundOp(SeatedOp(self.made), None, options, index) for index in range(workers)]
            executor = SeatedThreads(ops, seats, loop)
        else:
            self.made = Controlled(folder / "control")
            self.processes = Processes(
                "tests.executors.seats.worker",
                CONTROL=str(folder / "control"),
                KIND=made.__name__,
                SEATS=str(seats),
            )
            executor = SeatedProcesses(
                "op", workers, self.processes, loop, seats=seats, supervision=supervision
            )
        super().__init__("seats", None, executor=executor, options=options)
        self.graph.streams = self.stage.streams = True

    def ask(self, name: str, life: float | None = None, **feed: Any) -> Reader:
        """A request; returns at once."""
        reader = Reader(self.graph, {"name": name, **feed}, life)
        reader.got, reader.reads, reader.feed_name = [], feed.get("reads", True), name
        reader.outcome = asyncio.get_running_loop().create_future()
        reader.start(lambda one, outcome: one.outcome.set_result(outcome))
        return reader

    async def seated(self, *names: str, **feed: Any) -> list[Reader]:
        """Requests that all run in the step that has begun; nobody else has a seat."""
        readers = [self.ask(names[0], **feed)]
        asked = self.stage.statistics().samples
        assert await self.begun() == [names[0]]
        readers += [self.ask(name, **feed) for name in names[1:]]
        await self.dispatched(asked + len(names))
        self.let_go(nothing)
        assert await self.begun() == [*names]
        return readers

    async def begun(self) -> list[str]:
        """The names of the requests in the step that begins."""
        running = await asyncio.to_thread(self.made.steps.get, True, PATIENCE)
        return [each["name"] for each in running]

    def let_go(self, results: Callable[[list[Feed]], Any]) -> None:
        """End the running step with what a function makes of the states."""
        self.made.go.put(results)

    async def dispatched(self, count: int) -> None:
        """Wait until so many requests have been handed over."""
        await self.until(lambda: self.stage.statistics().samples >= count)

    async def until(self, right: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not right():
                await asyncio.sleep(0.001)

    async def __aenter__(self) -> SeatHarness:
        await self.executor.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.engine.close()
        for _ in range(4):
            self.let_go(nothing)  # for steps that still run
        in_time = await self.executor.close(PATIENCE)
        if self.processes is not None:
            self.processes.end()
            self.made.close()  # type: ignore[attr-defined]
        assert in_time or error[0] is not None


def nothing(running: list[Feed]) -> list[Any]:
    """A step without pieces."""
    return [None] * len(running)


def piece_each(running: list[Feed]) -> list[Any]:
    """A step with a piece for each request."""
    return ["piece"] * len(running)
