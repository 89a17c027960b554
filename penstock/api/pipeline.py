"""The pipeline protocol above any transport: a decoded call in, a reply out.

Both ports use it, so they cannot disagree. It decides which errors are answers (``err_no``) and
which end the call itself; the transports only translate. Source: ``docs/compatibility.md``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from penstock.api.replies import Reply, Writers, ours
from penstock.engine.engine import Engine
from penstock.errors import (
    DeadlineExceeded,
    RequestError,
    ServiceBusy,
    ServiceClosed,
    UnknownService,
)
from penstock.ops.ends import Ends, error_reply
from penstock.protocols import paddle
from penstock.request import Feed, Outcome, Request

_log = logging.getLogger(__name__)

_monotonic = time.monotonic

_LATE = "the request's deadline passed"
_WRONG_NAME = "Failed to inference: Service name error."
NO_ID = -1
"""Stands for the data id of a request that ended before it was admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How the protocol behaves.

    Attributes:
        name: the service's name; None accepts every name.
        deadline: seconds a request may take; a caller may lower it, never raise it.
        strict_status: busy fails the call (429, RESOURCE_EXHAUSTED) instead of answering 3004.
    """

    name: str | None
    deadline: float = 60.0
    strict_status: bool = False


Answer: TypeAlias = Reply | bytes
"""A reply, or what a port has written for it."""


class Port(Protocol):
    """A transport, as the protocol sees it. Called on the engine's loop."""

    def write(self, names: Iterable[Any], texts: Iterable[Any], /) -> bytes | None:
        """The reply to a result of texts only, in the port's own form; None for any other result.

        It is asked first, because a Reply in between would take as long as the writing.
        """

    def done(self, context: Any, answer: Answer | None, error: RequestError | None, /) -> None:
        """Take what ends the call that came with this context: one of the two is None."""


