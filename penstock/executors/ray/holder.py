"""The process that talks to Ray for an engine: the only one of a service that imports it.

``python -m penstock.executors.ray.holder FD PID``: FD is a socket to the engine, with JSON lines,
and PID the engine's process. It ends when the engine closes the socket, and with it the actors, and
the cluster if it has started one. Ray may end it, because it ends a driver that has lost its
cluster: the engine then starts another.

The engine sends first the arguments of ``ray.init``, and is told ``{"ready": address}``, or
``{"failed": reason}``. Then, with a number for each worker:

    {"start": 1, "opening": text, "wants": {...}, "placement": text, "timeout": seconds, ...}
    {"kill": 1}
    {"fits": 1, "wants": {...}}

and is told ``{"waiting": 1, "text": why, "wants": {...}, "possible": bool, "log": bool}`` while it
has no place, ``{"started": 1, "where": text, "node": {...}}`` and ``{"ended": 1, "how": text}``,
the last always once; ``{"fits": 1, "text": why not}`` answers the third, empty if a node has all.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from penstock.executors.elsewhere.parent import end_with_parent
from penstock.executors.workers.places import Lack
from penstock.version import VERSION

_TELL_AFTER: Final = 5.0
"""Seconds after which the engine is told for the first time that a worker has no place."""
_TELL_EVERY: Final = 30.0
"""Most seconds between two times: what is free changes."""
_ASK_TIMEOUT: Final = 5.0  # seconds for the cluster to say what is free
_KILL_TIMEOUT: Final = 5.0  # seconds for an actor to end its worker, and for Ray to end the actor
_STORE: Final = (
    80 << 20
)  # bytes of a local cluster's object store, which we do not use; Ray's least
_LINE_BYTES: Final = 1 << 24


class Holder:
    """See the module.

    Args:
        ray: the module.
        local: whether the cluster is that of this process, which nobody makes larger.
    """

    def __init__(self, ray: Any, *, local: bool = False) -> None:
        self._ray = ray
        self._local = local
        self._runs: dict[int, asyncio.Task[None]] = {}
        self._killed: dict[int, asyncio.Event] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._asking: set[asyncio.Task[None]] = set()

    async def serve(self, line: socket.socket) -> None:
        """Do what the engine says, until it closes the socket."""
        reader, self._writer = await asyncio.open_connection(sock=line, limit=_LINE_BYTES)
        self._tell(ready=self._ray.util.get_node_ip_address())
        while data := await reader.readline():
            order = json.loads(data)
            if "start" in order:
                number = order["start"]
                self._killed[number] = asyncio.Event()
                self._runs[number] = asyncio.create_task(self._run(number, order))
            elif "fits" in order:
                task = asyncio.create_task(self._compare(order["fits"], order["wants"]))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            elif order["kill"] in self._killed:
                self._killed[order["kill"]].set()

    def _tell(self, **what: Any) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(what).encode() + b"\n")

    async def _compare(self, number: int, wants: Mapping[str, float]) -> None:
        lack = await self._what_is_missing(wants)
        self._tell(fits=number, text=lack.text if lack.possible is False else "")

    async def _run(self, number: int, order: Mapping[str, Any]) -> None:
        try:
            how = await self._follow(number, order)
        except Exception as error:  # noqa: BLE001 - whatever Ray raises
            how = reason(error)
        del self._runs[number], self._killed[number]
        self._tell(ended=number, how=how)

    async def _follow(self, number: int, order: Mapping[str, Any]) -> str:
        """Run one worker; returns how it ended."""
        from penstock.executors.ray.actor import Host

        ray, wants = self._ray, order["wants"]
        if self._local:
            lack = await self._what_is_missing(wants)
            if lack.possible is False:
                raise NoPlaceError(lack.text)
        others = {key: amount for key, amount in wants.items() if key not in ("CPU", "GPU")}
        actor = (
            ray.remote(Host)
            .options(
                num_cpus=wants["CPU"],
                num_gpus=wants["GPU"],
                resources=others or None,
                scheduling_strategy=order["placement"].upper(),
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,
            )
            .remote(VERSION)
        )
        killed = asyncio.create_task(self._killed[number].wait())
        begun: asyncio.Task[Any] | None = None
        ended: asyncio.Task[str] | None = None
        try:
            begun = _task(actor.begin.remote(order["opening"], order["folder_is_here"]))
            if not await self._placed(number, begun, killed, wants, order["timeout"]):
                return "it was killed"
            self._tell(started=number, **await begun)
            ended = _task(actor.wait.remote())
            await asyncio.wait({ended, killed}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                actor.kill.remote()
                await asyncio.wait({ended}, timeout=_KILL_TIMEOUT)
            if not ended.done():
                ray.kill(actor)
                await asyncio.wait({ended}, timeout=_KILL_TIMEOUT)
            return await ended if ended.done() else "it was killed, and its node does not answer"
        finally:
            for each in (killed, begun, ended):
                _forget(each)
            with suppress(Exception):  # it may have ended, or the cluster
                ray.kill(actor)

    async def _placed(
        self,
        number: int,
        begun: asyncio.Task[Any],
        killed: asyncio.Task[Any],
        wants: Mapping[str, float],
        timeout: float | None,
    ) -> bool:
        """Wait until a worker has begun; returns False if it was killed before.

        Raises:
            NoPlaceError: it has no place in time.
        """
        loop = asyncio.get_running_loop()
        began, tell_at, log_at = loop.time(), _TELL_AFTER, _TELL_AFTER
        while True:
            taken = loop.time() - began
            until = tell_at if timeout is None else min(tell_at, timeout)
            await asyncio.wait(
                {begun, killed},
                timeout=max(0.0, until - taken),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if begun.done() or killed.done():
                return begun.done()
            lack = await self._what_is_missing(wants)
            if timeout is not None and loop.time() - began >= timeout:
                raise NoPlaceError(f"{lack.text}, for {timeout:g} s (start_timeout)")
            self._tell(waiting=number, **asdict(lack), log=tell_at >= log_at)
            log_at *= 2 if tell_at >= log_at else 1
            tell_at += min(tell_at, _TELL_EVERY)

    async def _what_is_missing(self, wants: Mapping[str, float]) -> Lack:
        try:
            async with asyncio.timeout(_ASK_TIMEOUT):
                # The public function knows only the sum over all nodes.
                by_node = self._ray._private.state.available_resources_per_node
                free = await asyncio.to_thread(by_node)
                nodes = await asyncio.to_thread(self._ray.nodes)
        except Exception as error:  # noqa: BLE001 - whatever Ray raises
            return Lack(f"the cluster does not answer: {reason(error)}", wants, None)
        alive = [each["Resources"] for each in nodes if each["Alive"]]
        return missing(wants, [*free.values()], alive)


class NoPlaceError(Exception):
    """No node had room for a worker in time, or none ever has."""


def missing(
    wants: Mapping[str, float],
    free: Sequence[Mapping[str, float]],
    nodes: Sequence[Mapping[str, float]],
) -> Lack:
    """What a worker waits for.

    Args:
        wants: what it needs on one node, by resource.
        free: what no actor or task of each node has.
        nodes: what each node has in all.
    """
    asked = {key: amount for key, amount in wants.items() if amount > 0}

    def has_all(each: Mapping[str, float]) -> bool:
        return all(each.get(key, 0.0) >= amount for key, amount in asked.items())

    def of_all(key: str, places: Sequence[Mapping[str, float]]) -> float:
        return round(sum(each.get(key, 0.0) for each in places), 4)

    parts = [
        f"{amount:g} {key} ({of_all(key, free):g} of {of_all(key, nodes):g} are free)"
        for key, amount in asked.items()
    ]
    wanted = f"it wants {' and '.join(parts) or 'nothing'}"
    if not any(map(has_all, nodes)):
        return Lack(f"it has no place in the cluster: {wanted}, which no node has", wants, False)
    if any(map(has_all, free)):
        return Lack(f"Ray has not started it yet: {wanted}", wants, True)
    apart = all(of_all(key, free) >= amount for key, amount in asked.items())
    end = ", but not together on one node" if apart else ""
    return Lack(f"it has no place in the cluster: {wanted}{end}", wants, True)


def reason(error: BaseException) -> str:
    """An error of Ray in one line, with its cause: its own texts have stacks and hints."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        error = cause
    text = _in_one_line(error)
    # Ray says only that it cannot connect, and hides why: other versions, a missing token.
    if error.__cause__ is not None and str(error.__cause__) not in str(error):
        text = f"{text}: {_in_one_line(error.__cause__)}"
    return text[:1000]


