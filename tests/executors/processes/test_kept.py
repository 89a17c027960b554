"""What a worker keeps the engine finds, whatever happens meanwhile."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.executors.processes import kept
from penstock.executors.processes.frame import (
    LENGTH,
    FrameError,
    FrameReader,
    Kind,
    decode,
    packed,
)
from penstock.executors.processes.kept import Keeper, read_kept

ROOM = 100


def memory() -> memoryview:
    return memoryview(bytearray(16 + ROOM))


def plain(text: str) -> bytes:
    written = packed(text)
    assert written is not None
    return written


def found(shared: memoryview) -> tuple[int, list[str]] | None:
    read = read_kept(shared)
    return None if read is None else (read[0], decode(read[1]))


def sent(frame: bytes) -> tuple[Kind, int, list[str]]:
    ((kind, number, body),) = FrameReader(1 << 20).receive(frame)
    return kind, number, decode(body)


@given(st.lists(st.one_of(st.text(max_size=40), st.none()), max_size=30))
def test_what_is_kept_is_found_and_sent_until_it_is_cleared(texts: list[str | None]) -> None:
    shared = memory()
    keeper = Keeper(shared)
    first, here = 1, list[str]()
    for number, text in enumerate(texts, 1):
        if text is None or not keeper.add(number, plain(text)):
            if here:
                assert sent(keeper.frame()) == (Kind.SEVERAL, first, here)
                assert sent(keeper.frame(plain("more"))) == (Kind.SEVERAL, first, [*here, "more"])
            keeper.clear()
            first, here = number + 1, []
        else:
            here.append(text)
        assert keeper.any == bool(here)
        assert found(shared) == ((first, here) if here else None)


def test_there_is_room_for_so_much_and_no_more() -> None:
    shared = memory()
    keeper = Keeper(shared)
    text = "x" * (ROOM - 2)
    assert not keeper.add(1, plain(text + "y"))
    assert keeper.add(1, plain(text))
    assert not keeper.add(2, plain(""))
    assert found(shared) == (1, [text])
    keeper.clear()
    assert keeper.add(2, plain(text))


class Watched:
    """A view of memory that tells before and after each write."""

    def __init__(self, view: Any, tell: Callable[[], None]) -> None:
        self._view = view
        self._tell = tell

    def __setitem__(self, at: Any, what: Any) -> None:
        self._tell()
        self._view[at] = what
        self._tell()

    def __getitem__(self, at: Any) -> Any:
        return self._view[at]


def test_a_worker_that_ends_at_any_write_leaves_what_is_whole() -> None:
    shared = memory()
    states: list[bytes] = []
    keeper = Keeper(shared)
    for view in ("_numbers", "_plain"):
        watched = Watched(getattr(keeper, view), lambda: states.append(bytes(shared)))
        setattr(keeper, view, watched)
    seen = []
    for number in (1, 2):
        assert keeper.add(number, plain(str(number)))
    keeper.clear()
    for number in (3, 4):
        assert keeper.add(number, plain("long " + str(number)))
    for state in states:
        here = found(memoryview(state))
        if here not in seen:
            seen.append(here)
    assert seen == [None, (1, ["1"]), (1, ["1", "2"]), (3, ["long 3"]), (3, ["long 3", "long 4"])]


def test_what_was_sent_while_it_was_read_is_left_to_the_frame() -> None:
    shared = memory()
    keeper = Keeper(shared)
    keeper.add(1, plain("one"))

    class Overtaken:
        """Memory of a worker that goes on while the engine copies."""

        def __len__(self) -> int:
            return len(shared)

        def __getitem__(self, at: slice) -> memoryview:
            keeper.clear()
            keeper.add(2, plain("two"))
            return shared[at]

    class Number:
        """Reads of that."""

        size = 8

        @staticmethod
        def unpack_from(_: object, at: int) -> Any:
            return struct.unpack_from("Q", shared, at)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kept, "_NUMBER", Number)
        assert read_kept(cast(memoryview, Overtaken())) is None
    assert found(shared) == (2, ["two"])


@pytest.mark.parametrize("length", [ROOM + 1, 2**32 - 1])
def test_more_than_there_is_room_for_is_refused(length: int) -> None:
    shared = memory()
    struct.pack_into("QQ", shared, 0, 1, 1 << 32 | length)
    with pytest.raises(FrameError):
        read_kept(shared)


@given(st.binary(min_size=16 + ROOM, max_size=16 + ROOM), st.integers(0, ROOM), st.integers(0, 40))
def test_any_bytes_are_answers_or_refused(octets: bytes, length: int, count: int) -> None:
    shared = memoryview(bytearray(octets))
    struct.pack_into("Q", shared, 8, count << 32 | length)
    read = read_kept(shared)
    assert (read is None) == (count == 0)
    if read is not None:
        (stated,) = LENGTH.unpack_from(read[1])
        assert stated == len(read[1]) - LENGTH.size
        try:
            assert len(decode(read[1])) == count
        except FrameError:
            return
