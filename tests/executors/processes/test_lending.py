"""What one worker has put into its slab, another reads there."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.executors.processes.frame import FrameError, Ref, decode, encode
from penstock.executors.processes.lending import FIRST_LENT, Borrower, Lender, lease_of
from penstock.executors.processes.mapping import SlabReader
from penstock.executors.processes.slab import LAST_GENERATION, MOST_SLABS
from penstock.executors.processes.slab_pool import SlabPool
from tests.executors.processes.ends import LIMIT, MIB, Hostile, descriptors, large, memfd

Array = np.ndarray[Any, Any]


pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


class Worker:
    """A worker that is lent something, and the engine's Lender for it."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.pool = SlabPool(limit)
        self.borrower = Borrower(limit)
        self.rings = 0
        self.lender = Lender(self.pool, self.borrower.recall, self._ring)

    def send(self, value: Any) -> Any:
        body = b"".join(encode(value, place=self.lender.place))
        for slab, descriptor in self.lender.commit():
            self.borrower.accept(slab, os.dup(descriptor))
        return decode(body, fetch=self.borrower.fetch)

    def answer(self, value: Any) -> Any:
        """As the engine sees it; arrays that were not lent go in the frame."""
        body = b"".join(encode(value, place=self.borrower.find))
        return decode(body, fetch=self.lender.fetch)

    def give_back(self) -> list[tuple[int, int]]:
        freed = self.borrower.freed()
        for slab, loan in freed:
            self.lender.release(slab, loan)
        self.lender.settle()
        return freed

    def think_again(self, arrays: list[Array]) -> None:
        """Begin to send arrays, and do not."""
        for array in arrays:
            self.lender.place(array)
        self.lender.rollback()

    def end(self) -> None:
        self.lender.close()
        self.borrower.close()

    def _ring(self) -> None:
        self.rings += 1


class Maker:
    """A worker that makes arrays, and the engine's reader of them."""

    def __init__(self, limit: int = LIMIT, most_lendable: int = 16) -> None:
        self.pool = SlabPool(limit)
        self.reader = SlabReader(limit, most_lendable=most_lendable)

    def make(self, value: Any) -> Any:
        """As the engine sees it."""
        body = b"".join(encode(value, place=self.pool.place))
        for slab, descriptor in self.pool.commit():
            self.reader.accept(slab, os.dup(descriptor))
        return decode(body, fetch=self.reader.fetch)

    def give_back(self) -> list[tuple[int, int]]:
        freed = self.reader.freed()
        for slab, generation in freed:
            self.pool.release(slab, generation)
        return freed

    def end(self) -> None:
        self.pool.close()
        self.reader.close()


@pytest.fixture
def maker() -> Iterator[Maker]:
    made = Maker()
    yield made
    made.end()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.end()


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def is_lent(view: Array) -> bool:
    """Whether who got it looks at memory that the engine has not copied it to."""
    lease = lease_of(view)
    return lease is not None and type(lease.mapped).__name__ == "_Borrowed"


def test_an_array_that_is_lent_is_read_where_its_maker_has_put_it(
    maker: Maker, worker: Worker
) -> None:
    array = maker.make(large(3, 5 * MIB))
    view = worker.send({"x": array})["x"]
    assert is_lent(view)
    assert np.array_equal(view, array)
    assert view.dtype == array.dtype
    assert worker.pool.size == 0
    slab = next(iter(maker.pool._out.values()))
    slab.memory[64:72] = np.float64(1234.5).tobytes()
    assert view[0] == 1234.5
    assert address(view) % 64 == 0


def test_who_is_lent_something_cannot_write_to_it(maker: Maker, worker: Worker) -> None:
    array = maker.make(large())
    worker.lender.place(array)
    ((_, descriptor),) = worker.lender.commit()
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, MIB)
    with pytest.raises(OSError, match="descriptor"):
        os.write(descriptor, b"x")
    assert not worker.send(maker.make(large())).flags.writeable


