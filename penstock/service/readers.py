"""Who reads an op's output, as far as it matters to an op that runs in processes.

Plain values and arrays go anywhere. Anything else leaves a worker process as a pickle, which only
another worker process may open; so it must be known whether somebody else reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.resolve import OpOptions
from penstock.graph.dag import Plan


def outside_reader(plan: Plan, options: Sequence[OpOptions], op: int) -> str | None:
    """The first that reads the op's output and is no worker process; None when all of them are.

    Args:
        plan: the graph.
        options: each op's options, by the plan's index.
        op: the index of an op.
    """
    senders = (op, *plan.jump_to[op])  # where it jumps, its output takes the place of theirs
    for sender in senders:
        for reader in plan.consumers[sender]:
            if not options[reader].executor.own_processes:
                return f"op {plan.names[reader]!r}"
    return "the ResponseOp" if plan.last in senders else None
