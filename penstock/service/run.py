"""Runs a blueprint: ports bound, models opened, workers started, then served until told to stop.

Order of start: bind both ports (a taken one fails at once), open models and run ``init_op``, start
workers, listen, say so. Order of stop: readiness false, ``drain_delay`` still accepting, refuse,
finish what was admitted, send the answers, close the ports, end the workers. A second signal cuts
every wait of the stop short. From the end of ``drain_delay`` it takes at most ``drain_timeout``, or
a second if that is longer, whatever clients and users' code do; only a coroutine that catches its
cancellation and goes on holds the loop, and so the process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import threading
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from penstock.config.ports import ports
from penstock.config.schema import ServiceConfig
from penstock.engine.engine import Engine
from penstock.errors import StartupError
from penstock.executors.processes.zygote import Zygote
from penstock.frontends.door import Door
from penstock.frontends.grpc_service import GrpcService
from penstock.frontends.health import Health
from penstock.frontends.listeners import bind, bind_unix, is_free, is_loopback, port_of
from penstock.observe.logs import logging_to_stderr
from penstock.service import flags
from penstock.service.banner import Addresses, announce, banner, check_report
from penstock.service.build import Blueprint, Works
from penstock.service.daemons import DaemonPool
from penstock.service.interpreter import share_the_lock, spare_the_collector
from penstock.service.opening import open_door, tls_of
from penstock.service.signals import Stopped, StopSignals, signals_stop_the_start
from penstock.service.supervisor import Supervisor
from penstock.service.worker import serve_op

_log = logging.getLogger(__name__)

_ENDS_THREADS = 8  # threads for users' own pack and unpack hooks; a guess


# Guesses, in seconds. An answer that is complete needs a moment to reach the wire; a call that
# nobody waits for any more may still be writing somewhere; a thread that is idle ends at once.
_LAST_WORDS = 1.0
_WORKERS_GRACE = 5.0
_IDLE_GRACE = 0.2

_LOOK = 0.05
"""Seconds between looks for calls that have returned: executors do not tell."""


def run_service(name: str | None, blueprint: Blueprint) -> None:
    """Serve in this thread, the main one, until SIGTERM or SIGINT.

    Raises:
        StartupError: the service cannot start; nothing is left running.
    """
    now = flags.current()
    now.served.append(name or "a service without a name")
    if now.check_only:
        now.reports.append(check_report(name, blueprint))
        return
    if threading.current_thread() is not threading.main_thread():
        raise StartupError("a service must run in the main thread, which takes the signals")
    with logging_to_stderr(forks=blueprint.has_processes):
        for warning in blueprint.warnings:
            _log.warning("%s", warning)
        try:
            with signals_stop_the_start() as signals, ExitStack() as stack:
                tls = tls_of(blueprint.config)
                listeners = _bind(blueprint.config, stack)
                if blueprint.has_processes:
                    _supervise(name, blueprint, listeners, tls, signals)
                else:
                    _serve(name, blueprint, listeners, tls, signals)
        except Stopped:
            _log.info("stopped before the start was over")


def _serve(
    name: str | None,
    blueprint: Blueprint,
    listeners: dict[str, socket.socket],
    tls: ssl.SSLContext | None,
    signals: StopSignals,
    control: socket.socket | None = None,
) -> None:
    """The engine's part, in this process."""
    works = Works(blueprint)
    signals.stop_if_told()
    for note in works.notes:
        _log.warning("%s", note)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Service(name, works, listeners, tls, control).run(signals))


def _supervise(
    name: str | None,
    blueprint: Blueprint,
    listeners: dict[str, socket.socket],
    tls: ssl.SSLContext | None,
    signals: StopSignals,
) -> None:
    """This process forks the engine, and the workers that it asks for."""

    def engine(control: socket.socket) -> int:
        try:
            with logging_to_stderr(), signals_stop_the_start() as own:
                _serve(name, blueprint, listeners, tls, own, control)
        except StartupError as error:
            _log.error("%s", error)
            return 1
        except Stopped:
            _log.info("stopped before the start was over")
        return 0

    def worker(op: str, index: int, channel: socket.socket) -> int:
        with logging_to_stderr():
            return serve_op(blueprint, op, index, channel)

    status = Supervisor(engine, worker, tuple(listeners.values())).run(signals)
    if status:
        raise StartupError("the service could not go on; what stands above says why")


def _bind(config: ServiceConfig, stack: ExitStack) -> dict[str, socket.socket]:
    """What to listen on, by the key that asks for it: bound, and not listening yet."""
    chosen = ports(config, lambda port: is_free(config.host, port))
    listeners = {"rpc_port": bind(config.host, chosen.rpc, "rpc_port")}
    stack.callback(listeners["rpc_port"].close)
    if chosen.http is not None:
        listeners["http_port"] = bind(config.host, chosen.http, "http_port")
        stack.callback(listeners["http_port"].close)
    path = config.door.unix_socket
    if path is not None:
        listeners["door.unix_socket"] = bind_unix(Path(path), "door.unix_socket")
        stack.callback(listeners["door.unix_socket"].close)
        stack.callback(Path(path).unlink, missing_ok=True)
    if chosen.rpc_chosen:
        _log.info("rpc_port is not set: gRPC is served on port %s", port_of(listeners["rpc_port"]))
    return listeners