@pytest.mark.parametrize("first", ["engine", "worker"])
def test_its_maker_gets_it_back_when_neither_engine_nor_worker_reads_it(
    maker: Maker, worker: Worker, first: str
) -> None:
    held = {"engine": maker.make(large(1))}
    held["worker"] = worker.send(held["engine"])
    del held[first]
    worker.give_back()
    assert maker.give_back() == []
    assert next(iter(held.values()))[0] == 1
    held.clear()
    worker.give_back()
    assert maker.give_back() == [(0, 1)]
    again = maker.make(large(2))
    assert worker.send(again)[0] == 2
    assert list(maker.reader._slabs) == [0]
    assert list(worker.borrower._slabs) == [FIRST_LENT]


def test_until_the_worker_has_told_so_nothing_goes_back(maker: Maker, worker: Worker) -> None:
    worker.send(maker.make(large(1)))  # which the worker does not read any more, either
    assert maker.give_back() == []
    assert worker.give_back() == [(FIRST_LENT, 1)]
    assert maker.give_back() == [(0, 1)]


def test_frames_have_loans_of_their_own_however_late_the_one_before_is_given_back(
    maker: Maker, worker: Worker
) -> None:
    arrays = maker.make([large(1), large(2), large(3)])
    first = worker.send(arrays[:2])
    second = worker.send(arrays[2])
    del first
    third = worker.send(arrays[0])  # while word of the first is on its way
    assert worker.give_back() == [(FIRST_LENT, 1)]
    assert (second[0], third[0]) == (3, 1)
    del arrays
    assert maker.give_back() == []
    del second, third
    assert worker.give_back() == [(FIRST_LENT, 2), (FIRST_LENT, 3)]
    assert maker.give_back() == [(0, 1)]


def test_an_array_stands_in_a_frame_as_often_as_one_likes(maker: Maker, worker: Worker) -> None:
    array = maker.make(large(1))
    views = worker.send([array, {"same": array}, array.reshape(2, -1), array[64:]])
    assert all(is_lent(view) for view in (views[0], views[1]["same"], *views[2:]))
    views.clear()
    assert worker.give_back() == [(FIRST_LENT, 1)]
    assert worker.pool.size == 0


def test_one_array_goes_to_several_workers(maker: Maker, worker: Worker) -> None:
    other = Worker()
    array = maker.make(large(1))
    views = [each.send(array) for each in (worker, other)]
    del array
    views.pop()
    other.give_back()
    assert maker.give_back() == []
    assert views[0][0] == 1
    views.clear()
    worker.give_back()
    assert maker.give_back() == [(0, 1)]
    other.end()


def test_rows_and_views_are_lent_where_they_stand_in_one_piece_at_a_multiple_of_64(
    maker: Maker, worker: Worker
) -> None:
    batch = maker.make(np.arange(400_000.0).reshape(4, -1))
    views = {
        "row": batch[1],
        "rows": batch[1:3],
        "part": batch[2][8:90_000],
        "transposed": batch.T.T,
        "as bytes": batch.view("u1"),
        "all": batch,
        "of its own bytes": np.ndarray(10_000, "f8", batch.base, 6400),
        "of them backwards": np.ndarray(400_000, "f8", batch.base, 399_999 * 8, (-8,)),
        "of a copy of them": np.asarray(batch.base.copy()),
        "of a piece of them": np.asarray(batch.base[640:]),
        "of a buffer": np.frombuffer(memoryview(batch[3]), "f8"),
        "odd": batch[2][1:90_000],
        "columns": batch[:, :50_000],
        "every other": batch[0][::2],
        "backwards": batch[3][::-1],
        "turned": batch.T,
        "wide": np.broadcast_to(batch[0], (2, 100_000)),
        "bent": np.lib.stride_tricks.as_strided(batch[0], (50_000,), (16,)),
    }
    copied = {"odd", "columns", "every other", "backwards", "of them backwards", "wide", "bent"}
    copied.add("of a copy of them")
    got = worker.send(views)
    assert all(np.array_equal(got[name], view) for name, view in views.items())
    assert {name for name, view in got.items() if not is_lent(view)} == copied
    assert got["turned"].strides == batch.T.strides


def test_an_array_in_fortran_order_is_lent_and_given_on_in_that_order(
    maker: Maker, worker: Worker
) -> None:
    made = np.asfortranarray(np.arange(600_000.0).reshape(3, 100, 2000))
    array = maker.make(made)
    view = worker.send(array)
    back = worker.answer(view)
    for each in (array, view, back):
        assert np.array_equal(each, made)
        assert each.strides == made.strides
    assert is_lent(view)
    assert address(back) == address(array)


