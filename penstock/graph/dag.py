"""Checks a graph of ops and compiles it into a Plan, which the flight of each request follows.

A graph is legal if it is acyclic, has one root (the request), one last op, at least one op, and
unique op names. Pure: it works on OpSpecs, not on the ops themselves.
Source: ``docs/compatibility.md`` (legal graphs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from penstock.errors import GraphError
from penstock.request import REQUEST_OP_NAME

REQUEST = -1
"""Stands for the request where an op's index is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """The properties of an op that the graph needs.

    Attributes:
        key: identifies the op, independent of its name.
        name: the op's public name.
        inputs: keys of its predecessors, in the order in which the user gave them.
        is_request: True for the root.
        jump_to: keys of the ops that it may jump over.
    """

    key: int
    name: str
    inputs: tuple[int, ...] = ()
    is_request: bool = False
    jump_to: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A checked graph. Ops are numbered in an order in which every op follows its inputs.

    Attributes:
        names: op names by index.
        inputs: per op, the indices of its predecessors (``REQUEST`` for the request).
        consumers: per op, the indices of its successors.
        entry: the ops that read the request.
        last: the op whose output is the reply.
        jump_to: per op, the indices of the ops it may jump over.
        attempts: how often the whole graph may run for one request (``dag.retry``).
        first_arrival: an op with several inputs runs on the first that arrives instead of waiting
            for all of them.
        plain: no op jumps, and every op waits for all its inputs.
        only: per op, the index of its single consumer if that consumer has no other input, so that
            nothing has to be joined; else None. The last entry (index ``REQUEST``) is that of the
            request.
        straight: the same as ``only[REQUEST]``, but None if the graph may run more than once. If it
            is set, the engine puts a request there directly and never asks its flight to begin.
    """

    names: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    consumers: tuple[tuple[int, ...], ...]
    entry: tuple[int, ...]
    last: int
    jump_to: tuple[tuple[int, ...], ...]
    only: tuple[int | None, ...]
    straight: int | None = None
    attempts: int = 1
    first_arrival: bool = False
    plain: bool = True


def compile_graph(
    specs: Sequence[OpSpec], last: int, *, attempts: int = 1, first_arrival: bool = False
) -> Plan:
    """Check the ops and number them.

    Args:
        specs: every op that reaches the end, the request among them, in any order.
        last: key of the op that feeds the reply.
        attempts: see Plan.
        first_arrival: see Plan.

    Raises:
        GraphError: names the op and says how to mend it.
    """
    by_key = {spec.key: spec for spec in specs}
    ops = [spec for spec in specs if not spec.is_request]
    _check_names(ops)
    _check_roots(specs, ops)
    order = _sort(ops, by_key)
    index = {spec.key: position for position, spec in enumerate(order)}
    index.update({spec.key: REQUEST for spec in specs if spec.is_request})
    inputs = tuple(tuple(index[key] for key in spec.inputs) for spec in order)
    consumers = tuple(
        tuple(i for i, mine in enumerate(inputs) if position in mine)
        for position in range(len(order))
    )
    jump_to = tuple(_jumps(spec, index, consumers, order) for spec in order)
    entry = tuple(i for i, mine in enumerate(inputs) if REQUEST in mine)
    plain = not first_arrival and not any(jump_to)
    only = tuple(
        mine[0] if plain and len(mine) == 1 and len(inputs[mine[0]]) == 1 else None
        for mine in (*consumers, entry)
    )
    return Plan(
        names=tuple(spec.name for spec in order),
        inputs=inputs,
        consumers=consumers,
        entry=entry,
        last=index[last],
        jump_to=jump_to,
        only=only,
        straight=only[REQUEST] if attempts == 1 else None,
        attempts=attempts,
        first_arrival=first_arrival,
        plain=plain,
    )


def _check_names(ops: list[OpSpec]) -> None:
    if not ops:
        raise GraphError(
            "the graph has no op: put at least one op between the RequestOp and the ResponseOp"
        )
    for name, count in Counter(spec.name for spec in ops).items():
        if count > 1:
            raise GraphError(f"{count} ops are named {name!r}: give each op a name of its own")
        if name == REQUEST_OP_NAME:
            raise GraphError(f"an op is named {name!r}, which is the request's name: rename it")


def _check_roots(specs: Sequence[OpSpec], ops: list[OpSpec]) -> None:
    requests = [spec for spec in specs if spec.is_request]
    if len(requests) > 1:
        readers = " and ".join(
            ", ".join(repr(spec.name) for spec in ops if request.key in spec.inputs)
            for request in requests
        )
        raise GraphError(
            f"the graph has several RequestOps, read by {readers}: let all ops read the same one"
        )
    for spec in ops:
        if not spec.inputs:
            raise GraphError(
                f"op {spec.name!r} has no input: give it input_ops=[...], or the RequestOp itself"
            )
        if len(set(spec.inputs)) != len(spec.inputs):
            raise GraphError(f"op {spec.name!r} names the same input op twice: name it once")


def _sort(ops: list[OpSpec], by_key: dict[int, OpSpec]) -> list[OpSpec]:
    """Stable topological sort."""
    sorter = TopologicalSorter({spec.key: spec.inputs for spec in ops})
    try:
        sorter.prepare()
    except CycleError as error:
        ring = " <- ".join(repr(by_key[key].name) for key in reversed(error.args[1]))
        raise GraphError(
            f"the graph has a cycle through {ring}: remove one of its edges"
        ) from error
    order: list[OpSpec] = []
    while sorter.is_active():
        ready = sorter.get_ready()
        order += [spec for spec in ops if spec.key in ready]
        sorter.done(*ready)
    return order


def _jumps(
    spec: OpSpec,
    index: dict[int, int],
    consumers: tuple[tuple[int, ...], ...],
    order: list[OpSpec],
) -> tuple[int, ...]:
    downstream: set[int] = set()
    frontier = list(consumers[index[spec.key]])
    while frontier:
        op = frontier.pop()
        if op not in downstream:
            downstream.add(op)
            frontier.extend(consumers[op])
    targets = []
    for key in spec.jump_to:
        target = index.get(key)
        if target is None or target not in downstream:
            name = "an op outside the graph" if target is None else repr(order[target].name)
            raise GraphError(
                f"op {spec.name!r} jumps over {name}, which does not come after it: "
                f"jump_to_ops may only name ops downstream"
            )
        targets.append(target)
    return tuple(targets)
