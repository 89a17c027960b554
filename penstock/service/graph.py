"""A checked graph of ops: its plan, its ends, and the ops that it leaves out."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import GraphError
from penstock.graph.dag import OpSpec, Plan, compile_graph
from penstock.ops.ends import RequestOp, ResponseOp
from penstock.ops.op import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A checked graph and its ops.

    Attributes:
        plan: the plan of flights.
        ops: the ops by the plan's index.
        request_op: the root.
        response_op: the end.
        left_out: names of ops that get inputs from the graph but do not lead to its end.
    """

    plan: Plan
    ops: tuple[Op, ...]
    request_op: RequestOp
    response_op: ResponseOp
    left_out: tuple[str, ...]


def graph_of(response_op: ResponseOp, *, attempts: int = 1, first_arrival: bool = False) -> Graph:
    """Check the graph that ends in ``response_op``.

    Raises:
        GraphError: names the op, and how to fix it.
    """
    last = response_op.only_input()
    if isinstance(last, ResponseOp):
        raise GraphError("a ResponseOp feeds another one: give the last its input_ops=[last_op]")
    if isinstance(last, RequestOp):
        raise GraphError("the graph has no op: put one between the RequestOp and the ResponseOp")
    found: dict[int, Op] = {}
    frontier = [last]
    while frontier:
        op = frontier.pop()
        if id(op) in found:
            continue
        if isinstance(op, RequestOp) and op.get_input_ops():
            names = ", ".join(repr(source.name) for source in op.get_input_ops())
            raise GraphError(
                f"the RequestOp has inputs, {names}: it is the graph's root and reads no op"
            )
        if any(isinstance(source, ResponseOp) for source in op.get_input_ops()):
            raise GraphError(
                f"a ResponseOp feeds another op, {op.name!r}: it may only be the end of the graph"
            )
        found[id(op)] = op
        # Reversed, so that ops are visited in the user's order.
        frontier.extend(reversed(op.get_input_ops()))
    specs = [
        OpSpec(
            key=key,
            name=op.name,
            inputs=tuple(id(source) for source in op.get_input_ops()),
            is_request=isinstance(op, RequestOp),
            jump_to=tuple(id(target) for target in op.get_jump_to_ops()),
        )
        for key, op in found.items()
    ]
    plan = compile_graph(specs, id(last), attempts=attempts, first_arrival=first_arrival)
    by_name = {op.name: op for op in found.values() if not isinstance(op, RequestOp)}
    request_op = next(op for op in found.values() if isinstance(op, RequestOp))
    return Graph(
        plan=plan,
        ops=tuple(by_name[name] for name in plan.names),
        request_op=request_op,
        response_op=response_op,
        left_out=_left_out(found),
    )


def _left_out(found: dict[int, Op]) -> tuple[str, ...]:
    """Names of ops that get inputs from the graph, or from each other, but do not lead to its
    end.
    """
    outside: dict[int, Op] = {}
    frontier = list(found.values())
    while frontier:
        for op in frontier.pop().followers():
            if id(op) in found or id(op) in outside or isinstance(op, ResponseOp):
                continue
            outside[id(op)] = op
            frontier.append(op)
    return tuple(sorted(op.name for op in outside.values()))