def test_what_is_in_no_slab_of_a_worker_is_copied(maker: Maker, worker: Worker) -> None:
    body = np.arange(20_000.0).tobytes()
    views = worker.send([large(1), np.frombuffer(body), large(2, 300_000)[::2]])
    assert not any(map(is_lent, views))
    assert worker.lender._numbered == {}


def test_an_owner_who_rewrites_its_generation_harms_no_reader(worker: Worker) -> None:
    reader = SlabReader(LIMIT, most_lendable=1)
    sender = Hostile(reader)
    sender.memory[64 : 64 + 100_000] = b"x" * 100_000
    array = np.frombuffer(reader.fetch(Ref(0, 1, 64, 100_000)), "u1")
    body = b"".join(encode(array, place=worker.lender.place))
    ((slab, descriptor),) = worker.lender.commit()
    worker.borrower.accept(slab, os.dup(descriptor))
    view = None
    for word in (2, LAST_GENERATION, 0):
        sender.write(word)
        view = decode(body, fetch=worker.borrower.fetch)
        assert bytes(view[:3]) == b"xxx"
    del view
    worker.give_back()
    worker.borrower.accept(7, memfd(MIB))  # when it looks for what was given up
    view = worker.send(array)
    assert is_lent(view)
    assert bytes(view[-3:]) == b"xxx"
    sender.memory.madvise(mmap.MADV_REMOVE)
    assert bytes(view[:3]) == bytes(3)
    with pytest.raises(FrameError, match="generation 5"):
        reader.fetch(Ref(0, 5, 64, 8))
    del view, array
    worker.end()
    reader.close()


@pytest.mark.parametrize(
    "claim",
    [
        (FIRST_LENT, 2),
        (FIRST_LENT, 0),
        (FIRST_LENT + 1, 1),
        (FIRST_LENT - 1, 1),
        (0, 1),
        (2**32 - 1, 1),
    ],
)
def test_what_was_not_lent_cannot_be_given_back(
    maker: Maker, worker: Worker, claim: tuple[int, int]
) -> None:
    view = worker.send(maker.make(large()))
    with pytest.raises(FrameError, match="out of turn"):
        worker.lender.release(*claim)
    worker.lender.release(FIRST_LENT, 1)
    with pytest.raises(FrameError, match="out of turn"):
        worker.lender.release(FIRST_LENT, 1)
    assert maker.give_back() == [(0, 1)]  # its word was taken: what it reads may change now
    del view


def test_the_worker_is_told_nothing_of_loans_that_are_over(maker: Maker, worker: Worker) -> None:
    body = b"".join(encode(maker.make(large()), place=worker.lender.place))
    ((slab, descriptor),) = worker.lender.commit()
    worker.borrower.accept(slab, os.dup(descriptor))
    decode(body, fetch=worker.borrower.fetch)
    with pytest.raises(FrameError, match="was given back"):
        decode(body, fetch=worker.borrower.fetch)
    worker.borrower.fetch(Ref(FIRST_LENT, 3, 64, 8))
    with pytest.raises(FrameError, match="was given back"):
        worker.borrower.fetch(Ref(FIRST_LENT, 2, 64, 8))
    with pytest.raises(FrameError, match="no 8 bytes"):
        worker.borrower.fetch(Ref(FIRST_LENT, 4, MIB, 8))


def test_what_a_worker_gives_on_as_it_was_lent_it_stays_where_it_is(
    maker: Maker, worker: Worker
) -> None:
    lent = worker.send(maker.make(large(1, 5 * MIB)))
    given = worker.answer({"x": lent, "y": lent[64:20_000]})
    slab = next(iter(maker.pool._out.values()))
    slab.memory[64:72] = np.float64(1234.5).tobytes()
    assert given["x"][0] == 1234.5
    assert np.array_equal(given["y"], lent[64:20_000])
    assert not given["x"].flags.writeable
    del lent
    worker.give_back()
    assert maker.give_back() == []
    other = Worker()
    views = other.send(given)  # and on, as if it came from its maker
    assert is_lent(views["x"])
    given.clear()
    assert maker.give_back() == []
    views.clear()
    other.give_back()
    assert maker.give_back() == [(0, 1)]
    other.end()


