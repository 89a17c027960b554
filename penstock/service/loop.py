"""The loop that a service runs on, and what is set in its interpreter."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvloop

from penstock.service.daemons import DaemonPool

_log = logging.getLogger(__name__)

_SWITCH: Final = 0.001


def spare_the_collector() -> None:
    """Take what was made until now, which stays for ever, out of what the collector walks through.

    Requests make many objects and no cycle, so it may also run more seldom. Measured with an echo
    over HTTP: a sixth less CPU time a request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def share_the_lock() -> None:
    """Let a thread that computes in Python keep the interpreter's lock for a millisecond, not five.

    For so long it makes the loop wait, at each of the loop's wake-ups; and a busy loop a worker.
    """
    sys.setswitchinterval(_SWITCH)


@contextmanager
def spared_pages() -> Iterator[None]:
    """Keep the children's collectors away from what they share with this process."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


_LAST_WORDS: Final = 1.0
"""Seconds that cancelled tasks are given, and then calls in threads; a guess, the same as an
executor's for its calls."""

_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""For ``asyncio.to_thread``; as many as there are by default."""


def run_on_a_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run it; cancel what it leaves, and leave behind what goes on all the same."""
    loop = uvloop.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        pool = DaemonPool(_THREADS, "asyncio")
        loop.set_default_executor(pool)
        service = loop.create_task(main)
        try:
            loop.run_until_complete(service)
        finally:
            loop.run_until_complete(_cancel_all(service))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(_end(pool))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _cancel_all(service: asyncio.Task[None]) -> None:
    if not service.done():  # something has ended the loop under it
        service.cancel()
        await asyncio.wait((service,))  # it has limits of its own
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if not others:
        return
    for task in others:
        task.cancel()
    _, left = await asyncio.wait(others, timeout=_LAST_WORDS)
    if left:
        names = ", ".join(sorted({task.get_name() for task in left}))
        _log.error(
            "tasks go on though they were cancelled, and are left behind: %s; a coroutine is to"
            " end when it is cancelled",
            names,
        )


async def _end(pool: DaemonPool) -> None:
    pool.shutdown(wait=False)
    calls = [asyncio.wrap_future(each) for each in pool.unfinished()]
    if not calls:
        return
    _, left = await asyncio.wait(calls, timeout=_LAST_WORDS)
    for call in left:
        call.cancel()  # else it would tell this loop of its end, which is closed by then
    if left:
        _log.error("calls in asyncio.to_thread did not return and are left behind: %d", len(left))
