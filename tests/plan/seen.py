"""The report of a simulated service: its status before and after, a trace."""

from __future__ import annotations

from typing import Any

from penstock.plan.costs import Costs
from penstock.plan.recording import KEY, Load, step_of
from penstock.plan.simulation import simulate

OTHERS = 0.0


def status(costs: Costs) -> dict[str, Any]:
    """The status of a service before its first request."""
    ops: list[dict[str, Any]] = []
    for op in costs.ops:
        cpu = {"process": "process", "thread": "threads"}.get(op.place)
        ops.append(
            {
                "name": op.name,
                "inputs": [*op.inputs],
                "workers": op.workers * costs.engines,
                "batching": {"batch_size": op.batch_size, "window": op.window},
                "batches": 0,
                "samples": 0,
                "waiting": 0,
                "rows": {"sum": 0},
                "queue": {"sum": 0.0},
                "seconds": {"preprocess": 0.0, "process": 0.0, "postprocess": 0.0},
                **({} if cpu is None else {cpu: {"cpu": 0.0}}),
            }
        )
    return {
        "engines": costs.engines,
        "most_running": costs.most_running,
        "requests": {"answered": 0},
        "process": {"cpu": 0.0, "loop": 0.0},
        "graphs": [{"name": "g", "version": "1", "ops": ops}],
    }


def step(costs: Costs, in_flight: int) -> dict[str, Any]:
    """Simulate clients in a closed loop, and return the service's report."""
    found = simulate(costs, in_flight=in_flight, requests=2000)
    answered = len(found.latencies)
    seconds = answered / found.rate
    after = status(costs)
    after["requests"]["answered"] = answered
    after["process"]["loop"] = whole = costs.engine * answered
    for op, now in zip(costs.ops, after["graphs"][0]["ops"], strict=True):
        size = found.ops[op.name].batch
        now["samples"] = now["rows"]["sum"] = answered
        now["batches"] = batches = round(answered / size)
        cpu = op.cpu.of(size) * batches
        now["seconds"]["process"] = cpu / op.threads + op.wait.of(size) * batches
        now["queue"]["sum"] = found.ops[op.name].queue * answered
        for key in ("process", "threads"):
            if key in now:
                now[key]["cpu"] = cpu
        if "threads" in now:
            whole += cpu
    after["process"]["cpu"] = whole
    load = Load(
        in_flight=in_flight,
        rate=found.rate,
        mean=found.mean,
        p95=found.quantile(0.95),
        client=costs.client,
    )
    busy = found.cores * seconds + OTHERS
    return step_of(
        status(costs), after, seconds=seconds, cores=round(costs.cores), busy=busy, load=load
    )


def recording(costs: Costs, *levels: int) -> dict[str, Any]:
    """The recording of a measuring run."""
    return {KEY: {"steps": [step(costs, each) for each in levels]}}
