"""What a worker process is given to go on with. All are real."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import WorkerDied
from penstock.executors.executor import Work
from penstock.executors.processes.board import Board
from penstock.executors.processes.frame import decode
from penstock.executors.processes.ledger import Ledger
from penstock.executors.processes.memory import Memory
from penstock.executors.processes.supervision import Supervision
from penstock.request import REQUEST_OP_NAME, Batch
from tests.executors.house import Desk, House, batch_of
from tests.executors.processes.house import Processes, executor
from tests.executors.test_process import give_one_up, one, until

pytestmark = pytest.mark.real


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


class Gate:
    """Holds one batch in its call."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self._entered, self._open = folder / f"{name}-entered", folder / name

    def batch(self, number: int) -> Batch:
        return batch_of(number, do="wait", entered=str(self._entered), gate=str(self._open))

    async def entered(self) -> None:
        await until(self._entered.exists)

    def wait_entered(self) -> None:
        """As ``entered``, while the loop stands still."""
        until = time.monotonic() + 10.0
        while not self._entered.exists():
            assert time.monotonic() < until
            time.sleep(0.005)  # another process cannot tell us

    def open(self) -> None:
        self._open.touch()


async def busy(processes: Processes, gate: Gate, **more: Any) -> tuple[Desk, Work]:
    """An executor of one worker, which is in its call."""
    desk = Desk(executor(processes, **{"ahead": 1, **more}))
    await desk.executor.start()
    assert not desk.executor.room
    work = desk.submit([gate.batch(1)])
    await gate.entered()
    return desk, work


async def ids(desk: Desk, work: Work | None) -> list[list[int]]:
    assert work is not None
    return [batch.data_ids for batch, _ in await desk.results(work)]