class PipelineProtocol:
    """One pipeline service. Belongs to the engine's loop.

    Args:
        engine: answers requests.
        ends: the graph's two ends.
        options: see PipelineOptions.
        pool: runs the ends' user code; None when both are the defaults.
        writers: writes large replies; None for the loop's own threads.
    """

    def __init__(
        self,
        engine: Engine,
        ends: Ends,
        options: PipelineOptions,
        pool: Executor | None = None,
        writers: Executor | None = None,
    ) -> None:
        self._engine = engine
        self.ends = ends
        self._pool = pool
        self.writers = Writers(ends, writers)
        self._loop = asyncio.get_running_loop()
        self.options = options
        self._in_pool = ends.blocking_pack or ends.blocking_unpack

    def start(
        self,
        call: paddle.Call,
        client_timeout: float | None,
        port: Port,
        context: Any,
    ) -> Callable[[], object] | None:
        """Begin to answer one call; whoever asks is told by the port's ``done``, now or later.

        Args:
            call: as decoded.
            client_timeout: seconds the caller gives it, from now.
            port: its ``done`` is called exactly once with ``context`` and an answer, or the error
                that ends the call itself: DeadlineExceeded (the caller's own limit passed; the
                server's own is an answer), ServiceClosed (draining), ServiceBusy (at capacity,
                with ``strict_status``). Not called after the cancellation.
            context: handed to ``done``.

        Returns:
            what drops the work when the caller goes away; None when ``done`` was called already.
        """
        options = self.options
        limit, by_client = options.deadline, False
        if client_timeout is not None and client_timeout <= limit:
            limit, by_client = client_timeout, True
        deadline = _monotonic() + limit
        if call.name != options.name and call.name and options.name is not None:
            port.done(context, error_reply(UnknownService(_WRONG_NAME)), None)
            return None
        if self._in_pool:
            return self._start_in_pool(call, deadline, by_client, port, context)
        asked: _Asked = _Asked()
        asked.deadline = deadline
        asked.deadline_by_client = by_client
        asked.log_id = call.logid
        asked.protocol = self
        asked.port = port
        asked.context = context
        asked.typed = bool(call.tensors)
        asked.packing = None
        feed = call.feed
        if feed is None:
            feed, _, error = self.ends.unpack(call)
            if error is not None:
                asked.answered(Outcome(None, error))
                return None
        asked.feed = feed
        try:
            journey = self._engine.submit(asked, asked.answered)
        except RequestError as refusal:
            asked.refuse(refusal)
            return None
        if journey.over:
            return None
        asked.journey = journey
        return asked.cancel

    async def answer(self, call: paddle.Call, client_timeout: float | None = None) -> Reply:
        """The same for a coroutine; its cancellation drops the work.

        Raises:
            DeadlineExceeded, ServiceClosed, ServiceBusy: as ``done`` gets them.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()
        drop = self.start(call, client_timeout, _Futures(), future)
        try:
            return await future
        except asyncio.CancelledError:
            if drop is not None:
                drop()
            raise

    def _start_in_pool(
        self, call: paddle.Call, deadline: float, by_client: bool, port: Port, context: Any
    ) -> Callable[[], object]:
        task = self._loop.create_task(self._answer_in_pool(call, deadline, by_client))

        def ended(task: asyncio.Task[Reply]) -> None:
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                port.done(context, task.result(), None)
            elif isinstance(error, RequestError):
                port.done(context, None, error)
            else:
                port.done(context, None, ours(error))

        task.add_done_callback(ended)
        return task.cancel

    async def _answer_in_pool(self, call: paddle.Call, deadline: float, by_client: bool) -> Reply:
        """One call whose unpacking, packing or both are the user's, which may take their time."""
        ends = self.ends
        if ends.blocking_unpack:
            feed, log_id, error = await self._unpack_in_pool(call, deadline)
        else:
            feed, log_id, error = ends.unpack(call)
        data_id = NO_ID
        if error is not None:
            outcome = Outcome(None, error)
        else:
            future: asyncio.Future[Outcome] = self._loop.create_future()
            request = Request(feed, deadline, log_id, by_client)
            try:
                journey = self._engine.submit(request, partial(_keep, future))
            except RequestError as refusal:
                outcome = self.refused(refusal)
            else:
                data_id = journey.data_id
                try:
                    outcome = await future
                except asyncio.CancelledError:
                    self._engine.cancel(journey)
                    raise
        error = outcome.error
        # Not what the error says of itself: a worker that finds it first does not know whose it is.
        if by_client and isinstance(error, DeadlineExceeded):
            raise error
        if ends.blocking_pack:
            return await self._pack_in_pool(
                deadline, by_client, outcome, data_id, log_id, call.typed
            )
        if ends.takes_long(outcome.value):
            return await self.writers.write(outcome, data_id, log_id, typed=call.typed)
        return ends.pack(outcome, data_id, log_id, call.typed)

    def cancel(self, journey: Any) -> None:
        """Drop the work of a request whose caller has gone."""
        self._engine.cancel(journey)

    def as_reply(self, error: RequestError) -> Reply | None:
        """The reply that an error is, where it ends no call; None where the call itself fails."""
        # Its frames hold the request, and hold the error: together they would outlive the call.
        error.__traceback__ = None
        if isinstance(error, ServiceBusy) and not self.options.strict_status:
            return error_reply(error)
        return None

    def refused(self, refusal: RequestError) -> Outcome:
        """What was not admitted is answered, unless the call itself is to fail."""
        refusal.__traceback__ = None
        strict = isinstance(refusal, ServiceBusy) and self.options.strict_status
        if strict or isinstance(refusal, ServiceClosed):
            raise refusal
        return Outcome(None, refusal)

    async def _unpack_in_pool(
        self, call: paddle.Call, deadline: float
    ) -> tuple[Feed, int, RequestError | None]:
        """The user's ``unpack_request_package``, in a thread, until the deadline."""
        try:
            unpacked: tuple[Feed, int, RequestError | None] = await self._until(
                deadline, self.ends.unpack, call
            )
        except TimeoutError:
            return {}, call.logid, DeadlineExceeded(_LATE)
        return unpacked

    async def _pack_in_pool(
        self,
        deadline: float,
        by_client: bool,
        outcome: Outcome,
        data_id: int,
        log_id: int,
        typed: bool,
    ) -> Reply:
        """The user's ``pack_response_package``, in a thread, until the deadline."""
        try:
            reply: Reply = await self._until(
                deadline, self.ends.pack, outcome, data_id, log_id, typed
            )
        except TimeoutError:
            late = DeadlineExceeded(_LATE, by_client=by_client)
            if by_client:
                raise late from None
            return error_reply(late)
        return reply

    async def _until(self, deadline: float, function: Callable[..., Any], *args: Any) -> Any:
        """The user's code in a thread; TimeoutError at the deadline, whatever it does by then."""
        async with asyncio.timeout(deadline - time.monotonic()):
            return await self._loop.run_in_executor(self._pool, function, *args)


