"""Worker processes: their replies, their deaths, and clean-up. All are real processes."""

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

from penstock.engine.submission import Submission
from penstock.errors import (
    DeadlineExceeded,
    HookFailed,
    InferenceFailed,
    NoProcess,
    OpTimeout,
    StartupError,
    WorkerDied,
    WrongType,
)
from penstock.executors.processes import slabs
from penstock.executors.processes.executor import ProcessExecutor
from penstock.executors.processes.worker import ProcessWorker
from penstock.executors.transport.values import Blob
from penstock.executors.work import WorkOptions
from penstock.executors.workers import pool, restarts
from penstock.executors.workers.restarts import MOST_DEATHS
from penstock.executors.workers.watchdog import Supervision
from penstock.instrument import Instrument, Instruments
from penstock.request import Outcome
from tests.executors.harness import EngineHarness, ExecutorHarness, batch_of
from tests.executors.processes.workers import Fatal, Processes, Unpicklable, executor

pytestmark = pytest.mark.real

MIB = 1 << 20


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


@pytest.fixture
def most_deaths(monkeypatch: pytest.MonkeyPatch) -> int:
    """Fewer deaths until a worker is not restarted, so that fewer processes need to be started."""
    monkeypatch.setattr(restarts, "MOST_DEATHS", 2)
    return 2


Start = Callable[..., Awaitable[ExecutorHarness]]


@pytest.fixture
async def started(processes: Processes) -> AsyncIterator[Start]:
    """Starts the workers of an op; closing them must succeed."""
    harnesses = []

    async def start(op: str = "acting", **more: Any) -> ExecutorHarness:
        harnesses.append(ExecutorHarness(executor(processes, op, **more)))
        await harnesses[-1].executor.start()
        return harnesses[-1]

    yield start
    for harness in harnesses:
        assert await harness.executor.close(10.0)


@pytest.fixture
async def harness(started: Start) -> ExecutorHarness:
    """The harness of one worker."""
    return await started()


async def until(true: Callable[[], bool]) -> None:
    """Waits for another process or the loop."""
    async with asyncio.timeout(60.0):
        while not true():
            await asyncio.sleep(0.005)


async def hand_over_together(harness: EngineHarness) -> None:
    """From now on one hand-over carries several batches, however slow the machine is."""
    assert (await harness.request()).error is None
    for _ in range(100):
        harness.stage._hand_over.learn(1e-6)


async def one(harness: ExecutorHarness, number: int = 1, **feed: Any) -> Outcome:
    ((_, (outcome,)),) = await harness.run(batch_of(number, **feed))
    return outcome


async def test_batches_are_handed_over_together_and_return_in_order(processes: Processes) -> None:
    harness = ExecutorHarness(executor(processes))
    await harness.executor.start()
    assert harness.executor.alive
    results = await harness.run(batch_of(1), batch_of(2), batch_of(3))
    assert [outcome.value["n"] for _, (outcome,) in results if outcome.value] == [1, 2, 3]
    assert all(batch.ran > 0.0 for batch, _ in results)
    outcome = await one(harness, do="raise")
    assert type(outcome.error) is HookFailed
    assert "as told" in str(outcome.error)
    assert await harness.executor.close(10.0)
    assert not harness.executor.alive


async def test_every_worker_is_a_separate_process(
    started: Start, processes: Processes, tmp_path: Path
) -> None:
    harness = await started(workers=2)
    gate = tmp_path / "gate"
    works = []
    for n in range(2):
        feed = {"do": "wait", "entered": str(tmp_path / str(n)), "gate": str(gate)}
        works.append(harness.submit([batch_of(n, **feed)]))
    await until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    gate.touch()
    values = [(await harness.results(work))[0][1][0].value for work in works]
    assert {value["pid"] for value in values if value} == set(processes.pids)