def _in_one_line(error: BaseException) -> str:
    lines = [each.strip() for each in str(error).splitlines() if each.strip()]
    if isinstance(error, NoPlaceError):
        return lines[0]
    # The last line of a stack names its exception.
    text = lines[-1] if "Traceback" in str(error) else " ".join(lines)
    return f"{type(error).__name__}: {text}"


def is_there(address: str) -> None:
    """Connect to the head of a cluster: Ray itself tries that for minutes.

    Args:
        address: ``host:port``, or ``auto``, whose address only the variable ``RAY_ADDRESS`` has.

    Raises:
        OSError: nothing answers there.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ASK_TIMEOUT).close()
        except OSError as error:
            raise OSError(f"nothing answers at {address}: {error}") from None


def check_keys(runtime_env: Mapping[str, Any]) -> None:
    """Refuse keys of ``runtime_env`` that Ray would ignore.

    Raises:
        ValueError: it has some.
    """
    from ray.runtime_env import RuntimeEnv

    unknown = sorted(set(runtime_env) - RuntimeEnv.known_fields)
    if unknown and not os.environ.get("RAY_RUNTIME_ENV_PLUGINS"):  # which bring keys of their own
        known = ", ".join(sorted(each for each in RuntimeEnv.known_fields if each[0] != "_"))
        raise ValueError(f"runtime_env has unknown keys: {', '.join(unknown)}; Ray has {known}")


def _task(reference: Any) -> asyncio.Task[Any]:
    """What waits for the result of an actor's call."""

    async def result() -> Any:
        return await reference

    return asyncio.create_task(result())


