"""Penstock with the graph ``--graph``: a few ops as users write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.bodies import LARGE_BYTES
from benchmarks.graphs import GRAPHS, crops_of, text_of
from benchmarks.servers.options import server_options
from penstock import Op, WebService
from penstock.instrument import Instruments
from penstock.service import build

ARRAY = np.ones(LARGE_BYTES // 4, np.float32)  # zeros have no memory until they are written to
PADDED_TO = 32
"""Token lists are padded to a multiple of this, so that lists of like lengths run together."""


class EchoOp(Op):
    """Returns its input."""

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> dict[str, Any]:
        return feed_batch[0]


class ComputeOp(Op):
    """Pure Python: adds numbers, one by one."""

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> dict[str, Any]:
        total = 0
        for number in range(options.steps):
            total += number & 7
        return {**feed_batch[0], "sum": str(total)}


class PassOp(Op):
    """Passes on a large array; the first op creates it, the last one returns its size."""

    is_first = is_last = False

    def process(self, feed_batch: list[dict[str, Any]], typical_logid: int = 0) -> dict[str, Any]:
        array = ARRAY if self.is_first else feed_batch[0]["array"]
        return {"bytes": str(array.nbytes)} if self.is_last else {"array": array}


class MeanOp(Op):
    """The mean of its predecessors' predictions."""

    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        a, b = input_dicts.values()
        return {"scores": (a["scores"] + b["scores"]) / 2}


class DetectOp(Op):
    """A picture to the crops in which the detector finds texts."""

    def postprocess(
        self, input_data: Any, fetch_data: dict[str, Any], data_id: int = 0, log_id: int = 0
    ) -> Any:
        (given,) = input_data.values()
        return {"crop": crops_of(given["picture"][0], fetch_data["places"][0])}


class RecogniseOp(Op):
    """Crops to a text."""

    def postprocess(
        self, input_data: Any, fetch_data: dict[str, Any], data_id: int = 0, log_id: int = 0
    ) -> Any:
        return {"text": text_of(fetch_data["letter"])}


class ReadOp(Op):
    """Pads a list of tokens with zeros to one of the lengths that are batched together."""

    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        (given,) = input_dicts.values()
        tokens = given["tokens"]
        row = np.zeros((1, -(-len(tokens) // PADDED_TO) * PADDED_TO), np.int64)
        row[0, : len(tokens)] = tokens
        return {"tokens": row}


def ops_in_a_row(kind: type[Op], request: Op) -> list[Op]:
    """``--ops`` ops in sequence."""
    made = [request]
    for number in range(options.ops):
        made.append(kind(name=f"op{number}", input_ops=[made[-1]]))
    return made[1:]


def model_ops(request: Op) -> list[Op]:
    """The ops that run models, in the order of the graph's models."""
    if options.graph == "ensemble":
        return [Op(name="a", input_ops=[request]), Op(name="b", input_ops=[request])]
    if options.graph == "texts":
        detect = DetectOp(name="detect", input_ops=[request])
        return [detect, RecogniseOp(name="recognise", input_ops=[detect])]
    kind = ReadOp if options.graph == "ragged" else Op
    return [kind(name="model", input_ops=[request])]


class Service(WebService):
    """One of the graphs."""

    def get_pipeline_response(self, read_op: Op) -> Op:
        if options.graph in GRAPHS:
            ops = model_ops(read_op)
            return MeanOp(name="mean", input_ops=ops) if options.graph == "ensemble" else ops[-1]
        ops = ops_in_a_row(
            {"echo": EchoOp, "compute": ComputeOp, "arrays": PassOp}[options.graph], read_op
        )
        if options.graph == "arrays":
            for number, op in enumerate(ops):
                op.is_first, op.is_last = number == 0, number == len(ops) - 1  # type: ignore[attr-defined]
        return ops[-1]


def entries() -> dict[str, dict[str, Any]]:
    """The configuration of each op."""
    if options.graph in GRAPHS:
        names = [op.name for op in model_ops(Op(name="request"))]
        return {name: options.model(number) for number, name in enumerate(names)}
    return {f"op{number}": {} for number in range(options.ops)}


def install_none() -> None:
    """Remove the default instruments, which no configuration key can."""
    vars(build)["Instruments"] = lambda *_: Instruments()


if __name__ == "__main__":
    options = server_options()
    if options.instruments == "none":
        install_none()
    service = Service(name="bench")
    service.prepare_pipeline_config(yml_dict=options.config(entries()))
    service.run_service()
