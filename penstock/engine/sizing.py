"""Measures an op's samples: which can share a batch, how many rows they have, and which are split.

A sample that is larger than a batch is split into pieces, which are samples themselves and run in
any workers. Their outcomes are joined when all have arrived; the first error is that of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.batching.joining import Joining
from penstock.batching.padding import Shape, filled_in
from penstock.batching.stack import rows_of
from penstock.errors import RequestError
from penstock.request import Batch, Feed, Outcome, Sample

MOST_PIECES: Final = 1024
"""Most pieces of one sample; larger samples get larger pieces. Equal to the default of
``max_requests``, so that one request costs the engine at most as much as that many."""

_MOST_AXES: Final = 32  # of a numpy array, in all versions
_MOST_ELEMENTS: Final = 1 << 24
"""Of nested lists whose sizes are known by their first elements: the others may have fewer."""


class Pieces:
    """The pieces of one sample.

    Args:
        inputs: the inputs of each piece.
        rows: the rows of each piece.
        joining: joins their outcomes.
        shared: outputs that are not split.

    Attributes:
        ended: whether the outcome of the whole is known.
    """

    __slots__ = ("_joining", "_missing", "_outcomes", "_rows", "_shared", "ended", "inputs")

    def __init__(
        self,
        inputs: list[dict[str, Feed]],
        rows: Sequence[int],
        joining: Joining,
        shared: Collection[str],
    ) -> None:
        self.inputs = inputs
        self.ended = False
        self._joining = joining
        self._rows = rows
        self._shared = shared
        self._missing = len(rows)
        self._outcomes: list[Outcome] = [Outcome(None)] * len(rows)

    def take(self, index: int, outcome: Outcome) -> Outcome | None:
        """Store a piece's outcome. Returns the outcome of the whole sample, if known."""
        self._outcomes[index] = outcome
        self._missing -= 1
        if outcome.error is None and self._missing:
            return None
        self.ended = True
        if outcome.error is not None:
            return outcome
        outcomes, self._outcomes = self._outcomes, []
        try:
            values = [each.value or {} for each in outcomes]
            value = self._joining.put_together(values, self._rows, self._shared)
        except RequestError as error:
            return Outcome(None, error)
        return Outcome(value, jump=all(each.jump for each in outcomes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How an op's samples are measured, from their inputs.

    Attributes:
        joining: how its feeds are joined.
        most: the most rows of a batch.
        splits: whether a sample with more rows is split.
        shared: outputs that are not split.
        fills: whether a sample, or a piece, always fills a batch, because the model has a fixed
            number of rows.
        reads: whether ``preprocess`` converts lists and texts to arrays; samples with such share a
            batch, whatever their sizes. Where requests are padded, the sizes of lists are those of
            their first elements.
        renamed: makes the model's inputs of a sample's input, whose names are those of another
            model's outputs; None: its names are the model's.
    """

    joining: Joining
    most: int
    splits: bool = True
    shared: Collection[str] = ()
    fills: bool = False
    reads: bool = False
    renamed: Callable[[Feed], Feed] | None = None

    @property
    def joins(self) -> Callable[[Sequence[Shape], Sequence[Shape]], Sequence[Shape] | None] | None:
        """Decides whether sizes share a batch; None if they are part of the key."""
        return None if self.joining.padding is None else self.joining.padding.join

    def measure(self, sample: Sample) -> bool:
        """Set its key, its rows, and the shapes that may be padded. Returns whether it may have
        more rows than a batch; ``split`` decides.
        """
        sample.shapes, sample.elements = (), 0
        (feed,) = sample.inputs.values()
        try:
            if self.renamed is not None:
                feed = self.renamed(feed)
            if self.reads and _unread(feed):
                sample.rows = self.most if self.fills else max(1, rows_of(feed))
                sample.key = "unread"
                if self.joining.padding is not None:
                    self._guess(sample, feed)
                return True
            layout = self.joining.layout(feed)
            if layout is None:
                sample.key, sample.rows = ("alone", id(sample)), max(1, rows_of(feed))
                return False
            hash(layout.key)
        except Exception:  # noqa: BLE001 - values of users' types may raise anything
            sample.key = ("alone", id(sample))
            return True
        sample.key = layout.key
        sample.rows = self.most if self.fills else max(1, layout.rows)
        if self.joining.padding is not None:
            sample.shapes, sample.elements = layout.shapes, layout.elements
            if sample.piece is not None:
                # If a piece were padded, its outputs might have other sizes than those of the other
                # pieces.
                sample.key = (layout.key, id(sample.piece[0]))
        return layout.rows > self.most

    def _guess(self, sample: Sample, feed: Feed) -> None:
        """Set the shapes of lists. The worker, which converts them, measures them again."""
        stand_ins = {name: _stand_in(value) for name, value in feed.items()}
        if any(each is None for each in stand_ins.values()):
            return
        layout = self.joining.layout(stand_ins)
        if layout is not None:
            sample.key = ("unread", layout.key)
            sample.shapes, sample.elements = layout.shapes, layout.elements

    def split(self, inputs: dict[str, Feed]) -> Pieces | None:
        """Split a sample that is larger than a batch into pieces; None if it runs whole."""
        if not self.splits:
            return None
        ((source, feed),) = inputs.items()
        try:
            if self.renamed is not None:
                feed = self.renamed(feed)
            layout = self.joining.layout(feed)
        except Exception:  # noqa: BLE001 - as above
            return None
        if layout is None or layout.rows <= self.most:
            return None
        most = max(self.most, -(-layout.rows // MOST_PIECES))
        pieces = self.joining.pieces_of(feed, layout.rows, most)
        rows = [most] * (len(pieces) - 1)
        rows.append(layout.rows - sum(rows))
        return Pieces([{source: piece} for piece in pieces], rows, self.joining, self.shared)

    def filled_in(self, batch: Batch) -> tuple[int, int]:
        """The number of elements in padded arrays of a batch, and how many of them are padding."""
        if self.joining.padding is None:
            return 0, 0
        return filled_in([(each.shapes, each.rows, each.elements) for each in batch.samples])


def _stand_in(value: Any) -> NDArray[Any] | None:
    """An array of the shape of nested lists, as their first elements have it, whose content means
    nothing; None for another value that is no array.
    """
    if isinstance(value, np.ndarray):
        return value
    shape: list[int] = []
    while isinstance(value, list) and value and len(shape) < _MOST_AXES:
        shape.append(len(value))
        value = value[0]
    if not shape or isinstance(value, str | list) or prod(shape) > _MOST_ELEMENTS:
        return None
    return np.empty(shape, np.bool_)


def _unread(feed: Feed) -> bool:
    for value in feed.values():  # noqa: SIM110 - a generator costs as much again
        if isinstance(value, str | list):
            return True
    return False
