"""An op with seats under an engine: its steps wait for the test, and clients read or do not."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

from penstock.engine.submission import Submission
from penstock.executors.seats.threads import SeatedThreads
from penstock.executors.work import BoundOp, WorkOptions
from penstock.ops.op import Op
from penstock.ops.seats import SeatHooks, hooks_of
from penstock.request import Feed, Outcome
from tests.executors.harness import EngineHarness

PATIENCE = 20.0


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
        steps: the names of the running requests of each step that has begun.
        left: the names, as they leave.
    """

    def __init__(self) -> None:
        self.steps: queue.Queue[list[str]] = queue.Queue()
        self.go: queue.Queue[Callable[[list[Any]], Any]] = queue.Queue()
        self.joins: list[str] = []
        self.left: list[str] = []

    def join(self, feed: Feed) -> dict[str, Any]:
        if "error" in feed:
            raise feed["error"]
        self.joins.append(feed["name"])
        return dict(feed)

    def step(self, running: list[dict[str, Any]]) -> Any:
        self.steps.put([each["name"] for each in running])
        return self.go.get()(running)

    def leave(self, state: dict[str, Any]) -> None:
        self.left.append(state["name"])


class SeatedOp(Op):
    """An op around it."""

    seated = True

    def __init__(self, made: Any) -> None:
        super().__init__(name="op")
        self._made = made

    @property
    def seat_hooks(self) -> SeatHooks:
        return hooks_of(self._made, self._made.join, _piece)


def _piece(given: Any) -> Any:
    return {"piece": given} if isinstance(given, int | str) else given


class SeatHarness(EngineHarness):
    """See the module; one object in one or several threads."""

    def __init__(
        self,
        seats: int,
        made: Any = None,
        *,
        workers: int = 1,
        options: WorkOptions | None = None,
    ) -> None:
        self.made: Any = made or Served()
        options = options or WorkOptions()
        ops = [BoundOp(SeatedOp(self.made), None, options, index) for index in range(workers)]
        threads = SeatedThreads(ops, seats, asyncio.get_running_loop())
        super().__init__("seats", None, executor=threads, options=options)
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
        return await asyncio.to_thread(self.made.steps.get, True, PATIENCE)

    def let_go(self, results: Callable[[list[Any]], Any]) -> None:
        """End the running step with what a function makes of the states."""
        self.made.go.put(results)

    async def dispatched(self, count: int) -> None:
        """Wait until so many requests have been handed over."""
        async with asyncio.timeout(PATIENCE):
            while self.stage.statistics().samples < count:
                await asyncio.sleep(0)

    async def __aenter__(self) -> SeatHarness:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.engine.close()
        self.let_go(nothing)  # for a step that still runs
        await self.executor.close(PATIENCE)
        assert threading.active_count() < 50


def nothing(running: list[Any]) -> list[Any]:
    """A step without pieces."""
    return [None] * len(running)


def piece_each(running: list[Any]) -> list[Any]:
    """A step with a piece for each request."""
    return ["piece"] * len(running)
