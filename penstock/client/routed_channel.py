"""Calls over several equal servers: for threads, and for an event loop.

What may have run is repeated only if the call is declared idempotent. The decisions are in
``routing``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from copy import copy
from functools import partial
from typing import Any, TypeVar

from penstock.client.call import METHOD, failure
from penstock.client.channels import AsyncChannel, Channel, LoopThread
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed, NotConnected
from penstock.client.routed_call import Ended, Replicas, RoutedCall, Sent
from penstock.client.routing import Attempts, HedgeBudget
from penstock.protocols.status import GrpcCode

T = TypeVar("T")


class RoutedCalls:
    """Calls for threads. Thread-safe; not usable in a forked child.

    Args:
        channel: calls the servers.
        strategy: a value of ``routing.STRATEGIES``.
        budget: of backup requests; None for none.
        named: see ``Replicas``.
    """

    def __init__(
        self,
        channel: Channel,
        strategy: str,
        budget: HedgeBudget | None = None,
        named: Mapping[int, Endpoint] | None = None,
    ) -> None:
        self.channel = channel
        # They refer to no channel, which is closed when nothing refers to it.
        self._replicas = partial(
            Replicas, strategy=strategy, budget=budget or HedgeBudget(0.0), named=named
        )
        self._lock = threading.Lock()
        self._open: tuple[LoopThread, Replicas] | None = None

    def opened(self) -> tuple[LoopThread, Replicas]:
        """The thread of the calls, and the servers there.

        Raises:
            CallFailed: CANCELLED; it is closed.
        """
        with self._lock:
            if self._open is None:
                thread, endpoints = self.channel.opened()
                self._open = thread, self._replicas(endpoints, thread.loop)
            return self._open

    def start(
        self, sent: Sent, attempts: Attempts, on_end: Callable[[Ended], object]
    ) -> RoutedCall:
        """Begin a call and return at once; ``on_end`` is called once, from another thread.

        Raises:
            CallFailed: CANCELLED; it is closed.
        """
        thread, replicas = self._open or self.opened()
        call = RoutedCall(replicas, sent, attempts, on_end)
        thread.hand_over(RoutedCall.start, call)
        return call

    def call(self, sent: Sent, attempts: Attempts) -> Any:
        """Make one call and wait for its value, on a bare lock: a future costs more CPU time.

        Raises:
            CallFailed: there was no answer; CANCELLED if it is or was closed.
        """
        ends: list[Ended] = []
        gate = threading.Lock()
        gate.acquire()

        def on_end(ended: Ended) -> None:
            ends.append(ended)
            gate.release()

        call = self.start(sent, attempts, on_end)
        try:
            gate.acquire()
        except BaseException:  # an interrupt: the caller no longer waits
            self.cancel(call, failure(GrpcCode.CANCELLED, "cancelled by the caller"))
            raise
        return _value(ends.pop())

    def cancel(self, call: RoutedCall, failed: CallFailed) -> None:
        """End a call, also on the server; no effect if it has ended."""
        opened = self._open
        if opened is not None:  # else another thread has closed it, with all calls
            opened[0].hand_over(call.cancel, failed)

    def close(self) -> None:
        """Disconnect and wait for it; calls in flight end with CANCELLED."""
        with self._lock:
            self._open = None
        self.channel.close()


class RoutedFuture(Future[T]):
    """The future of a call. Any thread; callbacks run on the thread of the clients."""

    def __init__(self, calls: RoutedCalls) -> None:
        super().__init__()
        self._calls = calls
        self._call: RoutedCall | None = None

    def result(self, timeout: float | None = None) -> T:
        """Wait for the answer.

        Args:
            timeout: seconds to wait here; the call itself continues afterwards.

        Raises:
            TimeoutError: no answer yet.
            CallFailed: the call failed; ``retryable``: whether a retry may succeed.
            RequestError: of an ``Endpoint``: the server answered with an error.
            NotConnected: the call was started before this process was forked.
        """
        if not self.done() and not self._calls.channel.is_ours():
            raise NotConnected("the call belongs to the process that this one was forked from")
        failed = self.exception(timeout)
        if isinstance(failed, CallFailed):
            raise copy(failed)  # a copy: raising an exception changes its traceback
        return super().result()

    def cancel(self) -> bool:
        """Cancel the call, also on the server. False if it had already ended."""
        if not self._calls.channel.is_ours():
            return False
        failed = CallFailed(GrpcCode.CANCELLED, "cancelled by the caller")
        if not self._set(failed):
            return False
        if self._call is not None:
            self._calls.cancel(self._call, failed)
        return True

    def begin(self, sent: Sent, attempts: Attempts) -> None:
        """Start the call; once.

        Raises:
            CallFailed: CANCELLED; the client is closed.
        """
        self._call = self._calls.start(sent, attempts, self._end)

    def _end(self, ended: Ended) -> None:
        self._set(ended.value if isinstance(ended.value, Exception) else self._result_of(ended))

    def _result_of(self, ended: Ended) -> T:
        found: T = ended.value
        return found

    def _set(self, outcome: Any) -> bool:
        try:
            if isinstance(outcome, Exception):
                self.set_exception(outcome)
            else:
                self.set_result(outcome)
        except InvalidStateError:
            return False
        return True


class RoutedChannel:
    """Calls for an event loop. Use on the channel's loop only; it is closed with the channel.

    Args:
        channel: calls the servers.
        strategy: a value of ``routing.STRATEGIES``.
        retries: attempts after the first one, with pauses if all servers have refused the call;
            None: each server is asked once, without a pause.
        logs_rows: see ``Replicas``.
    """

    def __init__(
        self,
        channel: AsyncChannel,
        strategy: str = "least_requests",
        retries: int | None = None,
        *,
        logs_rows: bool = False,
    ) -> None:
        self.channel = channel
        self._retries = retries
        self._loop = asyncio.get_running_loop()
        self._replicas = Replicas(
            channel.opened, self._loop, strategy, HedgeBudget(0.0), logs_rows=logs_rows
        )

    async def call(
        self, request: bytes, *, deadline: float | None, method: str = METHOD, fields: bytes = b""
    ) -> bytes:
        """Make one call. Cancelling the task cancels the call.

        Raises:
            CallFailed: there was no reply.
        """
        frame, block = self.channel.framed(request, fields)
        sent = Sent(frame=frame, method=method, fields=block, deadline=deadline, decode=_as_it_is)
        reply: bytes = await self.send(sent)
        return reply

    async def send(self, sent: Sent) -> Any:
        """Make one call; as ``call``, with a decoded reply."""
        future: asyncio.Future[Ended] = self._loop.create_future()

        def on_end(ended: Ended) -> None:
            if not future.done():
                future.set_result(ended)

        retries = self._retries
        attempts = Attempts(
            len(self._replicas.names) if retries is None else retries,
            sent.deadline,
            idempotent=False,
            rounds=retries is not None,
        )
        call = RoutedCall(self._replicas, sent, attempts, on_end)
        call.start()
        try:
            ended = await future
        except asyncio.CancelledError:
            call.cancel(failure(GrpcCode.CANCELLED, "cancelled by the caller"))
            raise
        return _value(ended)


def _value(ended: Ended) -> Any:
    if isinstance(ended.value, CallFailed):
        # A copy: the traceback's frames hold the outcome, which would be a cycle.
        raise copy(ended.value)
    if isinstance(ended.value, Exception):
        raise ended.value
    return ended.value


def _as_it_is(reply: bytes) -> bytes:
    return reply
