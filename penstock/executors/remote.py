"""The executor of remote ops, whose model is in another server: coroutines, which hold no
thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from math import floor
from typing import TYPE_CHECKING

from penstock.client.baidu_std import baidu_std
from penstock.client.channels import AsyncChannel
from penstock.client.endpoints import Endpoint
from penstock.client.grpc import GRPC
from penstock.client.remote import (
    CallsMethods,
    RemoteGeneralModel,
    RemoteModel,
    RemotePipeline,
)
from penstock.client.remote_options import RemoteOptions
from penstock.client.routed_channel import RoutedChannel
from penstock.client.token import token_at
from penstock.executors.external_store.rules import StoreOptions
from penstock.executors.local import CoroutineExecutor
from penstock.executors.outgoing import Outgoing
from penstock.executors.work import Answer, BoundOp
from penstock.ops.failures import HOOK_FAULTS, process_raised
from penstock.request import Batch, Feed
from penstock.runtimes.prototxt import ModelConf

if TYPE_CHECKING:
    from penstock.executors.external_store.counts import StoreCounts
    from penstock.executors.external_store.engine import EngineStore
    from penstock.executors.external_store.remote import StoredModel

_log = logging.getLogger(__name__)


class RemoteExecutor(CoroutineExecutor):
    """A CoroutineExecutor whose ``process`` calls the op's endpoints.

    A call's deadline is the latest of its batch's requests, within the op's ``timeout``: a request
    whose deadline passes earlier is answered then, without an effect on the others.

    Args:
        ops: one bound copy for each concurrent call.
        loop: the engine's loop.
        options: the endpoints and the model.
        conf: the contents of the op's ``client_config``.
        outgoing: makes further header fields of a batch's call, as a header block.
        store: the external store, if values of the op may stay there; its batches have one request.

    Attributes:
        store_counts: what is done with it; None without it.
    """

    def __init__(
        self,
        ops: Sequence[BoundOp],
        loop: asyncio.AbstractEventLoop,
        options: RemoteOptions,
        conf: ModelConf | None,
        outgoing: Outgoing,
        store: StoreOptions | None = None,
    ) -> None:
        super().__init__(ops, loop)
        self._store = store
        self._side: EngineStore | None = None
        self._stored: StoredModel | None = None
        self.store_counts: StoreCounts | None = None
        self._outgoing = outgoing
        self._options = options
        self._conf = conf
        self._tensors = ops[0].op.pack_tensor_format
        self._channel: AsyncChannel | None = None

    async def start(self) -> None:
        """Begin to connect; an unreachable endpoint does not fail the start of the service.

        Raises:
            ModelError: there is no valid token.
            OSError: a file of certificates cannot be read.
        """
        options = self._options
        channel = AsyncChannel(
            options.endpoints,
            options.tls,
            rounding=floor,
            on_health=self._log_health,
            protocol=baidu_std() if options.kind == "general_model" else GRPC,
            token=None if options.token is None else token_at(options.token),
        )
        calls: CallsMethods = channel
        if len(options.endpoints) > 1:
            calls = RoutedChannel(channel)
        self._called: RemoteModel | RemoteGeneralModel | RemotePipeline
        if options.kind == "model":
            self._called = RemoteModel(options, self._conf, calls)
        elif options.kind == "general_model":
            self._called = RemoteGeneralModel(options, self._conf, calls)
        else:
            address = channel.own_address()
            self._called = RemotePipeline(options, calls, address, tensors=self._tensors)
        if self._store is not None and isinstance(self._called, RemoteModel):
            self._use_store(self._store, self._called, calls)
        channel.probe()
        self._channel = channel

    def _use_store(self, options: StoreOptions, model: RemoteModel, calls: CallsMethods) -> None:
        from penstock.executors.external_store.engine import EngineStore
        from penstock.executors.external_store.remote import StoredModel

        self._side = EngineStore(options, self._name)
        self._stored = StoredModel(model, calls, self._side, options, self._name)
        self.store_counts = self._side.counts
        self._side.start()

    async def close(self, timeout: float) -> bool:
        """Wait for the calls, then disconnect."""
        ended = await super().close(timeout)
        if self._channel is not None:
            await self._channel.close()
        if self._stored is not None:
            self._stored.close()
        if self._side is not None:
            await self._side.close()
        return ended

    def _log_health(self, endpoint: Endpoint, problem: str | None) -> None:
        if problem is None:
            _log.info("op %s: %s is available again", self._name, endpoint)
        else:
            _log.warning("op %s: %s is skipped for a while: %s", self._name, endpoint, problem)

    async def _call(self, op: BoundOp, batch: Batch, feed_batch: list[Feed], log_id: int) -> Answer:
        deadline = max(each.deadline for each in batch.samples)
        if op.options.timeout is not None:
            deadline = min(deadline, time.monotonic() + op.options.timeout)
        try:
            fields = self._outgoing(batch)
            if self._stored is not None:
                sample, feed = batch.samples[0], feed_batch[0]
                return await self._stored.run(sample, feed, None, deadline, log_id, fields)
            return await self._called.run(feed_batch[0], None, deadline, log_id, fields)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except HOOK_FAULTS as error:
            return process_raised(op.name, error, log_id, op.label)