def test_what_was_not_lent_or_does_not_stand_in_one_piece_is_not_given_on(
    maker: Maker, worker: Worker
) -> None:
    lent, sent = worker.send([maker.make(large(1, 300_000)), large(2)])
    assert not is_lent(sent)
    for array in (sent, lent[1:], lent[::2], large(3)):
        assert worker.borrower.find(array) is None
        assert np.array_equal(worker.answer(array), array)


@pytest.mark.parametrize(
    "ref",
    [
        Ref(FIRST_LENT, 2, 64, 8),
        Ref(FIRST_LENT, 0, 64, 8),
        Ref(FIRST_LENT + 1, 1, 64, 8),
        Ref(0, 1, 64, 8),
        Ref(2**32 - 1, 2**32 - 1, 64, 8),
        Ref(FIRST_LENT, 1, 0, 8),
        Ref(FIRST_LENT, 1, 65, 8),
        Ref(FIRST_LENT, 1, 64, 0),
        Ref(FIRST_LENT, 1, 64, MIB - 63),
        Ref(FIRST_LENT, 1, 2**63, 2**63),
    ],
)
def test_a_worker_cannot_give_on_what_it_was_not_lent(
    maker: Maker, worker: Worker, ref: Ref
) -> None:
    lent = worker.send([maker.make(large()), large()])
    assert len(worker.lender.fetch(Ref(FIRST_LENT, 1, 64, MIB - 64))) == MIB - 64
    with pytest.raises(FrameError):
        worker.lender.fetch(ref)
    worker.lender.release(FIRST_LENT, 1)
    with pytest.raises(FrameError, match="is not with this worker"):
        worker.lender.fetch(Ref(FIRST_LENT, 1, 64, 8))
    lent.clear()


def test_the_worker_looks_itself_at_what_it_is_lent(worker: Worker) -> None:
    with pytest.raises(FrameError, match="not sealed"):
        worker.borrower.accept(FIRST_LENT, memfd(MIB, 0))
    with pytest.raises(FrameError, match="is not lent"):
        worker.borrower.recall(FIRST_LENT)
    worker.borrower.accept(1, memfd(MIB))
    with pytest.raises(FrameError, match="is not lent"):
        worker.borrower.recall(1)


def test_a_frame_that_is_never_sent_lends_nothing(maker: Maker, worker: Worker) -> None:
    array = maker.make(large(1))
    worker.lender.place(array)
    worker.lender.place(large(2))
    worker.lender.rollback()
    assert worker.pool.size == MIB  # idle
    del array
    assert maker.give_back() == [(0, 1)]
    view = worker.send(maker.make(large(3)))
    assert is_lent(view)
    assert view[0] == 3
    del view
    assert worker.give_back() == [(FIRST_LENT, 1)]


def test_when_a_worker_ends_all_its_loans_do(maker: Maker, worker: Worker) -> None:
    arrays = [maker.make(large(number)) for number in range(3)]
    views = [worker.send(array) for array in arrays for _ in range(2)]
    arrays.clear()
    assert maker.give_back() == []
    worker.lender.close()
    assert len(maker.give_back()) == 3
    assert maker.reader.lent == set()
    assert worker.lender.place(large()) is None
    views.clear()


def test_what_was_lent_outlives_its_maker_and_is_recalled_then(worker: Worker) -> None:
    maker = Maker()
    array = maker.make(large(1))
    view = worker.send(array)
    maker.end()
    assert is_lent(worker.send(array[64:]))  # which the worker knows already
    del array
    assert view[0] == 1
    del view
    assert worker.rings == 0
    worker.give_back()
    assert worker.rings == 1
    assert repr(worker.lender) == (
        "<Lender 0 slabs, 0 loans, <SlabPool 0 MiB, 0 idle, 0 filling, 0 out>>"
    )
    assert repr(worker.borrower) == "<Borrower 0 MiB, 0 slabs, 0 held>"


def test_what_its_maker_left_and_nobody_was_lent_is_copied(worker: Worker) -> None:
    maker = Maker()
    array = maker.make(large(1))
    maker.end()
    view = worker.send(array)
    assert not is_lent(view)
    assert view[0] == 1


