"""What a tensor is called, what it holds, and how ``lod`` cuts it into sequences.

A lod ("level of detail") is a list of offsets into axis 0: ``[0, 3, 7]`` cuts seven rows into two
sequences of three and four. Only one level is used, as in the original. A value ``x`` has its lod
under the name ``x.lod`` beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOD_SUFFIX = ".lod"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        name: its name inside the model.
        alias: its public name; equal to ``name`` unless a configuration says otherwise.
        dtype: numpy dtype; ``object`` for texts.
        shape: every dimension, batch axis included; None where it varies. None as a whole when
            even the rank is unknown.
        is_lod: whether its rows are cut into sequences.
    """

    name: str
    alias: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None
    is_lod: bool = False


def lod_offsets(value: Any) -> list[int]:
    """The offsets as plain ints, from a list or an array of any shape (the wire gives ``(2, -1)``).

    Raises:
        ValueError: when they are no lod: fewer than two, not from 0 up, or decreasing.
    """
    offsets = [int(v) for v in np.asarray(value).reshape(-1)]
    if len(offsets) < 2 or offsets[0] != 0:
        raise ValueError(f"a lod starts at 0 and has at least two offsets, got {offsets[:8]}")
    if any(b < a for a, b in itertools.pairwise(offsets)):
        raise ValueError(f"a lod never decreases, got {offsets[:8]}")
    return offsets


def join_lods(lods: Sequence[list[int]]) -> list[int]:
    """Offsets of the concatenation: each lod shifted by the end of the one before."""
    joined = [0]
    for offsets in lods:
        base = joined[-1]
        joined.extend(base + offset for offset in offsets[1:])
    return joined


def cut_by_lod(
    value: NDArray[Any], offsets: list[int], start: int, stop: int
) -> tuple[NDArray[Any], list[int]]:
    """Sequences ``start`` to ``stop`` of a value (as a view), and their lod rebased to 0."""
    first, last = offsets[start], offsets[stop]
    return value[first:last], [offset - first for offset in offsets[start : stop + 1]]
