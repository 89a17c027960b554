"""Checks a graph of ops and compiles it into a Plan that a flight can walk.

Any directed acyclic graph is legal that has one root (the request), one end, unique names and at
least one op in between: fan-out, fan-in, diamonds and edges that skip levels. Pure: it sees
OpSpecs, never the ops themselves. Source: ``docs/compatibility.md`` (legal graphs, channel names).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import GraphError
from penstock.request import REQUEST_OP_NAME

REQUEST = -1
"""Stands for the request where an op's index is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """What the graph needs to know of an op.

    Attributes:
        key: tells ops apart whatever their names are.
        name: the op's public name.
        inputs: keys of its predecessors, in the order the user gave them.
        is_request: True for the root.
        jump_to: keys of the ops that it may jump over.
    """

    key: int
    name: str
    inputs: tuple[int, ...] = ()
    is_request: bool = False
    jump_to: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec:
    """A named edge bundle: these producers feed these consumers."""

    name: str
    producers: tuple[str, ...]
    consumers: tuple[str, ...]


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
        channels: the edges as the original groups and names them.
        attempts: how often the whole graph may run for one request (``dag.retry``).
        first_arrival: a join passes with the first delivery instead of waiting for all.
        plain: no op jumps and every join waits for all.
        only: per op, and at the end (index ``REQUEST``) for the request: its one consumer, when
            that consumer reads nothing else, so that there is nothing to join; else None.
        straight: the op that ``only`` has for the request, where the graph runs once: a flight
            need not be asked how it begins.
    """

    names: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    consumers: tuple[tuple[int, ...], ...]
    entry: tuple[int, ...]
    last: int
    jump_to: tuple[tuple[int, ...], ...]
    channels: tuple[ChannelSpec, ...]
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
        channels=_channels(order, inputs, consumers, index[last]),
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
    """Topological order (Kahn); of ops that could come next, the one named first."""
    placed = {key for key, spec in by_key.items() if spec.is_request}
    left = list(ops)
    order: list[OpSpec] = []
    while left:
        ready = [spec for spec in left if placed.issuperset(spec.inputs)]
        if not ready:
            raise GraphError(
                f"the graph has a cycle through {_cycle(left, by_key)}: remove one of its edges"
            )
        order.extend(ready)
        placed.update(spec.key for spec in ready)
        left = [spec for spec in left if spec.key not in placed]
    return order


def _cycle(left: list[OpSpec], by_key: dict[int, OpSpec]) -> str:
    """Walk backwards among unplaced ops until one repeats; each has an unplaced input."""
    unplaced = {spec.key for spec in left}
    path: list[int] = []
    key = left[0].key
    while key not in path:
        path.append(key)
        key = next(k for k in by_key[key].inputs if k in unplaced)
    ring = [*path[path.index(key) :], key]
    return " <- ".join(repr(by_key[k].name) for k in ring)


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


def _channels(
    order: list[OpSpec],
    inputs: tuple[tuple[int, ...], ...],
    consumers: tuple[tuple[int, ...], ...],
    last: int,
) -> tuple[ChannelSpec, ...]:
    """Ops with exactly the same predecessors share a channel; named in order of level."""
    level = [0] * len(order)
    for op in reversed(range(len(order))):
        level[op] = max((level[c] + 1 for c in consumers[op]), default=0)

    def name(op: int) -> str:
        return REQUEST_OP_NAME if op == REQUEST else order[op].name

    readers: dict[frozenset[int], list[int]] = {}
    for op in sorted(range(len(order)), key=lambda op: -level[op]):
        readers.setdefault(frozenset(inputs[op]), []).append(op)
    channels = [
        (tuple(name(p) for p in sorted(producers)), tuple(name(c) for c in mine))
        for producers, mine in readers.items()
    ]
    channels.append(((name(last),), (REQUEST_OP_NAME,)))
    return tuple(
        ChannelSpec(name=f"chl{number}", producers=producers, consumers=mine)
        for number, (producers, mine) in enumerate(channels)
    )
