"""Ops between models: they join the outputs of several, or take some of them under other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.ops.op import Op
from penstock.request import Feed

SEPARATOR: Final = "/"
"""Separates an engine's name from its output's."""


class Ensemble(Op):
    """Joins the outputs of several ops; each is named ``engine/output``.

    Args:
        engines: the ops, whose names have no slash.
        name: the op's name.
    """

    def __init__(self, engines: Sequence[Op], name: str) -> None:
        super().__init__(name=name, input_ops=list(engines))

    def preprocess(self, input_dicts: dict[str, Feed], data_id: int = 0, log_id: int = 0) -> Feed:
        """The outputs of all engines."""
        return {
            f"{engine}{SEPARATOR}{output}": value
            for engine, feed in input_dicts.items()
            for output, value in feed.items()
        }


class Selection(Op):
    """Takes tensors from the outputs of several ops, or from the request, under other names.

    Args:
        sources: for each tensor the op that has it, and its name there.
        name: the op's name.

    Attributes:
        sources: the same, with the names of the ops.
    """

    def __init__(self, sources: Mapping[str, tuple[Op, str]], name: str) -> None:
        self.sources = {tensor: (op.name, there) for tensor, (op, there) in sources.items()}
        super().__init__(name=name, input_ops=[*dict.fromkeys(op for op, _ in sources.values())])

    def preprocess(self, input_dicts: dict[str, Feed], data_id: int = 0, log_id: int = 0) -> Feed:
        """The tensors, as far as they are there: the next op, or the protocol, checks names."""
        return {
            tensor: input_dicts[op][there]
            for tensor, (op, there) in self.sources.items()
            if there in input_dicts[op]
        }
