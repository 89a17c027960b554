"""Warnings about configurations that are valid but suspicious, logged once at the start."""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from penstock.config.op import OpConfig
from penstock.config.problems import Problem
from penstock.config.resolve import OpOptions
from penstock.config.schema import ServiceConfig
from penstock.door.budget import default_budget, largest_body
from penstock.observe.metrics import MULTIPROCESS, own_metrics
from penstock.ops.ends import RequestOp, ResponseOp
from penstock.ops.functions import may_be_coroutine, runs_on_loop
from penstock.ops.hooks import overrides
from penstock.ops.op import Op
from penstock.service.graph import Graph

HOOKS: Final[dict[type[Op], tuple[str, ...]]] = {
    RequestOp: ("unpack_request_package", "init_op"),
    Op: ("preprocess", "process", "postprocess", "check_jumping", "init_op"),
    ResponseOp: ("pack_response_package", "init_op"),
}
"""The hooks that users override, by base class."""

_NEAR: Final = (
    0.85  # similarity of two names by difflib; matches a missing letter, not "process_image"
)


def config_warnings(graph: Graph, options: Sequence[OpOptions], config: ServiceConfig) -> list[str]:
    """The warnings, as texts.

    Args:
        graph: the checked graph.
        options: each op's options, in the order of the graph's ops.
        config: shows which of them are configured.
    """
    found = [
        f"op {name!r} does not reach the ResponseOp and is not part of the graph"
        for name in graph.left_out
    ]
    found += [
        f"op {op.name!r} has several inputs but no preprocess of its own: "
        f"every request will fail there"
        for op in graph.ops
        if len(op.get_input_ops()) > 1 and not overrides(op, "preprocess", Op)
    ]
    found += [
        f"op.{name}: the graph has no such op, and the entry no effect; {_meant(name, graph)}"
        for name in _unknown_ops(graph, config)
    ]
    for op in (graph.request_op, *graph.ops, graph.response_op):
        found += _misspelt_hooks(op)
    found += _about_engines(config)
    found += _about_own_metrics(options, config)
    for op, each in zip(graph.ops, options, strict=True):
        found += _without_effect(op, each, config.op.get(op.name, OpConfig()))
        found += () if op.given is None else op.given.hints
    return found


def unknown_ops_of_flags(
    graph: Graph, config: ServiceConfig, others: Container[str] = ()
) -> list[Problem]:
    """Problems of flags and variables for ops that exist neither in the graph nor in ``others``.
    Entries of a file are accepted: it may configure several services.
    """
    return [
        Problem(
            path=("op", name, *key.split(".")), text=f"there is no such op; {_meant(name, graph)}"
        )
        for name in _unknown_ops(graph, config)
        if name not in others
        for key in sorted(config.op[name].forced)
    ]


def _unknown_ops(graph: Graph, config: ServiceConfig) -> list[str]:
    known = {op.name for op in graph.ops} | set(graph.left_out)
    return [name for name in config.op if name not in known]


def _meant(name: str, graph: Graph) -> str:
    names = [op.name for op in graph.ops]
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"the ops are {', '.join(names)}"


def _misspelt_hooks(op: Op) -> Iterator[str]:
    """Methods that are never called, with names similar to a hook that the op does not override."""
    base = next(each for each in (RequestOp, ResponseOp, Op) if isinstance(op, each))
    hooks = [each for each in HOOKS[base] if not overrides(op, each, base)]
    for kind in type(op).__mro__:
        if kind.__module__.split(".")[0] == "penstock":
            return
        for name, value in vars(kind).items():
            near = get_close_matches(name, hooks, n=1, cutoff=_NEAR)
            if near and callable(value) and not hasattr(base, name):
                yield (
                    f"op {op.name!r} has a method {name!r}, which nothing calls: "
                    f"did you mean {near[0]}?"
                )


def _about_engines(config: ServiceConfig) -> Iterator[str]:
    if config.build_dag_each_worker and config.worker_num is None:
        yield "build_dag_each_worker is true without worker_num: there will be one engine"
    most = config.max_inflight_bytes or default_budget()
    largest = largest_body(most // config.engines)
    if largest < config.max_message_bytes:
        share = "" if config.engines == 1 else f", divided among {config.engines} engines,"
        yield (
            f"max_inflight_bytes, {most}{share} does not allow requests above {largest} bytes, as "
            f"one takes three times its size while it is decoded: they will always be refused, "
            f"though max_message_bytes, {config.max_message_bytes}, allows them"
        )


def _about_own_metrics(options: Sequence[OpOptions], config: ServiceConfig) -> Iterator[str]:
    several = config.build_dag_each_worker or any(each.executor.own_processes for each in options)
    # A service that has not imported the library has no metrics of its own.
    if not several or "prometheus_client" not in sys.modules or MULTIPROCESS in os.environ:
        return
    if own := own_metrics():
        yield (
            f"the service has metrics of its own, such as {own[0].name!r}, in several processes:"
            f" /metrics has those of one engine only, unless the variable {MULTIPROCESS} names an"
            f" empty folder before the start"
        )


def _without_effect(op: Op, options: OpOptions, entry: OpConfig) -> Iterator[str]:
    window = op.auto_batching_timeout or entry.auto_batching_timeout_ms
    if window is not None and window > 0 and options.batch_size == 1:
        yield (
            f"op {op.name!r} has a {op.word('batch_size')} of 1: "
            f"its {op.word('auto_batching_timeout')} of {window:g} ms has no effect"
        )
    if options.rows is not None and (overrides(op, "process", Op) or options.remote is not None):
        yield (
            f"op {op.name!r} runs no model here, and its batches are joined on the first axes:"
            f" rows has no effect"
        )
    if runs_on_loop(op.process) and not options.executor.needs_socket:
        if entry.executor is not None:
            yield (
                f"op {op.name!r} is a coroutine, which runs on the loop: "
                f"its executor {entry.executor!r} has no effect"
            )
        return
    if options.cpus and not options.executor.own_processes:
        yield (
            f"op {op.name!r} runs in this process and not in its own: "
            f"its cpu_affinity has no effect"
        )
    if options.executor.one_worker and options.concurrency > 1:
        yield (
            f"op {op.name!r} runs {options.executor.name}, where there is one worker: "
            f"its {op.word('concurrency')} of {options.concurrency} has no effect"
        )
    if options.executor.needs_socket and options.concurrency > 1:
        yield (
            f"op {op.name!r} runs in external workers, as many as connect:"
            f" its {op.word('concurrency')} of {options.concurrency} has no effect"
        )
    if may_be_coroutine(op.hook_function("process")):
        yield (
            f"op {op.name!r} is a coroutine inside a plain function, and runs like the latter: "
            f"unless that one runs the coroutine itself, write async def there, too"
        )