@pytest.mark.parametrize("size", [10, 300_000])
async def test_arrays_arrive_intact_in_both_directions(harness: ExecutorHarness, size: int) -> None:
    for n in range(20):  # memory is reused, and must have been returned
        x = np.arange(size, dtype=np.float64) + n
        value = (await one(harness, do="array", x=x)).value
        assert value is not None
        assert value["sum"] == int(x.sum())
        assert np.array_equal(value["x"], x + 1)


async def test_a_value_of_another_type_is_unpickled_by_workers_only(
    harness: ExecutorHarness,
) -> None:
    given = (await one(harness, do="odd")).value
    assert given is not None
    assert type(given["odd"]) is Blob
    opened = (await one(harness, do="open", odd=given["odd"])).value
    assert opened is not None
    assert opened["name"] == "mine"


@pytest.mark.parametrize("do", ["kill", "exit", "segfault"])
async def test_a_worker_s_death_only_loses_its_current_batch(
    harness: ExecutorHarness, processes: Processes, do: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await one(harness)).error is None
    remaining = [batch_of(1), batch_of(2, do=do), batch_of(3)]
    lost: list[list[int]] = []
    while remaining and not lost:  # a slow worker's turn may be over before its second batch
        work = harness.submit(remaining)
        results = await harness.results(work)
        lost = [
            batch.data_ids
            for batch, outcomes in results
            if isinstance(outcomes[0].error, WorkerDied)
        ]
        remaining = work.take_back()
    assert lost == [[2]]
    assert [batch.data_ids for batch in remaining][-1:] == [[3]]
    again = await harness.run(*remaining)  # by another worker, once it is ready
    assert all(outcome.error is None for _, (outcome,) in again)
    assert len(processes.pids) == 2
    reports = [each.getMessage() for each in caplog.records if "died" in each.getMessage()]
    assert len(reports) == 1
    reason = {"kill": "SIGKILL", "exit": "exit status 7", "segfault": "SIGSEGV"}[do]
    assert reason in reports[0]
    assert "MiB of memory" in reports[0]
    assert ("Fatal Python error: Segmentation fault" in reports[0]) is (do == "segfault")
    assert "data_ids=[2]" in reports[0]


async def test_a_worker_killed_while_idle_is_replaced(
    harness: ExecutorHarness, processes: Processes
) -> None:
    await one(harness)
    os.kill(processes.pids[0], signal.SIGKILL)
    await until(lambda: not harness.executor.alive)
    await until(lambda: harness.executor.alive)
    assert (await one(harness)).error is None


async def test_a_death_is_noticed_even_if_a_child_holds_the_worker_s_socket(
    harness: ExecutorHarness,
) -> None:
    forked = (await one(harness, do="leave a child")).value
    assert forked is not None
    try:
        assert isinstance((await one(harness, do="kill")).error, WorkerDied)
        assert (await one(harness)).error is None
    finally:
        os.kill(forked["child"], signal.SIGKILL)


@pytest.mark.parametrize("late", [False, True], ids=["in vain", "late"])
@pytest.mark.parametrize("kill_late", [False, True])
async def test_a_worker_is_killed_only_for_a_call_past_its_timeout_and_with_kill_late(
    started: Start, tmp_path: Path, kill_late: bool, late: bool
) -> None:
    harness = await started(supervision=Supervision(kill_late=kill_late))
    gate, entered = tmp_path / "gate", tmp_path / "entered"
    batch = batch_of(1, do="wait", gate=str(gate), entered=str(entered))
    work = harness.submit([batch])
    await until(entered.exists)
    harness.executor.look(work)
    batch.settled = late
    harness.executor.abandon(work)
    if not (kill_late and late):
        gate.touch()
    ((_, (outcome,)),) = await harness.results(work)
    # A worker killed by us makes no suspects.
    assert type(outcome.error) is (InferenceFailed if kill_late and late else type(None))


