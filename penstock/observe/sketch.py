"""A quantile sketch of durations: percentiles of many values in little memory, which can be added.

A value is counted in a bucket; an octave has 32 of the same width. So a percentile is off by at
most 1/65 (1.6 %) of itself, for durations from 1 µs to 68 minutes; those outside count as the
nearest of them. The sum of two sketches is the sketch of both sets of values, so percentiles are
those of all engines, and the difference of an earlier and a later sketch is that of the values in
between.

Between processes a sketch is the number of values of each bucket that has some, by the bucket's
number as text.

Source: Masson, Rim and Lee, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with
Relative-Error Guarantees", PVLDB 12(12), 2019, with buckets that are linear between powers of two.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np

Plain: TypeAlias = Mapping[str, int]

ERROR: Final = 1 / 65
"""The largest relative error of a percentile."""

_BITS: Final = 5  # of the mantissa
_SHIFT: Final = 52 - _BITS  # of the bits of a double, to those of its bucket
_LEAST: Final = (1023 - 20) << _BITS  # of 2 ** -20 seconds, about 1 µs
_MOST: Final = (32 << _BITS) - 1  # 32 octaves
_NAMES: Final = [str(bucket) for bucket in range(_MOST + 1)]


class Sketch:
    """See the module."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = np.zeros(_MOST + 1, np.int64)

    def add(self, values: Sequence[float]) -> None:
        """Count values, in seconds, none of them negative."""
        buckets = np.frombuffer(array("d", values), np.int64) >> _SHIFT
        buckets -= _LEAST
        np.maximum(buckets, 0, out=buckets)
        np.minimum(buckets, _MOST, out=buckets)
        self._counts += np.bincount(buckets, minlength=_MOST + 1)

    def include(self, other: Sketch) -> None:
        """Add another sketch."""
        self._counts += other._counts

    def plain(self) -> dict[str, int]:
        """The count of each bucket that has one."""
        (found,) = self._counts.nonzero()
        names = map(_NAMES.__getitem__, found.tolist())
        return dict(zip(names, self._counts[found].tolist(), strict=True))


def since(before: Plain, now: Plain) -> dict[str, int]:
    """The sketch of the values that came between two sketches."""
    old = before.get
    return {bucket: n for bucket, count in now.items() if (n := count - old(bucket, 0)) > 0}


def durations(sketch: Plain) -> dict[float, int]:
    """The number of values, by the middle of their bucket in seconds."""
    return {_middle(int(bucket)): count for bucket, count in sketch.items()}


def quantiles(sketch: Plain, *shares: float) -> list[float | None]:
    """Percentiles, in seconds; None without values.

    Args:
        sketch: of the values.
        shares: of the values that are not larger, such as 0.99.
    """
    buckets = sorted((int(bucket), count) for bucket, count in sketch.items())
    ends = [*accumulate(count for _, count in buckets)]
    if not ends:
        return [None] * len(shares)
    wanted = [share * ends[-1] for share in shares]
    at = (next(i for i, end in enumerate(ends) if end >= each) for each in wanted)
    return [_middle(buckets[i][0]) for i in at]


def _middle(bucket: int) -> float:
    """The value with the same relative error to both ends of a bucket."""
    low, high = _bound(bucket), _bound(bucket + 1)
    return 2 * low * high / (low + high)


def _bound(bucket: int) -> float:
    (value,) = struct.unpack("=d", struct.pack("=q", (bucket + _LEAST) << _SHIFT))
    return float(value)
