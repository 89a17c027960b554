"""A service without a door: its engine runs on another server's loop, in this process.

For ASGI servers and tests. Ops in worker processes need the supervisor of ``penstock run``, and are
not possible here.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack

from penstock.api.health import Health
from penstock.api.router import Router
from penstock.door.budget import ByteBudget
from penstock.errors import StartupError
from penstock.instrument import Instruments
from penstock.service.blueprint import Deployment
from penstock.service.build import LoadedDeployment
from penstock.service.door import budget_of
from penstock.service.listening import bind_worker_sockets
from penstock.service.model_keys import send_keys
from penstock.service.serving import Serving

_log = logging.getLogger(__name__)

_GRACE = 5.0  # seconds for running calls at the end; a guess


class InProcessService:
    """A service without a door. All methods belong to one loop.

    Args:
        deployment: the deployment.

    Attributes:
        router: routes requests; set by ``start``.
        budget: the bytes in flight; set by ``start``.
        instruments: are to be notified of the ends of exchanges; set by ``start``.

    Raises:
        StartupError: an op runs in worker processes.
    """

    router: Router
    budget: ByteBudget
    instruments: Instruments

    def __init__(self, deployment: Deployment) -> None:
        for graph in deployment.graphs:
            for op, options in zip(graph.graph.ops, graph.options, strict=True):
                if options.starts_server:
                    raise StartupError(
                        f"op {op.name!r} needs a model server, which only `penstock run` starts:"
                        f" under another server leave out local_service_conf.client_type"
                    )
                if options.executor.opens_again:
                    raise StartupError(
                        f"op {op.name!r} runs in processes of its own, for which `penstock run`"
                        f" is needed: under another server give it executor='thread'"
                    )
        self._deployment = send_keys(deployment)
        self._serving: Serving | None = None
        self._stack = ExitStack()  # sockets of external workers
        self.health = Health()

    async def start(self) -> None:
        """Open models, run ``init_op`` (in a thread), start workers, run examples, and be ready.

        Raises:
            StartupError: a step failed.
        """
        loaded = await asyncio.to_thread(LoadedDeployment, self._deployment)
        for note in (*self._deployment.warnings, *loaded.notes):
            _log.warning("%s", note)
        await self.start_loaded(loaded)

    async def start_loaded(self, loaded: LoadedDeployment) -> None:
        """The same with models that are open; they are those of this deployment.

        Raises:
            StartupError: a step failed.
        """
        sockets = bind_worker_sockets(self._deployment, self._stack)
        serving = self._serving = Serving(loaded, self.health, sockets=sockets)
        try:
            await serving.start()
            await serving.warm_up()
        except BaseException:
            self._serving = None
            serving.engine.close()
            await self._close(serving)
            raise
        self.router = serving.router()
        self.budget = budget_of(self._deployment.config)
        self.instruments = serving.engine.instruments
        self.health.set_ready()

    async def stop(self) -> None:
        """Finish the admitted requests, within ``drain_timeout``, and end the workers."""
        serving, self._serving = self._serving, None
        if serving is None:
            return
        engine = serving.engine
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
        await self._close(serving)

    async def _close(self, serving: Serving) -> None:
        await serving.versions.close()
        await asyncio.gather(*(graph.close(_GRACE) for graph in serving.engine.all_graphs))
        await serving.close()
        self._stack.close()
