"""Arrays from worker process to worker process, while either may die. All are real."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import WorkerDied
from penstock.executors.processes import worker as worker_module
from penstock.executors.processes.lending import Lender, lease_of
from penstock.executors.processes.slab_pool import SlabPool
from penstock.request import Outcome
from tests.executors.house import Desk, batch_of
from tests.executors.processes.house import SLABS, Processes, executor

pytestmark = pytest.mark.real

SIZE = 5 << 20
DEATHS = 50


class Chain:
    """Two ops with a process each; the second is fed what the first has made."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.makes, self.takes = Desk(executor(processes)), Desk(executor(processes))

    async def start(self) -> int:
        """Gives the number of the process that makes the arrays."""
        await self.makes.executor.start()
        (maker,) = self.processes.pids
        await self.takes.executor.start()
        return maker

    async def make(self, start: int = 0) -> Any:
        array = np.arange(start, start + SIZE // 8, dtype=np.float64)
        value = (await one(self.makes, do="array", x=array)).value
        assert value is not None
        return value["x"]

    async def close(self) -> None:
        assert await self.makes.executor.close(10.0)
        assert await self.takes.executor.close(10.0)


@pytest.fixture(autouse=True)
def _as_much_as_its_workers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "SLAB_BYTES", SLABS)


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each array that the engine copies for a worker."""
    copied: list[int] = []
    place = SlabPool.place

    def noted(pool: SlabPool, array: Any) -> Any:
        copied.append(array.nbytes)
        return place(pool, array)

    monkeypatch.setattr(SlabPool, "place", noted)
    return copied


def is_where(one: Any, other: Any) -> bool:
    return bool(one.__array_interface__["data"] == other.__array_interface__["data"])


async def one(desk: Desk, **feed: Any) -> Outcome:
    ((_, (outcome,)),) = await desk.run(batch_of(1, **feed))
    desk.reports.clear()
    desk._waiting.clear()
    return outcome


async def until(true: Callable[[], bool]) -> None:
    """Wait for what another process or the loop does."""
    async with asyncio.timeout(20.0):
        while not true():
            await asyncio.sleep(0.005)


def belongings() -> Counter[str]:
    """Descriptors by what they are, and mappings of slabs."""
    gc.collect()
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{name}").partition(":[")[0]] += 1
        except FileNotFoundError:  # what listed them
            continue
    found["mappings"] = Path("/proc/self/maps").read_text().count("memfd:penstock-slab")
    return found


async def test_an_array_that_a_process_made_is_read_there_by_the_next_and_copied_by_nobody(
    processes: Processes, copied: list[int]
) -> None:
    chain = Chain(processes)
    await chain.start()
    for n in range(5):
        made = await chain.make(n)
        assert lease_of(made) is not None  # the first copy, which is the maker's, and the last
        assert np.array_equal(made, np.arange(SIZE // 8) + n + 1.0)
        copied.clear()
        tracemalloc.start()
        try:
            work = chain.takes.submit([batch_of(2, do="sum", x=made)])
            assert tracemalloc.get_traced_memory()[1] < SIZE / 5
        finally:
            tracemalloc.stop()
        ((_, (outcome,)),) = await chain.takes.results(work)
        assert outcome.value == {"sum": int(made.sum()), "owned": False}
        assert copied == []
    await chain.close()


async def test_an_array_that_was_written_in_place_is_read_there_by_the_next(
    processes: Processes, copied: list[int]
) -> None:
    chain = Chain(processes)
    maker = await chain.start()
    rows, shape = [str(n) for n in range(4)], (4, SIZE // 32)
    for n in range(5):
        value = (await one(chain.makes, do="in place", shape=shape, start=float(n))).value
        assert value is not None
        assert is_where(value["x"], value["0"])  # which no copy of it would be
        expected = np.arange(SIZE // 8).reshape(shape) + n
        assert np.array_equal(value["x"], expected)
        assert all(np.array_equal(value[name], expected[int(name)]) for name in rows)
        outcome = await one(chain.takes, do="sum", x=value["3"])
        assert outcome.value == {"sum": int(expected[3].sum()), "owned": False}
        assert copied == []
        del value
    # It is used again, or two take turns: not one for each call.
    maps = Path(f"/proc/{maker}/maps").read_text()
    assert 1 <= maps.count("memfd:penstock-slab") <= 3
    await chain.close()


async def test_who_writes_to_what_it_has_given_on_is_told_so(processes: Processes) -> None:
    chain = Chain(processes)
    await chain.start()
    feed = {"do": "in place again", "shape": 1_000_000}
    first = (await one(chain.makes, **feed, start=1.0)).value
    assert first is not None
    error = (await one(chain.makes, **feed, start=2.0)).error
    assert "read-only" in str(error)
    assert (first["x"] == 1.0).all()
    await chain.close()


async def test_arrays_go_on_through_several_processes_as_they_are(
    processes: Processes, copied: list[int]
) -> None:
    chain = Chain(processes)
    await chain.start()
    made = await chain.make()
    rows = made.reshape(5, -1)
    copied.clear()
    for feed in ({"x": made}, {"x": rows[1]}, {"x": rows[2:4]}, {"x": rows[0][8:], "y": rows[4]}):
        value = (await one(chain.takes, **feed)).value
        assert value is not None
        for name, array in feed.items():
            assert np.array_equal(value[name], array)
            assert value[name].dtype == array.dtype
            assert is_where(value[name], array)
            back = (await one(chain.makes, **{name: value[name]})).value
            assert back is not None
            assert np.array_equal(back[name], array)
            assert is_where(back[name], array)
    assert copied == []
    crooked = (await one(chain.takes, do="sum", x=made[::2])).value
    assert crooked == {"sum": int(made[::2].sum()), "owned": False}
    assert copied == [made[::2].nbytes]
    await chain.close()


async def test_a_maker_goes_on_though_the_one_after_it_keeps_everything(
    processes: Processes, tmp_path: Path
) -> None:
    chain = Chain(processes)
    await chain.start()
    gate, entered = tmp_path / "gate", tmp_path / "entered"
    wait = {"do": "wait", "gate": str(gate), "entered": str(entered)}
    held = [await chain.make(n) for n in range(10)]  # more than its slabs hold
    batches = [batch_of(n, **wait, n=n, x=array) for n, array in enumerate(held)]
    work = chain.takes.submit(batches)
    await until(entered.exists)
    held.clear()
    for n in range(5):
        assert (await chain.make(n))[0] == n + 1
    gate.touch()
    results = await chain.takes.results(work)
    values = [outcome.value for _, (outcome,) in results]
    assert [(value or {})["x"][0] for value in values] == list(range(1, 11))
    await chain.close()


async def test_an_array_outlives_its_maker_on_the_way(processes: Processes, tmp_path: Path) -> None:
    chain = Chain(processes)
    maker = await chain.start()
    gate, entered = tmp_path / "gate", tmp_path / "entered"
    feed = {"do": "wait", "gate": str(gate), "entered": str(entered)}
    first, second = await chain.make(1), await chain.make(2)
    read = chain.takes.submit([batch_of(1, **feed, x=first)])
    await until(entered.exists)
    os.kill(maker, signal.SIGKILL)
    await until(lambda: len(processes.pids) == 3)
    assert (await chain.make(3))[0] == 4  # of the one in its place
    gate.touch()
    ((_, (outcome,)),) = await chain.takes.results(read)
    assert outcome.value is not None
    assert np.array_equal(outcome.value["x"], first)
    assert (await one(chain.takes, do="sum", x=second)).value == {
        "sum": int(second.sum()),
        "owned": False,
    }
    await chain.close()


async def test_a_reader_that_dies_leaves_the_array_to_the_next(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain(processes)
    await chain.start()
    made = await chain.make()
    lender = next(iter(chain.takes.executor._alive))._out
    assert type(lender) is Lender
    assert type((await one(chain.takes, do="kill", x=made)).error) is WorkerDied
    assert lender._numbered == {}
    lease = lease_of(made)
    assert lease is not None
    assert lease.loans == 0
    assert (await one(chain.takes, do="sum", x=made)).value == {
        "sum": int(made.sum()),
        "owned": False,
    }
    await chain.close()


@pytest.mark.parametrize("who", ["maker", "reader"])
@pytest.mark.faults
@pytest.mark.long
@pytest.mark.timeout(300)
async def test_deaths_with_arrays_on_the_way_leave_nothing(processes: Processes, who: str) -> None:
    chain = Chain(processes)
    before_all = belongings()
    await chain.start()

    async def death(n: int) -> None:
        made = await chain.make(n)
        error = None
        if who == "reader":
            error = (await one(chain.takes, do="kill", x=made)).error
        else:
            right = {"sum": int(made.sum()), "owned": False}
            assert (await one(chain.takes, do="sum", x=made)).value == right
            kept = chain.takes.submit([batch_of(1, do="sum", x=made)])
            error = (await one(chain.makes, do="kill", x=made)).error
            ((_, (outcome,)),) = await chain.takes.results(kept)
            chain.takes.reports.clear()
            chain.takes._waiting.clear()
            assert outcome.value == right
        assert type(error) is WorkerDied

    await death(0)
    assert (await one(chain.takes, do="sum", x=await chain.make())).error is None
    before = belongings()
    for n in range(DEATHS):
        await death(n)
        assert (await one(chain.takes, do="sum", x=await chain.make())).error is None
    spare = Counter({"mappings": 4, "/memfd:penstock-slab (deleted)": 6})  # idle or on their way
    await until(lambda: not belongings() - before - spare)
    await chain.close()
    await until(lambda: belongings() <= before_all)