def test_a_slab_that_its_maker_has_given_up_is_recalled(maker: Maker, worker: Worker) -> None:
    worker.send(maker.make(large(1)))
    worker.give_back()
    maker.give_back()
    maker.pool.trim()
    maker.pool.trim()
    assert len(worker.borrower._slabs) == 1
    held = maker.make(large(2))  # when the engine hears of another it forgets the one
    worker.lender.settle()
    assert worker.borrower._slabs == {}
    del held


def test_what_is_not_lent_for_a_while_is_recalled(maker: Maker, worker: Worker) -> None:
    views = [worker.send(maker.make(large(1)))]
    worker.lender.trim()
    worker.lender.trim()
    worker.lender.trim()
    assert is_lent(views[0])  # read for as long as anybody likes
    views.clear()
    worker.give_back()
    maker.give_back()
    worker.send(maker.make(large(1)))
    worker.give_back()
    worker.lender.trim()
    assert list(worker.borrower._slabs) == [FIRST_LENT]
    assert worker.lender.size == MIB
    worker.lender.trim()
    assert list(worker.borrower._slabs) == []
    assert worker.lender.size == 0
    maker.give_back()
    view = worker.send(maker.make(large(4)))
    assert is_lent(view)
    assert list(worker.borrower._slabs) == [FIRST_LENT + 1]


def test_only_half_of_what_a_maker_has_is_lent() -> None:
    maker, worker = Maker(), Worker(4 * LIMIT)
    arrays = [maker.make(large(number, 7 * MIB)) for number in range(6)]
    views = [worker.send(array) for array in arrays]
    assert [is_lent(view) for view in views] == [True] * 4 + [False] * 2
    assert is_lent(worker.send(arrays[0]))  # no more of it than before
    views.pop(0)
    worker.give_back()
    assert is_lent(worker.send(arrays[5]))
    arrays.clear()
    views.clear()
    worker.end()
    maker.end()


def test_only_half_of_the_slabs_that_a_maker_may_have_are_lent() -> None:
    maker, worker = Maker(2 * MOST_SLABS * MIB, MOST_SLABS), Worker(8 * LIMIT)
    views = [worker.send(maker.make(large(number))) for number in range(40)]
    assert [is_lent(view) for view in views] == [True] * 32 + [False] * 8
    assert [view[0] for view in views] == list(range(40))
    views.clear()
    worker.end()
    maker.end()


def test_lent_or_not_a_worker_maps_no_more_than_its_limit() -> None:
    maker, worker = Maker(), Worker(4 * MIB)
    own = worker.send(large(9, 1_900_000))
    arrays = [maker.make(large(number)) for number in range(4)]
    views = [worker.send(array) for array in arrays]
    assert [is_lent(view) for view in views] == [True, True, False, False]
    assert [view[0] for view in views] == [0, 1, 2, 3]
    assert own[-1] == 9
    assert worker.lender.size == 4 * MIB
    assert repr(worker.borrower) == "<Borrower 4 MiB, 3 slabs, 3 held>"
    views.clear()
    worker.give_back()
    assert not is_lent(worker.send(large(5, 1_900_000)))  # what is not read makes way
    assert repr(worker.borrower) == "<Borrower 4 MiB, 2 slabs, 1 held>"
    del own
    arrays.clear()
    worker.end()
    maker.end()


def test_idle_slabs_of_either_kind_make_way_for_the_other() -> None:
    maker, worker = Maker(), Worker(4 * MIB)
    for number in range(5):
        assert is_lent(worker.send(maker.make(large(number, 3_900_000))))
        worker.give_back()
        maker.give_back()
        assert not is_lent(worker.send(large(number, 3_900_000)))
        worker.give_back()
    worker.end()
    maker.end()


def test_an_idle_slab_of_one_maker_makes_way_for_one_of_another() -> None:
    makers, worker = [Maker(), Maker()], Worker(4 * MIB)
    for number in range(4):
        assert is_lent(worker.send(makers[number % 2].make(large(number, 3_900_000))))
        worker.give_back()
    worker.end()
    for maker in makers:
        maker.end()


