"""The end of a graph in which several models answer one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.ops.op import Op
from penstock.request import Feed

SEPARATOR: Final = "/"
"""Stands between an engine's name and that of its output."""


class Ensemble(Op):
    """Joins what several ops answer: each output is called ``engine/output``.

    Args:
        engines: the ops that answer, which have names without a slash.
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
