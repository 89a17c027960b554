"""Ops with seats in threads of this process: each thread has its own seats and its own steps."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from penstock.executors.event_fd import EventFd
from penstock.executors.executor import Finished, LocalExecutor, Work
from penstock.executors.seats.counts import added
from penstock.executors.seats.steps import Seated, Steps
from penstock.executors.stream import Stream
from penstock.executors.work import BoundOp
from penstock.request import Outcome

_log = logging.getLogger(__name__)


class SeatedThreads(LocalExecutor):
    """Runs Works of one batch of one sample each, ``seats`` of them at once in each of ``len(ops)``
    threads.

    A Work goes to the thread with the fewest. After seats were given back while all were taken, the
    thread lets the loop hand over those who wait for them, before the next step. A thread without a
    request that can run waits for an event: a new request, credit, or a cancellation.
    """

    takes_several = False

    def __init__(self, ops: Sequence[BoundOp], seats: int, loop: asyncio.AbstractEventLoop) -> None:
        self.workers = len(ops) * seats
        self._loop = loop
        self._done: deque[tuple[_Thread, Stream | None, Work, Finished]] = deque()
        self._progressed: deque[Stream] = deque()
        self._answered = EventFd(watched=True)
        loop.add_reader(self._answered, self._report)
        self._threads = [_Thread(op, seats, self) for op in ops]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Work, finished: Finished) -> None:
        """Give the Work to the thread with the most free seats."""
        thread = min(self._threads, key=_taken)
        thread.taken += 1
        stream: Stream = work.pending[0].samples[0].stream
        stream.notify = self._progressed.append
        stream.changed = thread.stream_changed
        thread.give((work, finished))

    def flush(self) -> None:
        """In a thread: let the loop take what there is."""
        if self._progressed or self._done:
            self._answered.signal()

    def ended(self, thread: _Thread, stream: Stream | None, work: Work, finished: Finished) -> None:
        """In a thread: a Work is finished; with the stream of its request, if it was not taken
        back.
        """
        self._done.append((thread, stream, work, finished))

    @property
    def thread_ids(self) -> list[int]:
        """The system's ids of the worker threads."""
        return [each.native_id for each in self._threads if each.native_id is not None]

    @property
    def step_counts(self) -> list[int]:
        """The counts of all steps; see ``StepCounts``."""
        return added(each.counts.numbers for each in self._threads)

    async def close(self, timeout: float) -> bool:
        """End the threads after their running calls; requests that have joined leave."""
        for thread in self._threads:
            thread.give(None)
        deadline = self._loop.time() + timeout
        for thread in self._threads:
            left = max(0.0, deadline - self._loop.time())
            await asyncio.to_thread(thread.join, left)
        hanging = [thread.name for thread in self._threads if thread.is_alive()]
        if hanging:  # they may report while the loop runs
            _log.warning("calls did not return in time and were abandoned: %s", hanging)
            return False
        self._report()
        self._loop.remove_reader(self._answered)
        return True

    def _report(self) -> None:
        """On the loop: pass on pieces, and report finished Works."""
        self._answered.clear()
        progressed, done = self._progressed, self._done
        ended: dict[_Thread, int] = {}
        for _ in range(len(progressed)):
            progressed.popleft().arrive()
        for _ in range(len(done)):  # Works that finish meanwhile signal again
            thread, stream, work, finished = done.popleft()
            thread.taken -= 1
            if stream is not None:
                stream.changed = None
            finished(work, work.take_results())
            ended[thread] = ended.get(thread, 0) + 1
        for thread, count in ended.items():
            thread.handled(count)


class _Thread(threading.Thread):
    """One worker.

    Attributes:
        taken: the number of its Works; the loop's.
        counts: of its steps.
    """

    def __init__(self, op: BoundOp, seats: int, executor: SeatedThreads) -> None:
        # A daemon, because a call that never returns must not keep the process from ending.
        super().__init__(name=f"{op.name}|{op.index}", daemon=True)
        self.taken = 0
        self._op = op
        self._executor = executor
        self._inbox: deque[tuple[Work, Finished] | None] = deque()
        self._event = EventFd()
        self._sleeps = False
        self._reported = 0  # its finished Works
        self._handled = 0  # those of them that the loop has reported; written by the loop
        self._steps = Steps(op, seats, self._ended, executor.flush)
        self.counts = self._steps.counts

    def give(self, item: tuple[Work, Finished] | None) -> None:
        """On the loop: hand over a Work, or None at the end."""
        self._inbox.append(item)
        self._wake()

    def stream_changed(self, stream: Stream) -> None:
        """On the loop: there is credit for a stream, or it is cancelled."""
        self._wake()

    def handled(self, count: int) -> None:
        """On the loop: so many of its finished Works are reported, and those who waited for their
        seats have been handed over.
        """
        self._handled += count
        self._wake()

    def _wake(self) -> None:
        if self._sleeps:
            self._sleeps = False
            self._event.signal()

    def run(self) -> None:
        """Make steps while there is something to do, and wait otherwise."""
        inbox, steps = self._inbox, self._steps
        while self._take_in():
            steps.admit()
            wait = steps.wait_for_others()
            if wait:
                self._let_others_come(wait)
                if not self._take_in():
                    break
                steps.admit()
            steps.step()
            if not steps.has_work:
                self._sleeps = True
                # The loop may have changed something before it could see that.
                if not (inbox or steps.has_work):
                    self._event.wait()
                self._sleeps = False
        steps.close()
        self._op.close()

    def _take_in(self) -> bool:
        """Take what the loop has handed over; returns whether the thread goes on."""
        inbox = self._inbox
        while inbox:
            item = inbox.popleft()
            if item is None:
                return False
            work, finished = item
            batch = work.begin_next()
            if batch is None:  # the engine has just taken it back
                self._report(None, work, finished)
            else:
                self._steps.take(Seated(batch, item))
        return True

    def _let_others_come(self, wait: float) -> None:
        until = time.monotonic() + wait
        while self._handled != self._reported:
            left = until - time.monotonic()
            if left <= 0.0:
                return
            self._sleeps = True
            if self._handled != self._reported:
                self._event.wait_for(max(1, round(1000 * left)))
            self._sleeps = False

    def _ended(self, one: Seated, outcome: Outcome) -> None:
        work, finished = one.given_by
        work.add_result(one.batch, [outcome])
        work.current = None
        self._report(one.stream, work, finished)

    def _report(self, stream: Stream | None, work: Work, finished: Finished) -> None:
        self._reported += 1
        self._executor.ended(self, stream, work, finished)


def _taken(thread: Any) -> int:
    taken: int = thread.taken
    return taken