class _Asked(Request):
    """One request and who waits for its answer, which the engine calls with the outcome.

    Attributes:
        protocol: whose request it is.
        port: who asked.
        context: what the port knows the call by.
        typed: whether the call carried tensors.
        journey: the engine's, from its admission until the answer.
        packing: the reply, where it takes long to be written.
    """

    __slots__ = ("context", "journey", "packing", "port", "protocol", "typed")

    # There is one for each request: setting its attributes in place takes half the time of a call
    # with all of them.
    __init__ = object.__init__
    protocol: PipelineProtocol
    port: Port
    context: Any
    typed: bool
    packing: asyncio.Future[Reply] | None
    journey: Any

    def answered(self, outcome: Outcome) -> None:
        """The engine's answer has come."""
        self.journey = None  # it holds this: a circle otherwise
        error = outcome.error
        if error is None:
            value = outcome.value or {}
            try:
                written = self.port.write(value, value.values())
            except Exception:  # noqa: BLE001 - an op's own kind of dict: it is judged below
                written = None
            if written is not None:
                self.port.done(self.context, written, None)
                return
            protocol = self.protocol
            if protocol.ends.takes_long(value):
                self.packing = protocol.writers.write(outcome, NO_ID, self.log_id, typed=self.typed)
                self.packing.add_done_callback(self.packed)
                return
        # Not what the error says of itself: a worker that finds it first does not know whose it is.
        elif self.deadline_by_client and isinstance(error, DeadlineExceeded):
            self.port.done(self.context, None, error)
            return
        # The default one, which looks at no ids.
        reply = self.protocol.ends.pack(outcome, NO_ID, self.log_id, self.typed)
        self.port.done(self.context, reply, None)

    def packed(self, reply: asyncio.Future[Reply]) -> None:
        """It was made elsewhere, unless nobody waits for it any more."""
        if not reply.cancelled():
            self.port.done(self.context, reply.result(), None)

    def refuse(self, refusal: RequestError) -> None:
        """It was not admitted."""
        try:
            outcome = self.protocol.refused(refusal)
        except RequestError as error:
            self.port.done(self.context, None, error)
        else:
            self.answered(outcome)

    def cancel(self) -> None:
        """Nobody waits any more."""
        if self.packing is not None:
            self.packing.cancel()
        journey, self.journey = self.journey, None
        if journey is not None:
            self.protocol.cancel(journey)


class _Futures:
    """The port of coroutines; a future is what a call is known by."""

    def write(self, _names: Iterable[Any], _texts: Iterable[Any], /) -> None:
        return None

    def done(
        self,
        future: asyncio.Future[Reply],
        answer: Answer | None,
        error: RequestError | None,
        /,
    ) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        elif answer is not None:
            assert not isinstance(answer, bytes), "nothing was written"
            future.set_result(answer)


def _keep(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    """Complete the future, unless its caller went away in this very turn."""
    if not future.done():
        future.set_result(outcome)
