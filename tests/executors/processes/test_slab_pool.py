from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.executors.processes.frame import FrameError, Ref, decode, encode
from penstock.executors.processes.mapping import SlabReader
from penstock.executors.processes.slab import MOST_SLABS, SMALLEST_BYTES
from penstock.executors.processes.slab_pool import SlabPool
from tests.executors.processes.ends import LIMIT, MIB, Ends, descriptors, large

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


def test_arrays_arrive_as_they_were_sent(ends: Ends) -> None:
    value: list[Any] = [
        large(1),
        {"a": large(2).reshape(2, -1).T, "b": np.arange(3)},
        large(3, 5 * MIB),
    ]
    back = ends.send(value)
    assert np.array_equal(back[0], value[0])
    assert np.array_equal(back[1]["a"], value[1]["a"])
    assert np.array_equal(back[1]["b"], value[1]["b"])
    assert np.array_equal(back[2], value[2])


def test_an_array_is_copied_once_by_its_sender_and_never_by_its_receiver(ends: Ends) -> None:
    array = large(1)
    ref = ends.pool.place(array)
    assert ref is not None
    ((slab, descriptor),) = ends.pool.commit()
    third = mmap.mmap(descriptor, MIB)  # what both of them map
    ends.reader.accept(slab, os.dup(descriptor))
    body = b"".join(encode(array, place=lambda array: ref))
    view = decode(body, fetch=ends.reader.fetch)
    assert third[ref.offset : ref.offset + 8] == array[:1].tobytes()
    pattern = np.float64(1234.5).tobytes()
    third[ref.offset : ref.offset + 8] = pattern
    assert view[0] == 1234.5  # the receiver looks at the very bytes
    assert array[0] == 1  # and the sender's array is another
    assert view.__array_interface__["data"][0] % 64 == 0


def test_who_receives_cannot_write(ends: Ends) -> None:
    view = ends.send(large())
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True


def test_a_generation_is_given_back_when_the_last_view_of_it_has_gone(ends: Ends) -> None:
    first, second = ends.send([large(1), large(2)])
    part = second[5:10].reshape(5, 1)
    del first, second
    assert ends.give_back() == []
    assert part.sum() == 10
    del part
    assert ends.give_back() == [(0, 1)]
    assert ends.give_back() == []


def test_a_slab_is_used_again_and_the_receiver_is_told_of_it_once(ends: Ends) -> None:
    for number in range(5):
        view = ends.send(large(number))
        assert view[0] == number
        del view
        assert ends.give_back() == [(0, number + 1)]
    assert repr(ends.pool) == "<SlabPool 1 MiB, 1 idle, 0 filling, 0 out>"
    assert repr(ends.reader) == "<SlabReader 1 MiB, 1 slabs, 0 held>"


def test_a_slab_that_is_being_read_is_not_used_again(ends: Ends) -> None:
    first = ends.send(large(1))
    second = ends.send(large(2))
    assert first[0] == 1
    assert second[0] == 2
    assert repr(ends.reader) == "<SlabReader 2 MiB, 2 slabs, 2 held>"


def test_a_frame_needs_few_slabs_and_the_next_of_its_size_one(ends: Ends) -> None:
    images = [large(number, 600_000) for number in range(20)]
    views = ends.send(images)
    assert len(ends.reader._slabs) <= 5
    before = set(ends.reader._slabs)
    again = ends.send(images)
    assert len(set(ends.reader._slabs) - before) == 1
    assert all(np.array_equal(a, b) for a, b in zip(views, again, strict=True))


def test_on_freed_is_called_in_whichever_thread_the_last_view_goes() -> None:
    ends = Ends()
    called: list[str] = []
    ends.reader = SlabReader(LIMIT, lambda: called.append(threading.current_thread().name))
    views = [ends.send(large())]
    thread = threading.Thread(target=views.clear, name="other")
    thread.start()
    thread.join()
    assert called == ["other"]
    assert ends.give_back() == [(0, 1)]
    ends.close()


def test_over_the_limit_arrays_travel_inline() -> None:
    ends = Ends(2 * MIB)
    views = [ends.send(large(number, 700_000)) for number in range(4)]
    assert [view[0] for view in views] == [0, 1, 2, 3]
    assert repr(ends.pool) == "<SlabPool 2 MiB, 0 idle, 0 filling, 2 out>"
    assert [view.flags.writeable for view in views] == [False, False, True, True]
    assert ends.pool.place(large(1, 4 * MIB)) is None
    ends.close()


