"""The engine's handle of one worker process: shared memory, its status page, and signals."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.executors.executor import Finished, Work
from penstock.executors.processes.channel import ProcessChannel
from penstock.executors.processes.crash_report import how_it_ended
from penstock.executors.processes.slabs import Loan, Slab, SlabPool
from penstock.executors.processes.spawner import Exited, Spawned
from penstock.executors.processes.status_page import StatusPage
from penstock.executors.stream import Stream
from penstock.executors.transport.frames import Frame, FrameError, Kind, header
from penstock.executors.transport.marshalling import batches_out
from penstock.executors.transport.values import encode
from penstock.executors.workers.watchdog import resident_bytes
from penstock.executors.workers.worker import ANSWER_BYTES, Worker
from penstock.request import Batch

SLAB_BYTES: Final = 512 << 20
"""Most bytes of shared memory for one op's large arrays; other arrays go through the socket."""

_STACK_TIMEOUT: Final = 1.0
"""Seconds for a hanging worker to write its stack."""


class ProcessWorker(Worker):
    """One process; see Worker.

    Args:
        exit: its end, as the supervisor reports it.
        pool: the shared memory for large arrays.
        decides: whether it decides how requests are batched, and reports it.
    """

    exit: asyncio.Future[Exited]
    _channel: ProcessChannel

    def __init__(
        self,
        op: str,
        index: int,
        spawned: Spawned,
        exit: asyncio.Task[Exited],
        loop: asyncio.AbstractEventLoop,
        pool: SlabPool,
        *,
        hang_limit: float | None,
        decides: bool = False,
        done: Callable[[Any, Work, Finished], None],
    ) -> None:
        self._loan = Loan(pool, self._share)
        super().__init__(
            op,
            index,
            f"pid {spawned.pid}",
            exit,
            loop,
            hang_limit=hang_limit,
            done=done,
            fetch=self._loan.fetch,
        )
        self.pid = spawned.pid
        self._pidfd = spawned.pidfd
        self._pool = pool
        self._slabs: set[Slab] = set()
        self._page = StatusPage()
        self._channel = ProcessChannel(
            spawned.socket, loop, self._frame_received, self._cut, ANSWER_BYTES
        )
        descriptors = [os.dup(self._channel.event), os.dup(self._page.descriptor)]
        self._channel.send([header(Kind.HELLO, int(decides), 0)], descriptors)

    @property
    def how_it_ended(self) -> str:
        return how_it_ended(self.exit.result().status)

    @property
    def memory(self) -> int | None:
        return resident_bytes(self.pid)

    def _send(self, batches: list[Batch]) -> None:
        loan = self._loan
        try:
            value = batches_out([batch.samples for batch in batches], time.monotonic())
            value.append(loan.grant())
            # Unpickling runs user code; if that kills the worker, only one batch is lost.
            body = encode(value, place=loan.place, pickle=pickled, blobs=len(batches) == 1)
            head = header(Kind.RUN, self._first, sum(map(len, body)))
        except FrameError:
            loan.end()
            raise
        self._in_flight.extend(batches)
        self._channel.send([head, *body])

    def look(self) -> None:
        """Update the Work from the answers and the status page."""
        self._channel.read()
        if self._in_flight:
            page, first = self._page, self._first
            if page.number == first:
                self._begin(first)
                self._in_flight[0].started = page.started
            elif page.number >= first + len(self._in_flight):
                self._channel.end(FrameError("the worker reports a batch that it was not sent"))

    def _stream_changed(self, stream: Stream) -> None:
        if stream.cancelled:
            self._page.cancelled = self._first
        super()._stream_changed(stream)

    def drop(self, slab: Slab) -> None:
        self._slabs.discard(slab)
        self._channel.send([header(Kind.DROP, slab.number, 0)])

    def kill(self) -> None:
        """End it now."""
        self.ending = True
        self._signal(signal.SIGKILL)

    def abort(self) -> None:
        """End it, after it has written its stack, which needs no help of its interpreter.

        A stopped process is continued for that, unless it might begin a batch that another worker
        will run: while one of its threads handles the signal, the others run on.
        """
        self.ending = True
        self._signal(signal.SIGABRT)
        if not self._in_flight or self._begun >= self._first:
            self._signal(signal.SIGCONT)
        self._closing = self._loop.call_later(_STACK_TIMEOUT, self.kill)

    def stacks(self) -> list[str]:
        return self._page.stacks()

    def release(self) -> tuple[Work, Finished, list[Batch]] | None:
        """See Worker; the status page shows what had begun."""
        self._channel.read()
        if self._in_flight:
            at, last = self._page.number, self._first + len(self._in_flight) - 1
            if at >= self._first:
                self._begin(at if at <= last else self._first)  # else its status page is invalid
        released = super().release()
        self._loan.end()
        return released

    def close(self) -> None:
        """Close its resources."""
        super().close()
        self._loan.end()
        for slab in self._slabs:
            slab.readers.pop(self, None)
        self._slabs.clear()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
            self._page.close()

    def _other_frame(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.KEPT:
                self._loan.kept(frame.number)
            case Kind.NEED if self._in_flight:
                grant = self._loan.grant(min(frame.number, SLAB_BYTES))
                self._channel.send([header(Kind.GRANT, grant, 0)])
            case _:
                super()._other_frame(frame)

    def _end(self) -> None:
        """End the Work."""
        pool, loan = self._pool, self._loan
        pool.reply_bytes = max(loan.fetched + self._answered_bytes, pool.reply_bytes * 7 // 8)
        loan.fetched = 0
        loan.end()
        super()._end()

    def _share(self, slab: Slab, writing: bool) -> bool:
        """See Share: send the slab before frames that refer to it."""
        writes = slab.readers.get(self)
        if writes is None or (writing and not writes):
            try:
                descriptor = slab.descriptor_for(writing=writing)
            except OSError:  # no descriptor is left
                return False
            self._channel.send([header(Kind.SLAB, slab.number, 0)], [descriptor])
            slab.readers[self] = writing
            self._slabs.add(slab)
        return True

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd < 0:  # closed, but its wait status may not have arrived yet
            return
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return


def pickled(value: Any) -> bytes:
    """Pickle a value of an op in this process; only the worker unpickles it."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
