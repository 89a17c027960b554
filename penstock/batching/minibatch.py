"""Plans the ``process`` calls of a batch; a sample may have several feeds (a mini-batch).

``preprocess`` may return a list of feeds; ``process`` then runs once per element, in order, and
``postprocess`` gets the list of results. Samples with a list and samples with a single feed may be
in the same batch. Source: ``docs/compatibility.md`` (mini-batches).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.batching.joining import Joining
from penstock.batching.stack import group, rows_alike
from penstock.request import Feed


@dataclass(frozen=True, slots=True)
class Call:
    """One ``process`` call: the stacked feeds of some members, or one feed of a mini-batch.

    Attributes:
        members: their positions in the batch.
        piece: index into the only member's list of feeds; None for ordinary feeds.
        rows: of each member, where all feeds are alike (``rows_alike``).
    """

    members: tuple[int, ...]
    piece: int | None = None
    rows: list[int] | None = field(default=None, compare=False)


def explode(
    feeds: Sequence[Feed | list[Feed] | None],
    joining: Joining | None = None,
    *,
    joined: bool = True,
) -> list[Call]:
    """The calls of a batch: one for feeds that can be joined, one for each element of a list.

    Args:
        feeds: for each member, what ``preprocess`` returned; None for members that do not run.
        joining: decides which can; without it, feeds of equal signature.
        joined: False if any feeds may share a call.
    """
    single = [position for position, feed in enumerate(feeds) if isinstance(feed, dict)]
    calls: list[Call] = []
    if single and not joined:
        calls = [Call(tuple(single))]
    elif single:
        # The same test again, for the type checker.
        ordinary = [feed for feed in feeds if isinstance(feed, dict)]
        rows = rows_alike(ordinary) if joining is None or joining.padding is None else None
        if rows is not None:
            calls = [Call(tuple(single), rows=rows)]
        else:
            groups = group(ordinary) if joining is None else joining.groups(ordinary)
            calls = [Call(tuple([single[i] for i in members])) for members in groups]
    if len(single) == len(feeds):
        return calls
    for position, feed in enumerate(feeds):
        if isinstance(feed, list):
            calls.extend(Call((position,), piece) for piece in range(len(feed)))
    return calls
