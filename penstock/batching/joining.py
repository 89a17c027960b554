"""Groups, joins and splits the feeds of ops that count rows (``batch_rows``) or pad.

The rows of a feed are the sizes of axis 0 of its arrays, or the number of sequences where an array
has a lod. With ``by_rows``, an array of one row beside arrays of several applies to all rows; feeds
in which such arrays differ do not share a batch. A feed whose arrays disagree in their rows, or
that has a list or no array, runs alone.

Other ops use ``penstock.batching.stack`` only, whose guarantees hold here too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.batching.padding import Padding, Shape
from penstock.batching.stack import is_lod, joined_value, not_following, scatter, value_key
from penstock.errors import InputMismatch
from penstock.request import Feed
from penstock.tensor import LOD_SUFFIX, cut_by_lod, lod_offsets


class Layout(NamedTuple):
    """The properties of a feed that decide which batch it can join.

    Attributes:
        key: feeds in a batch have equal keys, and sizes that join.
        rows: its number of rows.
        names: its arrays that may be padded.
        shapes: their shapes, rounded up.
        elements: their number of elements.
    """

    key: Any
    rows: int
    names: tuple[str, ...] = ()
    shapes: tuple[Shape, ...] = ()
    elements: int = 0


class Joined(NamedTuple):
    """Joined feeds.

    Attributes:
        feed: the joined feed.
        rows: the rows of each member.
        padded: the shapes to which arrays are padded.
    """

    feed: Feed
    rows: list[int]
    padded: Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class Joining:
    """See the module.

    Attributes:
        by_rows: whether batches are counted in rows.
        padding: how feeds of different sizes are padded; None: they do not share a batch.
    """

    by_rows: bool = False
    padding: Padding | None = None

    def layout(self, feed: Feed) -> Layout | None:
        """The feed's layout; None if it must run alone."""
        if len(feed) == 1 and self.padding is None:
            ((name, value),) = feed.items()
            if type(value) is np.ndarray and value.ndim:
                return Layout(((name, value.dtype, value.shape[1:]),), len(value))
        try:
            counts = _counts(feed)
        except (ValueError, TypeError):
            return None
        if not counts:
            return None
        rows = max(counts.values())
        sizes = {} if self.padding is None else self.padding.measure(feed)
        parts: list[Any] = []
        elements = 0
        for name, value in feed.items():
            if name not in counts:
                if isinstance(value, list) and not is_lod(name, feed):
                    return None
                parts.append((name,) if is_lod(name, feed) else value_key(name, value))
            elif counts[name] == rows:
                dims = value.shape[1:]
                if name in sizes:
                    dims = self._fixed(name, value)
                    elements += value.size
                parts.append((name, value.dtype, dims))
            elif self.by_rows and counts[name] == 1 and f"{name}{LOD_SUFFIX}" not in feed:
                sizes.pop(name, None)
                texts = value.dtype == object
                whole = tuple(value.ravel().tolist()) if texts else value.tobytes()
                parts.append((name, value.dtype, value.shape, whole))
            else:
                return None
        parts.sort(key=lambda part: str(part[0]))
        names = tuple(sorted(sizes))
        return Layout(tuple(parts), rows, names, tuple(map(sizes.__getitem__, names)), elements)

    def groups(self, feeds: Sequence[Feed]) -> list[list[int]]:
        """Positions of the feeds that share a batch, in order of their first member."""
        groups: list[list[int]] = []
        found: dict[Any, list[tuple[list[int], Any]]] = {}
        for position, feed in enumerate(feeds):
            layout = self.layout(feed)
            if layout is None:
                groups.append([position])
                continue
            alike = found.setdefault(layout.key, [])
            for index, (members, shapes) in enumerate(alike):
                joined = self.join(shapes, layout.shapes)
                if joined is not None:
                    members.append(position)
                    alike[index] = members, joined
                    break
            else:
                groups.append([position])
                alike.append((groups[-1], layout.shapes))
        return groups

    def join(self, batch: Sequence[Shape], feed: Sequence[Shape]) -> Sequence[Shape] | None:
        """See Padding."""
        if self.padding is None:
            return batch if batch == feed else None
        return self.padding.join(batch, feed)

    @property
    def alters(self) -> bool:
        """Whether even a feed that runs alone may be padded."""
        return self.padding is not None and self.padding.sizes is not None

    def stack(self, feeds: Sequence[Feed]) -> Joined:
        """One feed for the model.

        Args:
            feeds: at least one; all of one group.

        Raises:
            InputMismatch: a lod is malformed.
        """
        first = feeds[0]
        if len(feeds) == 1 and not self.alters:
            return Joined(first, [0], {})
        layouts = [self.layout(feed) for feed in feeds]
        known = [each for each in layouts if each is not None]
        if len(known) < len(layouts):  # one that runs alone
            return Joined(first, [0], {})
        padded = self._sizes(known)
        counts = _counts(first)
        joined: Feed = {}
        try:
            for name, value in first.items():
                if counts.get(name, known[0].rows) != known[0].rows:
                    joined[name] = value  # applies to all rows, and is equal in all feeds
                elif name in padded:
                    assert self.padding is not None
                    arrays = [feed[name] for feed in feeds]
                    joined[name] = self.padding.pad(name, arrays, padded[name])
                else:
                    joined[name] = joined_value(name, value, feeds)
        except ValueError as error:
            raise InputMismatch(str(error)) from error
        return Joined(joined, [each.rows for each in known], padded)

    def scatter(
        self, result: Feed, joined: Joined, feeds: Sequence[Feed], shared: Collection[str]
    ) -> list[Feed]:
        """Split a batch's result among its members, as ``stack.scatter`` does.

        With ``by_rows``, an output of one row for a batch of several goes whole to every member.

        Raises:
            InferenceFailed: an output does not follow the batch, or its padded input.
        """
        rows = joined.rows
        if self.by_rows and len(rows) > 1:
            shared = {*shared, *[name for name in result if _is_one_row(name, result)]}
        parts = scatter(result, rows, shared)
        if not joined.padded or self.padding is None:
            return parts
        cut = self.padding.cut
        return [cut(part, feed, joined.padded) for part, feed in zip(parts, feeds, strict=True)]

    def _sizes(self, layouts: Sequence[Layout]) -> dict[str, Shape]:
        """The common shapes of the arrays that may be padded."""
        first = layouts[0]
        return {
            name: tuple(map(max, *shapes, shapes[0]))
            for name, *shapes in zip(first.names, *[each.shapes for each in layouts], strict=True)
        }

    def _fixed(self, name: str, value: Any) -> tuple[int | None, ...]:
        """The sizes of an array's axes that may not be padded."""
        assert self.padding is not None
        axes = self.padding.axes_of(name, value) or ()
        return tuple(
            size if axis is None else None
            for size, axis in zip(value.shape[1:], axes[1:], strict=True)
        )