def test_lent_or_not_a_worker_maps_no_more_slabs_than_it_may() -> None:
    maker, worker = Maker(512 * MIB, MOST_SLABS), Worker(512 * MIB)
    other = Maker(512 * MIB, MOST_SLABS)
    views = [worker.send(large(0)) for _ in range(20)]
    views += [worker.send(each.make(large(0))) for _ in range(25) for each in (maker, other)]
    assert sum(map(is_lent, views)) == MOST_SLABS - 20
    assert len(worker.borrower._slabs) == MOST_SLABS
    views.clear()
    for each in (worker, maker, other):
        each.end()


def test_after_the_last_loan_a_slab_is_recalled_and_lent_anew(maker: Maker, worker: Worker) -> None:
    array = maker.make(large(1))
    worker.send(array)
    worker.give_back()
    worker.lender._numbered[FIRST_LENT].last = LAST_GENERATION - 1
    assert is_lent(worker.send(array))
    assert not is_lent(worker.send(array))
    worker.give_back()
    worker.lender.trim()
    worker.lender.trim()
    assert is_lent(worker.send(array))


def test_only_of_so_many_slabs_a_descriptor_is_kept() -> None:
    maker, worker = Maker(most_lendable=2), Worker()
    before = descriptors()
    arrays = [maker.make(large(number)) for number in range(4)]
    # Each costs a mapping on either side, which is a descriptor, too.
    assert descriptors() == before + 2 * 4 + 2 + 1  # and the last that the maker is sending
    assert [is_lent(worker.send(array)) for array in arrays] == [True, True, False, False]
    arrays.clear()
    worker.end()
    maker.end()


def test_without_descriptors_arrays_are_copied(
    maker: Maker, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as lacking:
        lacking.setattr(os, "open", refuse)
        array = maker.make(large(4))
    view = worker.send(array)
    assert not is_lent(view)
    assert view[0] == 4


Step = tuple[str, Any]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("make"), st.lists(st.integers(70_000, 1_500_000), max_size=3)),
            st.tuples(st.just("send"), st.tuples(st.integers(0, 1), st.integers(0, 20))),
            st.tuples(st.sampled_from(["drop", "forget"]), st.integers(0, 20)),
            st.tuples(
                st.sampled_from(["free", "take", "trim", "trim maker", "rollback", "restart"]),
                st.integers(0, 1),
            ),
        ),
        max_size=40,
    )
)
def test_whatever_is_made_lent_kept_and_given_back_every_view_keeps_its_content(
    steps: list[Step],
) -> None:
    maker, workers = Maker(16 * MIB), [Worker(8 * MIB), Worker(8 * MIB)]
    made: list[tuple[int, list[Array]]] = []
    held: list[tuple[int, list[Array]]] = []
    actions: dict[str, Callable[[int], object]] = {
        "drop": lambda n: held and held.pop(n % len(held)),
        "forget": lambda n: made and made.pop(n % len(made)),
        "free": lambda n: workers[n].give_back(),
        "take": lambda n: maker.give_back(),
        "trim": lambda n: workers[n].lender.trim(),
        "trim maker": lambda n: maker.pool.trim(),
        "rollback": lambda n: workers[n].think_again(made[0][1] if made else []),
    }
    for number, (step, what) in enumerate(steps):
        value = number % 251
        if step == "make":
            made.append((value, maker.make([np.full(size, value, "u1") for size in what])))
        elif step == "send" and made:
            worker, which = what
            chosen = which % len(made)
            held.append((made[chosen][0], workers[worker].send(made[chosen][1])))
        elif step == "restart":
            workers[what].end()
            workers[what] = Worker(8 * MIB)
            held.clear()  # those of the other one, too: it does no harm
        elif step in actions:
            actions[step](what)
        for worker_ in workers:
            assert worker_.lender.size <= 8 * MIB
            assert worker_.borrower._size <= 8 * MIB
        assert all(each[0] == v == each[-1] for v, arrays in made + held for each in arrays)
    made.clear()
    held.clear()
    for worker_ in workers:
        worker_.give_back()
        assert not any(lent.loans for lent in worker_.lender._numbered.values())
    maker.give_back()
    assert not maker.pool._out
    assert not maker.reader.lent
    maker.end()
    for worker_ in workers:
        worker_.end()