def test_small_slabs_make_way_for_a_large_one_on_both_sides() -> None:
    ends = Ends(4 * MIB)
    views = [ends.send(large(number, 900_000)) for number in range(4)]
    assert ends.pool.place(large(1, 3 * MIB)) is None
    views.clear()
    ends.give_back()
    view = ends.send(large(7, 3 * MIB))
    assert view[-1] == 7
    assert not view.flags.writeable
    assert repr(ends.pool) == "<SlabPool 4 MiB, 0 idle, 0 filling, 1 out>"
    assert repr(ends.reader) == "<SlabReader 4 MiB, 1 slabs, 1 held>"
    ends.close()


def resident(memory: mmap.mmap) -> int:
    descriptor = next(
        int(name)
        for name in os.listdir("/proc/self/fd")
        if "penstock-slab" in os.readlink(f"/proc/self/fd/{name}")
    )
    return os.fstat(descriptor).st_blocks * 512


def test_idle_slabs_give_their_memory_back_though_the_receiver_maps_them_still(
    ends: Ends,
) -> None:
    ends.send(large(1, 900_000))
    ends.give_back()
    memory = ends.reader._slabs[0].memory
    assert resident(memory) >= 900_000
    ends.pool.trim()
    assert repr(ends.pool) == "<SlabPool 1 MiB, 1 idle, 0 filling, 0 out>"
    ends.pool.trim()
    assert repr(ends.pool) == "<SlabPool 0 MiB, 0 idle, 0 filling, 0 out>"
    assert resident(memory) < 10_000


def test_what_is_used_between_two_trims_is_kept(ends: Ends) -> None:
    for _ in range(3):
        ends.send(large())
        ends.give_back()
        ends.pool.trim()
    assert repr(ends.pool) == "<SlabPool 1 MiB, 1 idle, 0 filling, 0 out>"
    assert list(ends.reader._slabs) == [0]


def test_only_a_few_slabs_stay_idle(ends: Ends) -> None:
    views = [ends.send(large(number)) for number in range(20)]
    views.clear()
    ends.give_back()
    assert repr(ends.pool) == "<SlabPool 8 MiB, 8 idle, 0 filling, 0 out>"
    ends.send(large())
    assert len(ends.reader._slabs) <= 20


def test_no_more_than_half_of_the_limit_stays_idle(ends: Ends) -> None:
    views = [ends.send(large(number, 10 * MIB)) for number in range(4)]
    assert ends.pool.size == 64 * MIB
    views.clear()
    ends.give_back()
    assert ends.pool.size == 32 * MIB


def test_the_slab_that_was_used_last_is_used_next(ends: Ends) -> None:
    views = [ends.send(large(number)) for number in range(3)]
    while views:
        views.pop(0)
        ends.give_back()
    for _ in range(3):
        ends.send(large())
        assert ends.give_back()[0][0] == 2


def test_the_number_of_slabs_is_bounded(ends: Ends) -> None:
    ends.reader.limit = ends.pool._limit = 2 * MOST_SLABS * MIB
    views = [ends.send(large(number)) for number in range(MOST_SLABS + 3)]
    assert [view[0] for view in views] == list(range(MOST_SLABS + 3))
    assert len(ends.reader._slabs) == MOST_SLABS


def test_a_frame_that_is_never_sent_keeps_nothing(ends: Ends) -> None:
    ref = ends.pool.place(large())
    assert ref is not None
    ends.pool.rollback()
    assert repr(ends.pool) == "<SlabPool 1 MiB, 1 idle, 0 filling, 0 out>"
    view = ends.send(large(3))  # and the receiver, who has not heard of the slab, is told now
    assert view[0] == 3
    assert repr(ends.pool) == "<SlabPool 1 MiB, 0 idle, 0 filling, 1 out>"


def test_arrays_are_copied_when_all_else_has_been_done(ends: Ends) -> None:
    array = large(1)
    body = b"".join(encode(array, place=ends.pool.place))
    array[0] = 5.0  # which nobody is to do, and which shows when it is read
    array.shape = (2, -1)  # nor this, which does not
    for slab, descriptor in ends.pool.commit():
        ends.reader.accept(slab, os.dup(descriptor))
    assert decode(body, fetch=ends.reader.fetch)[0] == 5.0