def _forget(task: asyncio.Task[Any] | None) -> None:
    """Nobody wants the result of a task: its error, which comes when its actor ends, neither."""
    if task is None:
        return
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.exception()


def main() -> None:
    """Run until the engine closes the socket, or ends."""
    end_with_parent(int(sys.argv[2]))
    line = socket.socket(fileno=int(sys.argv[1]))
    with line.makefile("rb", buffering=0) as file:
        given = json.loads(file.readline())
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    local = given["address"] is None
    if local:
        # Its processes then listen on the loopback; Ray would replace 127.0.0.1 as an argument by
        # the machine's own address, and listen on all of them. It does not on macOS and Windows.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        if not local:
            is_there(given["address"])
        import ray

        check_keys(given["runtime_env"])
        ray.init(
            address="local" if local else given["address"],
            namespace=given["namespace"],
            runtime_env=given["runtime_env"] or None,
            object_store_memory=_STORE if local else None,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    except BaseException as error:  # noqa: BLE001 - Ray also calls sys.exit
        line.sendall(json.dumps({"failed": reason(error)}).encode() + b"\n")
        return
    for each in (signal.SIGTERM, signal.SIGINT):  # which Ray sets; the engine decides
        signal.signal(each, signal.SIG_IGN)
    asyncio.run(Holder(ray, local=local).serve(line))
    ray.shutdown()


if __name__ == "__main__":
    main()
