"""One sample that became several feeds: explode them into calls, regroup the results.

``preprocess`` may return a list of feeds; ``process`` then runs once per element, in order, and
``postprocess`` gets the list of results. In a batch, samples with a list and samples with a single
feed may stand side by side. Source: ``docs/compatibility.md`` (mini-batches).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.batching.stack import group
from penstock.request import Feed


@dataclass(frozen=True, slots=True)
class Call:
    """One ``process`` call: the feeds of these members, or one piece of one member.

    Attributes:
        members: positions in the batch whose feeds are stacked.
        piece: index into the single member's list of feeds; None for an ordinary feed.
    """

    members: tuple[int, ...]
    piece: int | None = None


def explode(feeds: Sequence[Feed | list[Feed] | None]) -> list[Call]:
    """The calls a batch needs: equal signatures together, each element of a list by itself.

    Args:
        feeds: per member what ``preprocess`` gave; None for members that do not run.
    """
    single = [position for position, feed in enumerate(feeds) if isinstance(feed, dict)]
    calls: list[Call] = []
    if single:
        # The comprehension repeats the test above because a type checker cannot carry it over.
        ordinary = [feed for feed in feeds if isinstance(feed, dict)]
        calls = [Call(tuple(single[i] for i in members)) for members in group(ordinary)]
    for position, feed in enumerate(feeds):
        if isinstance(feed, list):
            calls.extend(Call((position,), piece) for piece in range(len(feed)))
    return calls
