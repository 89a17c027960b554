"""One engine and its door, from start to stop, with its drain.

Start: start the workers, run the examples, listen. With a supervisor, the engines accept
connections when all of them are ready, and each until another process replaces it.

Stop: readiness becomes false, and requests are still accepted for ``drain_delay``; those that
HTTP/2 clients sent before they received GOAWAY are accepted in any case. Then no connection is
accepted any more, further requests on open ones are refused, admitted ones finish, their answers
are sent, and the workers are ended. A second signal ends every wait of the stop. After
``drain_delay`` a stop takes at most ``drain_timeout``, but at least a second, whatever clients and
user code do. The one exception is a coroutine that catches its cancellation and continues: it
blocks the loop, and so the process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.api.health import Health
from penstock.api.hosts import Hosts
from penstock.api.router import Router
from penstock.door.certificates import Certificates
from penstock.door.door import Door
from penstock.engine.engine import Engine
from penstock.errors import StartupError
from penstock.service.banner import route_lines
from penstock.service.build import LoadedDeployment
from penstock.service.daemon_pool import DaemonPool
from penstock.service.door import (
    admin_port_of,
    exposure,
    hosts_of,
    is_public,
    open_door,
    open_door_beside,
)
from penstock.service.listening import (
    ADMIN,
    METRICS,
    Listeners,
    door_sockets,
    listen_on_all,
    too_few_descriptors_end_the_start,
)
from penstock.service.loop import freeze_garbage_collector, shorten_switch_interval
from penstock.service.serving import Serving
from penstock.supervisor.client import SupervisorClient
from penstock.supervisor.messages import (
    Abort,
    Asked,
    Commit,
    Hold,
    Leave,
    Order,
    Prepare,
    Restore,
    Retire,
    Serve,
    Stop,
)
from penstock.supervisor.signals import (
    StopSignals,
    on_hangup,
)

_log = logging.getLogger(__name__)

# Guesses, in seconds: for a complete answer to be sent; for calls whose requests have been answered
# to return, as they may be writing a file; for idle threads to end.
SEND_TIMEOUT = 1.0
_RETURN_TIMEOUT = 5.0
_IDLE_TIMEOUT = 0.2

_POLL_INTERVAL = 0.05
"""Seconds between checks whether calls have returned, of which executors do not notify us."""


def cannot_replace() -> None:
    """The action of SIGHUP without a supervisor."""
    _log.warning(
        "SIGHUP has no effect: a service of one process cannot replace it while it serves;"
        " restart the service, with penstock run --supervised or supervised: true"
    )


class EngineLifecycle:
    """One engine and its door. Belongs to one loop.

    Args:
        loaded: the engine's deployment.
        listeners: its sockets.
        tls: for the sockets of clients; None without TLS.
        opened: called with the start lines about routes, ops and models when the ports are open, if
            there is no supervisor.
        control: the socket to the supervisor; None without one.
    """

    def __init__(
        self,
        loaded: LoadedDeployment,
        listeners: Listeners,
        tls: Certificates | None,
        opened: Callable[[Sequence[str]], None],
        control: socket.socket | None = None,
    ) -> None:
        self._loaded = loaded
        self._listeners = listeners
        self._tls = tls
        self._opened = opened
        self._control = control
        self._supervisor: SupervisorClient | None = None
        self._serving: Serving  # set at the engine's start
        self._config = loaded.deployment.config
        self._health = Health()
        self._serve_now = asyncio.Event()
        self._leave = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._can_be_replaced = False
        self._is_the_end = control is None  # ending this engine ends the service
        self._calls_until = math.inf  # when running calls are abandoned

    async def run(self, signals: StopSignals) -> None:
        """Run it until signals, or the supervisor, stop it."""
        loop = asyncio.get_running_loop()
        # Not the loop's handlers: their removal restores the default ones for a moment.
        signals.forward_to(lambda: loop.call_soon_threadsafe(self._signalled))
        try:
            if self._control is not None:
                await self._serve()
            else:
                with on_hangup(lambda: loop.call_soon_threadsafe(cannot_replace)):
                    await self._serve()
        finally:
            signals.pause()
        signals.end()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        if self._control is not None:
            self._supervisor = SupervisorClient(self._control, loop, self._handle_order)
        serving = self._serving = Serving(
            self._loaded, self._health, self._supervisor, self._listeners
        )
        engine = serving.engine
        try:
            with too_few_descriptors_end_the_start():
                if not await self._unless_stopped(serving.start()):
                    return
            if not await self._unless_stopped(serving.warm_up()):
                return
            hosts = hosts_of(self._config, self._listeners.values())
            tls = self._tls is not None
            admin = admin_port_of(self._listeners.get(ADMIN), tls=tls)
            grpc = serving.router(hosts, tls=tls, admin=admin)
            self._check_exposure(serving)
            door = serving.reporter.door = open_door(self._config, engine, grpc)
            beside = self._doors_beside(serving, hosts)
            try:
                freeze_garbage_collector()
                shorten_switch_interval()
                await self._open(door, beside, self._lines(engine))
                await _first(self._stop.wait(), self._leave.wait())
                if not self._stop.is_set():
                    self._stop_accepting(door, beside)
                await serving.leave()
                allowed = self._config.drain_timeout
                if not self._stop.is_set():
                    allowed -= await self._hand_over(engine, (door, *beside.values()), grpc)
                await self._shut_down(engine, door, grpc, serving.ends, allowed)
            finally:
                await door.close(0.0)
                for each in beside.values():
                    await each.close(0.0)
                # A last report, so that this engine's counts remain in the service's sums.
                with suppress(StartupError):  # the supervisor is gone, with all sums
                    serving.engines.send_report()
        finally:
            await serving.close()
            await self._end_workers(engine)

    def _check_exposure(self, serving: Serving) -> None:
        """Warn of a service that is open to strangers.

        Raises:
            StartupError: it is, and must not be.
        """
        public = is_public(self._listeners.values())
        why = exposure(self._config, public=public, admits=serving.admission is not None)
        if why is not None and self._config.strict:
            raise StartupError(f"strict: {why}")
        if why is not None and self._loaded.deployment.engine_id.is_first:
            _log.warning("%s", why)

    def _doors_beside(self, serving: Serving, hosts: Hosts) -> dict[str, Door]:
        """The doors of scrapers and operators, by the keys of their ports."""
        found = {}
        if METRICS in self._listeners:
            most = self._config.max_message_bytes
            router = Router(
                serving.metrics.routes(),
                max_message_bytes=most,
                threads=serving.writers,
                hosts=hosts,
                admission=serving.admission,
                authenticate=serving.authenticate,
            )
            found[METRICS] = open_door_beside(self._config, router)
        if serving.admin is not None:
            found[ADMIN] = open_door_beside(self._config, serving.admin)
        return found

    def _lines(self, engine: Engine) -> list[str]:
        """The start lines about routes, ops and models."""
        loaded = self._loaded
        return route_lines(loaded.deployment, loaded.options, loaded.model_lines(engine))

    async def _unless_stopped(self, step: Coroutine[Any, Any, None]) -> bool:
        """Run a step of the start. Returns False if a stop came first."""
        work = asyncio.ensure_future(step)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return False
        await work
        return True

    async def _open(self, door: Door, beside: Mapping[str, Door], lines: Sequence[str]) -> None:
        """Accept connections; with a supervisor, when all engines are ready."""
        if self._supervisor is not None:
            self._can_be_replaced = True
            self._supervisor.ready(lines)
            await _first(self._stop.wait(), self._serve_now.wait())
        else:
            listen_on_all(self._config, [self._listeners])
        if self._stop.is_set():
            return  # stopped before it was ready
        for listener in door_sockets(self._listeners):
            await door.listen(listener, self._tls)
        for key, each in beside.items():
            await each.listen(self._listeners[key], self._tls)
        if self._stop.is_set():
            return
        self._health.set_ready()
        self._report_switch()
        self._serving.opened()
        if self._supervisor is None:
            self._opened(lines)

    def _signalled(self) -> None:
        """A signal to one engine of a service ends this process, not the service: this engine
        serves until another one is ready, or until a second signal comes.
        """
        if self._can_be_replaced and not self._leave.is_set():
            self._can_be_replaced = False
            try:
                assert self._supervisor is not None
                self._supervisor.leaving()
            except StartupError as error:
                _log.error("%s", error)
            else:
                _log.info("signal to stop: serving until another process does")
                return
        self._begin_stop()

    def _handle_order(self, order: Order) -> None:
        match order:
            case Serve():
                self._serve_now.set()
            case Leave():
                self._leave.set()
            case Asked(number, query):
                self._serving.engines.answer(number, query)
            case Hold() | Prepare() | Commit() | Abort() | Restore() | Retire():
                self._serving.versions.obey(order)
            case Stop(hurry):
                self._is_the_end = True
                if not self._stop.is_set():
                    self._begin_stop()
                if hurry:
                    self._hurry.set()

    def _begin_stop(self) -> None:
        """Begin to drain; from the second signal on, end every wait of the stop."""
        if self._stop.is_set():
            self._hurry.set()
        self._health.set_unready("shutting down")
        self._stop.set()

    def _stop_accepting(self, door: Door, beside: Mapping[str, Door]) -> None:
        """Another process accepts connections now."""
        for each in (door, *beside.values()):
            each.stop_accepting()
        self._report_switch()

    def _report_switch(self) -> None:
        """Report that this engine has begun, or ceased, to accept connections."""
        if self._supervisor is not None:
            with suppress(StartupError):  # the supervisor is gone, and nothing waits for it
                self._supervisor.switched()

    async def _hand_over(self, engine: Engine, doors: Sequence[Door], grpc: Router) -> float:
        """Answer further requests on open connections, and close each connection with its answer.
        Returns the seconds that this took: admitted requests then have the rest of
        ``drain_timeout``.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        allowed = self._config.drain_timeout
        _log.info(
            "another process accepts connections now: %s requests in flight",
            engine.statistics().inside,
        )
        grpc.end_streams(when_answered=True)  # these do not end by themselves
        left = allowed - min(SEND_TIMEOUT, allowed / 10)
        await _first(_all(each.hand_over(left) for each in doors), self._stop.wait())
        return loop.time() - began

    async def _shut_down(
        self,
        engine: Engine,
        door: Door,
        grpc: Router,
        pool: DaemonPool | None,
        allowed: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        _log.info("shutting down: %s requests in flight", engine.statistics().inside)
        door.drain()
        at_rest = asyncio.Event()
        if self._config.drain_delay and not self._leave.is_set():
            # Still accepting, so that load balancers have time to remove this service.
            await _first(asyncio.sleep(self._config.drain_delay), self._hurry.wait())
        end = loop.time() + allowed
        if self._is_the_end:
            # Proxies send their next requests to another replica when they cannot connect to this
            # one; an answer that refuses a call they pass on.
            await _first(door.end_accepting(allowed / 10), self._hurry.wait())
        await _first(door.drain_acknowledged(), self._hurry.wait(), timeout=allowed / 10)
        engine.drain(at_rest.set)
        door.refuse_partial()
        self._calls_until = end - min(SEND_TIMEOUT, self._config.drain_timeout / 10)
        await _first(at_rest.wait(), self._hurry.wait(), timeout=self._calls_until - loop.time())
        engine.close()
        end = max(end, loop.time() + SEND_TIMEOUT)
        if pool is not None:
            await _first(
                _finished(pool), self._hurry.wait(), timeout=end - SEND_TIMEOUT / 2 - loop.time()
            )
        grpc.end_streams()
        if self._hurry.is_set():
            await door.close(SEND_TIMEOUT, for_good=self._is_the_end)
        else:
            # The answers are complete, but maybe not read yet.
            closed = door.close(end - loop.time(), for_good=self._is_the_end)
            await _first(closed, self._hurry.wait())
        seen = engine.statistics()
        _log.info(
            "stopped: %s admitted, %s answered, %s cancelled, %s refused",
            seen.admitted,
            seen.replied,
            seen.cancelled,
            seen.refused,
        )

    async def _end_workers(self, engine: Engine) -> None:
        """End the workers. Calls that do not return in time are ended with the process."""
        loop = asyncio.get_running_loop()
        until = min(self._calls_until, loop.time() + _RETURN_TIMEOUT)
        while _working(engine) and loop.time() < until and not self._hurry.is_set():
            await _first(asyncio.sleep(_POLL_INTERVAL), self._hurry.wait())
        # Hooks ``close`` may take a while, but not after calls that hang.
        left = self._calls_until - loop.time()
        hurry = _working(engine) or self._hurry.is_set() or left < _IDLE_TIMEOUT
        timeout = _IDLE_TIMEOUT if hurry else min(_RETURN_TIMEOUT, left)
        await asyncio.gather(*(graph.close(timeout) for graph in engine.all_graphs))


async def _all(waits: Iterable[Awaitable[object]]) -> None:
    """Wait until all of them are done."""
    await asyncio.gather(*waits)


async def _first(*waits: Coroutine[Any, Any, Any], timeout: float | None = None) -> None:
    """Wait until one of them is done, or for the timeout; cancel the others."""
    tasks = [asyncio.create_task(each) for each in waits]
    await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _working(engine: Engine) -> bool:
    """Whether a call of an op is still running."""
    return any(stage.idle < stage.workers for stage in engine.statistics().stages)


async def _finished(pool: DaemonPool) -> None:
    """Wait for all current calls of the pool."""
    calls = [asyncio.wrap_future(future) for future in pool.unfinished()]
    if calls:
        await asyncio.wait(calls)