@pytest.mark.parametrize("end", [SlabPool.commit, SlabPool.rollback, SlabPool.close])
def test_no_array_is_kept_behind_its_frame(end: Callable[[SlabPool], object]) -> None:
    pool = SlabPool(LIMIT)
    array = large()
    kept = weakref.ref(array)
    pool.place(array)
    del array
    assert kept() is not None
    end(pool)
    assert kept() is None
    pool.close()


def test_it_tells_until_a_frame_without_arrays_that_there_is_something_to_commit(
    ends: Ends,
) -> None:
    assert not ends.pool.touched
    ends.pool.place(large(1))
    assert ends.pool.touched
    before = descriptors()
    assert len(ends.pool.commit()) == 1
    assert ends.pool.touched
    assert ends.pool.commit() == []
    assert descriptors() == before - 1
    assert not ends.pool.touched


def test_objects_and_empty_arrays_have_no_place(ends: Ends) -> None:
    assert ends.pool.place(np.array([None])) is None
    assert ends.pool.place(np.zeros((0, 3))) is None


@pytest.mark.parametrize("claim", [(0, 2), (0, 0), (1, 1), (2**32 - 1, 1)])
def test_what_the_receiver_has_not_got_it_cannot_give_back(
    ends: Ends, claim: tuple[int, int]
) -> None:
    view = ends.send(large())
    with pytest.raises(FrameError, match="out of turn"):
        ends.pool.release(*claim)
    ends.pool.release(0, 1)
    with pytest.raises(FrameError, match="out of turn"):
        ends.pool.release(0, 1)
    del view


def test_after_the_last_generation_there_is_another_slab(ends: Ends) -> None:
    ends.send(large())
    ends.give_back()
    next(iter(ends.pool._idle.values())).generation = 2**32 - 2
    assert ends.send(large(2))[0] == 2
    assert ends.give_back() == [(0, 2**32 - 1)]
    assert ends.send(large(3))[0] == 3
    assert ends.give_back() == [(1, 1)]


def test_without_descriptors_arrays_travel_inline(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert ends.send(large(4))[0] == 4


def test_views_outlive_both_ends() -> None:
    ends = Ends()
    view = ends.send(large(5))
    ends.close()
    assert view.sum() == 5 * view.size
    del view
    assert ends.reader.freed() == []


def test_a_closed_pool_places_nothing() -> None:
    pool = SlabPool(LIMIT)
    pool.close()
    assert pool.place(large()) is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.lists(st.integers(70_000, 2_500_000), max_size=4)),
            st.tuples(st.just("drop"), st.integers(0, 20)),
            st.tuples(st.sampled_from(["free", "trim", "rollback"]), st.none()),
        ),
        max_size=25,
    )
)
def test_whatever_is_sent_kept_and_given_back_every_view_keeps_its_content(
    steps: list[tuple[str, Any]],
) -> None:
    ends = Ends(8 * MIB)
    held: list[tuple[int, list[np.ndarray[Any, Any]]]] = []
    for number, (step, what) in enumerate(steps):
        if step == "send":
            sent = [np.full(size, number % 251, np.uint8) for size in what]
            held.append((number % 251, ends.send(sent)))
        elif step == "drop" and held:
            held.pop(what % len(held))
        elif step == "free":
            ends.give_back()
        elif step == "trim":
            ends.pool.trim()
        elif step == "rollback":
            ends.pool.place(large())
            ends.pool.rollback()
        assert ends.pool._size <= 8 * MIB
        assert ends.reader._size <= 8 * MIB
        assert all(view[0] == value == view[-1] for value, views in held for view in views)
    held.clear()
    ends.give_back()
    assert not ends.pool._out
    ends.close()


def test_the_smallest_slab_holds_any_single_array_of_less() -> None:
    pool = SlabPool(LIMIT)
    ref = pool.place(np.zeros(SMALLEST_BYTES - 64, np.uint8))
    assert ref == Ref(0, 1, 64, SMALLEST_BYTES - 64)
    assert repr(pool) == "<SlabPool 1 MiB, 0 idle, 1 filling, 0 out>"
    pool.close()
