"""Worker processes: their answers, their deaths, and what is left of them. All are real."""

import asyncio
import logging
import os
import re
import signal
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import (
    DeadlineExceeded,
    HookFailed,
    InferenceFailed,
    OpTimeout,
    StartupError,
    WorkerDied,
    WrongType,
)
from penstock.executors.processes import executor as executor_module
from penstock.executors.processes import restarts, slabs
from penstock.executors.processes.executor import ProcessExecutor
from penstock.executors.processes.restarts import MOST_DEATHS
from penstock.executors.processes.values import Blob
from penstock.executors.processes.watchdog import Supervision
from penstock.executors.processes.worker import Worker
from penstock.executors.work import WorkOptions
from penstock.instrument import Instrument, Instruments
from penstock.request import Outcome
from tests.executors.house import Desk, House, batch_of
from tests.executors.processes.house import Fatal, Processes, Sour, executor

pytestmark = pytest.mark.real

MIB = 1 << 20


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


@pytest.fixture
def most_deaths(monkeypatch: pytest.MonkeyPatch) -> int:
    """Fewer deaths make a slot given up, so that fewer workers need to be started."""
    monkeypatch.setattr(restarts, "MOST_DEATHS", 2)
    return 2


Start = Callable[..., Awaitable[Desk]]


@pytest.fixture
async def started(processes: Processes) -> AsyncIterator[Start]:
    """Starts the workers of an op, which are expected to end well."""
    desks = []

    async def start(op: str = "acting", **more: Any) -> Desk:
        desks.append(Desk(executor(processes, op, **more)))
        await desks[-1].executor.start()
        return desks[-1]

    yield start
    for desk in desks:
        assert await desk.executor.close(10.0)


@pytest.fixture
async def desk(started: Start) -> Desk:
    """One worker's."""
    return await started()


async def until(true: Callable[[], bool]) -> None:
    """Wait for what another process or the loop does."""
    async with asyncio.timeout(60.0):
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


async def test_every_worker_is_a_process_of_its_own(
    started: Start, processes: Processes, tmp_path: Path
) -> None:
    desk = await started(workers=2)
    gate = tmp_path / "gate"
    works = []
    for n in range(2):
        feed = {"do": "wait", "entered": str(tmp_path / str(n)), "gate": str(gate)}
        works.append(desk.submit([batch_of(n, **feed)]))
    await until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    gate.touch()
    values = [(await desk.results(work))[0][1][0].value for work in works]
    assert {value["pid"] for value in values if value} == set(processes.pids)


@pytest.mark.parametrize("size", [10, 300_000])
async def test_arrays_arrive_whole_in_both_directions(desk: Desk, size: int) -> None:
    for n in range(20):  # memory that is used again must have been given back
        x = np.arange(size, dtype=np.float64) + n
        value = (await one(desk, do="array", x=x)).value
        assert value is not None
        assert value["sum"] == int(x.sum())
        assert np.array_equal(value["x"], x + 1)


async def test_a_value_of_another_type_is_opened_by_workers_only(desk: Desk) -> None:
    given = (await one(desk, do="odd")).value
    assert given is not None
    assert type(given["odd"]) is Blob
    opened = (await one(desk, do="open", odd=given["odd"])).value
    assert opened is not None
    assert opened["name"] == "mine"


