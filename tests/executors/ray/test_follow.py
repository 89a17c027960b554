"""What the process that talks to Ray does with a worker's actor; with a Ray that does as told."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from typing import Any

import pytest

from penstock.executors.ray.holder import Holder

BEGUN = {"where": "node ab at 192.0.2.2, pid 2", "node": {"id": "ab"}}


class ActorError(Exception):
    """What a call raises when its actor has ended."""


class Call:
    """A method of an actor; its calls end when told to."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[Any]] = []

    def remote(self, *arguments: Any) -> asyncio.Future[Any]:
        self.calls.append(asyncio.get_running_loop().create_future())
        return self.calls[-1]

    def end(self, result: str | dict[str, Any] | None = None) -> None:
        for each in self.calls:
            if not each.done():
                if result is None:
                    each.set_exception(ActorError("the actor died"))
                else:
                    each.set_result(result)


class Actor:
    def __init__(self) -> None:
        self.begin, self.wait, self.kill = Call(), Call(), Call()


class Ray:
    """The functions of Ray that are used.

    Attributes:
        actors: every one.
        killed: those that were ended.
    """

    def __init__(self) -> None:
        self.util = self._private = self.state = self
        self.actors: list[Actor] = []
        self.killed: list[Actor] = []

    def get_node_ip_address(self) -> str:
        return "192.0.2.1"

    def remote(self, *given: Any) -> Any:
        if given and isinstance(given[0], type):
            return self
        self.actors.append(Actor())
        return self.actors[-1]

    def options(self, **given: Any) -> Ray:
        return self

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor)
        for each in (actor.begin, actor.wait, actor.kill):
            each.end()

    def available_resources_per_node(self) -> dict[str, dict[str, float]]:
        return {"ab": {"CPU": 0.0}}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Resources": {"CPU": 1.0}, "Alive": True}]


class Engine:
    """The other end of the socket; as a context, what the loop reports must be nothing."""

    def __init__(self, *, local: bool = False) -> None:
        self.ray = Ray()
        self._local = local
        self.unhandled: list[str] = []

    async def __aenter__(self) -> Engine:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, told: self.unhandled.append(told["message"]))
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        self._holder = Holder(self.ray, local=self._local)
        self._serving = asyncio.create_task(self._holder.serve(theirs))
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        assert await self.told() == {"ready": "192.0.2.1"}
        return self

    async def __aexit__(self, *why: object) -> None:
        self._writer.close()
        await self._serving
        runs = [*self._holder._runs.values()]
        for each in runs:  # as asyncio.run does
            each.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        for writer in (self._writer, self._holder._writer):
            assert writer is not None
            writer.close()
            await writer.wait_closed()
        for _ in range(3):  # of calls whose actor has ended
            await asyncio.sleep(0)
        gc.collect()
        assert self.unhandled == []

    def tell(self, **what: Any) -> None:
        self._writer.write(json.dumps(what).encode() + b"\n")

    def start(self, timeout: float | None = None, cpus: float = 1.0) -> None:
        wants = {"CPU": cpus, "GPU": 0.0}
        order = {"wants": wants, "placement": "default", "timeout": timeout}
        self.tell(start=1, opening="", folder_is_here=False, **order)

    async def told(self) -> dict[str, Any]:
        async with asyncio.timeout(30.0):
            told: dict[str, Any] = json.loads(await self._reader.readline())
        return told

    async def called(self, name: str) -> Call:
        async with asyncio.timeout(30.0):
            while not (self.ray.actors and getattr(self.ray.actors[0], name).calls):
                await asyncio.sleep(0)
        call: Call = getattr(self.ray.actors[0], name)
        return call


async def test_a_worker_that_has_no_place_in_time() -> None:
    async with Engine() as engine:
        engine.start(timeout=0.01)
        how = "it has no place in the cluster: it wants 1 CPU (0 of 1 are free), for 0.01 s"
        assert await engine.told() == {"ended": 1, "how": f"{how} (start_timeout)"}
        assert engine.ray.killed == engine.ray.actors


async def test_a_cluster_that_nobody_makes_larger_is_not_waited_for() -> None:
    async with Engine(local=True) as engine:
        engine.start(cpus=4)
        how = "it has no place in the cluster: it wants 4 CPU (0 of 1 are free), which no node has"
        assert await engine.told() == {"ended": 1, "how": how}
        assert engine.ray.actors == []
    async with Engine(local=True) as engine:
        engine.start()
        await engine.called("begin")  # what is taken now may become free


async def test_a_worker_that_is_killed_before_it_has_begun() -> None:
    async with Engine() as engine:
        engine.start()
        await engine.called("begin")
        engine.tell(kill=1)
        assert await engine.told() == {"ended": 1, "how": "it was killed"}
        assert engine.ray.killed == engine.ray.actors


async def test_an_actor_that_ends_before_its_worker_has_begun() -> None:
    async with Engine() as engine:
        engine.start()
        (await engine.called("begin")).end()
        assert await engine.told() == {"ended": 1, "how": "ActorError: the actor died"}


async def test_a_worker_that_ends_at_once() -> None:
    async with Engine() as engine:
        engine.start()
        (await engine.called("begin")).end(BEGUN)
        (await engine.called("wait")).end("exit status 1")
        assert await engine.told() == {"started": 1, **BEGUN}
        assert await engine.told() == {"ended": 1, "how": "exit status 1"}


@pytest.mark.parametrize("answers", [True, False])
async def test_a_worker_is_killed_whether_its_node_answers_or_not(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.executors.ray.holder._KILL_TIMEOUT", 0.01)
    async with Engine() as engine:
        engine.start()
        (await engine.called("begin")).end(BEGUN)
        await engine.called("wait")
        if not answers:
            engine.ray.kill = engine.ray.killed.append  # type: ignore[method-assign]
        engine.tell(kill=1)
        if answers:
            await engine.called("kill")
            engine.ray.actors[0].wait.end("signal SIGKILL")
        assert await engine.told() == {"started": 1, **BEGUN}
        how = "signal SIGKILL" if answers else "it was killed, and its node does not answer"
        assert await engine.told() == {"ended": 1, "how": how}
        for call in (engine.ray.actors[0].wait, engine.ray.actors[0].kill):
            call.end()  # later, when Ray gives the node up


async def test_the_end_of_the_engine_ends_its_actors() -> None:
    async with Engine() as engine:
        engine.start()
        await engine.called("begin")
    assert engine.ray.killed == engine.ray.actors