class _Service:
    """One run, on its loop."""

    def __init__(
        self,
        name: str | None,
        works: Works,
        listeners: dict[str, socket.socket],
        tls: ssl.SSLContext | None,
        control: socket.socket | None = None,
    ) -> None:
        self._name = name
        self._works = works
        self._listeners = listeners
        self._tls = tls
        self._control = control
        self._config = works.blueprint.config
        self._health = Health()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._patience = math.inf  # until then calls that nobody waits for are waited for

    async def run(self, signals: StopSignals) -> None:
        loop = asyncio.get_running_loop()
        # Not the loop's own handlers: when those go, the default ones are there for a moment.
        signals.hand_to(lambda: loop.call_soon_threadsafe(self._told_to_stop))
        try:
            await self._serve()
        finally:
            signals.pause()
        signals.end()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        zygote = None if self._control is None else Zygote(self._control, loop)
        engine = self._works.engine(loop, spawner=zygote)
        self._health.watch(engine.why_stuck)
        ends = self._works.ends
        pool = None
        if ends.blocking_pack or ends.blocking_unpack:
            pool = DaemonPool(_ENDS_THREADS, "ends")
        try:
            if not await self._start_workers(engine):
                return
            door, grpc = open_door(self._name, self._config, engine, ends, self._health, pool)
            try:
                spare_the_collector()
                share_the_lock()
                await self._listen(door)
                if zygote is not None:
                    zygote.ready()
                await self._stop.wait()
                await self._shut_down(engine, door, grpc, pool)
            finally:
                await door.close(0.0)
        finally:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
            await self._end_workers(engine)

    async def _start_workers(self, engine: Engine) -> bool:
        """Whether all can work; False when told to stop meanwhile."""
        starts = asyncio.gather(*(stage.executor.start() for stage in engine.stages))
        told = asyncio.create_task(self._stop.wait())
        await asyncio.wait((starts, told), return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not starts.done():
            starts.cancel()
            await asyncio.wait((starts,))
            return False
        await starts
        return True

    async def _listen(self, door: Door) -> None:
        for key, listener in self._listeners.items():
            try:
                await door.listen(listener, self._tls)
            except OSError as error:
                at = listener.getsockname()
                raise StartupError(f"{key}: cannot listen on {at}: {error.strerror}") from error
        if self._stop.is_set():
            return  # told to stop meanwhile: never ready
        self._health.set_ready()
        announce(banner(self._name, self._works.blueprint, self._addresses()))
        host = self._config.host
        if not is_loopback(host):
            _log.warning("every machine that reaches %s can send requests; nothing asks who", host)

    def _addresses(self) -> Addresses:
        http = self._listeners.get("http_port")
        return Addresses(
            host=self._config.host,
            rpc_port=port_of(self._listeners["rpc_port"]),
            http_port=None if http is None else port_of(http),
            unix_socket=self._config.door.unix_socket,
            tls=self._tls is not None,
        )

    def _told_to_stop(self) -> None:
        """The first signal drains, the second one hurries."""
        if self._stop.is_set():
            self._hurry.set()
        self._health.set_unready("shutting down")
        self._stop.set()

    async def _shut_down(
        self, engine: Engine, door: Door, grpc: GrpcService, pool: DaemonPool | None
    ) -> None:
        loop = asyncio.get_running_loop()
        _log.info("shutting down: %s requests inside", engine.statistics().inside)
        door.drain()
        at_rest = asyncio.Event()
        if self._config.drain_delay:
            # Still accepting, so that load balancers have time to look away.
            await self._unless_hurried(asyncio.sleep(self._config.drain_delay))
        # Without a delay in the turn that made readiness false: who has seen that is refused.
        engine.drain(at_rest.set)
        door.refuse_partial()
        allowed = self._config.drain_timeout
        end = loop.time() + allowed
        self._patience = end - min(_LAST_WORDS, allowed / 10)
        await self._unless_hurried(at_rest.wait(), self._patience - loop.time())
        engine.close()
        end = max(end, loop.time() + _LAST_WORDS)
        if pool is not None:
            await self._unless_hurried(_finished(pool), end - _LAST_WORDS / 2 - loop.time())
        grpc.end_streams()
        if self._hurry.is_set():
            await door.close(_LAST_WORDS)
        else:
            # The answers are given, but perhaps not read yet.
            await self._unless_hurried(door.close(end - loop.time()))
        seen = engine.statistics()
        _log.info(
            "stopped: %s admitted, %s answered, %s cancelled, %s refused",
            seen.admitted,
            seen.replied,
            seen.cancelled,
            seen.refused,
        )

    async def _end_workers(self, engine: Engine) -> None:
        """Calls that do not return are left behind: their threads end with the process."""
        loop = asyncio.get_running_loop()
        patience = min(self._patience, loop.time() + _WORKERS_GRACE)
        while _working(engine) and loop.time() < patience and not self._hurry.is_set():
            await self._unless_hurried(asyncio.sleep(_LOOK))
        await asyncio.gather(*(stage.executor.close(_IDLE_GRACE) for stage in engine.stages))

    async def _unless_hurried(
        self, waiting: Coroutine[Any, Any, Any], timeout: float | None = None
    ) -> None:
        """Wait for something, for the time-out or for the second signal, whichever is first."""
        tasks = [asyncio.create_task(waiting), asyncio.create_task(self._hurry.wait())]
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


def _working(engine: Engine) -> bool:
    """Whether some call of an op has not returned."""
    return any(stage.idle < stage.workers for stage in engine.statistics().stages)


async def _finished(pool: DaemonPool) -> None:
    """Every call that the pool has now is over."""
    calls = [asyncio.wrap_future(future) for future in pool.unfinished()]
    if calls:
        await asyncio.wait(calls)
