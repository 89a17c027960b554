"""Runs a service's coroutine on a loop of its own, and the loop to its end.

``asyncio.Runner`` waits for every task that it cancels, for ever if need be; one op that catches
its cancellation and goes on would make a service that cannot be stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

import uvloop

_log = logging.getLogger(__name__)

_LAST_WORDS: Final = 1.0
"""Seconds that cancelled tasks are given; a guess, the same as an executor's for its calls."""


def run_on_a_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run it; cancel what it leaves, and leave behind what goes on all the same."""
    loop = uvloop.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        service = loop.create_task(main)
        try:
            loop.run_until_complete(service)
        finally:
            loop.run_until_complete(_cancel_all(service))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
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
