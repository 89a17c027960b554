"""The executor for external workers, which connect to a socket of the service and may leave.

The worker that has been idle for longest gets the next batch, so that fast workers get more.
Workers are not started, ended or restarted here. There are as many slots as connected workers:
without one, requests wait in the op's queue, within their deadlines. If no worker has been
connected for ``CONNECT_TIMEOUT``, since the start or since the last one left, requests are refused
at once, until one connects.

A worker whose connection ends with a batch counts as dead, like a worker process: the batch fails
or, with ``retry_on_crash``, runs again. A worker that breaks the protocol is disconnected and
treated likewise, but its requests are not suspected of having caused it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.errors import NoWorker
from penstock.executors.executor import Finished, LocalExecutor, Work
from penstock.executors.external.connection import Connection
from penstock.instrument import Instruments
from penstock.request import Outcome, Sample

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT: Final = 30.0
"""Seconds that requests wait for a worker to connect. A guess: loading a model takes less, and
callers rarely wait longer."""
MOST_WORKERS: Final = 256
"""Most open connections, ready workers or not."""

_ACCEPTS_AT_ONCE: Final = 16
_PAUSE: Final = 0.25  # seconds without accepting after an error, such as no free descriptor
_SHOWN: Final = 16  # most ids of a batch in one log line


class ExternalExecutor(LocalExecutor):
    """See the module. Belongs to the engine's loop.

    Args:
        listener: bound to the op's socket; the caller closes it.
        kind: the media type that the workers read and write.
        connect_timeout: seconds that requests wait for a worker.
        streams: whether the op's answers come in pieces.

    Attributes:
        media: the media type of the bodies that its workers read and write.
    """

    takes_several = False
    grown: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        kind: str,
        loop: asyncio.AbstractEventLoop,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        streams: bool = False,
    ) -> None:
        self.workers = 0
        self.instruments = Instruments()
        self.loaded: list[dict[str, Any] | None] = []
        self.media = kind
        self._name = name
        self._listener = listener
        self._loop = loop
        self._connect_timeout = connect_timeout
        self._streams = streams
        self._connections: dict[int, Connection] = {}  # by number
        self._idle: deque[Connection] = deque()
        self._busy: dict[Work, Connection] = {}
        self._alone: asyncio.TimerHandle | None = None  # until requests are refused
        self._accepting: asyncio.TimerHandle | None = None
        self._closing = False
        self._at_rest = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ExternalExecutor {self._name!r} idle={len(self._idle)} busy={len(self._busy)}>"

    @property
    def alive(self) -> bool:
        """See Executor: whether a worker is connected."""
        return bool(self._idle or self._busy)

    async def start(self) -> None:
        """Let workers connect; returns without waiting for one."""
        self._listener.setblocking(False)
        self._listener.listen(MOST_WORKERS)
        self._loop.add_reader(self._listener, self._accept)
        self._count()

    def submit(self, work: Work, finished: Finished) -> None:
        """Send the Work to the worker that has been idle for longest; refuse it if there is
        none.
        """
        if self._idle:
            connection = self._busy[work] = self._idle.popleft()
            connection.run(work, finished)
            return
        error = NoWorker(f"op {self._name!r}: no worker is connected")
        while (batch := work.begin_next()) is not None:
            work.add_result(batch, [Outcome(None, error) for _ in batch.samples])
        finished(work, work.take_results())

    async def close(self, timeout: float) -> bool:
        """Let the workers answer their batches, then close the connections."""
        self._closing = True
        self._loop.remove_reader(self._listener)
        for timer in (self._alone, self._accepting):
            if timer is not None:
                timer.cancel()
        if self._busy:
            try:
                async with asyncio.timeout(timeout):
                    await self._at_rest.wait()
            except TimeoutError:
                _log.warning("op %s: external workers did not answer in time", self._name)
        left = bool(self._busy)
        for connection in list(self._connections.values()):
            connection.close()
            self._release(connection, "it did not answer in time" if connection.work else None)
        self._connections.clear()
        return not left

    def arrived(self, connection: Connection) -> None:
        """See Owner."""
        _log.info(
            "op %s: external worker %s (pid %s) is ready",
            self._name,
            connection.index,
            connection.pid,
        )
        self._idle.append(connection)
        notify = self.instruments.worker_started
        if notify is not None:
            notify(self._name, connection.index, self._loop.time())
        self._count()

    def done(self, connection: Connection, work: Work, finished: Finished) -> None:
        """See Owner."""
        del self._busy[work]
        work.current = None
        if connection.leaving:
            connection.close()
            self.ended(connection, None)
        else:
            self._idle.append(connection)
        finished(work, work.take_results())
        self._check_idle()

    def ended(self, connection: Connection, why: str | None) -> None:
        """See Owner."""
        self._connections.pop(connection.index, None)
        if connection in self._idle:
            self._idle.remove(connection)
        self._release(connection, why)

    def _release(self, connection: Connection, why: str | None) -> None:
        """Log the end of a connection, and report its Work."""
        left = connection.release()
        if left is None:
            self._log_end(connection, why, ())
            self._count()
            return
        work, finished, lost = left
        self._log_end(connection, why, () if lost is None else lost.samples)
        del self._busy[work]
        work.current = None
        self._count()
        finished(work, work.take_results())
        self._check_idle()

    def _log_end(self, connection: Connection, why: str | None, lost: Sequence[Sample]) -> None:
        if not connection.ready:
            if why is not None:
                _log.error("op %s: a connection that is no worker was closed: %s", self._name, why)
            return
        who = (self._name, connection.index, connection.pid)
        now = self._loop.time()
        if why is None:
            _log.info("op %s: external worker %s (pid %s) has left", *who)
            notify = self.instruments.worker_replaced
            if notify is not None:
                notify(self._name, connection.index, "it has left", now)
            return
        ids = [sample.data_id for sample in lost]
        more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
        _log.error(
            "op %s: external worker %s (pid %s) is lost: %s (data_ids=%s%s log_ids=%s)",
            *who,
            why,
            ids[:_SHOWN],
            more,
            [sample.log_id for sample in lost[:_SHOWN]],
        )
        notify = self.instruments.worker_died
        if notify is not None:
            notify(self._name, connection.index, why, now)

    def _check_idle(self) -> None:
        if self._closing and not self._busy:
            self._at_rest.set()

    def _count(self) -> None:
        """Update the number of slots: that of the workers, or one, whose Works are refused, after
        ``CONNECT_TIMEOUT`` without any.
        """
        if self._closing:
            return
        before, there = self.workers, len(self._idle) + len(self._busy)
        if there:
            if self._alone is not None:
                self._alone.cancel()
                self._alone = None
            self.workers = there
            if there > before or before == 1:
                self.grown()
        elif self._alone is None:
            self.workers = 0
            self._alone = self._loop.call_later(self._connect_timeout, self._refuse_all)

    def _refuse_all(self) -> None:
        """No worker has connected: refuse waiting and new requests until one does."""
        _log.warning(
            "op %s: no worker has been connected for %g s: requests are refused until one connects",
            self._name,
            self._connect_timeout,
        )
        self.workers = 1
        self.grown()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                link, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("op %s: workers cannot be accepted: %s", self._name, error.strerror)
                self._loop.remove_reader(self._listener)
                self._accepting = self._loop.call_later(_PAUSE, self._accept_again)
                return
            index = next(n for n in range(MOST_WORKERS + 1) if n not in self._connections)
            if index == MOST_WORKERS:
                _log.error("op %s: a worker is refused: there are already %s", self._name, index)
                link.close()
                continue
            self._connections[index] = Connection(
                self._name, index, link, self.media, self._loop, self, streams=self._streams
            )

    def _accept_again(self) -> None:
        self._loop.add_reader(self._listener, self._accept)
