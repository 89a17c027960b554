"""The end of a graph in which several models answer one request."""

from __future__ import annotations

from collections.abc import Sequence
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
