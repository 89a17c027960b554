"""Arrays that are written where their receiver reads them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.executors.processes.frame import decode, encode
from penstock.executors.processes.slab import MOST_SLABS
from penstock.executors.processes.slab_pool import MOST_DRAFTS, SlabPool
from tests.executors.processes.ends import LIMIT, MIB, Ends, large

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


def drafted(pool: SlabPool, number: float, shape: tuple[int, ...] = (100_000,)) -> Any:
    """An array in a draft, filled; never None, which is told otherwise."""
    draft = pool.draft(int(np.prod(shape)) * 8)
    assert draft is not None
    array = np.ndarray(shape, np.float64, draft)
    array[...] = number
    return array


def sent_in_place(ends: Ends, value: Any) -> Any:
    """What comes out at the other end; an array that is in no draft is a part of the message."""
    body = b"".join(encode(value, place=ends.pool.find))
    for slab, descriptor in ends.pool.commit():
        ends.reader.accept(slab, os.dup(descriptor))
    return decode(body, fetch=ends.reader.fetch)


def is_in_slab(view: np.ndarray[Any, Any]) -> bool:
    return not view.flags.writeable


def test_a_draft_is_read_where_it_was_written(ends: Ends) -> None:
    array = drafted(ends.pool, 3.0, (100, 1000))
    view = sent_in_place(ends, array)
    assert is_in_slab(view)
    assert view.shape == (100, 1000)
    assert (view == 3.0).all()
    assert view.__array_interface__["data"][0] % 64 == 0
    del view, array
    assert ends.give_back() == [(0, 1)]
    assert repr(ends.pool) == "<SlabPool 1 MiB, 1 idle, 0 filling, 0 out>"


def test_pieces_of_a_draft_go_in_one_frame(ends: Ends) -> None:
    rows = drafted(ends.pool, 0.0, (8, 20_000))
    for number in range(8):
        rows[number] = number
    views = sent_in_place(ends, [*rows, rows[2:4], rows.reshape(4, -1)[1]])
    assert all(map(is_in_slab, views))
    assert [view[0] for view in views[:8]] == list(range(8))
    assert (views[8] == [[2.0], [3.0]]).all()
    assert views[9].sum() == 5 * 20_000
    assert repr(ends.reader) == "<SlabReader 2 MiB, 1 slabs, 1 held>"


def test_the_transpose_of_a_draft_is_one(ends: Ends) -> None:
    array = drafted(ends.pool, 1.0, (200, 500))
    array[3, 4] = 9.0
    view = sent_in_place(ends, array.T)
    assert is_in_slab(view)
    assert view.flags.f_contiguous
    assert view[4, 3] == 9.0


@pytest.mark.parametrize(
    "piece",
    [
        lambda array: array[1:],  # at no multiple of 64
        lambda array: array[::2],
        lambda array: array.reshape(100, -1)[:, 8:],
        lambda array: array.copy(),
        lambda array: array.base.copy().view(np.ndarray),
        lambda array: np.broadcast_to(array, (2, *array.shape)),
    ],
    ids=["shifted", "every other", "columns", "copy", "copied bytes", "broadcast"],
)
def test_what_cannot_be_read_there_is_copied(ends: Ends, piece: Callable[[Any], Any]) -> None:
    array = drafted(ends.pool, 2.0)
    part = piece(array)
    assert ends.pool.find(part) is None
    view = ends.send(part)
    assert np.array_equal(view, part)
    array[0] = 1.0  # it was not sent


def test_an_array_of_nobodys_memory_is_in_no_draft(ends: Ends) -> None:
    drafted(ends.pool, 1.0)
    assert ends.pool.find(large()) is None
    assert ends.pool.find(np.frombuffer(bytes(100_000), np.uint8)) is None


def test_the_draft_of_another_pool_is_none(ends: Ends) -> None:
    other = Ends()
    array, own = drafted(other.pool, 1.0), drafted(ends.pool, 2.0)
    assert ends.pool.find(array) is None
    assert is_in_slab(sent_in_place(ends, own))
    del array
    other.close()


@pytest.mark.parametrize(
    "part",
    [
        lambda array: array,
        lambda array: array[:50],
        lambda array: array.T,
        lambda array: np.asarray(memoryview(array)),
        lambda array: np.frombuffer(memoryview(array)[:50], np.float64),
    ],
    ids=["all", "half", "turned", "memoryview", "half a memoryview"],
)
def test_what_was_sent_can_be_read_and_not_be_written(
    ends: Ends, part: Callable[[Any], Any]
) -> None:
    array = drafted(ends.pool, 1.0, (100, 1000))
    sent = part(array)
    view = sent_in_place(ends, sent)
    assert is_in_slab(view)
    for each in (sent, array, array.base):
        with pytest.raises(ValueError, match="read-only"):
            each[0] = 2
    assert array.sum() == 100_000.0
    assert view.flat[0] == 1.0


def test_ordinary_arrays_that_were_sent_are_their_senders(ends: Ends) -> None:
    for array in (large(), large().reshape(2, -1).T):
        ends.send(array)
        array[0] = 5.0


def test_a_second_time_it_is_copied(ends: Ends) -> None:
    array = drafted(ends.pool, 4.0)
    first = sent_in_place(ends, array)
    for given_back in (False, True):
        assert ends.pool.find(array) is None
        assert ends.send(array).sum() == 400_000.0
        if not given_back:
            del first
            ends.give_back()


def test_it_is_not_used_again_while_it_is_held_here_or_there(ends: Ends) -> None:
    array = drafted(ends.pool, 1.0)
    view = sent_in_place(ends, array)
    other = sent_in_place(ends, drafted(ends.pool, 2.0))
    assert view[0] == 1.0
    del view
    assert ends.give_back() == [(0, 1)]
    third = drafted(ends.pool, 3.0)  # the first is held here
    assert array[0] == 1.0
    assert other[0] == 2.0
    del array, other, third
    ends.give_back()
    ends.pool.trim()
    assert repr(ends.pool) == "<SlabPool 3 MiB, 3 idle, 0 filling, 0 out>"


def test_a_view_is_enough_to_hold_it(ends: Ends) -> None:
    part = drafted(ends.pool, 1.0).reshape(10, -1)[3:4]
    drafted(ends.pool, 2.0)
    assert (part == 1.0).all()


def test_what_was_let_go_of_unsent_is_used_again(ends: Ends) -> None:
    for number in range(5):
        array = drafted(ends.pool, number)
        del array
    assert ends.pool.size == MIB
    assert ends.send(large(7))[0] == 7.0
    assert ends.pool.size == MIB


def test_it_may_be_let_go_of_in_any_thread(ends: Ends) -> None:
    arrays = [drafted(ends.pool, 1.0)]
    thread = threading.Thread(target=arrays.clear)
    thread.start()
    thread.join()
    drafted(ends.pool, 2.0)
    assert ends.pool.size == MIB


def test_word_of_an_earlier_draft_does_not_take_the_next_one_away(ends: Ends) -> None:
    array = drafted(ends.pool, 1.0)
    sent_in_place(ends, array)
    del array  # while it is at the receiver, where nobody reads it
    assert ends.give_back() == [(0, 1)]
    waiting = list(ends.pool._let_go)
    assert len(waiting) == 1
    held = drafted(ends.pool, 2.0)
    ends.pool._let_go.extend(waiting)
    other = drafted(ends.pool, 3.0)
    assert held[0] == 2.0
    assert other[0] == 3.0


def test_what_was_rolled_back_is_sent_later(ends: Ends) -> None:
    array = drafted(ends.pool, 5.0)
    assert ends.pool.find(array) is not None
    ends.pool.rollback()
    assert repr(ends.pool) == "<SlabPool 1 MiB, 0 idle, 0 filling, 0 out, 1 drafts>"
    assert is_in_slab(sent_in_place(ends, array))


def test_what_was_rolled_back_and_let_go_of_is_used_again(ends: Ends) -> None:
    array = drafted(ends.pool, 5.0)
    assert ends.pool.find(array) is not None
    del array
    ends.pool.rollback()
    assert repr(ends.pool) == "<SlabPool 1 MiB, 1 idle, 0 filling, 0 out>"


def test_nothing_is_copied_into_a_draft(ends: Ends) -> None:
    array = drafted(ends.pool, 6.0)
    ref = ends.pool.find(array[:10_000])
    copy = ends.pool.place(large())
    assert ref is not None
    assert copy is not None
    assert copy.slab != ref.slab
    ends.pool.rollback()


def test_there_is_something_to_commit_for_a_draft(ends: Ends) -> None:
    array = drafted(ends.pool, 1.0)
    assert not ends.pool.touched
    ends.pool.find(array)
    assert ends.pool.touched
    assert len(ends.pool.commit()) == 1


def test_drafts_leave_room_for_copies(ends: Ends) -> None:
    drafts = [ends.pool.draft(7 * MIB) for _ in range(5)]
    assert [each is None for each in drafts] == [False] * 4 + [True]
    assert ends.pool.place(large(1, 20 * MIB)) is not None
    ends.pool.rollback()


def test_so_do_many_small_ones(ends: Ends) -> None:
    drafts = [ends.pool.draft(MIB // 2) for _ in range(MOST_DRAFTS + 2)]
    assert [each is None for each in drafts] == [False] * MOST_DRAFTS + [True] * 2
    views = [ends.send(large(n)) for n in range(MOST_SLABS)]
    in_slabs = MOST_SLABS - MOST_DRAFTS
    assert list(map(is_in_slab, views)) == [True] * in_slabs + [False] * MOST_DRAFTS


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("given_back", [False, True])
def test_so_do_those_that_were_sent(ends: Ends, held: bool, given_back: bool) -> None:
    arrays = [drafted(ends.pool, n) for n in range(MOST_DRAFTS)]
    views = [sent_in_place(ends, array) for array in arrays]
    if not held:
        arrays.clear()
    if given_back:
        views.clear()
        ends.give_back()
    assert (ends.pool.draft(MIB // 2) is None) == (held or not given_back)
    assert [array[0] for array in arrays] == list(range(len(arrays)))
    assert [view[0] for view in views] == list(range(len(views)))
    arrays.clear()
    views.clear()
    ends.give_back()
    assert ends.pool.draft(MIB // 2) is not None


def test_a_small_one_leaves_large_slabs_to_copies(ends: Ends) -> None:
    held = [ends.pool.draft(7 * MIB) for _ in range(3)]
    ends.send(large(1, 20 * MIB))
    assert len(ends.give_back()) == 1
    small = ends.pool.draft(MIB // 2)
    assert small is not None
    assert is_in_slab(ends.send(large(1, 20 * MIB)))
    assert all(each is not None for each in held)


def test_let_go_of_drafts_make_room_for_the_next(ends: Ends) -> None:
    for _ in range(3):
        drafts = [ends.pool.draft(7 * MIB) for _ in range(4)]
        assert not any(each is None for each in drafts)
        del drafts


@pytest.mark.parametrize("nbytes", [MIB, 4 * MIB, MIB - 64, MIB - 63])
def test_an_array_of_any_length_fits(ends: Ends, nbytes: int) -> None:
    draft = ends.pool.draft(nbytes)
    assert draft is not None
    array = np.ndarray((nbytes,), np.uint8, draft)
    array[:] = 7
    view = sent_in_place(ends, array)
    assert is_in_slab(view)
    assert (view == 7).all()


def test_without_descriptors_there_are_none(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert ends.pool.draft(MIB) is None


def test_a_draft_outlives_its_pool() -> None:
    pool = SlabPool(LIMIT)
    array = drafted(pool, 1.0)
    pool.close()
    array += 1.0
    assert array[-1] == 2.0
    assert pool.draft(MIB) is None


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "draft",
                    "draft",
                    "send",
                    "send",
                    "copy",
                    "rollback",
                    "let go",
                    "drop",
                    "free",
                    "trim",
                ]
            ),
            st.integers(0, 20),
        ),
        max_size=40,
    )
)
def test_whatever_is_drafted_sent_and_let_go_of_everybody_reads_what_was_written(
    steps: list[tuple[str, int]],
) -> None:
    ends = Ends(16 * MIB)
    here: list[tuple[int, Any]] = []
    there: list[tuple[int, Any]] = []
    for number, (step, which) in enumerate(steps):
        if step == "draft":
            draft = ends.pool.draft(100_000 + which * 100_000)
            if draft is not None:
                array = np.ndarray(draft.shape, np.uint8, draft)
                array[:] = number
                here.append((number, array))
                del draft, array
        elif step in ("send", "copy", "rollback") and here:
            value, array = here[which % len(here)]
            place = ends.pool.place if step == "copy" else ends.pool.find
            if step == "rollback":
                place(array)
                ends.pool.rollback()
            else:
                body = b"".join(encode([array, array[:70_400]], place=place))
                for slab, descriptor in ends.pool.commit():
                    ends.reader.accept(slab, os.dup(descriptor))
                there += [(value, view) for view in decode(body, fetch=ends.reader.fetch)]
            del array
        elif step == "let go" and here:
            here.pop(which % len(here))
        elif step == "drop" and there:
            there.pop(which % len(there))
        elif step == "free":
            ends.give_back()
        elif step == "trim":
            ends.pool.trim()
        assert ends.pool.size <= 16 * MIB
        assert all((array == value).all() for value, array in here)
        assert all((view == value).all() for value, view in there)
    here.clear()
    there.clear()
    ends.give_back()
    ends.pool.trim()
    ends.pool.trim()
    assert ends.pool.size == 0
    ends.close()
