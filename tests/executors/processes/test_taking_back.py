"""Batches that are taken back while their worker runs through the cheap ones before them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from tests.executors.house import Desk, batch_of
from tests.executors.processes.house import Processes, executor

pytestmark = pytest.mark.real


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


async def test_a_batch_runs_or_is_taken_back_and_never_both(processes: Processes) -> None:
    chance = random.Random(1)
    desk = Desk(executor(processes))
    await desk.executor.start()
    both = 0
    for _ in range(300):
        batches = [batch_of(n) for n in range(64)]
        work = desk.submit(batches)
        until = time.perf_counter() + chance.uniform(0.0, 0.0008)
        while time.perf_counter() < until:
            pass
        taken = desk.executor.take_back(work)
        results = [batch for batch, _ in await desk.results(work)]
        # A worker that had just begun the first of them skips it: it is pending then.
        assert results + list(work.pending) + taken == batches
        both += 0 < len(taken) < 64
    assert both
    assert len(processes.pids) == 1  # one that runs what was taken back is ended
    assert await desk.executor.close(10.0)
