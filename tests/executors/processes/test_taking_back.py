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
    (worker,) = desk.executor._alive
    both = 0
    for _ in range(100):
        batches = [batch_of(n) for n in range(300)]
        begun = worker.ledger.next + chance.randrange(200)
        work = desk.submit(batches)
        until = time.monotonic() + 10.0
        while worker._board.batch < begun and time.monotonic() < until:
            pass
        taken = desk.executor.take_back(work)
        results = [batch for batch, _ in await desk.results(work)]
        # A worker that had just begun the first of them skips it: it is pending then.
        assert results + list(work.pending) + taken == batches
        both += 0 < len(taken) < 300
    assert len(processes.pids) == 1  # one that runs what was taken back is ended
    assert await desk.executor.close(10.0)
    if not both:  # on one core, each side may have run to its end before the other
        pytest.skip("the machine is too busy for both to run at once")
