"""Executors in this process: inline, in threads, and as coroutines on the loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.executors.event_fd import EventFd
from penstock.executors.executor import Finished, LocalExecutor, Work
from penstock.executors.stream import Stream
from penstock.executors.streaming import run_stream, run_stream_async
from penstock.executors.work import Answer, BoundOp, begin, broken, calls, end, run_batch
from penstock.ops.failures import process_raised
from penstock.request import Batch, Feed, Outcome

_log = logging.getLogger(__name__)

T = TypeVar("T")

_CANCEL_TIMEOUT = 1.0
"""Seconds for cancelled calls to end at the close; a guess that covers closing a connection."""


def take_turn(op: BoundOp, work: Work, limit: float | None = None) -> None:
    """Run the Work's batches in the calling thread; those beyond its turn, see
    ``WorkOptions.hand_over``, stay pending.

    Args:
        op: the worker's copy.
        work: its results are added one by one, so that the engine can take them earlier.
        limit: as in ``run_batch``.
    """
    results = work.results
    pending = work.pending
    left = 2 * op.options.hand_over
    while pending and left > 0.0:
        try:
            # ``begin_next``, inlined.
            batch = work.current = pending.popleft()
        except IndexError:  # the engine has just taken the last one back
            break
        outcomes = run_stream(op, batch) if op.streams else run_batch(op, batch, limit)
        results.append((batch, outcomes))
        left -= batch.ran
    work.current = None


class InlineExecutor(LocalExecutor):
    """Runs batches in the caller, for ops that take microseconds: its one worker is the engine's
    loop, which blocks meanwhile.
    """

    takes_several = True

    def __init__(self, op: BoundOp) -> None:
        self.workers = 1
        self._op = op

    def submit(self, work: Work, finished: Finished) -> None:
        """Run the Work now, within one turn's limit, and report before returning."""
        take_turn(self._op, work, self._op.options.timeout)
        finished(work, work.take_results())

    async def close(self, timeout: float) -> bool:
        """See Executor; the hook ``close`` runs in a thread, as it may take long."""
        return await _closed([self._op], timeout)


class ThreadExecutor(LocalExecutor):
    """Runs batches in ``len(ops)`` threads, each with its own copy of the op.

    The loop puts a Work into one queue that all threads of the op read, and signals an event;
    results return through another queue, with another event. A thread that hangs in a call occupies
    its slot: the engine submits no more Works than there are threads.
    """

    def __init__(self, ops: Sequence[BoundOp], loop: asyncio.AbstractEventLoop) -> None:
        self.workers = len(ops)
        self._streams = ops[0].streams
        self.takes_several = not self._streams  # which occupy a worker for long
        self._name = ops[0].label
        self._loop = loop
        # Bounded by the engine, which never submits more Works than there are workers.
        self._queue: deque[tuple[Work, Finished] | None] = deque()
        self._submitted = EventFd()
        self._done: deque[tuple[Work, Finished]] = deque()
        self._progressed: deque[Stream] = deque()
        self._notified = False  # the loop has been woken for them
        self._answered = EventFd(watched=True)
        loop.add_reader(self._answered, self._report)
        # Daemons, because a call that never returns must not keep the process from ending.
        self._threads = [
            threading.Thread(
                target=self._serve, args=(op,), name=f"{op.name}|{op.index}", daemon=True
            )
            for op in ops
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Work, finished: Finished) -> None:
        """Queue the Work for an idle thread."""
        if self._streams:
            for batch in work.pending:
                batch.samples[0].stream.notify = self._notify
        self._queue.append((work, finished))
        self._submitted.signal()

    @property
    def thread_ids(self) -> list[int]:
        """The system's ids of the worker threads."""
        return [each.native_id for each in self._threads if each.native_id is not None]

    async def close(self, timeout: float) -> bool:
        """End the threads after their running calls."""
        for _ in self._threads:
            self._queue.append(None)
            self._submitted.signal()
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

    def _serve(self, op: BoundOp) -> None:
        submitted, done, answered = self._submitted, self._done, self._answered
        while True:
            submitted.wait()
            item = self._queue.popleft()
            if item is None:
                op.close()
                return
            take_turn(op, item[0])
            done.append(item)
            del item  # an idle thread keeps no requests
            answered.signal()

    def _notify(self, stream: Stream) -> None:
        """In a worker's thread: there are pieces."""
        self._progressed.append(stream)
        if not self._notified:
            self._notified = True
            self._answered.signal()

    def _report(self) -> None:
        """On the loop: pass on pieces, and report finished Works; the engine may have taken some of
        their results before.
        """
        self._answered.clear()
        self._notified = False  # before the pieces are taken
        progressed = self._progressed
        for _ in range(len(progressed)):
            progressed.popleft().arrive()
        done = self._done
        for _ in range(len(done)):  # Works that finish meanwhile signal again
            work, finished = done.popleft()
            finished(work, work.take_results())


