"""Joins the feeds of several samples into one batch, and splits the result again.

Guarantees: ``scatter(stack(feeds)) == feeds`` for arrays and sequences; a single feed is passed
through unchanged, and so is its result; an output is split along axis 0 only if that axis has the
batch's number of rows. Source: ``docs/compatibility.md`` (merging and splitting).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from penstock.errors import InferenceFailed, InputMismatch
from penstock.request import Feed
from penstock.tensor import LOD_SUFFIX, cut_by_lod, join_lods, lod_offsets


def signature(feed: Feed) -> tuple[Any, ...]:
    """A hashable key: feeds with equal keys can share a batch.

    For an array: name, dtype and all dimensions but the first. Any other
    value (a text, a number, an
    array without axes) cannot be joined along axis 0, so the value itself is part of the key.
    """
    if len(feed) == 1:  # the usual case; the general code takes twice as long
        ((name, value),) = feed.items()
        if type(value) is np.ndarray and value.ndim:
            return ((name, value.dtype.str, value.shape[1:]),)
    parts: list[Any] = []
    for name, value in feed.items():
        if is_lod(name, feed):
            parts.append((name,))
        elif isinstance(value, np.ndarray) and value.ndim:
            parts.append((name, value.dtype.str, value.shape[1:]))
        else:
            parts.append(value_key(name, value))
    parts.sort(key=lambda part: str(part[0]))
    return tuple(parts)


def value_key(name: Any, value: Any) -> tuple[Any, ...]:
    """The part of a key for a value without rows: its name and the value itself."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            items = value.ravel().tolist()
            texts = all(isinstance(item, str) for item in items)
            return (name, value.shape, tuple(items) if texts else id(value))
        return (name, value.dtype.str, value.shape, value.tobytes())
    return (name, *_identity(value))


def _identity(value: Any) -> tuple[Any, ...]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ("texts", tuple(value))
    try:
        hash(value)
    except Exception:  # noqa: BLE001 - a user's type may raise anything
        return ("object", id(value))
    return (type(value), value)


def group(feeds: Sequence[Feed]) -> list[list[int]]:
    """Positions of the feeds that can share a batch, in order of their first member."""
    if len(feeds) == 1:
        return [[0]]
    groups: dict[Any, list[int]] = {}
    for position, feed in enumerate(feeds):
        key = signature(feed) if _may_share(feed) else position
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def rows_alike(feeds: Sequence[Feed]) -> list[int] | None:
    """The rows of each feed, where all have the same names, and arrays that differ only in their
    rows; None for any others.

    True for most batches, and ten times as fast as comparing signatures.
    """
    first = feeds[0]
    expected = []
    for name, value in first.items():
        if type(value) is not np.ndarray or not value.ndim or LOD_SUFFIX in str(name):
            return None
        expected.append((name, value.dtype, value.shape[1:]))
    if not expected:
        return None
    size = len(expected)
    counts: list[int] = []
    for feed in feeds:
        if len(feed) != size:
            return None
        rows = -1
        for name, dtype, shape in expected:
            value = feed.get(name)
            if type(value) is not np.ndarray or value.dtype != dtype:
                return None
            found = value.shape
            if found[1:] != shape or not found or not found[0]:
                return None
            if rows != found[0] and rows >= 0:
                return None
            rows = found[0]
        counts.append(rows)
    return counts


def concatenated(feeds: Sequence[Feed]) -> Feed:
    """The arrays of feeds that are alike (``rows_alike``), one after the other."""
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def _may_share(feed: Feed) -> bool:
    """Whether the feed can be joined with others and its result be split again.

    The feed must have an array, and all its arrays the same number of rows, at least one: texts,
    numbers and lists have no batch axis, so it is unknown how many rows of the result would belong
    to them.
    """
    found = False
    try:
        rows = rows_of(feed)
        if not rows:
            return False
        for name, value in feed.items():
            if is_lod(name, feed):
                continue
            if isinstance(value, list):
                return False
            if not isinstance(value, np.ndarray) or not value.ndim:
                continue
            found = True
            lod = feed.get(f"{name}{LOD_SUFFIX}")
            if lod is None:
                if value.shape[0] != rows:
                    return False
            else:
                offsets = lod_offsets(lod)
                if len(offsets) - 1 != rows or offsets[-1] != value.shape[0]:
                    return False
    except (ValueError, TypeError):
        return False
    return found


def is_lod(name: Any, feed: Feed) -> bool:
    """Whether the entry is another entry's lod."""
    return isinstance(name, str) and name.endswith(LOD_SUFFIX) and name[: -len(LOD_SUFFIX)] in feed


