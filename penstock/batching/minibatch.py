"""Plans the ``process`` calls of a batch; a sample may have several feeds (a mini-batch).

``preprocess`` may return a list of feeds, and ``postprocess`` then gets the list of results. Where
the model's rows are known, the feeds of all samples are joined, up to the batch's size; otherwise
``process`` runs once per element, in order. Samples with a list and samples with a single feed may
be in the same batch. Source: ``docs/compatibility.md`` (mini-batches).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.batching.joining import Joining, Layout
from penstock.batching.stack import group, rows_alike
from penstock.request import Feed


@dataclass(frozen=True, slots=True)
class Call:
    """One ``process`` call.

    Attributes:
        members: positions of the feeds that it joins.
        rows: of each, where all feeds are alike (``rows_alike``).
        layouts: of each, where they decided which feeds are joined.
    """

    members: tuple[int, ...]
    rows: list[int] | None = field(default=None, compare=False)
    layouts: list[Layout | None] | None = field(default=None, compare=False)


def plan_calls(
    feeds: Sequence[Feed], joining: Joining | None = None, *, joined: bool = True
) -> list[Call]:
    """The calls for these feeds: one for those that can be joined.

    Args:
        feeds: at least one.
        joining: decides which can; without it, feeds of equal signature.
        joined: False if any feeds may share a call.
    """
    if not joined:
        return [Call(tuple(range(len(feeds))))]
    rows = rows_alike(feeds) if joining is None or joining.is_plain else None
    if rows is not None:
        return [Call(tuple(range(len(feeds))), rows)]
    if joining is None:
        return [Call(tuple(members)) for members in group(feeds)]
    layouts = joining.layouts(feeds)
    return [
        Call(tuple(members), layouts=[layouts[each] for each in members])
        for members in joining.groups(layouts)
    ]


def in_turn(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Consecutive parts of a mini-batch's feeds, each of at most ``most`` rows, or of one feed.

    Args:
        sizes: the rows of each feed; 1 each if feeds are counted.
        most: the size of a batch.
    """
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > most:
            yield slice(start, index)
            start, total = index, 0
        total += size
    if sizes:
        yield slice(start, len(sizes))
