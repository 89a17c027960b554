"""A service without a door: its engine runs on another server's loop, in this process.

For ASGI servers and tests. Ops in worker processes need the supervisor of ``penstock run``, and are
not possible here.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from penstock.api.examples import Examples
from penstock.api.health import Health
from penstock.api.router import Router
from penstock.door.budget import ByteBudget
from penstock.engine.engine import Engine
from penstock.errors import StartupError
from penstock.observe.counters import Counters
from penstock.observe.recorder import Recorder
from penstock.service.blueprint import Application, Deployment
from penstock.service.build import Works
from penstock.service.listening import bind_worker_sockets
from penstock.service.model_keys import send_keys
from penstock.service.opening import budget_of, make_router
from penstock.service.status import MetricsPage, Reporter, Reports

_log = logging.getLogger(__name__)

_GRACE = 5.0  # seconds for running calls at the end; a guess


class Embedded:
    """See the module. All methods belong to one loop.

    Args:
        deployment: the deployment.

    Attributes:
        router: routes requests; set by ``start``.
        budget: the bytes in flight; set by ``start``.

    Raises:
        StartupError: an op runs in worker processes.
    """

    router: Router
    budget: ByteBudget

    def __init__(self, deployment: Deployment) -> None:
        for graph in deployment.graphs:
            for op, options in zip(graph.graph.ops, graph.options, strict=True):
                if options.starts_server:
                    raise StartupError(
                        f"op {op.name!r} needs a model server, which only `penstock run` starts:"
                        f" under another server leave out local_service_conf.client_type"
                    )
                if options.executor.own_processes:
                    raise StartupError(
                        f"op {op.name!r} runs in processes of its own, for which `penstock run`"
                        f" is needed: under another server give it executor='thread'"
                    )
        self._deployment = send_keys(deployment)
        self._engine: Engine | None = None
        self._pools: list[ThreadPoolExecutor] = []
        self._stack = ExitStack()  # sockets of external workers
        self.health = Health()

    async def start(self) -> None:
        """Open models, run ``init_op`` (in a thread), start workers, run examples, and be ready.

        Raises:
            StartupError: a step failed.
        """
        loop = asyncio.get_running_loop()
        works = await asyncio.to_thread(Works, self._deployment)
        for note in (*self._deployment.warnings, *works.notes):
            _log.warning("%s", note)
        sockets = bind_worker_sockets(self._deployment, self._stack)
        counters = Counters()
        instruments = [counters, Recorder(counters=counters)]
        engine = works.engine(loop, instruments=instruments, sockets=sockets)
        writers = ThreadPoolExecutor(2, "replies")
        ends = ThreadPoolExecutor(8, "ends") if works.blocking_ends else None
        self._pools = [each for each in (writers, ends) if each is not None]
        await asyncio.gather(*(graph.start() for graph in engine.graphs))
        config = self._deployment.config
        added = [make(engine) for make in self._deployment.applications]
        examples = Examples(engine, added)
        more: list[Application] = [examples, *added]
        if config.metrics:
            report = Reporter(engine, self.health, counters, self._deployment.models)
            named = config.dag.enable_prometheus
            more.append(MetricsPage(Reports(report), of_original=named))
        self.router = make_router(config, engine, self.health, ends, writers, more)
        self.budget = budget_of(config)
        self._engine = engine
        self.health.watch(engine.why_stuck)
        try:
            await examples.warm_up()
        except BaseException:
            await self.stop()
            raise
        self.health.set_ready()

    async def stop(self) -> None:
        """Finish the admitted requests, within ``drain_timeout``, and end the workers."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        self.health.set_unready("shutting down")
        at_rest = asyncio.Event()
        engine.drain(at_rest.set)
        try:
            async with asyncio.timeout(self._deployment.config.drain_timeout):
                await at_rest.wait()
        except TimeoutError:
            _log.warning("requests are aborted: %s", engine.statistics().inside)
        engine.close()
        self.router.end_streams()
        await asyncio.gather(*(graph.close(_GRACE) for graph in engine.graphs))
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._stack.close()
