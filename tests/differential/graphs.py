"""Graphs of simple ops, built as a service builds them, and run without ports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.engine.submission import Submission
from penstock.ops.ends import RequestOp, ResponseOp
from penstock.ops.op import Op
from penstock.request import Feed, Outcome
from penstock.service.blueprint import deploy
from penstock.service.build import LoadedDeployment
from penstock.service.server import PipelineServer


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """One op of a random graph.

    Attributes:
        kind: its behaviour, see ``Step``.
        inputs: numbers of the ops before it, smaller than its own; -1 is the request.
        factor: by which it multiplies its input.
        bad: rows whose sum is a multiple of this number are bad rows; with 0 there are none.
    """

    kind: str
    inputs: tuple[int, ...]
    factor: int
    bad: int = 0


KINDS = ("scales", "scales", "raises", "skips", "splits", "refuses", "shares")


class Step(Op):
    """Adds its inputs' ``x`` and multiplies the sum; its kind adds to that. It works row by row."""

    shared_outputs = ("name_of_it",)

    def __init__(self, name: str, spec: StepSpec, inputs: Sequence[Op]) -> None:
        super().__init__(name=name, input_ops=list(inputs))
        self.spec = spec

    def preprocess(self, input_dicts: dict[str, Feed], data_id: int = 0, log_id: int = 0) -> Any:
        x = sum(feed["x"] for feed in input_dicts.values())
        assert isinstance(x, np.ndarray)
        match self.spec.kind:
            case "skips" if self.bad_rows(x).any():
                return {"x": -x}, True, None, ""
            case "refuses" if self.bad_rows(x).any():
                return {}, False, 51, f"{int(x.sum())} is refused"
            case "splits":
                return [{"x": row[None]} for row in x]
        return {"x": x}

    def process(self, feed_batch: list[Feed], typical_logid: int = 0) -> Any:
        x = feed_batch[0]["x"]
        if self.spec.kind == "raises" and self.bad_rows(x).any():
            raise ValueError("a row is not to my taste")
        result: Feed = {"x": x * self.spec.factor + 1}
        if self.spec.kind == "shares":
            result["name_of_it"] = self.name
        return result

    def postprocess(
        self, input_data: dict[str, Feed], fetch_data: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        if isinstance(fetch_data, list):
            return {"x": np.concatenate([piece["x"] for piece in fetch_data])}
        return fetch_data

    def bad_rows(self, x: Any) -> Any:
        totals = x.reshape(len(x), -1).sum(axis=1).astype(np.int64)
        return (totals % self.spec.bad == 0) if self.spec.bad else np.zeros(len(x), bool)


class AsyncStep(Step):
    async def process(  # type: ignore[override]
        self, feed_batch: list[Feed], typical_logid: int = 0
    ) -> Any:
        await asyncio.sleep(0)
        return super().process(feed_batch, typical_logid)


def loaded_of(
    specs: Sequence[StepSpec], executor: str, batch_size: int, policy: str = "learned"
) -> LoadedDeployment:
    """The opened graph; the last op's output is the reply.

    Args:
        specs: the ops in order.
        executor: ``inline``, ``thread`` or ``coroutine``.
        batch_size: of every op.
        policy: of every op.
    """
    request = RequestOp()
    kind = AsyncStep if executor == "coroutine" else Step
    ops: list[Op] = []
    for number, spec in enumerate(specs):
        ops.append(kind(f"op{number}", spec, [ops[i] if i >= 0 else request for i in spec.inputs]))
    options: dict[str, Any] = {"batch_size": batch_size, "policy": policy}
    if executor != "coroutine":
        options["executor"] = executor
    if executor != "inline":
        options["concurrency"] = 2
    return loaded_from(ops, options)


def loaded_from(ops: Sequence[Op], options: dict[str, Any]) -> LoadedDeployment:
    """The opened graph that ends in the last of these ops, all with the same options."""
    server = PipelineServer()
    server.set_response_op(ResponseOp(input_ops=[ops[-1]]))
    server.prepare_server(yml_dict={"rpc_port": 0, "op": {op.name: options for op in ops}})
    return LoadedDeployment(deploy([server.blueprint()]))


def answers(loaded: LoadedDeployment, feeds: Sequence[Feed]) -> list[Outcome]:
    """The outcomes of these requests, submitted concurrently."""

    async def submit_all() -> list[Outcome]:
        loop = asyncio.get_running_loop()
        engine = loaded.engine(loop)
        futures: list[asyncio.Future[Outcome]] = []
        for number, feed in enumerate(feeds):
            answer: asyncio.Future[Outcome] = loop.create_future()
            futures.append(answer)
            submission = Submission(engine.graphs[0], dict(feed), log_id=number, context=answer)
            submission.start(lambda finished, outcome: finished.context.set_result(outcome))
        try:
            return list(await asyncio.gather(*futures))
        finally:
            engine.close()
            for stage in engine.stages:
                assert await stage.executor.close(5.0)

    return asyncio.run(submit_all())


def comparable(value: Any) -> Any:
    """A form of a value that compares equal only to a bitwise equal one."""
    if isinstance(value, Outcome):
        if value.error is not None:
            return type(value.error).__name__, str(value.error)
        return comparable(value.value)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(each) for each in value]
    return value