async def test_a_busy_worker_goes_on_with_what_it_was_given_and_has_room_again(
    processes: Processes, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    desk, first = await busy(processes, gate)
    assert desk.executor.room
    second = desk.submit_ahead(batch_of(2))
    assert first.following is second
    assert not desk.executor.room
    gate.open()
    assert await ids(desk, first) == [[1]]
    assert await ids(desk, second) == [[2]]
    assert [work for work, _ in desk.reports] == [first, second]
    assert not desk.executor.room
    assert (await one(desk)).error is None
    assert await desk.executor.close(10.0)


async def test_what_waits_for_an_idle_worker_is_not_overtaken_by_what_goes_ahead(
    processes: Processes, tmp_path: Path
) -> None:
    gate, other = Gate(tmp_path), Gate(tmp_path, "other")
    desk, first = await busy(processes, gate)
    second = desk.submit_ahead(other.batch(2))
    gate.open()
    await ids(desk, first)
    await other.entered()
    assert desk.executor.room
    third = desk.submit([batch_of(3)])
    assert not desk.executor.room
    other.open()
    assert await ids(desk, second) == [[2]]
    assert await ids(desk, third) == [[3]]
    assert await desk.executor.close(10.0)


async def test_what_stands_ahead_can_be_taken_back_and_does_not_run(
    processes: Processes, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    desk, first = await busy(processes, gate)
    mark = tmp_path / "ran"
    second = desk.submit_ahead(batch_of(2, do="wait", entered=str(mark), gate=str(tmp_path)))
    assert second is not None
    assert desk.executor.take_back(first) == []
    assert [batch.data_ids for batch in desk.executor.take_back(second)] == [[2]]
    gate.open()
    assert await ids(desk, first) == [[1]]
    assert await ids(desk, second) == []
    assert (await one(desk)).error is None
    assert not mark.exists()
    assert await desk.executor.close(10.0)


async def test_what_was_taken_back_does_not_run_though_more_stands_behind_it(
    processes: Processes, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    desk = Desk(executor(processes, ahead=3))
    await desk.executor.start()
    first = desk.submit([gate.batch(1)])
    await gate.entered()
    mark = tmp_path / "ran"
    second = desk.submit_ahead(batch_of(2, do="wait", entered=str(mark), gate=str(tmp_path)))
    # More than two reads of the worker's, so that word of the taking back stands behind them.
    third, fourth = (desk.submit_ahead(batch_of(n, text="a" * 65_400)) for n in (3, 4))
    assert second is not None
    assert [batch.data_ids for batch in desk.executor.take_back(second)] == [[2]]
    gate.open()
    assert await ids(desk, first) == [[1]]
    assert await ids(desk, second) == []
    assert await ids(desk, third) == [[3]]
    assert await ids(desk, fourth) == [[4]]
    assert not mark.exists()
    assert await desk.executor.close(10.0)


async def test_what_was_taken_back_does_not_run_whatever_was_taken_back_before_it(
    processes: Processes, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    desk = Desk(executor(processes, ahead=2))
    await desk.executor.start()
    first = desk.submit([gate.batch(1)])
    await gate.entered()
    mark = tmp_path / "ran"
    second = desk.submit_ahead(batch_of(2, do="wait", entered=str(mark), gate=str(tmp_path)))
    third = desk.submit_ahead(batch_of(3))
    assert second is not None
    assert third is not None
    assert [batch.data_ids for batch in desk.executor.take_back(third)] == [[3]]
    assert [batch.data_ids for batch in desk.executor.take_back(second)] == [[2]]
    gate.open()
    assert await ids(desk, first) == [[1]]
    assert await ids(desk, second) == await ids(desk, third) == []
    assert not mark.exists()
    assert (await one(desk)).error is None
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)


async def test_what_is_taken_back_while_a_worker_is_to_end_does_not_run(
    processes: Processes, tmp_path: Path
) -> None:
    gate, other = Gate(tmp_path), Gate(tmp_path, "other")
    desk = Desk(executor(processes, ahead=1))
    await desk.executor.start()
    mark = tmp_path / "ran"
    third = batch_of(3, do="wait", entered=str(mark), gate=str(tmp_path))
    work = desk.submit([gate.batch(1), other.batch(2), third])
    await gate.entered()
    closing = asyncio.create_task(desk.executor.close(10.0))
    await asyncio.sleep(0)
    gate.open()
    await other.entered()
    assert desk.executor.take_back(work) == [third]
    other.open()
    assert await closing
    assert await ids(desk, work) == [[1], [2]]
    assert not mark.exists()


async def test_a_board_that_lies_beside_what_was_taken_back_leaves_no_work_out(
    processes: Processes, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    desk, first = await busy(processes, gate)
    second = desk.submit_ahead(batch_of(2))
    assert second is not None
    assert [batch.data_ids for batch in desk.executor.take_back(second)] == [[2]]
    answered = Ledger.answered

    def if_it_ran(ledger: Ledger, number: int, body: bytes | memoryview) -> None:
        if decode(body) is not None:  # else it dies before it says so
            answered(ledger, number, body)

    with pytest.MonkeyPatch.context() as wrong:
        wrong.setattr(Ledger, "answered", if_it_ran)
        gate.open()
        assert await ids(desk, first) == [[1]]
        wrong.setattr(Board, "batch", 1 << 40)
        os.kill(processes.pids[0], signal.SIGKILL)
        assert await ids(desk, second) == []
    assert (await one(desk)).error is None
    assert await desk.executor.close(10.0)


async def test_a_death_costs_the_running_batch_and_gives_back_what_stood_ahead(
    processes: Processes, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    desk, first = await busy(processes, gate)
    second = desk.submit_ahead(batch_of(2))
    assert second is not None
    os.kill(processes.pids[0], signal.SIGKILL)
    ((_, (outcome,)),) = await desk.results(first)
    assert isinstance(outcome.error, WorkerDied)
    assert await ids(desk, second) == []
    assert [batch.data_ids for batch in second.take_back()] == [[2]]
    assert (await one(desk)).error is None
    assert await desk.executor.close(10.0)


async def test_who_dies_of_what_stood_ahead_dies_of_that_alone(
    processes: Processes, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    desk, first = await busy(processes, gate)
    second = desk.submit_ahead(batch_of(2, do="exit"))
    assert second is not None
    gate.open()
    ((_, (outcome,)),) = await desk.results(first)
    assert outcome.error is None
    ((_, (outcome,)),) = await desk.results(second)
    assert isinstance(outcome.error, WorkerDied)
    assert await desk.executor.close(10.0)


async def test_what_is_large_does_not_go_ahead_unless_it_is_an_array(
    processes: Processes, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    desk, first = await busy(processes, gate)
    assert desk.submit_ahead(batch_of(2, text="a" * 100_000)) is None
    assert first.following is None
    assert not desk.executor.room  # the next one is as large, as a rule
    gate.open()
    await desk.results(first)
    gate = Gate(tmp_path, "second")
    first = desk.submit([gate.batch(1)])
    await gate.entered()
    x = np.arange(1_000_000)
    second = desk.submit_ahead(batch_of(2, do="sum", x=x))
    assert second is not None
    gate.open()
    ((_, (outcome,)),) = await desk.results(second)
    assert outcome.value is not None
    assert outcome.value["sum"] == int(x.sum())
    assert await desk.executor.close(10.0)


async def test_after_what_is_large_nothing_is_tried_ahead_until_something_small_is_sent(
    processes: Processes, tmp_path: Path
) -> None:
    desk = Desk(executor(processes, ahead=1))
    await desk.executor.start()
    for name, text, room in (("a", "a" * 100_000, False), ("b", "b", True)):
        gate = Gate(tmp_path, name)
        batch = gate.batch(1)
        batch.samples[0].inputs[REQUEST_OP_NAME]["text"] = text
        work = desk.submit([batch])
        await gate.entered()
        assert desk.executor.room is room
        gate.open()
        assert await ids(desk, work) == [[1]]
    assert await desk.executor.close(10.0)


async def test_a_worker_that_is_soon_to_be_replaced_gets_nothing_ahead(
    processes: Processes, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    desk, first = await busy(processes, gate, supervision=Supervision(max_batches=2))
    second = desk.submit_ahead(batch_of(2))
    gate.open()
    assert await ids(desk, first) == [[1]]
    assert not desk.executor.room
    assert await ids(desk, second) == [[2]]
    assert (await one(desk)).error is None
    assert len(processes.pids) == 2
    assert await desk.executor.close(10.0)


async def test_a_worker_that_is_not_to_be_replaced_any_more_is_given_batches_ahead_again(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, other = Gate(tmp_path), Gate(tmp_path, "other")
    desk, first = await busy(processes, gate, supervision=Supervision(memory_limit=1 << 40))
    second = desk.submit_ahead(other.batch(2))
    with monkeypatch.context() as large:
        large.setattr(Memory, "resident", lambda _: (1 << 40) + 1)
        gate.open()
        assert await ids(desk, first) == [[1]]
        assert not desk.executor.room
    other.open()
    assert await ids(desk, second) == [[2]]
    gate = Gate(tmp_path, "third")
    third = desk.submit([gate.batch(3)])
    await gate.entered()
    assert desk.executor.room
    gate.open()
    assert await ids(desk, third) == [[3]]
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)


async def test_the_others_are_given_batches_ahead_when_a_worker_is_given_up(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House("process", None, executor=executor(processes, workers=2, ahead=1))
    await house.executor.start()
    await give_one_up(processes, monkeypatch, caplog)
    gates = [Gate(tmp_path, name) for name in "abc"]
    asked = []
    for n, gate in enumerate(gates):
        feed = gate.batch(n).samples[0].inputs[REQUEST_OP_NAME]
        asked.append(asyncio.create_task(house.ask(**feed)))
        await asyncio.sleep(0)
    for gate in gates[:2]:
        await gate.entered()
        assert [work.ahead for work in house.stage._out] == [False, True]
        gate.open()
    gates[2].open()
    assert [(await each).error for each in asked] == [None] * 3
    assert house.executor.workers == house.stage.statistics().workers == 1
    assert house.verdict() == []
    await house.close()


async def test_nothing_is_put_behind_a_call_that_was_given_up(
    processes: Processes, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    desk, first = await busy(processes, gate)
    desk.executor.look(first)
    assert first.current is not None
    first.current.settled = True
    assert not desk.executor.room
    gate.open()
    await desk.results(first)
    assert await desk.executor.close(10.0)


async def test_who_has_gone_on_to_another_batch_is_not_ended_for_the_one_before(
    processes: Processes, tmp_path: Path
) -> None:
    gate, other = Gate(tmp_path), Gate(tmp_path, "other")
    desk, first = await busy(processes, gate, supervision=Supervision(kill_late=True), ahead=2)
    second, third = desk.submit_ahead(other.batch(2)), desk.submit_ahead(batch_of(3))
    assert third is not None
    desk.executor.look(first)
    assert first.current is not None
    first.current.settled = True
    gate.open()
    other.wait_entered()  # and the engine has not heard that the first is back
    desk.executor.abandon(first)
    other.open()
    assert await ids(desk, first) == [[1]]
    ((_, (outcome,)),) = await desk.results(second)
    assert outcome.error is None
    assert await ids(desk, third) == []
    assert [batch.data_ids for batch in desk.executor.take_back(third)] == [[3]]
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)


async def test_a_call_beyond_its_time_out_is_ended_and_what_stood_ahead_is_given_back(
    processes: Processes, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    desk, first = await busy(processes, gate, supervision=Supervision(kill_late=True))
    second = desk.submit_ahead(batch_of(2))
    assert second is not None
    desk.executor.look(first)
    assert first.current is not None
    first.current.settled = True
    desk.executor.abandon(first)
    assert await ids(desk, second) == []
    assert [batch.data_ids for batch in second.take_back()] == [[2]]
    assert (await one(desk)).error is None
    assert await desk.executor.close(10.0)
