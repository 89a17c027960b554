"""A service's event loop, and tasks and threads that remain at its end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

import pytest

from penstock.service.loop import run_on_a_loop


def test_remaining_tasks_are_cancelled_and_may_clean_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[str] = []

    async def remaining() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            events.append("cleared up")

    async def main() -> None:
        task = asyncio.create_task(remaining(), name="left")
        await asyncio.sleep(0)
        events.append(task.get_name())

    run_on_a_loop(main())
    assert events == ["left", "cleared up"]
    assert not caplog.records


def test_a_task_that_ignores_cancellation_is_abandoned_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ignore_cancellation(free: asyncio.Event) -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        tasks.append(asyncio.create_task(coroutine, name="op work"))
        await asyncio.sleep(0)

    coroutine = ignore_cancellation(asyncio.Event())
    tasks: list[asyncio.Task[None]] = []
    began = time.monotonic()
    run_on_a_loop(main())
    assert 0.9 < time.monotonic() - began < 10
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "abandoned: op work" in record.getMessage()
    assert not tasks[0].done()
    coroutine.close()


def loop_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages of our loop only: asyncio may log a task that an earlier test abandoned."""
    return [each.getMessage() for each in caplog.records if each.name == "penstock.service.loop"]


def test_calls_in_threads_are_awaited_briefly_and_then_abandoned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate, events = threading.Event(), list[str]()

    def call() -> None:
        events.append("began")
        gate.wait(0.2)
        events.append("ended")

    async def main(call: Callable[[], None]) -> None:
        asyncio.get_running_loop().run_in_executor(None, call)

    run_on_a_loop(main(call))
    assert events == ["began", "ended"]
    assert not loop_messages(caplog)
    began = time.monotonic()
    run_on_a_loop(main(lambda: gate.wait(60.0) and None))
    assert 0.9 < time.monotonic() - began < 10
    (line,) = loop_messages(caplog)
    assert "abandoned: 1" in line
    gate.set()


def test_an_exception_of_the_service_is_raised_after_its_own_clean_up() -> None:
    events: list[str] = []

    async def failing() -> None:
        raise OSError("no port")

    def exit_now() -> None:
        raise SystemExit(3)

    async def interrupted() -> None:
        asyncio.get_running_loop().call_soon(exit_now)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1.2)  # longer than the limit for remaining tasks
            events.append("ended")

    with pytest.raises(OSError, match="no port"):
        run_on_a_loop(failing())
    with pytest.raises(SystemExit):
        run_on_a_loop(interrupted())
    assert events == ["ended"]
