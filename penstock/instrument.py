"""Instruments: listeners to what happens to requests, batches, workers and connections.

Hooks with a time, ``now``, are notified of events; their results are ignored. Such a hook runs on
the engine's loop, must be quick, and must not block or raise: if it raises, that is logged, and its
instrument is never called again. Times are monotonic seconds.

An instrument is made once, before a service starts its processes, and copied with them: each engine
has an instance of its own.

An event without listeners costs one test. The code that notifies writes::

    notify = instruments.queued
    if notify is not None:
        notify(op, sample, now)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol, TypeAlias

from penstock.errors import RequestError
from penstock.request import Batch, Sample


class GraphInfo(Protocol):
    """The properties of a graph that instruments may read.

    Attributes:
        key: name and version; the same after a version was removed and came again.
        label: the name for people, with the version if it is not the service's first one; see
            ``docs/metrics.md``.
        stages: one for each op, with its ``name``; ``Sample.op`` is an index into them.
    """

    name: str | None
    version: str
    key: tuple[str | None, str]
    label: str
    stages: Any


class ExchangeInfo(Protocol):
    """The properties of an HTTP exchange (also a gRPC call) that instruments may read.

    Attributes:
        head: with ``method``, ``path`` as sent, and ``fields``.
        began: when the head was complete, and for most requests the body as well.
        over: the answer is complete, or was aborted.
        record: the recorder's, between the request's outcome and the end of the answer; else None.
        refused: why the request was refused before its body was read, because of who made it; empty
            if it was not.
        caller: who makes the request, as the service's admission of callers says; None without one.
        added: fields that the head of the answer gets besides those that it is given.
    """

    head: Any
    began: float
    over: bool
    record: Any
    refused: str
    caller: Any
    added: tuple[tuple[bytes, bytes], ...]


class RequestInfo(Protocol):
    """The properties of a request that instruments may read.

    Attributes:
        data_id: its id in this engine; -1 if it was refused.
        log_id: its caller's trace id.
        call: the call from the door, with its ``exchange``; None if it did not come over a
            connection.
        admitted_at: when the engine admitted it; its duration counts from there.
        deadline: when it must be answered.
        samples: its samples that are queued or running.
        steps: the recorder's, of the batches it was in; None before the first.
        stream: from which the pieces of its answer come, once ``stream_begun`` was called, with
            ``taken``, their number so far.
        copied: whether it is a copy of another request, which a new version runs as well, and whose
            answer nobody gets.
    """

    data_id: int
    log_id: int
    call: Any
    admitted_at: float
    deadline: float
    samples: list[Sample]
    steps: Any
    stream: Any

    @property
    def copied(self) -> bool:
        """See the class."""

    @property
    def graph(self) -> GraphInfo:
        """What is to answer it."""

    @property
    def caller(self) -> Any:
        """Who makes it, as the service's admission of callers says; None without one."""

    def at_end(self, call: Callable[[], object]) -> None:
        """Call a function when the request ends, once, however it ends; see ``Submission``."""


class ProcessInfo(Protocol):
    """The properties of a process of ``penstock run`` that instruments may read.

    Attributes:
        config: the service's configuration.
        is_first: whether it is the process that starts the service.
        kept: file descriptors by any name. What an instrument adds in the first process is open in
            all processes that this one starts, also in those that run the program again. Workers
            that other programs start have none.
    """

    config: Any
    is_first: bool
    kept: dict[str, int]


class ServiceInfo(Protocol):
    """What instruments may read and do in an engine of a service.

    Attributes:
        config: the service's configuration.
        engine: this engine, with its ``graphs`` and ``statistics()``.
        is_first: whether this is the first of the service's engines, which reports for all.
    """

    config: Any
    engine: Any

    @property
    def is_first(self) -> bool:
        """See the class."""

    def listen(self, listener: Callable[[Any], object], /) -> object:
        """Call a function with the ``Timeline`` of each request that ends, on the engine's loop."""

    async def ask(self, instrument: Instrument, /) -> list[Any]:
        """What the instrument's ``answer`` returns in each engine, this one first. Engines that are
        starting, or do not answer within about a second, are left out.
        """


