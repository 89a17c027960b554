"""The executor for workers that its own code starts, anywhere; docs/executors.md shows one.

It listens on a socket, and gives each worker an Opening: how to open the op, where to connect, and
a token. What starts the worker with it, and how it ends, is the caller's. Everything else is as for
worker processes: restarts, time limits, reports. A link to another machine shares no memory: a
worker has one batch at a time, and values are plain.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from penstock.errors import StartupError
from penstock.executors.elsewhere.listener import Connected, Listener
from penstock.executors.elsewhere.opening import Opening
from penstock.executors.elsewhere.output import log_output
from penstock.executors.executor import Finished, Work
from penstock.executors.kinds import ExecutorSpec
from penstock.executors.transport.frames import Frame, FrameError, Kind, header
from penstock.executors.transport.marshalling import batches_out
from penstock.executors.transport.values import Decoder, Stored, encode
from penstock.executors.workers.channel import Channel
from penstock.executors.workers.pool import NoWorkerError, WorkerPool
from penstock.executors.workers.worker import ANSWER_BYTES, Worker
from penstock.request import Batch, Outcome, Sample

if TYPE_CHECKING:
    from penstock.executors.external_store.counts import StoreCounts
    from penstock.executors.external_store.engine import EngineStore

_log = logging.getLogger(__name__)

_MOST_IDS: Final = 16  # of a batch in one log line
_LAST_OUTPUT: Final = 2.0  # seconds at the end for what workers have written


class Started(Protocol):
    """A worker that was started, from the side of the code that started it.

    Attributes:
        where: where it runs, for messages: ``"pid 12"``.

    It may also have ``node``, the machine, for the status: texts with the keys ``id``, ``address``
    and ``host``.
    """

    where: str

    async def ended(self) -> str:
        """Wait until it has ended; returns how, such as ``"exit status 1"``. Called once."""

    def kill(self) -> None:
        """End it now; ``ended`` then returns soon. May be called again, and after its end."""


Start: TypeAlias = Callable[[Opening], Awaitable[Started]]
"""Starts a worker, and returns without waiting until it is ready. Any exception means that none can
be started now; it is called again later. A NoWorkerError says why in a sentence."""


class ElsewhereWorker(Worker):
    """One worker; see Worker.

    Args:
        started: the worker.
        connected: a future of its connection.
        decides: whether it decides how requests are batched, and reports it.
        cut_off: called when its connection has ended: it ends, or is ended, itself.
        store: the external store, if its large values may go there.
    """

    has_own_clock = True

    def __init__(
        self,
        op: str,
        index: int,
        started: Started,
        connected: Connected,
        loop: asyncio.AbstractEventLoop,
        *,
        hang_limit: float | None,
        decides: bool,
        done: Callable[[Any, Work, Finished], None],
        cut_off: Callable[[Any], None],
        store: EngineStore | None = None,
    ) -> None:
        exit_ = loop.create_task(_end_of(started))
        super().__init__(op, index, started.where, exit_, loop, hang_limit=hang_limit, done=done)
        self.node = getattr(started, "node", None)
        self._started = started
        self._cut_off = cut_off
        self._is_stopping = False
        self._store = store
        # The samples of the present hand-over by the keys of their outputs; None once a key is sure
        # to be deleted.
        self._issued: dict[str, Sample | None] = {}
        if store is not None:
            self._decoder = Decoder(stored=self._check_stored)
        self._channel = Channel(
            loop, self._frame_received, self._cut, self._link_ended, ANSWER_BYTES
        )
        self._channel.send([header(Kind.HELLO, int(decides), 0)])
        self._connected = connected
        connected.add_done_callback(self._attach)

    @property
    def how_it_ended(self) -> str:
        how: str = self.exit.result()
        return how

    def kill(self) -> None:
        """End it now."""
        self.ending = True
        self._started.kill()

    def close(self) -> None:
        """Close its resources."""
        self._connected.cancel()
        super().close()

    def ask_to_stop(self) -> None:
        """Make it end after its current batch."""
        self._is_stopping = True
        super().ask_to_stop()

    def _link_ended(self) -> None:
        if not self._is_stopping:
            self.kill()
        self._cut_off(self)

    def _attach(self, connected: Connected) -> None:
        if not connected.cancelled():
            self._channel.attach(connected.result())

    def _send(self, batches: list[Batch]) -> None:
        keys = None if self._store is None else self._keys(self._store, batches)
        value = batches_out([batch.samples for batch in batches], time.monotonic(), keys)
        body = encode([*value, 0], blobs=False)
        head = header(Kind.RUN, self._first, sum(map(len, body)))
        self._in_flight.extend(batches)
        self._channel.send([head, *body])
        self._begin(self._first)  # it may have, and nothing shows whether

    def _keys(self, store: EngineStore, batches: list[Batch]) -> list[str | None]:
        """Under which keys the worker may put large outputs into the store."""
        samples = [sample for batch in batches for sample in batch.samples]
        store.count_inputs(samples)
        keys = [store.key_for(each) for each in samples]
        self._issued = {key: each for key, each in zip(keys, samples, strict=True) if key}
        return keys

    def _check_stored(self, stored: Stored) -> Stored:
        """Take what stands for a value that the worker has put into the store."""
        if stored.key not in self._issued:
            raise FrameError("a worker names a value that it was not asked to store")
        self._delete_at_end(stored.key)
        if self._store is not None:
            self._store.counts.add(put=stored.nbytes)
        return stored

    def _delete_at_end(self, key: str) -> None:
        sample = self._issued[key]
        if sample is not None:
            assert self._store is not None
            self._store.delete_at_end(sample, key)
            self._issued[key] = None

    def _outcomes(self, batch: Batch, body: bytes | memoryview) -> list[Outcome]:
        outcomes = super()._outcomes(batch, body)
        if self._store is not None:
            unused = {id(each) for each in self._issued.values() if each is not None}
            kept = [id(each) not in unused for each in batch.samples]
            self._store.count(outcomes, kept)
        return outcomes

    def release(self) -> tuple[Work, Finished, list[Batch]] | None:
        """See Worker; it may have stored values of which it has not told."""
        left = super().release()
        if left is not None:
            for key in self._issued:
                self._delete_at_end(key)
        self._issued = {}
        return left

    def _end(self) -> None:
        if self._issued:
            self._forget_issued()
        super()._end()

    def _forget_issued(self) -> None:
        """After the answers: let go of the samples, whose inputs may be large. What a worker could
        not send, it may have stored before.
        """
        issued, self._issued = self._issued, {}
        assert self.work is not None
        failed = {
            id(sample)
            for batch, outcomes in self.work.results
            for sample, outcome in zip(batch.samples, outcomes, strict=True)
            if outcome.error is not None
        }
        for key, sample in issued.items():
            if sample is not None and id(sample) in failed:
                assert self._store is not None
                self._store.delete_at_end(sample, key)

    def _other_frame(self, frame: Frame) -> None:
        if frame.kind is Kind.CALL and self._in_flight and frame.number == self._first:
            self._in_flight[0].started = time.monotonic()
        else:
            super()._other_frame(frame)


class ElsewhereExecutor(WorkerPool[ElsewhereWorker]):
    """See the module.

    Args:
        spec: the op, of a kind that is ``elsewhere``.
        start: starts a worker.
        host: the address on which it listens, and to which the workers connect.
    """

    takes_several = False
    logs_output = False
    """Whether ``start`` sends what a worker writes; see ``penstock.executors.elsewhere.relay``."""

    def __init__(self, spec: ExecutorSpec, start: Start, host: str = "127.0.0.1") -> None:
        super().__init__(spec.op, spec.workers, spec.loop, spec.supervision)
        if spec.opening is None:
            raise StartupError(f"op {spec.op!r}: its workers cannot be told how to open it")
        self._opening = spec.opening
        self._start_worker = start
        self._host = host
        self._listener: Listener | None = None
        self._store = _store_of(spec)
        self._outputs: set[asyncio.Task[None]] = set()

    @property
    def store_counts(self) -> StoreCounts | None:
        """What is done with the external store; None without it."""
        return None if self._store is None else self._store.counts

    async def start(self) -> None:
        try:
            self._listener = Listener(self.op, self._host, self._loop)
        except OSError as error:
            text = f"op {self.op!r}: its workers cannot connect to {self._host}: {error}"
            raise StartupError(text) from error
        if self._store is not None:
            self._store.start()
        await super().start()

    async def close(self, timeout: float) -> bool:
        in_time = await super().close(timeout)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._outputs:
            await asyncio.wait(self._outputs, timeout=_LAST_OUTPUT)
            for each in self._outputs:
                each.cancel()
        if self._store is not None:
            await self._store.close()
        return in_time

    async def _begin(self, index: int, *, decides: bool) -> ElsewhereWorker:
        listener = self._listener
        assert listener is not None
        token, connected = listener.expect()
        opening = replace(
            self._opening, index=index, host=listener.host, port=listener.port, token=token
        )
        output: Connected | None = None
        if self.logs_output:
            output_token, output = listener.expect()
            opening = replace(opening, output_token=output_token)
            task = self._loop.create_task(log_output(self.op, index, output))
            self._outputs.add(task)
            task.add_done_callback(self._outputs.discard)
        try:
            started = await self._start_worker(opening)
        except BaseException as error:
            if output is not None:
                output.cancel()
            if not connected.cancel() and not connected.cancelled():
                connected.result().close()
            if isinstance(error, Exception):
                text = f"{type(error).__name__}: {error}"
                if isinstance(error, NoWorkerError):
                    text = str(error)
                raise NoWorkerError(
                    f"op {self.op!r}: worker {index} cannot be started: {text}"
                ) from error
            raise
        worker = ElsewhereWorker(
            self.op,
            index,
            started,
            connected,
            self._loop,
            hang_limit=self._supervision.hang_limit,
            decides=decides,
            done=self._done,
            cut_off=self._report_lost,
            store=self._store,
        )
        if output is not None:
            worker.exit.add_done_callback(lambda _: output.cancel())
        return worker

    async def _ready(self, worker: ElsewhereWorker) -> dict[str, Any]:
        return {**await super()._ready(worker), "where": worker.where}

    def _report(self, worker: ElsewhereWorker, how: str, data_ids: list[int]) -> None:
        more = f" and {len(data_ids) - _MOST_IDS} more" if len(data_ids) > _MOST_IDS else ""
        _log.log(
            logging.WARNING if worker.late else logging.ERROR,
            "op %s: worker %s (%s) died: %s%s, after %s batches",
            self.op,
            worker.index,
            worker.where,
            how,
            f", with data_ids={data_ids[:_MOST_IDS]}{more}" if data_ids else "",
            worker.batches,
        )


def _store_of(spec: ExecutorSpec) -> EngineStore | None:
    if spec.store is None:
        return None
    from penstock.executors.external_store.engine import EngineStore

    return EngineStore(spec.store, spec.op)


async def _end_of(started: Started) -> str:
    try:
        return await started.ended()
    except Exception as error:  # noqa: BLE001 - the author's code, which may raise anything
        return f"how it ended is unknown: {error!r}"