@pytest.mark.parametrize("do", ["kill", "exit", "segfault"])
async def test_a_worker_that_dies_costs_its_batch_alone(
    desk: Desk, processes: Processes, do: str, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_a_worker_killed_while_idle_is_replaced(desk: Desk, processes: Processes) -> None:
    await one(desk)
    os.kill(processes.pids[0], signal.SIGKILL)
    await until(lambda: not desk.executor.alive)
    await until(lambda: desk.executor.alive)
    assert (await one(desk)).error is None


async def test_a_death_is_seen_though_something_else_holds_the_workers_socket(desk: Desk) -> None:
    left = (await one(desk, do="leave a child")).value
    assert left is not None
    try:
        assert isinstance((await one(desk, do="kill")).error, WorkerDied)
        assert (await one(desk)).error is None
    finally:
        os.kill(left["child"], signal.SIGKILL)


@pytest.mark.parametrize("late", [False, True], ids=["in vain", "late"])
@pytest.mark.parametrize("kill_late", [False, True])
async def test_only_a_call_beyond_its_time_out_may_be_ended(
    started: Start, tmp_path: Path, kill_late: bool, late: bool
) -> None:
    desk = await started(supervision=Supervision(kill_late=kill_late))
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


async def test_workers_ended_for_their_late_calls_are_no_early_deaths(
    processes: Processes,
    most_deaths: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervised = executor(processes, supervision=Supervision(kill_late=True))
    house = House("process", None, options=WorkOptions(timeout=0.05), executor=supervised)
    await house.executor.start()
    gate = tmp_path / "gate"
    for n in range(most_deaths + 1):
        await until(lambda: house.executor.alive)
        outcome = await house.ask(do="wait", gate=str(gate), entered=str(tmp_path / str(n)))
        assert isinstance(outcome.error, OpTimeout)
        await house.at_rest()
    assert (await house.ask()).error is None
    assert house.verdict() == []
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(lines) == 3 * (most_deaths + 1)
    assert all("exceeded the timeout, with data_ids=" in line for line in lines[::3])
    assert all("process took longer than its timeout" in line for line in lines[1::3])
    for line in lines[2::3]:
        assert "died: SIGABRT at its time-out, with data_ids=" in line
        assert re.search(r"house.py\", line \d+ in wait\n", line)
        assert "in run_batch" not in line
    assert not [each for each in caplog.records if each.levelno > logging.WARNING]
    await house.close()


async def test_who_goes_on_beyond_its_time_out_all_the_same_gets_nothing_more_and_is_ended(
    started: Start, processes: Processes, tmp_path: Path
) -> None:
    desk = await started(supervision=Supervision(kill_late=True))
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
    assert any("without waiting requests for 0.5 s" in each for each in reports)
    (died,) = [each for each in reports if "died: SIGABRT" in each]
    assert "in process" in died
    assert "in run_batch" not in died
    await house.close()


async def test_workers_are_replaced_after_their_batches_one_by_one_and_nobody_notices(
    processes: Processes,
    most_deaths: int,
) -> None:
    supervision = Supervision(max_batches=5)
    house = House("process", None, executor=executor(processes, workers=2, supervision=supervision))
    await house.executor.start()
    alive = set()
    while len(processes.pids) < 2 + most_deaths + 1:
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


async def test_a_worker_that_cannot_start_is_told_of_before_the_others_are_ready(
    processes: Processes,
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    desk = Desk(executor(processes, "one fails", workers=3))
    async with asyncio.timeout(60.0):
        with pytest.raises(StartupError, match="the model is not there"):
            await desk.executor.start()
    assert len(processes.pids) == 3
    assert len(os.listdir("/proc/self/fd")) == before


async def test_an_op_whose_workers_die_as_they_start_is_given_up_and_answers_at_once(
    started: Start,
    processes: Processes,
    most_deaths: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PROCESSES_GONE", str(tmp_path / "gone"))
    desk = await started("once")
    assert (await one(desk)).error is None
    assert isinstance((await one(desk, do="kill")).error, WorkerDied)
    await until(lambda: any("it is disabled" in each.getMessage() for each in caplog.records))
    assert not desk.executor.alive
    assert type((await one(desk)).error) is InferenceFailed
    assert len(processes.pids) == 1 + most_deaths


async def test_an_op_that_was_given_up_is_taken_up_again_when_a_worker_can_be_started(
    started: Start,
    processes: Processes,
    most_deaths: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = tmp_path / "gone"
    monkeypatch.setenv("PROCESSES_GONE", str(gone))
    monkeypatch.setattr("penstock.executors.processes.executor.LONGEST", 0.02)
    desk = await started("once")
    assert (await one(desk)).error is None
    assert isinstance((await one(desk, do="kill")).error, WorkerDied)
    more: list[int] = []
    desk.executor.grown = lambda: more.append(desk.executor.workers)
    await until(lambda: len(processes.pids) > most_deaths + 3)
    assert "has no worker" in str((await one(desk)).error)
    assert caplog.text.count("it is disabled") == 1
    gone.unlink()
    await until(lambda: desk.executor.alive)
    assert (await one(desk)).error is None
    assert "op once: worker 0 has started again" in caplog.text
    assert more == [1]
    gone.unlink()
    assert isinstance((await one(desk, do="kill")).error, WorkerDied)
    assert (await one(desk)).error is None


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

    async def ready(made: ProcessExecutor, worker: Worker) -> Any:
        raise StartupError("as told")

    monkeypatch.setattr(ProcessExecutor, "_ready", ready)
    os.kill(processes.pids[0], signal.SIGKILL)
    await until(lambda: "it is disabled" in caplog.text)


async def test_workers_that_die_of_their_first_batches_rest_and_are_not_ready(
    desk: Desk, processes: Processes
) -> None:
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


async def test_a_worker_that_survives_a_batch_makes_its_op_ready_again(
    desk: Desk, processes: Processes
) -> None:
    for n in (2, 3):
        assert isinstance((await one(desk, do="kill")).error, WorkerDied)
        await until(lambda n=n: len(processes.pids) == n)  # type: ignore[misc]
    assert not desk.executor.alive
    assert (await one(desk)).error is None
    assert desk.executor.alive


async def test_a_bad_slot_rests_while_the_good_one_serves(
    started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_CARD", "0")
    desk = await started("on a card", workers=2)
    outcomes: list[Outcome] = []
    for _ in range(50):
        outcomes += await asyncio.gather(one(desk), one(desk))
    failed = [each for each in outcomes if each.error is not None]
    assert 1 <= len(failed) <= MOST_DEATHS
    assert all(isinstance(each.error, WorkerDied) for each in failed)
    assert desk.executor.alive


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


async def test_what_cannot_travel_fails_its_own_request_alone(
    desk: Desk, processes: Processes
) -> None:
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


async def test_a_value_whose_opening_raises_fails_its_own_sample_and_no_worker(
    desk: Desk, processes: Processes
) -> None:
    batch = batch_of(1, 2, 3)
    (feed,) = batch.samples[1].inputs.values()
    feed["deep"] = [{"odd": Sour()}]
    ((_, outcomes),) = await desk.run(batch)
    assert [type(each.error) for each in outcomes] == [type(None), WrongType, type(None)]
    assert "cannot be unpickled: ValueError: sour" in str(outcomes[1].error)
    assert isinstance((await one(desk, odd=Sour())).error, WrongType)
    assert (await one(desk)).error is None
    assert len(processes.pids) == 1


async def test_who_dies_of_opening_a_value_dies_of_its_batch_and_not_of_its_company(
    desk: Desk,
) -> None:
    results = await desk.run(batch_of(1), batch_of(2, odd=Fatal()), batch_of(3))
    errors = [type(outcome.error) for _, (outcome,) in results]
    assert errors == [type(None), WorkerDied, type(None)]


async def test_answers_that_are_more_than_a_socket_holds_come_all(
    desk: Desk, processes: Processes
) -> None:
    results = await desk.run(
        *(batch_of(n, do="lengthen", text="abc", times=n * 100_000) for n in range(20))
    )
    for batch, (outcome,) in results:
        assert outcome.value == {"text": "abc" * (batch.data_ids[0] * 100_000)}
    assert len(results) == 20
    assert len(processes.pids) == 1


async def test_who_is_read_by_others_gives_nothing_that_only_workers_open(
    started: Start, processes: Processes
) -> None:
    desk = await started("read by others")
    outcome = await one(desk, do="odd")
    assert isinstance(outcome.error, WrongType)
    for said in ("[read by others]", "'odd'", ".Odd cannot be sent to op 'next'", "in processes"):
        assert said in str(outcome.error)
    other = await one(desk, do="number as key")  # which would not go to a worker either
    assert "is a text, not int. Please" in str(other.error)
    assert (await one(desk, do="array", x=np.arange(3))).error is None
    assert len(processes.pids) == 1


@pytest.mark.parametrize("op", ["garbage", "speaking out of turn"])
async def test_a_worker_that_breaks_the_rules_is_ended(
    started: Start, processes: Processes, op: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = await started(op, workers=2)
    outcomes = await asyncio.gather(one(desk), one(desk))
    assert [each.error for each in outcomes] == [None, None]  # another worker has run them
    await until(lambda: len(processes.pids) >= 3)
    assert "worker 0 is ended: " in caplog.text


async def test_an_array_from_one_process_to_another_is_copied_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.arange((5 * MIB) // 8)
    for _ in range(3):  # the first answer tells how much memory the next are granted
        made = (await one(desk, do="array", x=x)).value
        assert made is not None
    assert not made["x"].flags.owndata  # it is read where the worker has put it: the only copy
    copied = []
    copy = slabs._copy

    def noted(array: Any, *where: Any) -> int:
        copied.append(array.nbytes)
        return copy(array, *where)

    monkeypatch.setattr(slabs, "_copy", noted)
    tracemalloc.start()
    try:
        work = desk.submit([batch_of(2, do="sum", x=made["x"])])
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    assert copied == []  # the next worker reads it there, too
    ((_, (outcome,)),) = await desk.results(work)
    assert outcome.value == {"sum": int(made["x"].sum()), "owned": False}


async def test_a_stopped_workers_batch_goes_to_another_and_it_is_ended_and_replaced(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = executor(processes, workers=2, supervision=Supervision(hang_limit=1.0))
    house = House("process", None, executor=supervised)
    await house.executor.start()
    os.kill(processes.pids[0], signal.SIGSTOP)
    outcomes = await asyncio.gather(house.ask(), house.ask(), house.ask())
    assert all(each.error is None for each in outcomes)
    await until(lambda: len(processes.pids) == 3)
    await house.at_rest()
    (told,) = [text for text in caplog.messages if "hangs and is ended" in text]
    assert "has not begun a batch within 1 s" in told
    assert not Path(f"/proc/{processes.pids[0]}").exists()
    assert house.verdict() == []
    await house.close()


async def test_a_stopped_worker_does_not_begin_its_batch_while_it_is_ended(
    processes: Processes, tmp_path: Path
) -> None:
    """Whichever of its threads obeys the signal; none does here."""
    supervised = executor(processes, supervision=Supervision(hang_limit=1.0))
    house = House("process", None, executor=supervised)
    await house.executor.start()
    gate, entered, begun = tmp_path / "gate", tmp_path / "entered", tmp_path / "begun"
    gate.touch()
    deaf = await house.ask(do="wait deaf", gate=str(gate), entered=str(entered))
    assert deaf.error is None
    gate.unlink()
    os.kill(processes.pids[0], signal.SIGSTOP)
    asked = asyncio.create_task(house.ask(do="wait", gate=str(gate), entered=str(begun)))
    await until(begun.exists)
    assert len(processes.pids) == 2
    gate.touch()
    assert (await asked).error is None
    assert house.verdict() == []
    await house.close()


async def test_who_stands_behind_a_call_that_is_given_up_runs_elsewhere(
    processes: Processes, tmp_path: Path
) -> None:
    house = House("process", None, options=WorkOptions(timeout=0.2), executor=executor(processes))
    await house.executor.start()
    for _ in range(20):
        await house.ask()  # so short that several batches go out together
    feed = {"do": "wait", "gate": str(tmp_path / "gate"), "entered": str(tmp_path / "entered")}
    outcomes = await asyncio.gather(house.ask(**feed), *(house.ask() for _ in range(5)))
    assert isinstance(outcomes[0].error, OpTimeout)
    assert [each.error for each in outcomes[1:]] == [None] * 5
    assert house.verdict() == []
    await house.close()


async def test_answers_leave_when_they_are_there_though_a_slow_one_went_out_with_them(
    processes: Processes,
) -> None:
    house = House("process", None, executor=executor(processes))
    await house.executor.start()
    for _ in range(50):
        await house.ask()  # cheap hits
    began = time.monotonic()
    took: list[float] = []

    async def ask(**feed: Any) -> None:
        assert (await house.ask(**feed)).error is None
        took.append(time.monotonic() - began)

    misses = [ask(do="sleep", seconds=0.2) for _ in range(3)]
    await asyncio.gather(*(ask() for _ in range(5)), *misses, *(ask() for _ in range(5)))
    assert took[4] < 0.15
    for number, when in enumerate(sorted(took)[5:8], 1):
        assert 0.2 * number <= when < 0.2 * number + 0.15
    await house.close()


async def test_a_death_is_reported_in_the_log_and_in_a_file(
    processes: Processes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "crashes"
    desk = Desk(executor(processes, supervision=Supervision(crash_dir=str(folder))))
    await desk.executor.start()
    ((_, (outcome,)),) = await desk.run(batch_of(7, do="segfault", secret="feed"))
    assert isinstance(outcome.error, WorkerDied)
    assert (await one(desk)).error is None
    assert await desk.executor.close(10.0)
    (report,) = [each.getMessage() for each in caplog.records if "died" in each.getMessage()]
    assert "died: SIGSEGV, with data_ids=[7], after 0 batches" in report
    assert "house.py" in report
    assert " in process" in report
    assert "run_batch" not in report
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    whole = file.read_text()
    assert "died: SIGSEGV" in whole
    assert "run_batch" in whole
    assert "feed" not in whole


@pytest.mark.parametrize("replacement", [False, True], ids=["at first", "later"])
async def test_a_worker_that_does_not_become_ready_is_told_of_and_ended_with_its_stack(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    replacement: bool,
) -> None:
    monkeypatch.setenv("PROCESSES_GONE", str(tmp_path / "gone"))
    monkeypatch.setattr(executor_module, "LOG_AFTER", 0.5)
    op = "slow again" if replacement else "slow"
    desk = Desk(executor(processes, op, supervision=Supervision(start_timeout=3.0)))
    if replacement:
        await desk.executor.start()
        assert isinstance((await one(desk, do="kill")).error, WorkerDied)
        assert (await one(desk)).error is None
        assert len(processes.pids) == 3
        assert await desk.executor.close(10.0)
    else:
        with pytest.raises(
            StartupError,
            match=r"worker 0 was not ready within 3 s .start_timeout.: its process starts; the log",
        ):
            await desk.executor.start()
    assert "was not ready within 3 s" in caplog.text or not replacement
    told = [each.getMessage() for each in caplog.records if "has not become ready" in each.message]
    assert len(told) >= 2
    assert re.match(rf"op {op}: worker 0 \(pid \d+\) has not become ready for \d+ s: ", told[0])
    assert "in init_op_that_hangs" in caplog.text


async def test_an_output_whose_items_cannot_be_read_fails_its_request_alone(
    desk: Desk, processes: Processes
) -> None:
    outcome = await one(desk, do="items raise")
    assert isinstance(outcome.error, WrongType)
    assert "its items cannot be read: ValueError: not for you" in str(outcome.error)
    assert (await one(desk)).error is None
    assert len(processes.pids) == 1


async def test_moments_of_workers_and_what_they_loaded_are_told(processes: Processes) -> None:
    told: list[tuple[str, int]] = []

    class Listener(Instrument):
        def worker_started(self, op: str, index: int, now: float) -> None:
            told.append(("started", index))

        def worker_died(self, op: str, index: int, why: str, now: float) -> None:
            told.append((why, index))

        def worker_replaced(self, op: str, index: int, why: str, now: float) -> None:
            told.append((why, index))

    made: ProcessExecutor = executor(processes, supervision=Supervision(max_batches=2))
    made.instruments = Instruments([Listener()])
    desk = Desk(made)
    await made.start()
    assert made.loaded == [{"pid": processes.pids[0], "model": None}]
    assert isinstance((await one(desk, do="kill")).error, WorkerDied)
    assert (await one(desk)).error is None
    assert (await one(desk)).error is None
    await until(lambda: len(told) == 5)
    assert [each for each, _ in told] == [
        "started",
        "SIGKILL",
        "started",
        "exit status 0",
        "started",
    ]
    await until(lambda: made.loaded == [{"pid": processes.pids[2], "model": None}])
    assert await made.close(10.0)