class Instrument:
    """Base class whose hooks do nothing; override the hooks that you need.

    ``op`` is an op's name, with its graph's before it (``ocr/detect``) where an engine has several
    graphs, and with its version behind it (``detect@2``) where that is not the one with which the
    service started. ``worker`` is a worker's number within its op.
    """

    def in_process(self, process: ProcessInfo) -> AbstractContextManager[object]:
        """Return a context, entered at the start of each process of the service: of the first one
        before any other starts, then of each engine and worker. It is left at the process's end. An
        exception fails the start. Services inside another server do not call it.
        """
        return nullcontext()

    def engine_started(self, service: ServiceInfo, now: float) -> None:
        """The engine's workers are ready; requests come next. Tasks may be started here."""

    async def engine_ended(self) -> None:
        """End what ``engine_started`` began; the requests have ended. Cancelled after 3 seconds."""

    def answer(self) -> Any:
        """This engine's answer, a JSON value other than None, to ``ServiceInfo.ask``."""

    def admitted(self, request: RequestInfo, now: float) -> None:
        """A request was admitted; it will be answered exactly once or cancelled."""

    def refused(self, request: RequestInfo, error: RequestError, now: float) -> None:
        """A request was not admitted."""

    def queued(self, op: str, sample: Sample, now: float) -> None:
        """A request entered the queue of an op; its inputs are complete."""

    def batch_closed(self, op: str, batch: Batch, now: float) -> None:
        """A batch takes no more samples, for ``batch.reason``."""

    def dispatched(self, op: str, batch: Batch, now: float) -> None:
        """A batch was handed over to a worker."""

    def taken_back(self, op: str, batch: Batch, now: float) -> None:
        """A batch that its worker had not begun was taken back; it will be handed over again."""

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        """A batch's results arrived, ``errors`` of them errors; the samples are settled next.

        ``batch.ran`` is the worker's time, ``batch.phases`` the time of each phase.
        """

    def given_up(self, op: str, batch: Batch, now: float) -> None:
        """A batch exceeded its op's ``timeout``; its samples end with OpTimeout."""

    def late(self, op: str, batch: Batch, now: float) -> None:
        """The results of a batch that had timed out arrived, and were dropped."""

    def stream_begun(self, request: RequestInfo, now: float) -> None:
        """The first piece of a request's answer has arrived; ``replied`` or ``cancelled`` follows.
        Further pieces are no events; see ``request.stream``.
        """

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        """A request was answered."""

    def cancelled(self, request: RequestInfo, now: float) -> None:
        """The caller disconnected before the answer; the request has ended."""

    def worker_started(self, op: str, worker: int, now: float) -> None:
        """A worker is ready for batches: at the start, or as a replacement."""

    def worker_died(self, op: str, worker: int, why: str, now: float) -> None:
        """A worker died."""

    def worker_replaced(self, op: str, worker: int, why: str, now: float) -> None:
        """A working worker was ended and replaced, for the reason ``why``."""

    def exchange_ended(self, exchange: ExchangeInfo, status: int, now: float) -> None:
        """The answer is complete and is being sent; status 0 if it was aborted before."""

    def connection_opened(self, peer: object, now: float) -> None:
        """A client has connected; ``peer`` is its address from the socket."""

    def connection_closed(self, peer: object, now: float) -> None:
        """A connection has ended."""


Dropped: TypeAlias = Callable[[Instrument, Exception], object]


class Instruments:
    """The installed instruments. Each event is an attribute: the function to call, or None.

    Args:
        instruments: notified of every event, in this order.
        dropped: called with an instrument that has raised, and its exception.
    """

    engine_started: Callable[[ServiceInfo, float], None] | None
    admitted: Callable[[RequestInfo, float], None] | None
    refused: Callable[[RequestInfo, RequestError, float], None] | None
    queued: Callable[[str, Sample, float], None] | None
    batch_closed: Callable[[str, Batch, float], None] | None
    dispatched: Callable[[str, Batch, float], None] | None
    taken_back: Callable[[str, Batch, float], None] | None
    returned: Callable[[str, Batch, int, float], None] | None
    given_up: Callable[[str, Batch, float], None] | None
    late: Callable[[str, Batch, float], None] | None
    stream_begun: Callable[[RequestInfo, float], None] | None
    replied: Callable[[RequestInfo, RequestError | None, float], None] | None
    cancelled: Callable[[RequestInfo, float], None] | None
    worker_started: Callable[[str, int, float], None] | None
    worker_died: Callable[[str, int, str, float], None] | None
    worker_replaced: Callable[[str, int, str, float], None] | None
    exchange_ended: Callable[[ExchangeInfo, int, float], None] | None
    connection_opened: Callable[[object, float], None] | None
    connection_closed: Callable[[object, float], None] | None

    def __init__(
        self, instruments: Sequence[Instrument] = (), dropped: Dropped = lambda *_: None
    ) -> None:
        self.installed = list(instruments)
        self._dropped = dropped
        self._listen()

    def install(self, instrument: Instrument) -> None:
        """Notify one more instrument from now on, after all others."""
        self.installed.append(instrument)
        self._listen()

    def _listen(self) -> None:
        for moment in MOMENTS:
            silent = getattr(Instrument, moment)
            hooks = [
                getattr(each, moment)
                for each in self.installed
                if getattr(type(each), moment) is not silent
            ]
            facts = silent.__code__.co_argcount - 1
            setattr(self, moment, self._caller_of(hooks, facts))

    def _caller_of(self, hooks: list[Any], facts: int) -> Any:
        """A function that calls all hooks with this number of facts; None if there are none."""
        if not hooks:
            return None
        hook, rest = hooks[0], self._caller_of(hooks[1:], facts)

        # One for each number, as passing on ``*facts`` takes longer than what most hooks do.
        def call_2(a: Any, b: Any) -> None:
            try:
                hook(a, b)
            except Exception as error:  # noqa: BLE001 - requests continue
                self.drop(hook.__self__, error)
            if rest is not None:
                rest(a, b)

        def call_3(a: Any, b: Any, c: Any) -> None:
            try:
                hook(a, b, c)
            except Exception as error:  # noqa: BLE001 - the same
                self.drop(hook.__self__, error)
            if rest is not None:
                rest(a, b, c)

        def call_4(a: Any, b: Any, c: Any, d: Any) -> None:
            try:
                hook(a, b, c, d)
            except Exception as error:  # noqa: BLE001 - the same
                self.drop(hook.__self__, error)
            if rest is not None:
                rest(a, b, c, d)

        return {2: call_2, 3: call_3, 4: call_4}[facts]

    def drop(self, instrument: Instrument, error: Exception) -> None:
        """Never call an instrument again, because it has raised."""
        if instrument in self.installed:  # else it has already raised in another hook
            self.installed.remove(instrument)
            self._listen()
            self._dropped(instrument, error)


MOMENTS: Final = tuple(Instruments.__annotations__)
"""The names of the events."""
