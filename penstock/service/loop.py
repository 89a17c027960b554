"""The loop that a service runs on, and what is set in its interpreter."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import uvloop

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


_CANCEL_TIMEOUT: Final = 1.0
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
    _, left = await asyncio.wait(others, timeout=_CANCEL_TIMEOUT)
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
    _, left = await asyncio.wait(calls, timeout=_CANCEL_TIMEOUT)
    for call in left:
        call.cancel()  # else it would tell this loop of its end, which is closed by then
    if left:
        _log.error("calls in asyncio.to_thread did not return and are left behind: %d", len(left))


Result = TypeVar("Result")


class DaemonPool(Executor):
    """Daemon threads behind one queue, started as calls need them.

    Args:
        threads: most of them.
        name: of the threads, in logs and debuggers.

    Threads: ``submit`` from any thread.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._starting = threading.Lock()
        # Bounded by the connections: each open call has at most one task here, and who leaves
        # cancels it.
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._unfinished: set[Future[Any]] = set()
        self._threads: list[threading.Thread] = []

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Run a call in the first thread that is free.

        Raises:
            RuntimeError: there is no thread, and none can be started.
        """
        future: Future[Result] = Future()
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        self._queue.put((future, lambda: fn(*args, **kwargs)))
        with self._starting:
            if len(self._threads) < min(self._most, len(self._unfinished)):
                name = f"{self._name}|{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system has no more: the others do it, if there are any
                    if not self._threads:
                        future.cancel()
                        raise
                else:
                    self._threads.append(thread)
        return future

    def unfinished(self) -> list[Future[Any]]:
        """Calls that wait or run."""
        return list(self._unfinished)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End each thread after the call it is in; calls that wait run first, unless cancelled."""
        if cancel_futures:
            for future in self.unfinished():
                future.cancel()
        for _ in self._threads:
            self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
                    future.set_exception(error)
            del item, future, call  # an idle thread holds on to nothing
