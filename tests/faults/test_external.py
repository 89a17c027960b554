"""External workers that are killed or stopped, one after the other, under load."""

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

from tests.faults.site import Site, site, until
from tests.kit.load import Answer
from tests.services.process import ROOT

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

LOST = 9000
BATCH = 4
WORKERS = 3
CLIENTS = 32
LEAST_READY = 2
"""Ready workers required before one of them is ended."""
PERIOD = 0.2  # the least seconds between the ends of two workers
ENDS = 8


class ExternalWorkers:
    """Workers under an external supervisor, which restarts those that have ended."""

    def __init__(self, socket: Path) -> None:
        self._command = (
            *(sys.executable, "-m", "penstock", "worker", "tests.faults.external_worker:echo"),
            *("--batched", "--socket", str(socket)),
        )
        self._restarters: list[asyncio.Task[None]] = []
        self.processes: dict[int, asyncio.subprocess.Process] = {}
        self.statuses: Counter[int] = Counter()

    async def start(self) -> None:
        for index in range(WORKERS):
            await self._begin(index)
            self._restarters.append(asyncio.create_task(self._restart(index)))

    async def _begin(self, index: int) -> None:
        self.processes[index] = await asyncio.create_subprocess_exec(
            *self._command, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL
        )

    async def _restart(self, index: int) -> None:
        while True:
            self.statuses[await self.processes[index].wait()] += 1
            await self._begin(index)

    async def end(self) -> None:
        for restarter in self._restarters:
            restarter.cancel()
        await asyncio.gather(*self._restarters, return_exceptions=True)
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def site_with_workers(
    folder: Path, **op: object
) -> AsyncIterator[tuple[Site, ExternalWorkers]]:
    """A site with workers; checks afterwards that no resources leaked and that it exits with 0."""
    socket = folder / "work.sock"
    external = ExternalWorkers(socket)
    ops = {
        "work": {
            "executor": "external",
            "socket": str(socket),
            "batch_size": BATCH,
            "concurrency": WORKERS,
            **op,
        }
    }
    await external.start()
    try:
        async with site(folder, ops=ops) as at:
            await until(lambda: at.server.log().count("is ready") == WORKERS)
            answered = await asyncio.gather(*(at.clients.send_request() for _ in range(CLIENTS)))
            assert all(each.good for each in answered)
            before = at.resources()
            yield at, external
            await until(lambda: at.resources()["descriptors"] <= before["descriptors"], 20.0)
            assert (await at.clients.send_request()).good
            assert at.server.is_ready()
            assert at.server.stop() == 0
            assert not socket.exists()
    finally:
        await external.end()


async def storm(at: Site, external: ExternalWorkers, number: signal.Signals) -> Counter[int | None]:
    """Clients without pauses while one worker after the other ends; counts of their answers."""
    answers: Counter[int | None] = Counter()
    rng, over = random.Random(1), False

    async def send_requests() -> None:
        while not over:
            answer: Answer = await at.clients.send_request()
            answers[answer.err_no] += 1

    def working() -> list[asyncio.subprocess.Process]:
        log = at.server.log()
        return [
            each
            for each in external.processes.values()
            if each.returncode is None and f"(pid {each.pid}) is ready" in log
        ]

    tasks = asyncio.gather(*(send_requests() for _ in range(CLIENTS)))
    for _ in range(ENDS):
        await asyncio.sleep(PERIOD)  # the rate of ends
        await until(lambda: len(working()) >= LEAST_READY, 30.0)
        ending = rng.choice(working())
        ending.send_signal(number)
        await ending.wait()
    over = True
    await tasks
    return answers


async def test_only_a_killed_workers_batch_fails_and_each_request_has_one_answer(
    tmp_path: Path,
) -> None:
    async with site_with_workers(tmp_path) as (at, external):
        answers = await storm(at, external, signal.SIGKILL)
        assert set(answers) <= {0, LOST}, answers
        assert 0 < answers[LOST] <= BATCH * ENDS
        assert answers[0] > 10 * answers[LOST]
    assert at.verdict(failures=answers[LOST]) == []


@pytest.mark.long
async def test_requests_of_killed_workers_are_retried_with_retry_on_crash(
    tmp_path: Path,
) -> None:
    async with site_with_workers(tmp_path, retry_on_crash=True) as (at, external):
        answers = await storm(at, external, signal.SIGKILL)
        # A request during which a second worker is killed is taken for the cause.
        assert answers[LOST] <= 1, answers
    assert at.verdict(attempts=2, failures=answers[LOST]) == []


@pytest.mark.long
async def test_no_request_fails_when_workers_get_sigterm(tmp_path: Path) -> None:
    async with site_with_workers(tmp_path) as (at, external):
        answers = await storm(at, external, signal.SIGTERM)
        assert set(answers) == {0}, answers
        assert set(external.statuses) == {0}
    assert at.verdict() == []


async def test_a_stopped_worker_delays_only_its_batch_and_continues_later(tmp_path: Path) -> None:
    async with site_with_workers(tmp_path, timeout=300) as (at, external):
        stopped = external.processes[0]
        stopped.send_signal(signal.SIGSTOP)
        answered = [
            await asyncio.gather(*(at.clients.send_request() for _ in range(20))) for _ in range(5)
        ]
        timed_out = sum(not each.good for answers in answered for each in answers)
        assert timed_out <= BATCH
        stopped.send_signal(signal.SIGCONT)
        await until(lambda: "late results dropped" in at.server.log() or not timed_out)
        answers = await asyncio.gather(*(at.clients.send_request() for _ in range(20)))
        assert all(each.good for each in answers)
    assert at.verdict(failures=timed_out) == []


async def test_workers_reconnect_to_the_successor_of_a_killed_service(tmp_path: Path) -> None:
    socket = tmp_path / "work.sock"
    external = ExternalWorkers(socket)
    await external.start()
    ops = {"work": {"executor": "external", "socket": str(socket)}}
    try:
        for life in ("first", "second"):
            folder = tmp_path / life
            folder.mkdir()
            async with site(folder, ops=ops) as at:
                assert (await at.clients.send_request()).good
                if life == "first":
                    at.server.stop(signal.SIGKILL)
                    assert socket.exists()
        assert not external.statuses
    finally:
        await external.end()
