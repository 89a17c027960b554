"""What a worker has answered is not lost, of whatever kind, wherever it dies or hangs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import HookFailed, WorkerDied
from penstock.request import Batch, Outcome
from tests.executors.house import Desk, batch_of
from tests.executors.processes.house import Processes, executor
from tests.executors.test_process import until

pytestmark = pytest.mark.real

FEEDS: list[dict[str, Any]] = [
    {},
    {"text": "short"},
    {"do": "lengthen", "text": "x", "times": 30_000},
    {"do": "lengthen", "text": "x", "times": 70_000},
    {"do": "array", "x": np.arange(3.0)},
    {"do": "array", "x": np.arange(20_000.0)},
    {"do": "raise"},
]


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


def mixed(chance: random.Random, count: int) -> list[Batch]:
    """Mostly simple ones."""
    kinds = chance.choices(FEEDS, [8, 8, 2, 1, 1, 1, 1], k=count)
    return [batch_of(n, **feed) for n, feed in enumerate(kinds)]


def is_right(batch: Batch, outcome: Outcome) -> bool:
    feed = batch.samples[0].inputs["@DAGExecutor"]
    do = feed.get("do")
    if do == "raise":
        return type(outcome.error) is HookFailed
    value = outcome.value
    assert outcome.error is None
    assert value is not None
    if do == "lengthen":
        return bool(value == {"text": "x" * feed["times"]})
    if do == "array":
        return np.array_equal(value["x"], feed["x"] + 1)
    return bool(value["n"] == feed["n"])


@pytest.mark.parametrize("seed", range(6))
async def test_who_dies_takes_no_answer_along(processes: Processes, seed: int) -> None:
    chance = random.Random(seed)
    desk = Desk(executor(processes))
    await desk.executor.start()
    for _ in range(4):
        batches = mixed(chance, 20)
        at = chance.randrange(20)
        fatal = batches[at] = batch_of(at, do=chance.choice(["kill", "exit", "segfault"]))
        work = desk.submit(batches)
        results = await desk.results(work)
        assert [batch for batch, _ in results] == batches[: at + 1]
        (outcome,) = results.pop()[1]
        assert type(outcome.error) is WorkerDied
        assert all(is_right(batch, outcome) for batch, (outcome,) in results)
        assert work.take_back() == batches[at + 1 :]
        assert fatal not in [batch for batch, _ in results]
    assert await desk.executor.close(10.0)


@pytest.mark.parametrize("seed", range(4))
async def test_looking_while_a_worker_runs_changes_nothing(
    processes: Processes, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    desk = Desk(executor(processes))
    await desk.executor.start()
    batches = mixed(chance, 30)
    gates = sorted(chance.sample(range(30), 3))
    for at in gates:
        feed = {"gate": str(tmp_path / f"gate{at}"), "entered": str(tmp_path / f"entered{at}")}
        batches[at] = batch_of(at, do="wait", **feed)
    work = desk.submit(batches)
    results = []
    for at in gates:
        await until((tmp_path / f"entered{at}").exists)
        for _ in range(2):
            desk.executor.look(work)
            results += work.take_results()
            assert [batch for batch, _ in results] == batches[:at]
            assert work.current is batches[at]
        (tmp_path / f"gate{at}").touch()
    results += await desk.results(work)
    assert [batch for batch, _ in results] == batches
    assert all(is_right(batch, outcome) for batch, (outcome,) in results)
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)


async def test_what_was_taken_early_is_not_taken_again_when_the_worker_dies(
    processes: Processes, tmp_path: Path
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    waits = {"do": "wait", "gate": str(tmp_path / "gate"), "entered": str(tmp_path / "entered")}
    batches = [batch_of(0), batch_of(1), batch_of(2, **waits), batch_of(3)]
    work = desk.submit(batches)
    await until((tmp_path / "entered").exists)
    desk.executor.look(work)
    assert [batch for batch, _ in work.take_results()] == batches[:2]
    os.kill(processes.pids[0], signal.SIGKILL)
    ((batch, (outcome,)),) = await desk.results(work)
    assert batch is batches[2]
    assert type(outcome.error) is WorkerDied
    assert work.take_back() == batches[3:]
    assert await desk.executor.close(10.0)


async def test_a_worker_that_is_looked_at_all_the_time_answers_as_ever(
    processes: Processes,
) -> None:
    desk = Desk(executor(processes))
    await desk.executor.start()
    for _ in range(30):
        batches = [batch_of(n, text="x" * (n * 37 % 500)) for n in range(64)]
        work = desk.submit(batches)
        results = []
        while not any(reported is work for reported, _ in desk.reports):
            desk.executor.look(work)
            results += work.take_results()
            await asyncio.sleep(0)
        results += await desk.results(work)
        assert [batch for batch, _ in results] == batches
        assert all(is_right(batch, outcome) for batch, (outcome,) in results)
    assert len(processes.pids) == 1
    assert await desk.executor.close(10.0)
