"""A service without ports: the real graph, engine and workers, called directly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from penstock.api.pipeline import PipelineProtocol
from penstock.config.load import Loaded, load
from penstock.engine.engine import Engine
from penstock.errors import RequestError
from penstock.ops.ends import RequestOp, ResponseOp
from penstock.ops.op import Op
from penstock.protocols import paddle, pb, tensors
from penstock.service.blueprint import Blueprint, deploy, draw_blueprint
from penstock.service.build import LoadedDeployment
from penstock.service.daemon_pool import DaemonPool
from penstock.service.server import constructed_by


def loaded_config(
    config: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
    end: ResponseOp | None = None,
) -> Loaded:
    """A checked configuration of the graph."""
    return load(
        yml_dict={"rpc_port": 0, **(config or {})},
        overrides=flags,
        constructors=constructed_by(end),
        environ={},
    )


def blueprint_of(
    last: Op | ResponseOp,
    config: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Blueprint:
    """The checked service whose last op this is."""
    end = last if isinstance(last, ResponseOp) else ResponseOp(input_ops=[last])
    return draw_blueprint(end, loaded_config(config, flags, end), name)


class InProcessService:
    """A running service."""

    def __init__(
        self, protocol: PipelineProtocol, engine: Engine, loaded: LoadedDeployment
    ) -> None:
        self.protocol = protocol
        self.engine = engine
        self.loaded = loaded

    async def call(self, log_id: int = 0, **feed: Any) -> paddle.Reply | pb.Response:
        """Sends texts and arrays as one request; returns the reply."""
        texts = {key: value for key, value in feed.items() if isinstance(value, str)}
        arrays = [
            tensors.encode(key, value)
            for key, value in feed.items()
            if isinstance(value, np.ndarray)
        ]
        assert len(texts) + len(arrays) == len(feed), "texts and arrays only"
        call = paddle.Call(list(texts), list(texts.values()), arrays, logid=log_id)
        return await reply_to(self.protocol, call)


class _Futures:
    """The callbacks for replies; each call is identified by its future."""

    def write(self, _names: Any, _texts: Any, /) -> None:
        return None

    def encode(self, reply: Any, /) -> Any:
        return reply

    def reserve(self, _future: Any, _size: int, /) -> None:
        return None

    def done(self, future: Any, reply: Any, error: RequestError | None, /) -> None:
        if not future.done():
            future.set_result(reply) if error is None else future.set_exception(error)


async def reply_to(
    protocol: PipelineProtocol, call: paddle.Call, timeout: float | None = None
) -> Any:
    """The reply to a call. Cancelling the task cancels the call."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    drop = protocol.start(call, timeout, _Futures(), future)
    try:
        return await future
    except asyncio.CancelledError:
        if drop is not None:
            drop()
        raise


@asynccontextmanager
async def service_of(
    last: Op | ResponseOp,
    config: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> AsyncIterator[InProcessService]:
    """Runs the service whose last op this is."""
    loaded = LoadedDeployment(deploy([blueprint_of(last, config, flags)]))
    engine = loaded.engine(asyncio.get_running_loop())
    pool: Any = DaemonPool(4, "ends")
    try:
        yield InProcessService(PipelineProtocol(engine, pool=pool), engine, loaded)
    finally:
        engine.close()
        pool.shutdown(wait=True)
        for stage in engine.stages:
            assert await stage.executor.close(5.0)


def pairs(reply: paddle.Reply | pb.Response) -> dict[str, str]:
    """The pairs of a reply, which must not be an error."""
    assert reply.err_no == 0, reply.err_msg
    return dict(zip(reply.key, reply.value, strict=True))


def root() -> RequestOp:
    """A new request op."""
    return RequestOp()
