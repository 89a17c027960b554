"""Worker processes: their answers, their deaths, and what is left of them. All are real."""

import asyncio
import errno
import logging
import os
import re
import resource
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.engine.submission import Submission
from penstock.errors import (
    DeadlineExceeded,
    HookFailed,
    InferenceFailed,
    OpTimeout,
    StartupError,
    WorkerDied,
    WrongType,
)
from penstock.executors.executor import Result, Work
from penstock.executors.processes import watch
from penstock.executors.processes.board import Board
from penstock.executors.processes.control import Exited
from penstock.executors.processes.frame import Blob
from penstock.executors.processes.relay import Relay
from penstock.executors.processes.restarts import MOST_DEATHS, Restarts
from penstock.executors.processes.slab_pool import SlabPool
from penstock.executors.processes.starting import Starter
from penstock.executors.processes.supervision import Supervision
from penstock.executors.processes.worker import Worker
from penstock.executors.work import WorkOptions
from penstock.request import Outcome
from tests.executors.house import Desk, House, batch_of
from tests.executors.processes.house import Fatal, Processes, Sour, executor

pytestmark = pytest.mark.real


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


async def until(true: Callable[[], bool]) -> None:
    """Wait for what another process or the loop does."""
    async with asyncio.timeout(20.0):
        while not true():
            await asyncio.sleep(0.005)


async def one(desk: Desk, number: int = 1, **feed: Any) -> Outcome:
    ((_, (outcome,)),) = await desk.run(batch_of(number, **feed))
    return outcome


async def test_batches_go_out_together_and_come_back_in_order(processes: Processes) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    assert desk.executor.alive
    results = await desk.run(batch_of(1), batch_of(2), batch_of(3))
    assert [outcome.value["n"] for _, (outcome,) in results if outcome.value] == [1, 2, 3]
    assert all(batch.ran > 0.0 for batch, _ in results)
    outcome = await one(desk, do="raise")
    assert type(outcome.error) is HookFailed
    assert "as told" in str(outcome.error)
    assert await desk.executor.close(10.0)
    assert not desk.executor.alive


async def test_every_worker_is_a_process_of_its_own(processes: Processes, tmp_path: Path) -> None:
    desk = Desk(executor(processes, workers=2))
    await desk.executor.start()
    gate = tmp_path / "gate"
    works = []
    for n in range(2):
        feed = {"do": "wait", "entered": str(tmp_path / str(n)), "gate": str(gate)}
        works.append(desk.submit([batch_of(n, **feed)]))
    await until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    gate.touch()
    values = [(await desk.results(work))[0][1][0].value for work in works]
    assert {value["pid"] for value in values if value} == set(processes.pids)
    assert await desk.executor.close(10.0)


@pytest.mark.parametrize("size", [10, 300_000])
async def test_arrays_arrive_whole_in_both_directions(processes: Processes, size: int) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    for n in range(20):  # memory that is used again must have been given back
        x = np.arange(size, dtype=np.float64) + n
        value = (await one(desk, do="array", x=x)).value
        assert value is not None
        assert value["sum"] == int(x.sum())
        assert np.array_equal(value["x"], x + 1)
    assert await desk.executor.close(10.0)


async def test_arrays_arrive_though_no_descriptor_can_be_on_its_way(processes: Processes) -> None:
    desk = Desk(executor(processes, "crowded"))
    await desk.executor.start()
    for n in range(8):
        x = np.arange(30_000.0 * (n + 1)) + n  # larger each time, for which there is no slab yet
        value = (await one(desk, do="array", x=x)).value
        assert value is not None
        assert np.array_equal(value["x"], x + 1)
        made = (await one(desk, do="in place", shape=(2, 100_000 * (n + 1)), start=n)).value
        assert made is not None
        assert made["x"][1, -1] == made["x"].size - 1 + n
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)