def pieces_of(feed: Feed, rows: int, most: int) -> list[Feed]:
    """Split a feed that has a Layout into pieces of at most ``most`` rows; arrays are views."""
    counts = _counts(feed)
    pieces: list[Feed] = []
    for start in range(0, rows, most):
        stop = min(rows, start + most)
        piece: Feed = {}
        for name, value in feed.items():
            lod = feed.get(f"{name}{LOD_SUFFIX}")
            if is_lod(name, feed):
                owner = name[: -len(LOD_SUFFIX)]
                offsets = cut_by_lod(feed[owner], lod_offsets(value), start, stop)[1]
                piece[name] = np.asarray(offsets, getattr(value, "dtype", np.int64))
            elif counts.get(name) != rows:
                piece[name] = value
            elif lod is not None:
                piece[name] = cut_by_lod(value, lod_offsets(lod), start, stop)[0]
            else:
                piece[name] = value[start:stop]
        pieces.append(piece)
    return pieces


def put_together(results: Sequence[Feed], rows: Sequence[int], shared: Collection[str]) -> Feed:
    """Join the results of a feed that ran in pieces.

    Args:
        results: the results of the pieces, in order.
        rows: of the pieces.
        shared: outputs that are not split; the first piece's are used.

    Raises:
        InferenceFailed: an output does not have its piece's number of rows.
    """
    joined: Feed = {}
    for name, value in results[0].items():
        values = [result.get(name) for result in results]
        if is_lod(name, results[0]):
            joined[name] = joined_value(name, value, results)
        elif name in shared or (_is_one_row(name, results[0]) and rows[0] != 1):
            joined[name] = value
        else:
            for each, result, count in zip(values, results, rows, strict=True):
                lod = result.get(f"{name}{LOD_SUFFIX}")
                got = len(lod) - 1 if lod is not None else _length(each)
                if got != count:
                    raise not_following(name, got, count)
            joined[name] = _concatenated(name, values)
    return joined


def _concatenated(name: str, values: Sequence[Any]) -> Any:
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    try:
        return np.concatenate(values)
    except (TypeError, ValueError) as error:
        raise not_following(name, None, len(values)) from error


def _counts(feed: Feed) -> dict[str, int]:
    """The number of rows of each array that has an axis.

    Raises:
        ValueError: a lod is malformed, or does not fit its array.
    """
    counts: dict[str, int] = {}
    for name, value in feed.items():
        if not isinstance(value, np.ndarray) or not value.ndim or is_lod(name, feed):
            continue
        lod = feed.get(f"{name}{LOD_SUFFIX}")
        if lod is None:
            counts[name] = len(value)
        else:
            offsets = lod_offsets(lod)
            if offsets[-1] != len(value):
                raise ValueError(f"the lod of {name!r} ends at {offsets[-1]} of {len(value)} rows")
            counts[name] = len(offsets) - 1
    return counts


def _is_one_row(name: str, result: Feed) -> bool:
    value = result[name]
    if not isinstance(value, np.ndarray) or value.ndim == 0 or f"{name}{LOD_SUFFIX}" in result:
        return False
    return len(value) == 1


def _length(value: Any) -> int | None:
    if isinstance(value, np.ndarray):
        return len(value) if value.ndim else None
    return len(value) if isinstance(value, list) else None
