"""Recommends settings, with the terms of the pipeline's document. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from penstock.plan.calibration import changed
from penstock.plan.costs import Costs, OpCosts
from penstock.plan.prediction import Bound, Forecast, bounds, needed, per_second

SPARE: Final = 0.8
"""Maximum utilization of a limit at the planned rate; a rule of thumb."""

_CHANNEL: Final = 5
"""Length of a queue above which, in the document's words, In/Out is the bottleneck."""
_MOST_CHANGES: Final = 32
_STAGES: Final = ("preprocess", "process", "postprocess")
_MORE: Final = "more concurrency"
_REMEDIES: Final = {
    "preprocess": f"{_MORE}, better code",
    "process": f"{_MORE}, auto-batching (inputs of the same shapes), mini-batches (very large"
    " inputs), low precision, MKLDNN on CPUs, TensorRT on cards",
    "postprocess": f"{_MORE}, better code",
}


def improved(costs: Costs, rate: float) -> tuple[Costs, list[str]]:
    """Return costs with settings that sustain ``rate`` requests per second, if settings can, and
    the reason of each change.
    """
    why: list[str] = []
    for _ in range(_MOST_CHANGES):
        narrow = bounds(costs)[0]
        if narrow.rate * SPARE >= rate:
            break
        found = _change(costs, narrow, rate)
        if found is None:
            break
        changes, reason = found
        costs = changed(costs, changes)
        why.append(reason)
    return costs, why


def _change(
    costs: Costs, narrow: Bound, rate: float
) -> tuple[dict[str, dict[str, Any]], str] | None:
    if narrow.kind == "op":
        op = costs.op(narrow.op)
        busy = needed(op, rate, op.batch_size)
        workers = max(op.workers + 1, math.ceil(busy / SPARE / costs.engines))
        reason = (
            f"op_concurrency of {op.name} at {rate:g}/s is {busy:.2f}: {workers} workers in place"
            f" of {op.workers}, so that at most {100 * SPARE:.0f} % are busy"
        )
        return {op.name: {"workers": workers}}, reason
    if narrow.kind == "lock":
        inside = [op for op in costs.ops if op.place == "thread"]
        op = max(inside, key=lambda each: each.cpu.of(1))
        reason = (
            f"{op.name} computes the most under Python's lock: processes have locks of their own"
        )
        return {op.name: {"place": "process"}}, reason
    if narrow.kind == "loop" and costs.engines < math.floor(costs.cores):
        engines = math.floor(costs.cores)
        reason = f"one loop is not enough: {engines} engines"
        return {"": {"engines": engines, "most_running": None}}, reason
    if narrow.kind == "worker_num" and costs.most_running is not None:
        most = math.ceil(costs.most_running * rate / SPARE / narrow.rate)
        reason = f"worker_num lets {costs.most_running} requests in at a time: {most}"
        return {"": {"most_running": max(most, costs.most_running + 1)}}, reason
    return None  # the cores


def advice(costs: Costs, forecast: Forecast) -> list[str]:
    """Return advice about the bottleneck beyond settings."""
    narrow = bounds(costs)[0]
    found = []
    if narrow.kind == "op":
        found += _of_op(costs.op(narrow.op))
    elif narrow.kind in ("cores", "lock"):
        op = max(costs.ops, key=lambda each: each.cpu.of(each.batch_size) / each.batch_size)
        found.append(
            _in_words(f"{_MORE} does not help", op)
            + f" where {narrow} are the limit: {op.name} takes the most of the CPU time,"
            f" {1000 * op.cpu.of(1):.2f} ms a request"
        )
        found += _of_op(op)
        if narrow.kind == "cores" and costs.client > 0:
            alone = bounds(replace(costs, client=0.0))[0]
            found.append(
                f"the client takes {1e6 * costs.client:.0f} us of CPU a request: elsewhere, the"
                f" limit would be {per_second(alone.rate)}/s"
            )
    more = _in_words(_MORE, costs.ops[0])
    for op in costs.ops:
        load = forecast.simulated and forecast.simulated.ops[op.name]
        if load and load.waiting > _CHANNEL and forecast.wished is not None:
            found.append(
                f"{load.waiting:.0f} requests wait before {op.name}, more than {_CHANNEL}: {more}"
                " there, or less of it before; send less data, or compress it"
            )
    return found


def _in_words(text: str, op: OpCosts) -> str:
    """Return a text in the words of the short form, if these are the op's."""
    if not op.given_by:
        return text
    text = text.replace(f"{_MORE} does", "more workers do").replace(_MORE, "more workers")
    return text.replace("auto-batching", "batches")


def _of_op(op: OpCosts) -> list[str]:
    stage = max(zip(op.stages, _STAGES, strict=True))[1]
    whole = sum(op.stages)
    share = 100 * max(op.stages) / whole if whole else 0.0
    found = [f"{stage} is {share:.0f} % of op_cost of {op.name}: {_in_words(_REMEDIES[stage], op)}"]
    if op.cpu.base + op.wait.base > 0.05 * op.cost():
        size = max(8, 2 * op.batch_size)
        found.append(
            f"a batch of {size} costs {1000 * op.cost(size) / size:.2f} ms a request at {op.name},"
            f" one alone {1000 * op.cost():.2f} ms (avg_batch_cost)"
        )
    return found
