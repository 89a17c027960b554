"""External workers that are killed, or told to end, one after the other while many callers ask."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.load import Answer
from tests.faults.site import Site, site, until
from tests.services.process import ROOT

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

LOST = 9000
BATCH = 4
WORKERS = 3
CALLERS = 32
LEFT = 2
"""Workers at least that work when one of them ends."""
PERIOD = 0.2  # seconds between two ends of workers, at least
ENDS = 8


class Crew:
    """Workers that somebody else looks after: one that has ended is started again."""

    def __init__(self, socket: Path) -> None:
        self._command = (
            *(sys.executable, "-m", "penstock", "worker", "tests.faults.external_worker:echo"),
            *("--batched", "--socket", str(socket)),
        )
        self._keepers: list[asyncio.Task[None]] = []
        self.processes: dict[int, asyncio.subprocess.Process] = {}
        self.statuses: Counter[int] = Counter()

    async def start(self) -> None:
        for place in range(WORKERS):
            await self._begin(place)
            self._keepers.append(asyncio.create_task(self._keep(place)))

    async def _begin(self, place: int) -> None:
        self.processes[place] = await asyncio.create_subprocess_exec(
            *self._command, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL
        )

    async def _keep(self, place: int) -> None:
        while True:
            self.statuses[await self.processes[place].wait()] += 1
            await self._begin(place)

    async def end(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def manned(folder: Path, **op: object) -> AsyncIterator[tuple[Site, Crew]]:
    """A site with workers; afterwards it has what it had, and ends in order."""
    socket = folder / "work.sock"
    crew = Crew(socket)
    ops = {
        "work": {
            "executor": "external",
            "socket": str(socket),
            "batch_size": BATCH,
            "concurrency": WORKERS,
            **op,
        }
    }
    await crew.start()
    try:
        async with site(folder, ops=ops) as at:
            await until(lambda: at.server.log().count("is ready") == WORKERS)
            asked = await asyncio.gather(*(at.clients.ask() for _ in range(CALLERS)))
            assert all(each.good for each in asked)
            before = at.resources()
            yield at, crew
            await until(lambda: at.resources()["descriptors"] <= before["descriptors"], 20.0)
            assert (await at.clients.ask()).good
            assert at.server.is_ready()
            assert at.server.stop() == 0
            assert not socket.exists()
    finally:
        await crew.end()


async def storm(at: Site, crew: Crew, number: signal.Signals) -> Counter[int | None]:
    """Callers without a pause while one worker after the other ends; what they were answered."""
    answers: Counter[int | None] = Counter()
    chance, over = random.Random(1), False

    async def caller() -> None:
        while not over:
            answer: Answer = await at.clients.ask()
            answers[answer.err_no] += 1

    def working() -> list[asyncio.subprocess.Process]:
        log = at.server.log()
        return [
            each
            for each in crew.processes.values()
            if each.returncode is None and f"(pid {each.pid}) is ready" in log
        ]

    callers = asyncio.gather(*(caller() for _ in range(CALLERS)))
    for _ in range(ENDS):
        await asyncio.sleep(PERIOD)  # the pace is what is asked for
        await until(lambda: len(working()) >= LEFT, 30.0)
        ending = chance.choice(working())
        ending.send_signal(number)
        await ending.wait()
    over = True
    await callers
    return answers


async def test_a_killed_worker_costs_its_batch_at_most_and_each_request_has_one_answer(
    tmp_path: Path,
) -> None:
    async with manned(tmp_path) as (at, crew):
        answers = await storm(at, crew, signal.SIGKILL)
        assert set(answers) <= {0, LOST}, answers
        assert 0 < answers[LOST] <= BATCH * ENDS
        assert answers[0] > 10 * answers[LOST]
    assert at.verdict(failures=answers[LOST]) == []


@pytest.mark.long
async def test_the_requests_of_killed_workers_are_run_again_where_the_op_says_so(
    tmp_path: Path,
) -> None:
    async with manned(tmp_path, retry_on_crash=True) as (at, crew):
        answers = await storm(at, crew, signal.SIGKILL)
        # One that a second worker is killed with is taken for the culprit.
        assert answers[LOST] <= 1, answers
    assert at.verdict(attempts=2, failures=answers[LOST]) == []


@pytest.mark.long
async def test_workers_that_are_told_to_end_lose_no_request(tmp_path: Path) -> None:
    async with manned(tmp_path) as (at, crew):
        answers = await storm(at, crew, signal.SIGTERM)
        assert set(answers) == {0}, answers
        assert set(crew.statuses) == {0}
    assert at.verdict() == []


async def test_a_stopped_worker_holds_its_batch_alone_and_goes_on_later(tmp_path: Path) -> None:
    async with manned(tmp_path, timeout=300) as (at, crew):
        stopped = crew.processes[0]
        stopped.send_signal(signal.SIGSTOP)
        asked = [await asyncio.gather(*(at.clients.ask() for _ in range(20))) for _ in range(5)]
        late = sum(not each.good for answers in asked for each in answers)
        assert late <= BATCH
        stopped.send_signal(signal.SIGCONT)
        await until(lambda: "late results dropped" in at.server.log() or not late)
        answers = await asyncio.gather(*(at.clients.ask() for _ in range(20)))
        assert all(each.good for each in answers)
    assert at.verdict(failures=late) == []


async def test_workers_find_the_service_that_follows_a_killed_one(tmp_path: Path) -> None:
    socket = tmp_path / "work.sock"
    crew = Crew(socket)
    await crew.start()
    ops = {"work": {"executor": "external", "socket": str(socket)}}
    try:
        for life in ("first", "second"):
            folder = tmp_path / life
            folder.mkdir()
            async with site(folder, ops=ops) as at:
                assert (await at.clients.ask()).good
                if life == "first":
                    at.server.stop(signal.SIGKILL)
                    assert socket.exists()
        assert not crew.statuses
    finally:
        await crew.end()