async def test_an_array_from_one_process_to_another_is_copied_once(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    size = 5 << 20
    made = (await one(desk, do="array", x=np.arange(size // 8))).value
    assert made is not None
    assert not made["x"].flags.owndata  # it is read where the worker has put it: the only copy
    placed = []
    place = SlabPool.place

    def noted(pool: SlabPool, array: Any) -> Any:
        placed.append(array.nbytes)
        return place(pool, array)

    monkeypatch.setattr(SlabPool, "place", noted)
    tracemalloc.start()
    try:
        work = desk.submit([batch_of(2, do="sum", x=made["x"])])
        assert tracemalloc.get_traced_memory()[1] < size / 5
    finally:
        tracemalloc.stop()
    assert placed == []  # the next worker reads it there, too
    ((_, (outcome,)),) = await desk.results(work)
    assert outcome.value == {"sum": int(made["x"].sum()), "owned": False}
    assert await desk.executor.close(10.0)


async def test_a_value_of_another_type_is_opened_by_workers_only(processes: Processes) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    given = (await one(desk, do="odd")).value
    assert given is not None
    assert type(given["odd"]) is Blob
    opened = (await one(desk, do="open", odd=given["odd"])).value
    assert opened is not None
    assert opened["name"] == "mine"
    assert await desk.executor.close(10.0)


@pytest.mark.parametrize("do", ["kill", "exit", "segfault"])
async def test_a_worker_that_dies_costs_its_batch_alone(
    processes: Processes, do: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    assert (await one(desk)).error is None
    work = desk.submit([batch_of(1), batch_of(2, do=do), batch_of(3)])
    results = await desk.results(work)
    lost = [(batch.data_ids, outcomes[0].error) for batch, outcomes in results]
    assert [ids for ids, error in lost if isinstance(error, WorkerDied)] == [[2]]
    left = work.take_back()
    assert [batch.data_ids for batch in left][-1:] == [[3]]
    again = await desk.run(*left)  # by another one, as soon as that is there
    assert all(outcome.error is None for _, (outcome,) in again)
    assert len(processes.pids) == 2
    reports = [each.getMessage() for each in caplog.records if "died" in each.getMessage()]
    assert len(reports) == 1
    told = {"kill": "SIGKILL", "exit": "exit status 7", "segfault": "SIGSEGV"}[do]
    assert told in reports[0]
    assert "MiB of memory" in reports[0]
    assert ("Fatal Python error: Segmentation fault" in reports[0]) is (do == "segfault")
    assert "data_ids=[2]" in reports[0]
    assert await desk.executor.close(10.0)


async def test_a_worker_killed_while_idle_is_replaced(processes: Processes) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    await one(desk)
    os.kill(processes.pids[0], signal.SIGKILL)
    await until(lambda: not desk.executor.alive)
    await until(lambda: desk.executor.alive)
    assert (await one(desk)).error is None
    assert await desk.executor.close(10.0)


async def test_a_worker_that_breaks_the_rules_is_ended(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(executor(processes, "garbage"))
    await desk.executor.start()
    work = desk.submit([batch_of(1)])
    await desk.results(work)
    assert [batch.data_ids for batch in work.take_back()] == [[1]]  # it was not begun
    assert any("is ended" in each.getMessage() for each in caplog.records)
    await desk.executor.close(0.0)


async def test_a_worker_that_talks_without_end_is_ended(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PROCESSES_GONE", str(tmp_path / "gone"))
    desk = Desk(executor(processes, "babbling"))
    await desk.executor.start()
    await until(lambda: len(processes.pids) == 2 and desk.executor.alive)
    assert "says too much that is no answer" in caplog.text
    assert (await one(desk)).error is None
    assert await desk.executor.close(10.0)


async def test_an_idle_worker_that_sends_an_answer_is_ended_before_it_is_kept(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PROCESSES_GONE", str(tmp_path / "gone"))
    desk = Desk(executor(processes, "boasting"))
    tracemalloc.start()
    try:
        await desk.executor.start()
        await until(lambda: len(processes.pids) == 2 and desk.executor.alive)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert "none of that size is expected" in caplog.text
    assert (await one(desk)).error is None
    assert await desk.executor.close(10.0)


async def test_a_worker_that_hangs_up_and_lives_on_is_ended_and_replaced(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCESSES_GONE", str(tmp_path / "gone"))
    desk = Desk(executor(processes, "silent"))
    await desk.executor.start()
    work = desk.submit([batch_of(1)])
    await desk.results(work)
    left = work.take_back()
    assert [batch.data_ids for batch in left] == [[1]]  # it was not begun
    ((_, (outcome,)),) = await desk.run(*left)
    assert outcome.error is None
    assert len(processes.pids) == 2
    assert not Path(f"/proc/{processes.pids[0]}").exists()
    assert await desk.executor.close(10.0)


async def test_batches_behind_one_that_hangs_can_be_taken_back_and_do_not_run(
    processes: Processes, tmp_path: Path
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    gate, entered = tmp_path / "gate", tmp_path / "entered"
    hangs = batch_of(1, do="wait", gate=str(gate), entered=str(entered))
    work = desk.submit([hangs, batch_of(2), batch_of(3)])
    await until(entered.exists)
    desk.executor.look(work)
    assert work.current is hangs
    assert hangs.started is not None
    assert [batch.data_ids for batch in desk.executor.take_back(work)] == [[2], [3]]
    assert not work.pending
    gate.touch()
    ((batch, (outcome,)),) = await desk.results(work)
    assert batch is hangs
    assert outcome.error is None
    assert await desk.executor.close(10.0)


async def test_what_is_still_on_its_way_to_a_worker_is_not_taken_back_and_runs_once(
    processes: Processes,
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    (pid,) = processes.pids
    os.kill(pid, signal.SIGSTOP)  # so that it reads nothing yet
    await until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")
    work = desk.submit([batch_of(1, text="a" * 1_000_000)])
    taken = len(desk.executor.take_back(work))
    os.kill(pid, signal.SIGCONT)
    assert taken == 0
    ((batch, (outcome,)),) = await desk.results(work)
    assert batch.data_ids == [1]
    assert outcome.error is None
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)


def no_descriptor(descriptor: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


async def test_a_worker_is_replaced_though_descriptors_were_lacking_for_a_while(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    assert (await one(desk)).error is None
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as lacking:
        lacking.setattr(os, "dup", no_descriptor)
        os.kill(processes.pids[0], signal.SIGKILL)
        await until(lambda: "tried again" in caplog.text)
    assert (await one(desk)).error is None
    assert len(os.listdir("/proc/self/fd")) == before
    assert "report this" not in caplog.text
    assert await desk.executor.close(10.0)


async def test_an_array_that_cannot_be_sent_for_lack_of_descriptors_goes_to_the_next_worker(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    with monkeypatch.context() as lacking:
        lacking.setattr(os, "dup", no_descriptor)
        work = desk.submit([batch_of(1, do="sum", x=np.zeros(1 << 20, "u1"))])
    assert await desk.results(work) == []
    ((_, (outcome,)),) = await desk.run(*work.take_back())
    assert outcome.error is None
    assert " died" not in caplog.text
    assert await desk.executor.close(10.0)


async def test_workers_that_end_for_lack_of_descriptors_are_replaced_less_and_less_often(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    lacked = Restarts.lacked

    def noted(restarts: Restarts, now: float) -> float:
        waits.append(lacked(restarts, now))
        return waits[-1]

    monkeypatch.setattr(Restarts, "lacked", noted)
    desk = Desk(executor(processes))
    await desk.executor.start()
    batch = batch_of(1, do="sum", x=np.zeros(1 << 20, "u1"))
    for deaths in (1, 2, 3):
        with monkeypatch.context() as lacking:
            lacking.setattr(os, "dup", no_descriptor)
            work = desk.submit([batch])
            assert await desk.results(work) == []
            (batch,) = work.take_back()
        await until(lambda deaths=deaths: desk.executor.alive and len(waits) == deaths)
    assert waits == [0.1, 0.2, 0.4]
    ((_, (outcome,)),) = await desk.run(batch)
    assert outcome.error is None
    assert await desk.executor.close(10.0)


async def test_an_answer_that_cannot_be_read_for_lack_of_descriptors_accuses_nobody(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    work = desk.submit([batch_of(1, do="lengthen", text=np.arange(20_000.0), times=2)])
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        ((_, (outcome,)),) = await desk.results(work)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert type(outcome.error) is InferenceFailed
    assert (await one(desk)).error is None
    assert " died" not in caplog.text
    assert await desk.executor.close(10.0)


async def test_a_worker_is_replaced_though_no_thread_is_left_for_its_report(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk(executor(processes, supervision=Supervision(crash_dir=str(tmp_path))))
    await desk.executor.start()
    assert (await one(desk)).error is None
    with monkeypatch.context() as lacking:
        lacking.setattr(threading.Thread, "start", no_thread)
        os.kill(processes.pids[0], signal.SIGKILL)
        await until(lambda: len(processes.pids) == 2)
    assert (await one(desk)).error is None
    assert "a report was left out: no thread" in caplog.text
    assert "report this" not in caplog.text
    assert await desk.executor.close(10.0)


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("no thread")


async def test_batches_are_told_apart_though_others_were_taken_back_or_could_not_travel(
    processes: Processes,
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    assert (await one(desk)).error is None
    os.kill(processes.pids[0], signal.SIGKILL)
    await until(lambda: not desk.executor.alive)
    works = []

    def submit_more(work: Work, results: list[Result]) -> None:
        works.append(desk.submit([batch_of(n) for n in range(10, 14)]))

    taken = desk.submit([batch_of(5)])
    assert len(desk.executor.take_back(taken)) == 1
    desk.executor.submit(Work([batch_of(6, odd=lambda: None)]), submit_more)
    assert await desk.results(taken) == []
    await until(lambda: len(works) == 1)
    assert len(await desk.results(works[0])) == 4
    pid = processes.pids[1]
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")
    work = desk.submit([batch_of(n) for n in range(20, 24)])
    taken_back = desk.executor.take_back(work)
    assert [batch.data_ids for batch in taken_back] == [[20], [21], [22], [23]]
    os.kill(pid, signal.SIGKILL)
    assert await desk.results(work) == []
    assert await desk.executor.close(10.0)


@pytest.mark.parametrize("at", [3, 1 << 40], ids=["of one sent", "of none"])
async def test_a_wrong_board_costs_its_workers_batches_their_answers_at_most(
    processes: Processes, tmp_path: Path, at: int
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    feed = {"do": "wait", "gate": str(tmp_path / "gate"), "entered": str(tmp_path / "entered")}
    work = desk.submit([batch_of(1, **feed), batch_of(2), batch_of(3), batch_of(4)])
    await until(lambda: (tmp_path / "entered").exists())
    with pytest.MonkeyPatch.context() as wrong:
        wrong.setattr(Board, "batch", at)
        desk.executor.look(work)
        os.kill(processes.pids[0], signal.SIGKILL)
        results = await desk.results(work)
    died = [batch.data_ids for batch, (outcome,) in results if type(outcome.error) is WorkerDied]
    assert died == [[1]]
    left = [batch.data_ids for batch in work.take_back()]
    assert [batch.data_ids for batch, _ in results] + left == [[1], [2], [3], [4]]
    assert len(results) == (3 if at == 3 else 1)
    assert await desk.executor.close(10.0)


async def test_who_wipes_the_board_before_it_dies_is_found_out(processes: Processes) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    batch = batch_of(1, do="wipe the board")
    work = desk.submit([batch])
    assert await desk.results(work) == []  # of a new worker it may be true
    assert work.take_back() == [batch]
    ((_, (outcome,)),) = await desk.run(batch)
    assert type(outcome.error) is WorkerDied
    for n in range(MOST_DEATHS):
        assert (await one(desk, n)).error is None
        assert type((await one(desk, n, do="wipe the board")).error) is WorkerDied
    assert (await one(desk)).error is None  # nobody has given the op up
    assert await desk.executor.close(10.0)


async def test_a_board_that_takes_back_what_it_said_does_not_put_the_hang_limit_off(
    processes: Processes, tmp_path: Path
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    (worker,) = desk.executor._alive
    gate, entered = tmp_path / "gate", tmp_path / "entered"
    batch = batch_of(1, do="wait", gate=str(gate), entered=str(entered))
    work = desk.submit([batch])
    await until(entered.exists)
    assert worker.doing() == watch.Doing(1, begun=True, wanted=True)
    batch.samples[0].gone = True
    for at in (0, 1):
        with pytest.MonkeyPatch.context() as wrong:
            wrong.setattr(Board, "batch", at)
            assert worker.doing() == watch.Doing(1, begun=True, wanted=False)
    gate.touch()
    await desk.results(work)
    assert await desk.executor.close(10.0)


async def test_a_death_is_seen_though_something_else_holds_the_workers_socket(
    processes: Processes,
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    left = (await one(desk, do="leave a child")).value
    assert left is not None
    try:
        assert isinstance((await one(desk, do="kill")).error, WorkerDied)
        assert (await one(desk)).error is None
    finally:
        os.kill(left["child"], signal.SIGKILL)
    assert await desk.executor.close(10.0)


class Late(Processes):
    """Tells of an end when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()

    async def exited(self, pid: int) -> Exited:
        end = await super().exited(pid)
        await self.may.wait()
        return end


async def test_closing_waits_for_word_of_an_end_that_comes_late() -> None:
    processes = Late()
    desk = Desk(executor(processes))
    try:
        await desk.executor.start()
        closing = asyncio.create_task(desk.executor.close(0.2))
        await until(lambda: not desk.executor.alive)
        assert (await asyncio.wait([closing], timeout=0.4))[1]  # it has run out of patience
        processes.may.set()
        assert await closing is False
    finally:
        processes.end()


async def test_whatever_fails_at_a_workers_end_it_is_replaced(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    before = len(os.listdir("/proc/self/fd"))

    def fail(work: Work, results: list[Result]) -> None:
        raise ValueError("as told")

    desk.executor.submit(Work([batch_of(1, do="kill")]), fail)
    await until(lambda: len(processes.pids) == 2)
    assert (await one(desk)).error is None
    assert "ValueError: as told" in caplog.text
    assert len(os.listdir("/proc/self/fd")) == before
    assert await desk.executor.close(10.0)


@pytest.mark.parametrize("late", [False, True], ids=["in vain", "late"])
@pytest.mark.parametrize("kill_late", [False, True])
async def test_only_a_call_beyond_its_time_out_may_be_ended(
    processes: Processes, tmp_path: Path, kill_late: bool, late: bool
) -> None:
    desk = Desk(executor(processes, supervision=Supervision(kill_late=kill_late)))
    await desk.executor.start()
    gate, entered = tmp_path / "gate", tmp_path / "entered"
    batch = batch_of(1, do="wait", gate=str(gate), entered=str(entered))
    work = desk.submit([batch])
    await until(entered.exists)
    desk.executor.look(work)
    batch.settled = late
    desk.executor.abandon(work)
    if not (kill_late and late):
        gate.touch()
    ((_, (outcome,)),) = await desk.results(work)
    # Nobody shall be suspected of what we did ourselves.
    assert type(outcome.error) is (InferenceFailed if kill_late and late else type(None))
    assert await desk.executor.close(10.0)


async def test_workers_ended_for_their_late_calls_are_no_early_deaths(
    processes: Processes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = executor(processes, supervision=Supervision(kill_late=True))
    house = House("process", None, options=WorkOptions(timeout=0.05), executor=supervised)
    await house.executor.start()
    gate = tmp_path / "gate"
    for n in range(MOST_DEATHS + 1):
        await until(lambda: house.executor.alive)
        outcome = await house.ask(do="wait", gate=str(gate), entered=str(tmp_path / str(n)))
        assert isinstance(outcome.error, OpTimeout)
        await house.at_rest()
    assert (await house.ask()).error is None
    assert house.verdict() == []
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(lines) == 3 * (MOST_DEATHS + 1)
    assert all("beyond the time-out, with data_ids=" in line for line in lines[::3])
    assert all("process took longer than its timeout" in line for line in lines[1::3])
    for line in lines[2::3]:
        assert "died: SIGABRT at its time-out, with data_ids=" in line
        assert re.search(r"house.py\", line \d+ in wait ", line)
        assert "in run_batch" not in line
    assert not [each for each in caplog.records if each.levelno > logging.WARNING]
    await house.close()


async def test_who_goes_on_beyond_its_time_out_all_the_same_gets_nothing_more_and_is_ended(
    processes: Processes, tmp_path: Path
) -> None:
    desk = Desk(executor(processes, supervision=Supervision(kill_late=True)))
    await desk.executor.start()
    gate, entered = tmp_path / "gate", tmp_path / "entered"
    work = desk.submit([batch_of(1, do="wait deaf", gate=str(gate), entered=str(entered))])
    await until(entered.exists)
    desk.executor.look(work)
    assert work.current is not None
    work.current.settled = True
    desk.executor.abandon(work)
    gate.touch()
    ((_, (outcome,)),) = await desk.results(work)
    assert outcome.value is not None
    assert outcome.value["pid"] == processes.pids[0]
    value = (await one(desk)).value
    assert value is not None
    assert value["pid"] == processes.pids[1]
    assert await desk.executor.close(10.0)


async def test_a_stopped_workers_batch_goes_to_another_and_it_is_ended_and_replaced(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = executor(processes, workers=2, supervision=Supervision(hang_limit=2.0))
    house = House("process", None, executor=supervised)
    await house.executor.start()
    os.kill(processes.pids[0], signal.SIGSTOP)
    began = time.monotonic()
    outcomes = await asyncio.gather(house.ask(), house.ask(), house.ask())
    assert all(each.error is None for each in outcomes)
    assert time.monotonic() - began < 2.0  # before the one that is stopped counts as hanging
    await until(lambda: len(processes.pids) == 3)
    await house.at_rest()
    (told,) = [text for text in caplog.messages if "hangs and is ended" in text]
    assert "has not begun a batch within 2 s" in told
    assert not Path(f"/proc/{processes.pids[0]}").exists()
    assert house.verdict() == []
    await house.close()


async def test_a_call_is_ended_when_it_goes_on_after_everybody_has_left_and_not_before(
    processes: Processes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = executor(processes, supervision=Supervision(hang_limit=0.5))
    house = House("process", None, executor=supervised)
    await house.executor.start()
    feed = {"do": "wait", "gate": str(tmp_path / "gate"), "entered": str(tmp_path / "entered")}
    began = time.monotonic()
    outcome = await house.ask(1.5, **feed)
    assert isinstance(outcome.error, DeadlineExceeded)
    assert len(processes.pids) == 1
    await until(lambda: len(processes.pids) == 2)
    assert time.monotonic() - began >= 2.0
    assert (await house.ask()).error is None
    reports = [each.getMessage() for each in caplog.records]
    assert any("nobody has waited for these 0.5 s" in each for each in reports)
    (died,) = [each for each in reports if "died: SIGABRT" in each]
    assert "in process" in died
    assert "in run_batch" not in died
    await house.close()


async def test_what_nobody_waits_for_any_more_is_not_begun_and_the_others_run(
    processes: Processes, tmp_path: Path
) -> None:
    house = House("process", None, executor=executor(processes))
    await house.executor.start()
    for _ in range(20):
        await house.ask()  # so short that several batches go out together
    gate, first, second = (tmp_path / name for name in ("gate", "first", "second"))
    feed = {"do": "wait", "gate": str(gate), "entered": str(first)}
    staying = asyncio.create_task(house.ask(**feed))
    await asyncio.sleep(0)
    leaving = Submission(house.graph, {**feed, "entered": str(second)}, 30.0)
    house.engine.submit(leaving, lambda _, outcome: None)
    others = [asyncio.create_task(house.ask()) for _ in range(3)]
    await until(first.exists)
    house.engine.cancel(leaving)
    await asyncio.sleep(0)  # the stage looks once for all who leave in a turn
    gate.touch()
    assert (await staying).error is None
    assert [(await each).error for each in others] == [None] * 3
    assert not second.exists()
    assert house.verdict() == []
    await house.close()


async def test_a_death_is_reported_with_what_the_worker_wrote_last_and_in_a_file(
    processes: Processes,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "crashes"
    desk = Desk(executor(processes, supervision=Supervision(crash_dir=str(folder))))
    await desk.executor.start()
    text = "".join(f"line {n}\n" for n in range(100)) + "no \x1b[31m end"
    ((_, (outcome,)),) = await desk.run(batch_of(7, do="write", text=text, secret="feed"))
    assert isinstance(outcome.error, InferenceFailed)
    assert (await one(desk)).error is None
    assert await desk.executor.close(10.0)
    (report,) = [each.getMessage() for each in caplog.records if "died" in each.getMessage()]
    assert "exit status 7, with data_ids=[7]" in report
    assert "line 81 | " in report
    assert report.endswith("line 99 | no \\x1b[31m end")
    assert "line 80 |" not in report
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    whole = file.read_text()
    assert "  line 0\n" in whole
    assert "ended: exit status 7" in whole
    assert "feed" not in whole
    assert capfd.readouterr().err == text + "\n"


async def test_workers_are_replaced_after_their_batches_one_by_one_and_nobody_notices(
    processes: Processes,
) -> None:
    supervision = Supervision(max_batches=5)
    house = House("process", None, executor=executor(processes, workers=2, supervision=supervision))
    await house.executor.start()
    alive = set()
    while len(processes.pids) < 2 + MOST_DEATHS + 1:
        outcomes = await asyncio.gather(*(house.ask() for _ in range(4)))
        assert all(each.error is None for each in outcomes)
        alive.add(len(house.executor._alive))
    assert alive <= {1, 2}
    assert house.verdict() == []
    await house.close()


async def test_a_worker_that_has_grown_is_replaced_and_one_that_grows_on_is_ended(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    supervision = Supervision(memory_limit=300 << 20)
    house = House("process", None, executor=executor(processes, supervision=supervision))
    await house.executor.start()
    first = (await house.ask()).value
    grown = await house.ask(do="grow", mib=320)
    assert grown.error is None
    second = (await house.ask()).value
    assert first is not None
    assert second is not None
    assert second["pid"] != first["pid"]
    assert not any(each.levelno >= logging.ERROR for each in caplog.records)
    assert type((await house.ask(do="balloon")).error) is WorkerDied
    assert (await house.ask()).error is None
    assert any("far over its 300" in each.getMessage() for each in caplog.records)
    assert house.verdict() == []
    await house.close()


@pytest.mark.parametrize(
    ("op", "text"), [("failing", "the model is not there"), ("early", "exit status 3")]
)
async def test_a_worker_that_cannot_start_says_why(
    processes: Processes, op: str, text: str
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    desk = Desk(executor(processes, op, workers=2))
    with pytest.raises(StartupError, match=text):
        await desk.executor.start()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_worker_that_is_ready_after_it_has_failed_has_failed(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(executor(processes, "fickle"))
    with pytest.raises(StartupError, match="the model is not there"):
        await desk.executor.start()
    assert "Exception in callback" not in caplog.text


async def test_a_worker_that_cannot_start_is_told_of_before_the_others_are_ready(
    processes: Processes,
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    desk = Desk(executor(processes, "one fails", workers=3))
    async with asyncio.timeout(20.0):
        with pytest.raises(StartupError, match="the model is not there"):
            await desk.executor.start()
    assert len(processes.pids) == 3
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_start_that_is_called_off_while_its_worker_ends_leaves_nothing_behind(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = []
    kill = Worker.kill

    def kill_and_call_off(worker: Worker) -> None:
        workers.append(worker)
        kill(worker)
        for _ in range(2):  # once more while it waits for the end all the same
            asyncio.get_running_loop().call_soon(start.cancel)

    monkeypatch.setattr(Worker, "kill", kill_and_call_off)
    before = len(os.listdir("/proc/self/fd"))
    desk = Desk(executor(processes, "failing for long"))
    start = asyncio.create_task(desk.executor.start())
    with pytest.raises((StartupError, asyncio.CancelledError)):
        await start
    assert workers[0].exit.done()
    assert not workers[0].exit.cancelled()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_worker_that_does_not_become_ready_is_told_of_and_ended_with_its_stack(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrote: list[bytes] = []
    hangs = tmp_path / "gone"
    monkeypatch.setenv("PROCESSES_GONE", str(hangs))
    monkeypatch.setattr(Relay, "pass_on", lambda relay, lines: wrote.append(lines))
    monkeypatch.setattr(watch, "TOLD_AFTER", 0.5)
    too_long = watch.Start.is_too_long.fget
    # However long it takes a process to get there.
    still = property(lambda start: too_long(start) and hangs.exists())
    monkeypatch.setattr(watch.Start, "is_too_long", still)
    before = len(os.listdir("/proc/self/fd"))
    desk = Desk(executor(processes, "slow", supervision=Supervision(start_timeout=2.0)))
    began = time.monotonic()
    with pytest.raises(StartupError, match=r"op 'slow': worker 0 was not ready within 2 s .start_"):
        await desk.executor.start()
    assert 2.0 <= time.monotonic() - began < 20.0
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(told) >= 2
    for each in told:
        assert re.match(r"op slow: worker 0 \(pid \d+\) has not become ready for \d+ s: ", each)
    assert b"in init_op_that_hangs" in b"".join(wrote)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_replacement_that_does_not_become_ready_is_ended_and_another_is_started(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hangs = tmp_path / "gone"
    monkeypatch.setenv("PROCESSES_GONE", str(hangs))
    late = property(lambda _: len(processes.pids) == 2 and hangs.read_text() == "hangs")
    monkeypatch.setattr(watch.Start, "is_too_long", late)
    desk = Desk(executor(processes, "slow again", supervision=Supervision(start_timeout=2.0)))
    await desk.executor.start()
    assert isinstance((await one(desk, do="kill")).error, WorkerDied)
    assert (await one(desk)).error is None
    assert len(processes.pids) == 3
    assert "was not ready within 2 s" in caplog.text
    assert await desk.executor.close(10.0)


async def test_an_op_whose_workers_die_as_they_start_is_given_up_and_answers_at_once(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PROCESSES_GONE", str(tmp_path / "gone"))
    desk = Desk(executor(processes, "once"))
    await desk.executor.start()
    assert (await one(desk)).error is None
    assert isinstance((await one(desk, do="kill")).error, WorkerDied)
    await until(lambda: any("given up" in each.getMessage() for each in caplog.records))
    assert not desk.executor.alive
    assert type((await one(desk)).error) is InferenceFailed
    assert len(processes.pids) == 1 + MOST_DEATHS
    assert await desk.executor.close(10.0)


async def test_an_op_that_was_given_up_is_taken_up_again_when_a_worker_can_be_started(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = tmp_path / "gone"
    monkeypatch.setenv("PROCESSES_GONE", str(gone))
    monkeypatch.setattr("penstock.executors.process.LONGEST", 0.02)
    desk = Desk(executor(processes, "once"))
    await desk.executor.start()
    assert (await one(desk)).error is None
    assert isinstance((await one(desk, do="kill")).error, WorkerDied)
    more: list[int] = []
    desk.executor.grown = lambda: more.append(desk.executor.workers)
    await until(lambda: len(processes.pids) > MOST_DEATHS + 3)
    assert "has no worker" in str((await one(desk)).error)
    assert caplog.text.count("it is given up") == 1
    gone.unlink()
    await until(lambda: desk.executor.alive)
    assert (await one(desk)).error is None
    assert "op once: worker 0 could be started again after all" in caplog.text
    assert more == [1]
    gone.unlink()
    assert isinstance((await one(desk, do="kill")).error, WorkerDied)
    assert (await one(desk)).error is None
    assert await desk.executor.close(10.0)


async def test_a_place_that_is_tried_again_does_not_hold_up_the_end(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(executor(processes, workers=2))
    await desk.executor.start()
    await give_one_up(processes, monkeypatch, caplog)
    assert desk.executor.workers == 1
    began = time.monotonic()
    works = [desk.submit([batch_of(1)]) for _ in range(3)]
    for work in works:  # the other one runs them all
        ((_, (outcome,)),) = await desk.results(work)
        assert outcome.error is None
    assert await desk.executor.close(10.0)
    assert time.monotonic() - began < 10.0


async def give_one_up(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of several workers dies, and none can be started any more."""

    async def start(starter: Starter, index: int) -> Worker:
        raise StartupError("as told")

    monkeypatch.setattr(Starter, "start", start)
    os.kill(processes.pids[0], signal.SIGKILL)
    await until(lambda: "it is given up" in caplog.text)


async def test_where_a_worker_was_given_up_the_others_do_not_leave_to_be_replaced(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(executor(processes, workers=2, supervision=Supervision(max_batches=1)))
    await desk.executor.start()
    await give_one_up(processes, monkeypatch, caplog)
    for _ in range(3):
        value = (await one(desk)).value
        assert value is not None
        assert value["pid"] == processes.pids[1]
    assert await desk.executor.close(10.0)


async def test_workers_that_die_of_their_first_batches_rest_and_are_not_ready(
    processes: Processes,
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    assert (await one(desk)).error is None
    assert isinstance((await one(desk, do="kill")).error, WorkerDied)
    await until(lambda: desk.executor.alive)  # the one before it had worked
    began = time.monotonic()
    for n in range(MOST_DEATHS):
        assert isinstance((await one(desk, do="kill")).error, WorkerDied)
        await until(lambda n=n: len(processes.pids) == min(n + 3, 1 + MOST_DEATHS))  # type: ignore[misc]
        assert n < 1 or not desk.executor.alive
    assert time.monotonic() - began > 0.7
    refused = (await one(desk)).error
    assert type(refused) is InferenceFailed
    assert "has no worker" in str(refused)
    assert len(processes.pids) == 1 + MOST_DEATHS
    assert await desk.executor.close(10.0)


async def test_a_worker_that_survives_a_batch_makes_its_op_ready_again(
    processes: Processes,
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    for n in (2, 3):
        assert isinstance((await one(desk, do="kill")).error, WorkerDied)
        await until(lambda n=n: len(processes.pids) == n)  # type: ignore[misc]
    assert not desk.executor.alive
    assert (await one(desk)).error is None
    assert desk.executor.alive
    assert await desk.executor.close(10.0)


async def test_a_bad_slot_rests_while_the_good_one_serves(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_CARD", "0")
    desk = Desk(executor(processes, "on a card", workers=2))
    await desk.executor.start()
    outcomes: list[Outcome] = []
    for _ in range(50):
        outcomes += await asyncio.gather(one(desk), one(desk))
    failed = [each for each in outcomes if each.error is not None]
    assert 1 <= len(failed) <= MOST_DEATHS
    assert all(isinstance(each.error, WorkerDied) for each in failed)
    assert desk.executor.alive
    assert await desk.executor.close(10.0)


async def test_a_worker_that_starts_over_its_memory_limit_is_an_error(
    processes: Processes,
) -> None:
    supervision = Supervision(memory_limit=1 << 20)
    with pytest.raises(
        StartupError, match=r"MiB of memory before its first batch, over its memory_limit_mib of 1"
    ):
        await executor(processes, supervision=supervision).start()
    assert len(processes.pids) == 1


async def test_closing_ends_a_worker_that_does_not_return_and_leaves_nothing(
    processes: Processes, tmp_path: Path
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    desk = Desk(executor(processes))
    await desk.executor.start()
    entered = tmp_path / "entered"
    work = desk.submit([batch_of(1, do="wait", gate=str(tmp_path / "g"), entered=str(entered))])
    await until(entered.exists)
    assert await desk.executor.close(0.1) is False
    ((_, (outcome,)),) = await desk.results(work)
    assert type(outcome.error) is InferenceFailed
    assert len(os.listdir("/proc/self/fd")) == before


async def test_what_cannot_travel_fails_its_own_request_alone(processes: Processes) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    results = await desk.run(
        batch_of(1, odd=lambda: None), batch_of(2), batch_of(3, do="unpicklable"), batch_of(4)
    )
    errors = {batch.data_ids[0]: outcome.error for batch, (outcome,) in results}
    assert [number for number, error in sorted(errors.items()) if error is None] == [2, 4]
    assert all(isinstance(errors[number], WrongType) for number in (1, 3))
    assert all("cannot be pickled" in str(errors[number]) for number in (1, 3))
    (result,) = await desk.run(batch_of(5, odd=lambda: None))
    assert isinstance(result[1][0].error, WrongType)
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)


async def test_a_value_whose_opening_raises_fails_its_own_sample_and_no_worker(
    processes: Processes,
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    batch = batch_of(1, 2, 3)
    (feed,) = batch.samples[1].inputs.values()
    feed["deep"] = [{"odd": Sour()}]
    ((_, outcomes),) = await desk.run(batch)
    assert [type(each.error) for each in outcomes] == [type(None), WrongType, type(None)]
    assert "cannot be opened: ValueError: sour" in str(outcomes[1].error)
    assert isinstance((await one(desk, odd=Sour())).error, WrongType)
    assert (await one(desk)).error is None
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)


async def test_who_dies_of_opening_a_value_dies_of_its_batch_and_not_of_its_company(
    processes: Processes,
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    work = desk.submit([batch_of(1), batch_of(2, odd=Fatal()), batch_of(3)])
    first, second = await desk.results(work)
    assert first[1][0].error is None
    assert isinstance(second[1][0].error, InferenceFailed)
    assert [batch.data_ids for batch in work.pending] == [[3]]
    assert (await one(desk)).error is None
    assert await desk.executor.close(10.0)


async def test_answers_that_are_more_than_a_socket_holds_come_all(processes: Processes) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    results = await desk.run(
        *(batch_of(n, do="lengthen", text="abc", times=n * 100_000) for n in range(20))
    )
    for batch, (outcome,) in results:
        assert outcome.value == {"text": "abc" * (batch.data_ids[0] * 100_000)}
    assert len(results) == 20
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)


async def test_what_was_answered_can_be_had_while_the_next_batch_runs(
    processes: Processes, tmp_path: Path
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    gate, entered = tmp_path / "gate", tmp_path / "entered"
    waits = batch_of(2, do="wait", gate=str(gate), entered=str(entered))
    work = desk.submit([batch_of(1), waits])
    await until(entered.exists)
    assert work.take_results() == []
    desk.executor.look(work)
    ((batch, (outcome,)),) = work.take_results()
    assert (batch.data_ids, outcome.error) == ([1], None)
    assert work.current is waits
    gate.touch()
    ((batch, _),) = await desk.results(work)
    assert batch is waits
    assert await desk.executor.close(10.0)


async def test_who_is_read_by_others_gives_nothing_that_only_workers_open(
    processes: Processes,
) -> None:
    desk = Desk(executor(processes, "read by others", only_plain=True))
    await desk.executor.start()
    outcome = await one(desk, do="odd")
    assert isinstance(outcome.error, WrongType)
    for said in ("[read by others]", "'odd'", ".Odd cannot travel to op 'next'", "in processes"):
        assert said in str(outcome.error)
    other = await one(desk, do="number as key")  # which would not go to a worker either
    assert "is a text, not int. Please" in str(other.error)
    assert (await one(desk, do="array", x=np.arange(3))).error is None
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)


async def test_a_worker_that_gives_such_a_value_all_the_same_is_ended(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(executor(processes, only_plain=True))
    await desk.executor.start()
    outcome = await one(desk, do="odd")
    assert isinstance(outcome.error, InferenceFailed)
    assert "nobody here may open" in caplog.text
    assert (await one(desk)).error is None
    assert len(processes.pids) == 2
    assert await desk.executor.close(10.0)


async def test_keys_of_an_output_arrive_as_texts_or_are_an_error(processes: Processes) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    value = (await one(desk, do="odd keys")).value
    assert value == {"a": 1, "red": 2}
    assert {type(key) for key in value} == {str}
    outcome = await one(desk, do="number as key")
    assert isinstance(outcome.error, WrongType)
    assert "a key of an output is a text, not int" in str(outcome.error)
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)