async def test_no_further_call_is_made_for_a_request_that_is_cancelled(
    processes: Processes, tmp_path: Path
) -> None:
    harness = EngineHarness("process", None, executor=executor(processes, "parts"))
    await harness.executor.start()
    entered, gate, called = (tmp_path / name for name in ("entered", "gate", "called"))
    waits = {"do": "wait", "entered": str(entered), "gate": str(gate)}
    parts = [waits, *[{"do": "touch", "path": str(called)}] * 3]
    submission = Submission(harness.graph, {"n": 0, "parts": parts})
    submission.start(lambda _, outcome: pytest.fail("it was cancelled"))
    await until(entered.exists)
    submission.cancel()
    await asyncio.sleep(0)
    gate.touch()
    await harness.at_rest()
    assert not called.exists()
    outcome = await harness.request(parts=[{}, {"do": "touch", "path": str(called)}])
    assert outcome.value is not None
    assert outcome.value["calls"] == 2
    assert called.exists()
    await harness.close()


async def test_workers_killed_for_late_calls_do_not_count_as_early_deaths(
    processes: Processes,
    most_deaths: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervised = executor(processes, supervision=Supervision(kill_late=True))
    harness = EngineHarness("process", None, options=WorkOptions(timeout=0.05), executor=supervised)
    await harness.executor.start()
    gate = tmp_path / "gate"
    for n in range(most_deaths + 1):
        await until(lambda: harness.executor.alive)
        outcome = await harness.request(do="wait", gate=str(gate), entered=str(tmp_path / str(n)))
        assert isinstance(outcome.error, OpTimeout)
        await harness.at_rest()
    assert (await harness.request()).error is None
    assert harness.verdict() == []
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(lines) == 3 * (most_deaths + 1)
    assert all("exceeded the timeout, with data_ids=" in line for line in lines[::3])
    assert all("process took longer than its timeout" in line for line in lines[1::3])
    for line in lines[2::3]:
        assert "died: SIGABRT at its time-out, with data_ids=" in line
        assert re.search(r"workers.py\", line \d+ in wait\n", line)
        assert "in run_batch" not in line
    assert not [each for each in caplog.records if each.levelno > logging.WARNING]
    await harness.close()


async def test_a_worker_that_survives_the_kill_signal_gets_no_more_batches_and_is_replaced(
    started: Start, processes: Processes, tmp_path: Path
) -> None:
    harness = await started(supervision=Supervision(kill_late=True))
    gate, entered = tmp_path / "gate", tmp_path / "entered"
    work = harness.submit([batch_of(1, do="wait deaf", gate=str(gate), entered=str(entered))])
    await until(entered.exists)
    harness.executor.look(work)
    assert work.current is not None
    work.current.settled = True
    harness.executor.abandon(work)
    gate.touch()
    ((_, (outcome,)),) = await harness.results(work)
    assert outcome.value is not None
    assert outcome.value["pid"] == processes.pids[0]
    value = (await one(harness)).value
    assert value is not None
    assert value["pid"] == processes.pids[1]


async def test_a_call_is_killed_hang_limit_after_its_requests_have_ended_and_not_before(
    processes: Processes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = executor(processes, supervision=Supervision(hang_limit=0.5))
    harness = EngineHarness("process", None, executor=supervised)
    await harness.executor.start()
    feed = {"do": "wait", "gate": str(tmp_path / "gate"), "entered": str(tmp_path / "entered")}
    began = time.monotonic()
    outcome = await harness.request(1.5, **feed)
    assert isinstance(outcome.error, DeadlineExceeded)
    assert len(processes.pids) == 1
    await until(lambda: len(processes.pids) == 2)
    assert time.monotonic() - began >= 2.0
    assert (await harness.request()).error is None
    reports = [each.getMessage() for each in caplog.records]
    assert any("without waiting requests for 0.5 s" in each for each in reports)
    (died,) = [each for each in reports if "died: SIGABRT" in each]
    assert "in process" in died
    assert "in run_batch" not in died
    await harness.close()


async def test_workers_are_replaced_after_max_batches_one_by_one_without_errors(
    processes: Processes,
    most_deaths: int,
) -> None:
    supervision = Supervision(max_batches=5)
    harness = EngineHarness(
        "process", None, executor=executor(processes, workers=2, supervision=supervision)
    )
    await harness.executor.start()
    alive = set()
    while len(processes.pids) < 2 + most_deaths + 1:
        outcomes = await asyncio.gather(*(harness.request() for _ in range(4)))
        assert all(each.error is None for each in outcomes)
        alive.add(len(harness.executor._alive))
    assert alive <= {1, 2}
    assert harness.verdict() == []
    await harness.close()


async def test_a_worker_over_its_memory_limit_is_replaced_and_one_far_over_it_is_killed(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    supervision = Supervision(memory_limit=300 << 20)
    harness = EngineHarness("process", None, executor=executor(processes, supervision=supervision))
    await harness.executor.start()
    first = (await harness.request()).value
    grown = await harness.request(do="grow", mib=320)
    assert grown.error is None
    second = (await harness.request()).value
    assert first is not None
    assert second is not None
    assert second["pid"] != first["pid"]
    assert not any(each.levelno >= logging.ERROR for each in caplog.records)
    assert type((await harness.request(do="balloon")).error) is WorkerDied
    assert (await harness.request()).error is None
    assert any(
        "far over its memory_limit_mib of 300" in each.getMessage() for each in caplog.records
    )
    assert harness.verdict() == []
    await harness.close()


@pytest.mark.parametrize(
    ("op", "text"), [("failing", "the model is not there"), ("early", "exit status 3")]
)
async def test_a_worker_that_fails_to_start_is_an_error_with_the_reason(
    processes: Processes, op: str, text: str
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    harness = ExecutorHarness(executor(processes, op, workers=2))
    with pytest.raises(StartupError, match=text):
        await harness.executor.start()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_failed_start_is_reported_before_the_other_workers_are_ready(
    processes: Processes,
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    harness = ExecutorHarness(executor(processes, "one fails", workers=3))
    async with asyncio.timeout(60.0):
        with pytest.raises(StartupError, match="the model is not there"):
            await harness.executor.start()
    assert len(processes.pids) == 3
    assert len(os.listdir("/proc/self/fd")) == before


async def test_the_first_worker_s_decision_how_to_batch_is_reported_and_sent_to_the_others(
    started: Start,
) -> None:
    harness = await started("deciding", workers=2)
    reports = [each["batching"] for each in harness.executor.loaded if "batching" in each]
    assert reports[0] == {"decided by": 0}
    told = [(await one(harness, do="batching")).value for _ in range(2)]
    assert all(each is not None and each["by"] == 0 for each in told)
    (worker,) = [each for each in harness.executor._alive if each.index == 0]
    os.kill(worker.pid, signal.SIGKILL)
    await until(lambda: worker not in harness.executor._alive and len(harness.executor._alive) == 2)
    assert harness.executor.loaded[0]["batching"] == {"decided by": 0}, "it is not asked again"


async def test_a_worker_that_dies_in_the_probe_is_started_again_without_it(
    started: Start, caplog: pytest.LogCaptureFixture
) -> None:
    harness = await started("probed to death")
    assert harness.executor.loaded[0]["batching"]["by"] is None
    assert "the model ended its process on the inputs of the probe" in caplog.text
    assert (await one(harness)).error is None


async def test_an_op_whose_workers_die_at_start_is_disabled_and_replies_at_once(
    started: Start,
    processes: Processes,
    most_deaths: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PROCESSES_GONE", str(tmp_path / "gone"))
    harness = await started("once")
    assert (await one(harness)).error is None
    assert isinstance((await one(harness, do="kill")).error, WorkerDied)
    await until(lambda: any("it is disabled" in each.getMessage() for each in caplog.records))
    assert not harness.executor.alive
    assert type((await one(harness)).error) is NoProcess
    assert len(processes.pids) == 1 + most_deaths


async def test_a_disabled_op_is_enabled_again_once_a_worker_starts(
    started: Start,
    processes: Processes,
    most_deaths: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = tmp_path / "gone"
    monkeypatch.setenv("PROCESSES_GONE", str(gone))
    monkeypatch.setattr("penstock.executors.workers.pool.LONGEST", 0.02)
    harness = await started("once")
    assert (await one(harness)).error is None
    assert isinstance((await one(harness, do="kill")).error, WorkerDied)
    grown_to: list[int] = []
    harness.executor.grown = lambda: grown_to.append(harness.executor.workers)
    await until(lambda: len(processes.pids) > most_deaths + 3)
    assert "has no worker" in str((await one(harness)).error)
    assert caplog.text.count("it is disabled") == 1
    gone.unlink()
    await until(lambda: harness.executor.alive)
    assert (await one(harness)).error is None
    assert "op once: worker 0 has started again" in caplog.text
    assert grown_to == [1]
    gone.unlink()
    assert isinstance((await one(harness, do="kill")).error, WorkerDied)
    assert (await one(harness)).error is None


async def test_a_disabled_worker_does_not_delay_closing(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness = ExecutorHarness(executor(processes, workers=2))
    await harness.executor.start()
    await disable_one(processes, monkeypatch, caplog)
    assert harness.executor.workers == 1
    began = time.monotonic()
    works = [harness.submit([batch_of(1)]) for _ in range(3)]
    for work in works:  # the other worker runs them all
        ((_, (outcome,)),) = await harness.results(work)
        assert outcome.error is None
    assert await harness.executor.close(10.0)
    assert time.monotonic() - began < 10.0


async def disable_one(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of several workers dies, and no worker can be started."""

    async def ready(made: ProcessExecutor, worker: ProcessWorker) -> Any:
        raise StartupError("as told")

    monkeypatch.setattr(ProcessExecutor, "_ready", ready)
    os.kill(processes.pids[0], signal.SIGKILL)
    await until(lambda: "it is disabled" in caplog.text)


async def test_workers_that_die_in_their_first_batches_are_delayed_and_then_disabled(
    harness: ExecutorHarness, processes: Processes
) -> None:
    assert (await one(harness)).error is None
    assert isinstance((await one(harness, do="kill")).error, WorkerDied)
    await until(lambda: harness.executor.alive)  # the worker before it had worked
    began = time.monotonic()
    for n in range(MOST_DEATHS):
        assert isinstance((await one(harness, do="kill")).error, WorkerDied)
        await until(lambda n=n: len(processes.pids) == min(n + 3, 1 + MOST_DEATHS))  # type: ignore[misc]
        assert n < 1 or not harness.executor.alive
    assert time.monotonic() - began > 0.7
    refused = (await one(harness)).error
    assert type(refused) is NoProcess
    assert "has no worker" in str(refused)
    assert len(processes.pids) == 1 + MOST_DEATHS


async def test_a_worker_that_survives_a_batch_makes_its_op_ready_again(
    harness: ExecutorHarness, processes: Processes
) -> None:
    for n in (2, 3):
        assert isinstance((await one(harness, do="kill")).error, WorkerDied)
        await until(lambda n=n: len(processes.pids) == n)  # type: ignore[misc]
    assert not harness.executor.alive
    assert (await one(harness)).error is None
    assert harness.executor.alive


async def test_a_worker_on_a_bad_card_is_delayed_while_the_other_serves(
    started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_CARD", "0")
    harness = await started("on a card", workers=2)
    outcomes: list[Outcome] = []
    for _ in range(50):
        outcomes += await asyncio.gather(one(harness), one(harness))
    failed = [each for each in outcomes if each.error is not None]
    assert 1 <= len(failed) <= MOST_DEATHS
    assert all(isinstance(each.error, WorkerDied) for each in failed)
    assert harness.executor.alive


async def test_a_worker_over_its_memory_limit_at_start_is_an_error(
    processes: Processes,
) -> None:
    supervision = Supervision(memory_limit=1 << 20)
    with pytest.raises(
        StartupError, match=r"MiB of memory before its first batch, over its memory_limit_mib of 1"
    ):
        await executor(processes, supervision=supervision).start()
    assert len(processes.pids) == 1


async def test_closing_kills_a_worker_that_does_not_return_and_leaks_nothing(
    processes: Processes, tmp_path: Path
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    harness = ExecutorHarness(executor(processes))
    await harness.executor.start()
    entered = tmp_path / "entered"
    work = harness.submit([batch_of(1, do="wait", gate=str(tmp_path / "g"), entered=str(entered))])
    await until(entered.exists)
    assert await harness.executor.close(0.1) is False
    ((_, (outcome,)),) = await harness.results(work)
    assert type(outcome.error) is InferenceFailed
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_value_that_cannot_be_pickled_only_fails_its_own_request(
    harness: ExecutorHarness, processes: Processes
) -> None:
    results = await harness.run(
        batch_of(1, odd=lambda: None), batch_of(2), batch_of(3, do="unpicklable"), batch_of(4)
    )
    errors = {batch.data_ids[0]: outcome.error for batch, (outcome,) in results}
    assert [number for number, error in sorted(errors.items()) if error is None] == [2, 4]
    assert all(isinstance(errors[number], WrongType) for number in (1, 3))
    assert all("cannot be pickled" in str(errors[number]) for number in (1, 3))
    (result,) = await harness.run(batch_of(5, odd=lambda: None))
    assert isinstance(result[1][0].error, WrongType)
    assert len(processes.pids) == 1


async def test_a_value_that_cannot_be_unpickled_only_fails_its_own_sample(
    harness: ExecutorHarness, processes: Processes
) -> None:
    batch = batch_of(1, 2, 3)
    (feed,) = batch.samples[1].inputs.values()
    feed["deep"] = [{"odd": Unpicklable()}]
    ((_, outcomes),) = await harness.run(batch)
    assert [type(each.error) for each in outcomes] == [type(None), WrongType, type(None)]
    assert "cannot be unpickled: ValueError: sour" in str(outcomes[1].error)
    assert isinstance((await one(harness, odd=Unpicklable())).error, WrongType)
    assert (await one(harness)).error is None
    assert len(processes.pids) == 1


async def test_a_death_while_a_value_is_unpickled_only_loses_its_own_batch(
    harness: ExecutorHarness,
) -> None:
    results = await harness.run(batch_of(1), batch_of(2, odd=Fatal()), batch_of(3))
    errors = [type(outcome.error) for _, (outcome,) in results]
    assert errors == [type(None), WorkerDied, type(None)]


async def test_replies_larger_than_the_socket_s_buffer_all_arrive(
    harness: ExecutorHarness, processes: Processes
) -> None:
    results = await harness.run(
        *(batch_of(n, do="lengthen", text="abc", times=n * 100_000) for n in range(20))
    )
    for batch, (outcome,) in results:
        assert outcome.value == {"text": "abc" * (batch.data_ids[0] * 100_000)}
    assert len(results) == 20
    assert len(processes.pids) == 1


async def test_an_op_that_others_read_may_not_return_values_for_workers_only(
    started: Start, processes: Processes
) -> None:
    harness = await started("read by others")
    outcome = await one(harness, do="odd")
    assert isinstance(outcome.error, WrongType)
    for text in ("[read by others]", "'odd'", ".Odd cannot be sent to op 'next'", "in processes"):
        assert text in str(outcome.error)
    other = await one(harness, do="number as key")  # which could not be sent to a worker either
    assert "is a text, not int. Please" in str(other.error)
    assert (await one(harness, do="array", x=np.arange(3))).error is None
    assert len(processes.pids) == 1


@pytest.mark.parametrize("op", ["garbage", "speaking out of turn"])
async def test_a_worker_that_violates_the_protocol_is_killed(
    started: Start, processes: Processes, op: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness = await started(op, workers=2)
    outcomes = await asyncio.gather(one(harness), one(harness))
    assert [each.error for each in outcomes] == [None, None]  # another worker has run them
    await until(lambda: len(processes.pids) >= 3)
    assert "worker 0 is ended: " in caplog.text


async def test_an_array_from_one_process_to_another_is_copied_once(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.arange((5 * MIB) // 8)
    for _ in range(3):  # the size of the first reply decides how much memory the next are granted
        made = (await one(harness, do="array", x=x)).value
        assert made is not None
    assert not made["x"].flags.owndata  # it is read where the worker has put it: the only copy
    copied = []
    copy = slabs._copy

    def recording_copy(array: Any, *where: Any) -> int:
        copied.append(array.nbytes)
        return copy(array, *where)

    monkeypatch.setattr(slabs, "_copy", recording_copy)
    tracemalloc.start()
    try:
        work = harness.submit([batch_of(2, do="sum", x=made["x"])])
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    assert copied == []  # the next worker reads it in the same memory
    ((_, (outcome,)),) = await harness.results(work)
    assert outcome.value == {"sum": int(made["x"].sum()), "owned": False}


async def test_a_stopped_worker_s_batch_runs_elsewhere_and_the_worker_is_replaced(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = executor(processes, workers=2, supervision=Supervision(hang_limit=1.0))
    harness = EngineHarness("process", None, executor=supervised)
    await harness.executor.start()
    os.kill(processes.pids[0], signal.SIGSTOP)
    outcomes = await asyncio.gather(harness.request(), harness.request(), harness.request())
    assert all(each.error is None for each in outcomes)
    await until(lambda: len(processes.pids) == 3)
    await harness.at_rest()
    (message,) = [text for text in caplog.messages if "hangs and is ended" in text]
    assert "has not begun a batch within 1 s" in message
    assert not Path(f"/proc/{processes.pids[0]}").exists()
    assert harness.verdict() == []
    await harness.close()


async def test_a_stopped_worker_does_not_begin_its_batch_while_it_is_killed(
    processes: Processes, tmp_path: Path
) -> None:
    """Whichever of its threads handles the signal; none does here."""
    supervised = executor(processes, supervision=Supervision(hang_limit=1.0))
    harness = EngineHarness("process", None, executor=supervised)
    await harness.executor.start()
    gate, entered, begun = tmp_path / "gate", tmp_path / "entered", tmp_path / "begun"
    gate.touch()
    ignoring = await harness.request(do="wait deaf", gate=str(gate), entered=str(entered))
    assert ignoring.error is None
    gate.unlink()
    os.kill(processes.pids[0], signal.SIGSTOP)
    call = asyncio.create_task(harness.request(do="wait", gate=str(gate), entered=str(begun)))
    await until(begun.exists)
    assert len(processes.pids) == 2
    gate.touch()
    assert (await call).error is None
    assert harness.verdict() == []
    await harness.close()


async def test_batches_behind_an_abandoned_call_run_elsewhere(
    processes: Processes, tmp_path: Path
) -> None:
    harness = EngineHarness(
        "process", None, options=WorkOptions(timeout=0.2), executor=executor(processes)
    )
    await harness.executor.start()
    await hand_over_together(harness)
    feed = {"do": "wait", "gate": str(tmp_path / "gate"), "entered": str(tmp_path / "entered")}
    outcomes = await asyncio.gather(harness.request(**feed), *(harness.request() for _ in range(5)))
    assert isinstance(outcomes[0].error, OpTimeout)
    assert [each.error for each in outcomes[1:]] == [None] * 5
    assert harness.verdict() == []
    await harness.close()


async def test_replies_are_sent_once_ready_though_a_slow_call_was_handed_over_with_them(
    processes: Processes,
) -> None:
    harness = EngineHarness("process", None, executor=executor(processes))
    await harness.executor.start()
    await hand_over_together(harness)
    began = time.monotonic()
    times: list[float] = []

    async def call(**feed: Any) -> None:
        assert (await harness.request(**feed)).error is None
        times.append(time.monotonic() - began)

    misses = [call(do="sleep", seconds=0.2) for _ in range(3)]
    await asyncio.gather(*(call() for _ in range(5)), *misses, *(call() for _ in range(5)))
    assert times[4] < 0.15
    for number, when in enumerate(sorted(times)[5:8], 1):
        assert 0.2 * number <= when < 0.2 * number + 0.15
    await harness.close()


async def test_a_death_is_reported_in_the_log_and_in_a_file(
    processes: Processes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "crashes"
    harness = ExecutorHarness(executor(processes, supervision=Supervision(crash_dir=str(folder))))
    await harness.executor.start()
    ((_, (outcome,)),) = await harness.run(batch_of(7, do="segfault", secret="feed"))
    assert isinstance(outcome.error, WorkerDied)
    assert (await one(harness)).error is None
    assert await harness.executor.close(10.0)
    (report,) = [each.getMessage() for each in caplog.records if "died" in each.getMessage()]
    assert "died: SIGSEGV, with data_ids=[7], after 0 batches" in report
    assert "workers.py" in report
    assert " in process" in report
    assert "run_batch" not in report
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    whole = file.read_text()
    assert "died: SIGSEGV" in whole
    assert "run_batch" in whole
    assert "feed" not in whole


@pytest.mark.alone  # its start must reach the hook within a limit
@pytest.mark.parametrize("replacement", [False, True], ids=["at first", "later"])
async def test_a_worker_that_is_not_ready_in_time_is_logged_and_killed_with_its_stack(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    replacement: bool,
) -> None:
    monkeypatch.setenv("PROCESSES_GONE", str(tmp_path / "gone"))
    monkeypatch.setattr(pool, "LOG_AFTER", 0.5)
    op = "slow again" if replacement else "slow"
    harness = ExecutorHarness(executor(processes, op, supervision=Supervision(start_timeout=3.0)))
    if replacement:
        await harness.executor.start()
        assert isinstance((await one(harness, do="kill")).error, WorkerDied)
        assert (await one(harness)).error is None
        assert len(processes.pids) == 3
        assert await harness.executor.close(10.0)
    else:
        with pytest.raises(
            StartupError,
            match=r"worker 0 was not ready within 3 s .start_timeout.: its process starts; the log",
        ):
            await harness.executor.start()
    assert "was not ready within 3 s" in caplog.text or not replacement
    messages = [
        each.getMessage() for each in caplog.records if "has not become ready" in each.message
    ]
    assert len(messages) >= 2
    assert re.match(rf"op {op}: worker 0 \(pid \d+\) has not become ready for \d+ s: ", messages[0])
    assert "in init_op_that_hangs" in caplog.text


async def test_an_output_whose_items_cannot_be_read_only_fails_its_own_request(
    harness: ExecutorHarness, processes: Processes
) -> None:
    outcome = await one(harness, do="items raise")
    assert isinstance(outcome.error, WrongType)
    assert "its items cannot be read: ValueError: not for you" in str(outcome.error)
    assert (await one(harness)).error is None
    assert len(processes.pids) == 1


async def test_instruments_get_the_events_of_workers_and_loaded_has_their_models(
    processes: Processes,
) -> None:
    events: list[tuple[str, int]] = []

    class Listener(Instrument):
        def worker_started(self, op: str, index: int, now: float) -> None:
            events.append(("started", index))

        def worker_died(self, op: str, index: int, why: str, now: float) -> None:
            events.append((why, index))

        def worker_replaced(self, op: str, index: int, why: str, now: float) -> None:
            events.append((why, index))

    made: ProcessExecutor = executor(processes, supervision=Supervision(max_batches=2))
    made.instruments = Instruments([Listener()])
    harness = ExecutorHarness(made)
    await made.start()
    assert made.loaded == [{"pid": processes.pids[0], "model": None}]
    assert isinstance((await one(harness, do="kill")).error, WorkerDied)
    assert (await one(harness)).error is None
    assert (await one(harness)).error is None
    await until(lambda: len(events) == 5)
    assert [each for each, _ in events] == [
        "started",
        "SIGKILL",
        "started",
        "exit status 0",
        "started",
    ]
    await until(lambda: made.loaded == [{"pid": processes.pids[2], "model": None}])
    assert await made.close(10.0)
