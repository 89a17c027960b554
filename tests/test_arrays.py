"""Arrays that an op makes for whom it gives them on to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock import empty
from penstock.arrays import SMALLEST_BYTES, take_room_from


class Room:
    """Memory of which each piece is told apart from others by what it is a view of."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.has_more = True

    def __call__(self, nbytes: int) -> NDArray[np.uint8] | None:
        self.asked.append(nbytes)
        return np.zeros(nbytes, np.uint8) if self.has_more else None


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    take_room_from(room)
    yield room
    take_room_from(None)


@pytest.mark.parametrize(
    ("shape", "lengths", "dtype"),
    [
        ((3, 640, 640), (3, 640, 640), np.float32),
        ([2_000_000], (2_000_000,), "int8"),
        (1_000_000, (1_000_000,), np.uint8),
        (np.int64(1_000_000), (1_000_000,), np.complex64),
        (iter((1000, 1000)), (1000, 1000), float),
        (np.array([1000, 1000]), (1000, 1000), ">f4"),
    ],
)
def test_large_arrays_of_numbers_stand_where_there_is_room(
    room: Room, shape: Any, lengths: tuple[int, ...], dtype: Any
) -> None:
    array = empty(shape, dtype)
    assert array.dtype == np.dtype(dtype)
    assert array.shape == lengths
    assert room.asked == [array.nbytes]
    assert array.base is not None
    assert array.flags.c_contiguous
    array[...] = 1
    assert (array == 1).all()


def test_without_a_dtype_it_is_numpys(room: Room) -> None:
    assert empty(1_000_000).dtype == np.empty(1).dtype
    assert room.asked == [8_000_000]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (SMALLEST_BYTES - 1, np.uint8),
        ((), float),
        ((0, 1_000_000), float),
        (1_000_000, bool),
        (1_000_000, object),
        (1_000_000, "U5"),
        (1_000_000, [("a", int), ("b", float)]),
        (1_000_000, "datetime64[s]"),
    ],
)
def test_others_are_ordinary(room: Room, shape: Any, dtype: Any) -> None:
    array = empty(shape, dtype)
    assert room.asked == []
    assert array.flags.owndata
    assert array.shape == np.empty(shape, dtype).shape
    assert array.dtype == np.dtype(dtype)


def test_the_smallest_that_is_not_ordinary(room: Room) -> None:
    empty(SMALLEST_BYTES, np.uint8)
    assert room.asked == [SMALLEST_BYTES]


def test_without_room_they_are_ordinary(room: Room) -> None:
    room.has_more = False
    assert empty(1_000_000).flags.owndata
    assert room.asked == [8_000_000]


def test_where_nobody_gives_room_they_are_ordinary() -> None:
    assert empty((1000, 1000), np.float32).flags.owndata


@pytest.mark.parametrize("shape", [-1, (2_000_000, -1), (-1000, -1000)])
def test_lengths_below_0_are_refused_as_numpy_refuses_them(room: Room, shape: Any) -> None:
    with pytest.raises(ValueError, match="negative dimensions"):
        empty(shape)
    assert room.asked == []


@pytest.mark.parametrize("shape", [2.0, (1000, 1000.0), "12", None])
def test_what_is_no_length_is_refused(room: Room, shape: Any) -> None:
    with pytest.raises(TypeError):
        empty(shape)
