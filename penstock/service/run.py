"""Runs a blueprint: ports bound, models opened, workers started, then served until told to stop.

Order of start: bind both ports (a taken one fails at once), open models and run ``init_op``, start
workers, listen, say so. Order of stop: readiness false, ``drain_delay`` still accepting, refuse,
finish what was admitted, send the answers, close the ports, end the workers. A second signal cuts
every wait of the stop short. No wait is without end: from the end of ``drain_delay`` a stop takes
at most ``drain_timeout`` and a few seconds, whatever users' code does.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any

import uvloop

from penstock.config.ports import ports
from penstock.config.schema import ServiceConfig
from penstock.engine.budget import ByteBudget, default_budget
from penstock.engine.engine import Engine
from penstock.errors import StartupError
from penstock.frontends.grpc_port import GrpcPort
from penstock.frontends.health import Health
from penstock.frontends.http import HttpLimits, HttpRoutes
from penstock.frontends.listeners import bind, is_free, is_loopback, port_of
from penstock.frontends.pipeline import PipelineOptions, PipelineProtocol
from penstock.frontends.uvicorn_port import UvicornLimits, UvicornPort
from penstock.observe.logs import logging_to_stderr
from penstock.service import flags
from penstock.service.banner import announce, banner, check_report
from penstock.service.build import Blueprint, Works
from penstock.service.daemons import DaemonPool
from penstock.service.signals import Stopped, StopSignals, signals_stop_the_start

_log = logging.getLogger(__name__)

_ENDS_THREADS = 8  # threads for users' own pack and unpack hooks; a guess

# So many gRPC calls may be open for each request that may be admitted. Beyond the first the answer
# is busy, which old clients understand; beyond this it is a failed call, which they do not.
_CALLS_A_REQUEST = 4

# Guesses, in seconds. An answer that is complete needs a moment to reach the wire; a call that
# nobody waits for any more may still be writing somewhere.
_LAST_WORDS = 1.0
_WORKERS_GRACE = 5.0


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
    with logging_to_stderr():
        for warning in blueprint.warnings:
            _log.warning("%s", warning)
        try:
            with signals_stop_the_start() as signals, ExitStack() as stack:
                sockets = _bind(blueprint.config, stack)
                works = Works(blueprint)
                signals.stop_if_told()
                for note in works.notes:
                    _log.warning("%s", note)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(_Service(name, works, *sockets).run(signals))
        except Stopped:
            _log.info("stopped before the start was over")


def _bind(config: ServiceConfig, stack: ExitStack) -> tuple[socket.socket, socket.socket | None]:
    """Both ports, bound but not listening."""
    chosen = ports(config, lambda port: is_free(config.host, port))
    rpc = bind(config.host, chosen.rpc, "rpc_port")
    stack.callback(rpc.close)
    http = None
    if chosen.http is not None:
        http = bind(config.host, chosen.http, "http_port")
        stack.callback(http.close)
    if chosen.rpc_chosen:
        _log.info("rpc_port is not set: gRPC is served on port %s", port_of(rpc))
    return rpc, http


def _spare_the_collector() -> None:
    """What was made until now stays for ever: take it out of what the collector walks through.

    Requests make many objects and hardly a cycle, so it may also run more seldom. Measured with an
    echo over HTTP: a sixth less CPU time a request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


