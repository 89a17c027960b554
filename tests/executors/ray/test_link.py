"""The engine's end of the process that talks to Ray: workers, failures, and starting it again."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.executors.ray import link
from penstock.executors.ray.link import Holder, label_of
from penstock.executors.workers.places import Lack
from penstock.executors.workers.pool import NoWorkerError

pytestmark = pytest.mark.real

FAKE = (sys.executable, "-m", "tests.executors.ray.fake_holder")


@asynccontextmanager
async def holder(
    address: str | None = "auto", timeout: float | None = None
) -> AsyncIterator[Holder]:
    made = Holder(asyncio.get_running_loop(), "Ray at x", {"address": address}, FAKE, timeout)
    try:
        yield made
    finally:
        await made.close()


def start(
    made: Holder,
    opening: str,
    timeout: float | None = 60.0,
    waits: Callable[[Lack], None] = lambda lack: None,
) -> Any:
    return made.start_worker("op a: worker 0", {"opening": opening}, timeout, waits)


async def until(true: Callable[[], bool]) -> None:
    """Waits for another process."""
    async with asyncio.timeout(60.0):
        while not true():
            await asyncio.sleep(0.005)


async def test_a_worker_starts_and_ends() -> None:
    async with holder() as made:
        assert await made.address() == "192.0.2.1"
        placed = await start(made, "ends")
        assert placed.where == "node ab at 192.0.2.1, pid 12"
        assert placed.node == {"id": "ab", "address": "192.0.2.1", "host": "one"}
        assert await placed.ended() == "exit status 9"
        placed.kill()
        other = await start(made, "")
        other.kill()
        assert await other.ended() == "it was killed"


async def test_a_worker_without_room_is_refused_with_what_it_wants(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with holder() as made:
        lacks: list[Lack] = []
        with pytest.raises(NoWorkerError, match=r"^it wants 4 CPU, for 3 s$"):
            await start(made, "no room", waits=lacks.append)
    text = "it wants 4 CPU (1 of 2 are free)"
    assert [each.getMessage() for each in caplog.records] == [
        f"op a: worker 0 is not started: {text}"
    ]
    assert lacks == [Lack(text, {"CPU": 4}, False)] * 2, "the status knows it each time"


async def test_a_start_that_is_cancelled_ends_its_worker(caplog: pytest.LogCaptureFixture) -> None:
    async with holder() as made:
        waiting = asyncio.ensure_future(start(made, "waits"))
        await until(lambda: "is not started" in caplog.text)
        assert made._process is not None
        (placed,) = [each for _, each in made._process._workers.values()]
        waiting.cancel()
        assert await placed.ended() == "it was killed"


async def test_a_holder_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "_END_TIMEOUT", 0.1)
    async with holder() as made:
        with pytest.raises(NoWorkerError, match="Ray at x does not answer"):
            await start(made, "waits", 0.1)


async def test_its_end_is_that_of_its_workers_and_it_is_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with holder() as made:
        first, other = [await start(made, "") for _ in range(2)]
        assert first.where == other.where
        how = "the process that talks to Ray at x ended: status 3"
        with pytest.raises(NoWorkerError, match=how):
            await start(made, "die")
        assert [await each.ended() for each in (first, other)] == [how, how]
        assert caplog.text.count(how) == 1
        assert (await start(made, "")).where != first.where


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("refuses", "Ray at x cannot be used: the versions do not fit"),
        ("dies", "talks to it has ended: MemoryError: \\\\x1b\\[1mno room$"),
        ("talks", "Ray at x cannot be used: the process that talks to it has ended"),
    ],
)
async def test_without_a_cluster_there_is_a_reason_and_a_pause(address: str, why: str) -> None:
    async with holder(address) as made:
        made._pause = 60.0
        results = await asyncio.gather(*(start(made, "") for _ in range(3)), return_exceptions=True)
        texts = {str(each) for each in results}
        assert len(texts) == 1, "all wait for one start"
        with pytest.raises(NoWorkerError, match=why) as caught:
            await made.address()
        assert {str(caught.value)} == texts, "another one has to wait"


async def test_what_it_writes_is_in_the_log_line_by_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with holder("dies") as made:
        with pytest.raises(NoWorkerError):
            await made.address()
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (logging.INFO, "Ray at x: Traceback"),
        (logging.INFO, "Ray at x: MemoryError: \\x1b[1mno room"),
    ]


async def test_the_start_of_a_cluster_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with holder(None) as made:
        await made.address()
    text = "starting a cluster of Ray on this machine"
    assert [each.getMessage() for each in caplog.records] == [text]


def test_the_name_of_a_cluster_has_the_address_that_auto_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert label_of("auto") == "Ray at auto"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("192.0.2.1:6379\n")
    assert label_of("auto") == "Ray at 192.0.2.1:6379 (auto)"
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.2:6379")
    assert label_of("auto") == "Ray at 192.0.2.2:6379 (auto)"
    assert label_of("192.0.2.3:6379") == "Ray at 192.0.2.3:6379"
    assert label_of(None) == "Ray on this machine"


async def test_a_cluster_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "LOG_AFTER", 0.05)
    async with holder("hangs", 0.1) as made:
        why = r"Ray at x cannot be used: it has not answered for 0\.1 s \(start_timeout\)"
        with pytest.raises(NoWorkerError, match=why):
            await made.address()
    assert [each.getMessage() for each in caplog.records] == ["Ray at x has not answered for 0 s"]


@pytest.mark.parametrize("what", ["pipe", "socketpair"])
async def test_a_start_without_file_descriptors_is_tried_again(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*arguments: Any) -> Any:
        raise OSError("too many open files")

    async with holder() as made:
        made._pause = 0.0
        with monkeypatch.context() as context:
            context.setattr(link.os if what == "pipe" else link.socket, what, none)
            with pytest.raises(NoWorkerError, match="too many open files"):
                await made.address()
        assert await made.address() == "192.0.2.1"


async def test_after_the_pause_it_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_FIRST_PAUSE", 0.0)
    async with holder("refuses") as made:
        texts = set()
        for _ in range(2):
            with pytest.raises(NoWorkerError) as caught:
                await made.address()
            texts.add(str(caught.value))
        assert len(texts) == 2