class CoroutineExecutor(LocalExecutor):
    """Runs ops whose ``process`` is a coroutine, on the loop: waiting holds no thread. At most
    ``len(ops)`` batches run at once.

    Args:
        ops: one bound copy for each slot, so that hooks may keep a request's values on ``self``.
        loop: the engine's loop.
    """

    takes_several = False

    def __init__(self, ops: Sequence[BoundOp], loop: asyncio.AbstractEventLoop) -> None:
        self.workers = len(ops)
        self._name = ops[0].label
        self._free = list(ops)
        self._loop = loop
        self._tasks: dict[Work, asyncio.Task[None]] = {}
        self._progressed: list[Stream] = []

    def submit(self, work: Work, finished: Finished) -> None:
        """Start a task for the Work."""
        task = self._loop.create_task(self._run(work, finished), name=f"op {self._name}")
        self._tasks[work] = task

    def abandon(self, work: Work) -> None:
        """Cancel the running ``process``, once; the slot is free when it has ended."""
        task = self._tasks.get(work)
        if task is not None and not task.cancelling():  # a second time would interrupt its cleanup
            task.cancel()

    async def close(self, timeout: float) -> bool:
        """Wait for the tasks, then cancel those that still run."""
        deadline = self._loop.time() + timeout
        tasks = set(self._tasks.values())
        left: set[asyncio.Task[None]] = set()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=timeout)
            for task in left:
                task.cancel()
        if left:
            _log.warning("op %s: %s calls did not return in time", self._name, len(left))
            await asyncio.wait(left, timeout=_CANCEL_TIMEOUT)
        closed = await _closed(self._free, deadline - self._loop.time())
        return closed and not left

    async def _run(self, work: Work, finished: Finished) -> None:
        op = self._free.pop()
        try:
            while (batch := work.begin_next()) is not None:
                work.add_result(batch, await self._run_safely(op, batch))
        except (asyncio.CancelledError, GeneratorExit):
            # Abandoned by the engine, which took back the other batches; or the loop ends.
            lost = work.take_back()
            if work.current is not None:
                lost.insert(0, work.current)
            for batch in lost:
                work.add_result(batch, broken(batch))
        finally:
            del self._tasks[work]
            self._free.append(op)
            finished(work, work.take_results())

    async def _run_safely(self, op: BoundOp, batch: Batch) -> list[Outcome]:
        try:
            return await self._run_batch(op, batch)
        except GeneratorExit:
            raise
        except BaseException:
            if _is_cancelled():
                raise
            _log.exception("op %s: a batch failed inside penstock; please report this", self._name)
            return broken(batch)

    async def _run_batch(self, op: BoundOp, batch: Batch) -> list[Outcome]:
        if op.streams:
            batch.samples[0].stream.notify = self._notify
            return await run_stream_async(op, batch)
        batch.worker = op.index
        began = batch.began = time.monotonic()
        try:
            apart = op.op.hooks_block
            members = (
                begin(op, batch.samples, began)
                if not apart
                else (await _in_thread(begin, op, batch.samples, began))
            )
            steps = calls(op, members)
            arguments = next(steps, None)
            batch.prepared = time.monotonic() - began
            while arguments is not None:
                batch.started = time.monotonic()
                answer = await self._call(op, batch, *arguments)
                batch.processed += time.monotonic() - batch.started
                batch.started = None
                try:
                    arguments = steps.send(answer)
                except StopIteration:
                    arguments = None
            return end(op, members) if not apart else await _in_thread(end, op, members)
        finally:
            batch.ran = time.monotonic() - began

    def _notify(self, stream: Stream) -> None:
        """There are pieces: pass them on once this turn's have been made."""
        self._progressed.append(stream)
        if len(self._progressed) == 1:
            self._loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        progressed, self._progressed = self._progressed, []
        for stream in progressed:
            stream.arrive()

    async def _call(self, op: BoundOp, batch: Batch, feed_batch: list[Feed], log_id: int) -> Answer:
        try:
            return await op.call_async(feed_batch, log_id)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            # An awaited task of the hook was cancelled, which is a failure of the hook.
            return process_raised(op.name, error, log_id, op.label)


async def _closed(ops: Sequence[BoundOp], timeout: float) -> bool:
    """Run the hook ``close`` of ops whose batches run on the loop: coroutines there, as their
    clients belong to it, others each in a thread. Returns False if one did not return in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(0.0, timeout)
    in_time = True
    for op in ops:
        left = max(0.0, deadline - loop.time())
        if op.closes_on_loop:
            try:
                await asyncio.wait_for(op.op.close(), left)
            except TimeoutError:
                in_time = False
            except Exception:  # noqa: BLE001 - the user's code, which may raise anything
                _log.exception("op %s: close raised", op.label)
        elif op.op.closes:
            thread = threading.Thread(target=op.close, name=f"{op.name}|close", daemon=True)
            thread.start()
            await asyncio.to_thread(thread.join, left)
            in_time = in_time and not thread.is_alive()
    if not in_time:
        _log.warning("op %s: close did not return in time", ops[0].label)
    return in_time


async def _in_thread(step: Callable[..., T], *arguments: Any) -> T:
    """Run a step of a batch in a thread; a cancellation waits for its end, because the op's copy is
    used meanwhile.
    """
    running = asyncio.ensure_future(asyncio.to_thread(step, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


def _is_cancelled() -> bool:
    """Whether the running task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
