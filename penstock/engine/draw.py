"""Draws the version that runs a request which names none: by the versions' shares of them.

Pure, but for chance. Source of a caller's value: its call from the door, or its ``log_id``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from penstock.engine.graph import ServedGraph
from penstock.repository.shares import Shares

LOG_ID: Final = "log_id"


class Draw:
    """The draw of a version for each request of a name.

    Args:
        name: of the graphs.
        weights: their shares.
        sticky: a header field, ``LOG_ID``, or None; see ``EngineOptions``.
    """

    def __init__(
        self, name: str | None, weights: Mapping[ServedGraph, int], sticky: str | None
    ) -> None:
        self._graphs = {graph.version: graph for graph in weights}
        self._shares = Shares(name, {graph.version: n for graph, n in weights.items()})
        self._by_log_id = sticky == LOG_ID
        self._field = None if sticky is None else sticky.lower().encode()

    def graph(self, call: Any, log_id: int) -> ServedGraph:
        """That of a request; see ``Engine.choose``."""
        key: bytes | None = None
        if self._by_log_id:
            key = b"%d" % log_id if log_id else None
        elif self._field is not None and call is not None:
            key = call.exchange.head.fields.get(self._field)
        if key:
            return self._graphs[self._shares.drawn_by(key)]
        return self._graphs[self._shares.drawn(random.random())]  # noqa: S311 - no secret
