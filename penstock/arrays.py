"""New arrays for what an op gives on, in memory that its receiver reads as it is.

An array that goes to another process is copied on its way, into memory that both have. One that is
written there from the start need not be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import index
from typing import Any, Final, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

Room: TypeAlias = Callable[[int], "NDArray[np.uint8] | None"]
"""Gives so many bytes of such memory, or None where there are none to be had."""

SMALLEST_BYTES: Final = 512 << 10
"""Below, an array is ordinary: to copy it costs less than a piece of memory of its own."""

_PLAIN: Final = frozenset("iufc")  # booleans are looked at by who receives them

_room: Room | None = None


def empty(
    shape: SupportsIndex | Iterable[SupportsIndex], dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """An array to be filled and given on by an op, as ``numpy.empty`` makes one.

    In an op that runs in a process the next op reads what was written here, and nothing is copied:
    the array itself may be an output, or pieces of it, each without gaps, that begin at a multiple
    of 64 bytes. In threads, and wherever it does not pay or cannot be, it is an ordinary array.

    Once it was given on it can be read and not be written to any more, so that nobody sees it
    change: each call of the op makes its own. Other views of it that were made before are not
    stopped, and are to leave it alone. A process that the op forks shares it, and has to be done
    with it before the op is.

    Args:
        shape: its lengths.
        dtype: numbers; arrays of others are ordinary.

    Returns:
        The array, in C order; what it holds is undefined.

    Raises:
        ValueError: a length is below 0.

    Thread:
        any; but only in that in which the op's hooks run it is more than ``numpy.empty``.
    """
    kind = np.dtype(dtype)
    lengths = tuple(map(index, shape if isinstance(shape, Iterable) else (shape,)))
    room = _room
    if room is not None and kind.kind in _PLAIN:
        nbytes = math.prod(lengths) * kind.itemsize
        if nbytes >= SMALLEST_BYTES and min(lengths) > 0:
            memory = room(nbytes)
            if memory is not None:
                return np.ndarray(lengths, kind, memory)
    return np.empty(lengths, kind)


def take_room_from(room: Room | None) -> None:
    """From now on ``empty`` asks this for memory; None: nobody.

    Thread:
        any; what it gets is called in whichever thread calls ``empty``.
    """
    global _room
    _room = room
