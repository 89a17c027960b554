"""Calls functions in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_aside(
    threads: Executor | None, function: Callable[..., Result], *args: Any
) -> asyncio.Future[Result]:
    """Call it in a thread, or here if none can be started. Not called after a cancellation.

    Args:
        threads: None for the loop's default threads.
        function: called with ``args``.
        args: positional arguments.
    """
    loop = asyncio.get_running_loop()
    try:
        return loop.run_in_executor(threads, function, *args)
    except RuntimeError:
        done: asyncio.Future[Result] = loop.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - raised in the waiting caller
            done.set_exception(error)
        return done
