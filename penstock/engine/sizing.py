"""How large an op's samples are: which share a batch, how much of it they fill, and what is split.

A sample that is larger than a batch runs in pieces, each a sample of its own, in any workers. Their
outcomes are put together when all have come; the first error is that of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.batching.joining import Joining, pieces_of, put_together
from penstock.batching.padding import Shape, filled_in
from penstock.batching.stack import rows_of
from penstock.errors import RequestError
from penstock.request import Batch, Feed, Outcome, Sample

MOST_PIECES: Final = 1024
"""Of one sample; beyond that they are longer than a batch. As many as ``max_requests`` by default:
a request costs the engine no more than so many."""


class Pieces:
    """The pieces of one sample.

    Args:
        inputs: of the pieces.
        rows: of the pieces.
        shared: outputs that do not follow the rows.

    Attributes:
        ended: whether the outcome of the whole is known.
    """

    __slots__ = ("_missing", "_outcomes", "_rows", "_shared", "ended", "inputs")

    def __init__(
        self, inputs: list[dict[str, Feed]], rows: Sequence[int], shared: Collection[str]
    ) -> None:
        self.inputs = inputs
        self.ended = False
        self._rows = rows
        self._shared = shared
        self._missing = len(rows)
        self._outcomes: list[Outcome] = [Outcome(None)] * len(rows)

    def take(self, index: int, outcome: Outcome) -> Outcome | None:
        """A piece has its outcome. Returns that of the whole, if it is known by now."""
        self._outcomes[index] = outcome
        self._missing -= 1
        if outcome.error is None and self._missing:
            return None
        self.ended = True
        if outcome.error is not None:
            return outcome
        outcomes, self._outcomes = self._outcomes, []
        try:
            value = put_together([each.value or {} for each in outcomes], self._rows, self._shared)
        except RequestError as error:
            return Outcome(None, error)
        return Outcome(value, jump=all(each.jump for each in outcomes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How an op's samples are measured, as far as their inputs tell.

    Attributes:
        joining: how its feeds are joined.
        most: the most rows of a batch.
        splits: whether a sample of more rows runs in pieces.
        shared: outputs that do not follow the rows.
        fills: whether a sample, or a piece, always fills a batch: the model takes no other number
            of rows.
        reads: whether ``preprocess`` makes arrays of lists and texts; samples that have such wait
            together, whatever their sizes.
    """

    joining: Joining
    most: int
    splits: bool = True
    shared: Collection[str] = ()
    fills: bool = False
    reads: bool = False

    @property
    def joins(self) -> Callable[[Sequence[Shape], Sequence[Shape]], Sequence[Shape] | None] | None:
        """What tells whether sizes share a batch; None where they are part of the key."""
        return None if self.joining.padding is None else self.joining.padding.join

    def measure(self, sample: Sample) -> bool:
        """Set its key, its rows, and what of it may be padded. Returns whether it has more rows
        than a batch, or might have: ``split`` tells.
        """
        sample.shapes, sample.elements = (), 0
        (feed,) = sample.inputs.values()
        try:
            if self.reads and _unread(feed):
                sample.key = "unread"
                sample.rows = self.most if self.fills else max(1, rows_of(feed))
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
                # Padded with others, its outputs might have other sizes than the other pieces'.
                sample.key = (layout.key, id(sample.piece[0]))
        return layout.rows > self.most

    def split(self, inputs: dict[str, Feed]) -> Pieces | None:
        """The pieces of a sample that is larger than a batch; None if it runs whole."""
        if not self.splits:
            return None
        ((source, feed),) = inputs.items()
        try:
            layout = self.joining.layout(feed)
        except Exception:  # noqa: BLE001 - as above
            return None
        if layout is None or layout.rows <= self.most:
            return None
        most = max(self.most, -(-layout.rows // MOST_PIECES))
        pieces = pieces_of(feed, layout.rows, most)
        rows = [most] * (len(pieces) - 1)
        rows.append(layout.rows - sum(rows))
        return Pieces([{source: piece} for piece in pieces], rows, self.shared)

    def filled_in(self, batch: Batch) -> tuple[int, int]:
        """How many elements a batch has that may be padded, and how many of them are filled in."""
        if self.joining.padding is None:
            return 0, 0
        return filled_in([(each.shapes, each.rows, each.elements) for each in batch.samples])


def _unread(feed: Feed) -> bool:
    return any(isinstance(value, str | list) for value in feed.values())
