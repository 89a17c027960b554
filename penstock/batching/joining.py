"""Groups, joins and splits the feeds of ops that run models, count rows (``batch_rows``) or pad.

With ``rows``, the row axis of each input is known. Without, as for ops with a ``process`` of their
own, it is the first axis of every array, as in the original; an array of one row beside arrays of
several then applies to all rows (``by_rows``). The rows of a feed are the sizes of these axes, or
the number of sequences where an array has a lod.

Feeds share a batch if they have the same names, dtypes and other sizes, and equal values wherever
there is no row axis. A feed whose arrays disagree in their rows, or that has no rows or a list,
runs alone.

Other ops use ``penstock.batching.stack`` only, whose guarantees hold here too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.batching.padding import Padding, Shape
from penstock.batching.rows import Axis, Rows
from penstock.batching.stack import (
    is_lod,
    joined_value,
    length_along,
    not_following,
    part_of,
    scatter,
    value_key,
)
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
        rows: the row axes of the inputs and outputs; None: the first axes.
    """

    by_rows: bool = False
    padding: Padding | None = None
    rows: Rows | None = None

    @property
    def is_plain(self) -> bool:
        """Whether feeds of equal names, dtypes and sizes, but for their first axes, always join."""
        return self.padding is None and (self.rows is None or self.rows.plain)

    def layout(self, feed: Feed) -> Layout | None:
        """The feed's layout; None if it must run alone."""
        if len(feed) == 1 and (self.rows is None or self.rows.plain):
            ((name, value),) = feed.items()
            if type(value) is np.ndarray and value.ndim and value.shape[0]:
                return self._layout_of_one(name, value, feed)
        try:
            counts = self._counts(feed)
        except (ValueError, TypeError):
            return None
        rows = max(counts.values(), default=0)
        if not rows:
            return None
        sizes = {} if self.padding is None else self.padding.measure(feed)
        parts: list[Any] = []
        elements = 0
        for name, value in feed.items():
            if name not in counts:
                if isinstance(value, list) and not is_lod(name, feed):
                    return None
                sizes.pop(name, None)
                parts.append((name,) if is_lod(name, feed) else value_key(name, value))
            elif counts[name] == rows:
                axis = self._axis(name) or 0
                dims = (*value.shape[:axis], *value.shape[axis + 1 :])
                if name in sizes:
                    dims = sizes[name][1]
                    elements += value.size
                parts.append((name, value.dtype, dims))
            elif self._applies_to_all(name, counts[name], feed):
                sizes.pop(name, None)
                texts = value.dtype == object
                whole = tuple(value.ravel().tolist()) if texts else value.tobytes()
                parts.append((name, value.dtype, value.shape, whole))
            else:
                return None
        parts.sort(key=lambda part: str(part[0]))
        names = tuple(sorted(sizes))
        return Layout(
            tuple(parts), rows, names, tuple([sizes[name][0] for name in names]), elements
        )

    def _layout_of_one(self, name: str, value: NDArray[Any], feed: Feed) -> Layout:
        """Of a feed with one array, whose rows are on its first axis."""
        rows = len(value)
        measured = {} if self.padding is None else self.padding.measure(feed)
        if not measured:
            return Layout(((name, value.dtype, value.shape[1:]),), rows)
        shape, fixed = measured[name]
        return Layout(((name, value.dtype, fixed),), rows, (name,), (shape,), value.size)

    def layouts(self, feeds: Sequence[Feed]) -> list[Layout | None]:
        """The layout of each feed."""
        return list(map(self.layout, feeds))

    def groups(self, layouts: Sequence[Layout | None]) -> list[list[int]]:
        """Positions of the feeds that share a batch, in order of their first member."""
        groups: list[list[int]] = []
        found: dict[Any, list[tuple[list[int], Any]]] = {}
        for position, layout in enumerate(layouts):
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

    def stack(
        self, feeds: Sequence[Feed], layouts: Sequence[Layout | None] | None = None
    ) -> Joined:
        """One feed for the model.

        Args:
            feeds: at least one; all of one group.
            layouts: of each, if they are known.

        Raises:
            InputMismatch: a lod is malformed.
        """
        first = feeds[0]
        if len(feeds) == 1 and not self.alters:
            return Joined(first, [0], {})
        if layouts is None:
            layouts = self.layouts(feeds)
        known = [each for each in layouts if each is not None]
        if len(known) < len(layouts):  # one that runs alone
            return Joined(first, [0], {})
        padded = self._sizes(known)
        counts = self._counts(first)
        joined: Feed = {}
        try:
            for name, value in first.items():
                if is_lod(name, first):
                    joined[name] = joined_value(name, value, feeds)
                elif counts.get(name) != known[0].rows:
                    joined[name] = value  # equal in all feeds
                elif name in padded:
                    assert self.padding is not None
                    arrays = [feed[name] for feed in feeds]
                    joined[name] = self.padding.pad(name, arrays, padded[name])
                else:
                    joined[name] = joined_value(name, value, feeds, self._axis(name) or 0)
        except ValueError as error:
            raise InputMismatch(str(error)) from error
        return Joined(joined, [each.rows for each in known], padded)

    def scatter(
        self, result: Feed, joined: Joined, feeds: Sequence[Feed], shared: Collection[str]
    ) -> list[Feed]:
        """Split a batch's result among its members, as ``stack.scatter`` does.

        With ``by_rows`` and without ``rows``, an output of one row for a batch of several goes
        whole to every member.

        Raises:
            InferenceFailed: an output does not follow the batch, or its padded input.
        """
        rows = joined.rows
        if self.rows is not None:
            parts = scatter(result, rows, {*shared, *self.rows.shared}, self.rows.outputs)
        else:
            if self.by_rows and sum(rows) > 1 and len(rows) > 1:
                shared = {*shared, *[name for name in result if _is_one_row(name, result)]}
            parts = scatter(result, rows, shared)
        if not joined.padded or self.padding is None:
            return parts
        cut = self.padding.cut
        return [cut(part, feed, joined.padded) for part, feed in zip(parts, feeds, strict=True)]

    def pieces_of(self, feed: Feed, rows: int, most: int) -> list[Feed]:
        """Split a feed that has a Layout into pieces of at most ``most`` rows; arrays are views."""
        counts = self._counts(feed)
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
                    piece[name] = part_of(value, self._axis(name) or 0, start, stop)
            pieces.append(piece)
        return pieces

    def put_together(
        self, results: Sequence[Feed], rows: Sequence[int], shared: Collection[str]
    ) -> Feed:
        """Join the results of a feed that ran in pieces.

        Args:
            results: the results of the pieces, in order.
            rows: of the pieces.
            shared: outputs that are not split; the first piece's are used.

        Raises:
            InferenceFailed: an output does not have its piece's number of rows.
        """
        joined: Feed = {}
        axes: Mapping[str, Axis] = {} if self.rows is None else self.rows.outputs
        if self.rows is not None:
            shared = {*shared, *self.rows.shared}
        for name, value in results[0].items():
            values = [result.get(name) for result in results]
            axis = axes.get(name) or 0
            if is_lod(name, results[0]):
                joined[name] = joined_value(name, value, results)
            elif name in shared or (
                self.rows is None and _is_one_row(name, results[0]) and rows[0] != 1
            ):
                joined[name] = value
            else:
                for each, result, count in zip(values, results, rows, strict=True):
                    lod = result.get(f"{name}{LOD_SUFFIX}")
                    got = len(lod) - 1 if lod is not None else length_along(each, axis)
                    if got != count:
                        raise not_following(name, got, count)
                joined[name] = _concatenated(name, values, axis)
        return joined

    def _axis(self, name: Any) -> Axis:
        """The row axis of an input."""
        return 0 if self.rows is None else self.rows.inputs[name]

    def _counts(self, feed: Feed) -> dict[str, int]:
        """The number of rows of each array that has a row axis.

        Raises:
            ValueError: a lod is malformed, or does not fit its array; or the model has no such
                input, or an array lacks its row axis.
        """
        counts: dict[str, int] = {}
        known = self.rows
        for name, value in feed.items():
            if is_lod(name, feed):
                continue
            axis: Axis = 0
            if known is not None:
                axis = known.inputs.get(name, _UNKNOWN)
                if axis is None:
                    continue
                if type(value) is not np.ndarray or not 0 <= axis < value.ndim:
                    raise ValueError(f"{name!r} has no rows")
            elif not isinstance(value, np.ndarray) or not value.ndim:
                continue
            lod = feed.get(f"{name}{LOD_SUFFIX}")
            if lod is None:
                counts[name] = value.shape[axis]
            else:
                offsets = lod_offsets(lod)
                if offsets[-1] != len(value):
                    text = f"the lod of {name!r} ends at {offsets[-1]} of {len(value)} rows"
                    raise ValueError(text)
                counts[name] = len(offsets) - 1
        return counts

    def _applies_to_all(self, name: Any, count: int, feed: Feed) -> bool:
        """Whether an array of one row applies to all rows of a feed."""
        return (
            self.rows is None and self.by_rows and count == 1 and f"{name}{LOD_SUFFIX}" not in feed
        )

    def _sizes(self, layouts: Sequence[Layout]) -> dict[str, Shape]:
        """The common shapes of the arrays that may be padded."""
        first = layouts[0]
        return {
            name: tuple(map(max, *shapes, shapes[0]))
            for name, *shapes in zip(first.names, *[each.shapes for each in layouts], strict=True)
        }


_UNKNOWN: Final = -1  # no axis: the model has no such input


def _concatenated(name: str, values: Sequence[Any], axis: int) -> Any:
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    try:
        return np.concatenate(values, axis=axis)
    except (TypeError, ValueError) as error:
        raise not_following(name, None, len(values)) from error


def _is_one_row(name: str, result: Feed) -> bool:
    value = result[name]
    if not isinstance(value, np.ndarray) or value.ndim == 0 or f"{name}{LOD_SUFFIX}" in result:
        return False
    return len(value) == 1
