"""Daemon threads behind one queue, for user code and large replies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar

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
        # Bounded by the connections: each open call has at most one task here, and disconnecting
        # cancels it.
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._unfinished: set[Future[Any]] = set()
        self._threads: list[threading.Thread] = []

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Run a call in an idle thread.

        Raises:
            RuntimeError: there is no thread, and none could be started.
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
                except RuntimeError:  # no more threads available: existing threads will run it
                    if not self._threads:
                        future.cancel()
                        raise
                else:
                    self._threads.append(thread)
        return future

    def unfinished(self) -> list[Future[Any]]:
        """The number of waiting and running calls."""
        return list(self._unfinished)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End each thread after its running call; waiting calls run first, unless cancelled."""
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
                except BaseException as error:  # noqa: BLE001 - raised in the caller
                    future.set_exception(error)
            del item, future, call  # an idle thread keeps no references