def rows_of(feed: Feed) -> int:
    """The rows of a feed's first value; with a lod, the number of its sequences."""
    for name, value in feed.items():
        lod = feed.get(f"{name}{LOD_SUFFIX}")
        if lod is not None:
            return len(lod_offsets(lod)) - 1
        if isinstance(value, np.ndarray):
            return value.shape[0] if value.ndim else 1
        return len(value) if isinstance(value, list) else 1
    return 1


def stack(feeds: Sequence[Feed]) -> tuple[Feed, list[int]]:
    """One feed for the model, and the rows of each member.

    Args:
        feeds: at least one; all of one ``signature``. A single feed comes back as it is.

    Raises:
        InputMismatch: a lod is malformed.
    """
    first = feeds[0]
    try:
        if len(feeds) == 1:
            return first, [rows_of(first)]
        rows = [rows_of(feed) for feed in feeds]
        joined: Feed = {}
        for name, value in first.items():
            joined[name] = joined_value(name, value, feeds)
    except ValueError as error:
        raise InputMismatch(str(error)) from error
    return joined, rows


def joined_value(name: Any, value: Any, feeds: Sequence[Feed], axis: int = 0) -> Any:
    """One value of all feeds: the arrays one after the other along an axis, or the value that all
    have.

    Raises:
        ValueError: a lod is malformed.
    """
    if is_lod(name, feeds[0]):
        return _like(value, join_lods([lod_offsets(feed[name]) for feed in feeds]))
    if isinstance(value, np.ndarray) and value.ndim:
        return np.concatenate([feed[name] for feed in feeds], axis=axis)
    return value


_FIRST: Final[Mapping[str, int | None]] = {}


def scatter(
    result: Feed,
    rows: Sequence[int],
    shared: Collection[str] = (),
    axes: Mapping[str, int | None] = _FIRST,
) -> list[Feed]:
    """Split a batch's result among its members.

    Args:
        result: what ``process`` returned for the stacked feed. Parts of arrays are views.
        rows: the rows of each member, as ``stack`` returned them.
        shared: names of outputs that are not split: each member gets the whole value.
        axes: the row axes of outputs; 0 where one is not named.

    Raises:
        InferenceFailed: an output has another number of rows than the batch and is not shared.
    """
    if len(rows) == 1:
        return [result]
    total = sum(rows)
    bounds = list(accumulate(rows, initial=0))
    parts: list[Feed] = [{} for _ in rows]
    for name, value in result.items():
        if is_lod(name, result):
            continue
        lod = result.get(f"{name}{LOD_SUFFIX}")
        if name in shared:
            for part in parts:
                part[name] = value
                if lod is not None:
                    part[name + LOD_SUFFIX] = lod
        elif lod is not None:
            _scatter_sequences(parts, name, value, lod, bounds)
        else:
            axis = axes.get(name) or 0
            if length_along(value, axis) != total:
                raise not_following(name, length_along(value, axis), total)
            for part, start, stop in zip(parts, bounds, bounds[1:], strict=False):
                part[name] = part_of(value, axis, start, stop)
    return parts


def _scatter_sequences(
    parts: list[Feed], name: str, value: Any, lod: Any, bounds: list[int]
) -> None:
    try:
        offsets = lod_offsets(lod)
    except ValueError as error:
        raise InferenceFailed(f"output {name!r} has no usable lod: {error}") from error
    if len(offsets) - 1 != bounds[-1]:
        raise not_following(name, len(offsets) - 1, bounds[-1])
    for part, start, stop in zip(parts, bounds, bounds[1:], strict=False):
        part[name], cut = cut_by_lod(value, offsets, start, stop)
        part[name + LOD_SUFFIX] = _like(lod, cut)


def _like(original: Any, offsets: list[int]) -> Any:
    """Offsets in the type of the caller's lod: an array of its dtype, or a list."""
    if isinstance(original, np.ndarray):
        return np.asarray(offsets, dtype=original.dtype)
    return offsets


def length_along(value: Any, axis: int = 0) -> int | None:
    """The size of an array's axis, or of a list; None if there is none."""
    if isinstance(value, np.ndarray):
        return int(value.shape[axis]) if value.ndim > axis else None
    return len(value) if isinstance(value, list) else None


def part_of(value: Any, axis: int, start: int, stop: int) -> Any:
    """These rows of an array, as a view, or of a list."""
    return value[(*[slice(None)] * axis, slice(start, stop))] if axis else value[start:stop]


def not_following(name: str, got: int | None, total: int) -> InferenceFailed:
    """The error for an output with the wrong number of rows."""
    size = "no batch axis" if got is None else f"{got} rows"
    return InferenceFailed(
        f"output {name!r} has {size} where the batch has {total}; an output that does not follow "
        f"the batch must be named in the op's shared_outputs"
    )
