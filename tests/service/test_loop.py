"""The loop of a service, and what is left on it at the end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

import pytest

from penstock.service.loop import run_on_a_loop


def test_tasks_that_are_left_are_cancelled_and_may_clear_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[str] = []

    async def left() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("cleared up")

    async def main() -> None:
        task = asyncio.create_task(left(), name="left")
        await asyncio.sleep(0)
        seen.append(task.get_name())

    run_on_a_loop(main())
    assert seen == ["left", "cleared up"]
    assert not caplog.records


def test_a_task_that_goes_on_is_left_behind_and_named(caplog: pytest.LogCaptureFixture) -> None:
    async def deaf(free: asyncio.Event) -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        tasks.append(asyncio.create_task(going_on, name="op work"))
        await asyncio.sleep(0)

    going_on = deaf(asyncio.Event())
    tasks: list[asyncio.Task[None]] = []
    began = time.monotonic()
    run_on_a_loop(main())
    assert 0.9 < time.monotonic() - began < 10
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "abandoned: op work" in record.getMessage()
    assert not tasks[0].done()
    going_on.close()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What our own loop says: asyncio may tell of a task that an earlier test left behind."""
    return [each.getMessage() for each in caplog.records if each.name == "penstock.service.loop"]


def test_calls_in_threads_are_given_a_moment_and_left_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate, seen = threading.Event(), list[str]()

    def call() -> None:
        seen.append("began")
        gate.wait(0.2)
        seen.append("ended")

    async def main(call: Callable[[], None]) -> None:
        asyncio.get_running_loop().run_in_executor(None, call)

    run_on_a_loop(main(call))
    assert seen == ["began", "ended"]
    assert not told(caplog)
    began = time.monotonic()
    run_on_a_loop(main(lambda: gate.wait(60.0) and None))
    assert 0.9 < time.monotonic() - began < 10
    (line,) = told(caplog)
    assert "abandoned: 1" in line
    gate.set()


def test_what_the_service_raises_is_raised_and_a_service_cut_short_ends_by_itself() -> None:
    seen: list[str] = []

    async def failing() -> None:
        raise OSError("no port")

    def leave() -> None:
        raise SystemExit(3)

    async def cut_short() -> None:
        asyncio.get_running_loop().call_soon(leave)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1.2)  # more than what is left on the loop is given
            seen.append("ended")

    with pytest.raises(OSError, match="no port"):
        run_on_a_loop(failing())
    with pytest.raises(SystemExit):
        run_on_a_loop(cut_short())
    assert seen == ["ended"]