class _Service:
    """One run, on its loop."""

    def __init__(
        self, name: str | None, works: Works, rpc: socket.socket, http: socket.socket | None
    ) -> None:
        self._name = name
        self._works = works
        self._rpc = rpc
        self._http = http
        self._config = works.blueprint.config
        self._health = Health()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

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
        engine = self._works.engine(loop)
        self._health.watch(engine.why_stuck)
        ends = self._works.ends
        pool = None
        if ends.blocking_pack or ends.blocking_unpack:
            pool = DaemonPool(_ENDS_THREADS, "ends")
        try:
            http_port, grpc_port = self._ports(engine, pool)
            _spare_the_collector()
            await self._listen(http_port, grpc_port)
            await self._stop.wait()
            await self._shut_down(engine, http_port, grpc_port, pool)
        finally:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
            await self._end_workers(engine)

    def _ports(self, engine: Engine, pool: Any) -> tuple[UvicornPort | None, GrpcPort]:
        config = self._config
        budget = ByteBudget(config.max_inflight_bytes or default_budget())
        options = PipelineOptions(
            name=self._name,
            deadline=min(config.deadline, config.max_deadline),
            strict_status=config.strict_status,
        )
        protocol = PipelineProtocol(engine, self._works.ends, options, pool)
        grpc_port = GrpcPort(
            protocol,
            budget,
            self._health,
            max_calls=config.max_calls or _CALLS_A_REQUEST * config.max_requests,
            max_message_bytes=config.max_message_bytes,
            read_timeout=config.body_timeout,
        )
        if self._http is None:
            return None, grpc_port
        bodies = HttpLimits(max_body=config.max_message_bytes, body_timeout=config.body_timeout)
        limits = UvicornLimits(
            max_connections=max_connections(config.max_connections),
            header_timeout=config.header_timeout,
            keep_alive=config.keep_alive,
            write_timeout=config.write_timeout,
        )
        routes = HttpRoutes(protocol, self._health, bodies)
        return UvicornPort(routes, limits, bodies, budget), grpc_port

    async def _listen(self, http_port: UvicornPort | None, grpc_port: GrpcPort) -> None:
        host = self._config.host
        # grpc binds by itself; the socket that kept its port until now makes room for it.
        number = port_of(self._rpc)
        self._rpc.close()
        address = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
        try:
            await grpc_port.start(address)
        except OSError as error:
            raise StartupError(f"rpc_port: {error}") from error
        http_number = None
        if http_port is not None and self._http is not None:
            http_number = port_of(self._http)
            try:
                await http_port.start(self._http)
            except OSError as error:
                await grpc_port.stop(0.0)
                raise StartupError(
                    f"http_port: cannot listen on {host}:{http_number}: {error.strerror}"
                ) from error
        if self._stop.is_set():
            return  # told to stop meanwhile: never ready
        self._health.set_ready()
        announce(banner(self._name, self._works.blueprint, host, number, http_number))
        if not is_loopback(host):
            _log.warning("every machine that reaches %s can send requests; nothing asks who", host)

    def _told_to_stop(self) -> None:
        """The first signal drains, the second one hurries."""
        if self._stop.is_set():
            self._hurry.set()
        self._health.set_unready("shutting down")
        self._stop.set()

    async def _shut_down(
        self,
        engine: Engine,
        http_port: UvicornPort | None,
        grpc_port: GrpcPort,
        pool: DaemonPool | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        _log.info("shutting down: %s requests inside", engine.statistics().inside)
        if http_port is not None:
            http_port.drain()
        at_rest = asyncio.Event()
        if not self._config.drain_delay:
            # In the very turn that made readiness false: who has seen that is refused from now on.
            engine.drain(at_rest.set)
        if self._config.drain_delay:
            # Still accepting, so that load balancers have time to look away.
            await self._unless_hurried(asyncio.sleep(self._config.drain_delay))
            engine.drain(at_rest.set)
        deadline = loop.time() + self._config.drain_timeout
        await self._unless_hurried(at_rest.wait(), self._config.drain_timeout)
        engine.close()
        left = max(_LAST_WORDS, deadline - loop.time())
        if pool is not None:
            await self._unless_hurried(_finished(pool), left)
        # gRPC's grace also holds streams that have no end, such as health watches.
        stopping = asyncio.create_task(grpc_port.stop(_LAST_WORDS))
        if http_port is not None and self._hurry.is_set():
            await http_port.stop(_LAST_WORDS)
        elif http_port is not None:
            left = max(_LAST_WORDS, deadline - loop.time())
            await self._unless_hurried(http_port.stop(left))
        await stopping
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
        grace = _LAST_WORDS if self._hurry.is_set() else _WORKERS_GRACE
        await asyncio.gather(*(stage.executor.close(grace) for stage in engine.stages))

    async def _unless_hurried(
        self, waiting: Coroutine[Any, Any, Any], timeout: float | None = None
    ) -> None:
        """Wait for something, for the time-out or for the second signal, whichever is first."""
        tasks = [asyncio.create_task(waiting), asyncio.create_task(self._hurry.wait())]
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


async def _finished(pool: DaemonPool) -> None:
    """Every call that the pool has now is over."""
    calls = [asyncio.wrap_future(future) for future in pool.unfinished()]
    if calls:
        await asyncio.wait(calls)


def max_connections(configured: int | None) -> int:
    """The connection limit: below the descriptor limit, less a reserve for everything else."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve = min(128, soft // 4)
    most = max(16, soft - reserve)
    return min(configured or 1024, most)
