"""Channels: the endpoints of one client, for threads and for an event loop.

A call sends the bytes of a request and ends with the bytes of a reply or ``CallFailed``. The first
call connects; after a broken connection the next call reconnects. A compressed reply is refused,
because its size is unknown until it is decompressed. Proxy settings are not used.

All threaded channels of a process share one thread with an event loop. The first call starts it; it
ends when the last channel is closed, or when the interpreter exits. A forked child starts a thread
of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from math import ceil
from typing import Any, TypeVar

from penstock.client.balancer import Endpoints
from penstock.client.call import METHOD, Call, Outcome, cancel, failure
from penstock.client.connection import CallProtocol
from penstock.client.endpoints import Endpoint, own_address
from penstock.client.errors import CallFailed
from penstock.client.grpc import GRPC
from penstock.client.message_stream import Arrived, AsyncMessages, Messages, StreamCall
from penstock.client.tls import Security, Tls
from penstock.client.token import Token, metadata
from penstock.protocols.status import GrpcCode

T = TypeVar("T")

_CLOSE_TIMEOUT = 5.0
"""Timeout of ``close`` in seconds: longer than disconnecting takes."""


class LoopThread:
    """An event loop in a thread of its own. Thread-safe."""

    def __init__(self) -> None:
        import uvloop  # here, to keep the import of a client fast

        self.loop = uvloop.new_event_loop()
        self.users: set[Endpoints] = set()
        self._orders: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._woken = False
        self._stopped = False
        self._closing: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="penstock-client", daemon=True)
        self._thread.start()

    def hand_over(self, act: Callable[[Any], None], argument: object) -> None:
        """Call ``act(argument)`` on the loop's thread, in the order of these calls.

        Takes no lock, so that finalizers may call it. After the loop's thread has ended, it is
        called on the caller's thread; all channels are closed then.
        """
        self._orders.append((act, argument))
        if not self._woken:
            # One wake-up for all calls that are queued before the thread runs.
            self._woken = True
            if not self._stopped:
                try:
                    self.loop.call_soon_threadsafe(self._drain)
                except RuntimeError:  # the loop was closed meanwhile
                    self._stopped = True
        if self._stopped:
            self._drain()

    def close(self, endpoints: Endpoints) -> None:
        """Close endpoints and wait for it; on the loop's own thread, do not wait."""
        done = self.begin_close(endpoints)
        if threading.current_thread() is not self._thread:
            done.wait(_CLOSE_TIMEOUT)
            if not self.users:
                self._thread.join(_CLOSE_TIMEOUT)

    def begin_close(self, endpoints: Endpoints) -> threading.Event:
        """Close endpoints without waiting, for finalizers; the event is set when it is done."""
        done = threading.Event()
        self.hand_over(self._close, (endpoints, done))
        return done

    def stop(self) -> None:
        """Close everything and end the thread."""
        self.hand_over(self._close_all, None)
        self._thread.join(_CLOSE_TIMEOUT)

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()
            self._stopped = True
            self._drain()

    def _drain(self) -> None:
        # Reset first, so that an entry that is added from now on wakes the thread again.
        self._woken = False
        while self._orders:
            try:
                act, argument = self._orders.popleft()
            except IndexError:  # after the loop's end several threads may drain the queue
                return
            act(argument)

    def _close(self, order: tuple[Endpoints, threading.Event]) -> None:
        endpoints, done = order
        endpoints.close()
        if self._stopped:
            done.set()
            return
        task = self.loop.create_task(self._wait_closed(endpoints, done))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _wait_closed(self, endpoints: Endpoints, done: threading.Event) -> None:
        await endpoints.closed()
        if endpoints in self.users and _release(self, endpoints):
            self.loop.stop()
        done.set()

    def _close_all(self, _: None) -> None:
        for endpoints in list(self.users):
            self._close((endpoints, threading.Event()))
        if not self.users:
            self.loop.stop()


_lock = threading.Lock()
_running: LoopThread | None = None
_forgotten: list[LoopThread] = []  # of the parents of forks: freeing one would affect the parent


def _open(
    endpoints: Sequence[Endpoint], security: Security | None, protocol: CallProtocol
) -> tuple[LoopThread, Endpoints]:
    """Open endpoints on this process's loop thread, which is started if needed."""
    global _running
    with _lock:
        if _running is None:
            _running = LoopThread()
        opened = Endpoints(endpoints, _running.loop, security, protocol=protocol)
        _running.users.add(opened)
        return _running, opened


def _release(thread: LoopThread, endpoints: Endpoints) -> bool:
    """Release a use of the loop thread. Returns whether it was the last one."""
    global _running
    with _lock:
        thread.users.discard(endpoints)
        if not thread.users and _running is thread:
            _running = None
        return not thread.users


def _at_exit() -> None:
    if _running is not None:
        _running.stop()


def _drop_inherited_state() -> None:
    """Drop the parent's thread in a forked child: it does not run, and its lock may be held."""
    global _lock, _running
    if _running is not None:
        _forgotten.append(_running)
    _running = None
    _lock = threading.Lock()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_drop_inherited_state)


class _Channel:
    """The base class of both channels: the endpoints, and the process that may use them."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        tls: Tls | None,
        protocol: CallProtocol,
        token: Token | None,
    ) -> None:
        """Start and connect nothing before the first call.

        Raises:
            OSError: a file of ``tls`` cannot be read.
            ValueError: a header field cannot hold the token.
        """
        self.endpoints = endpoints
        # Cached: finding it costs more than a call, and it is only for the server's log.
        self.own_address = cache(own_address)
        self._security = None if tls is None else Security(tls, protocol.alpn)
        self._protocol = protocol
        self._metadata = metadata(token, protocol.encode_fields)
        self._process = os.getpid()

    def is_ours(self) -> bool:
        """Whether this process created it. In a forked child the sockets belong to the parent."""
        return self._process == os.getpid()

    def framed(self, request: bytes, fields: bytes = b"") -> tuple[bytes, bytes]:
        """A request as it is sent, and its header block, with the token.

        Raises:
            ValueError: a header field cannot hold the function's token.
        """
        return self._protocol.frame(request), fields + self._metadata()


class Channel(_Channel):
    """The endpoints of one client, for threads. Thread-safe; not usable in a forked child.

    A channel without references is closed by its finalizer.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        tls: Tls | None,
        protocol: CallProtocol = GRPC,
        token: Token | None = None,
    ) -> None:
        super().__init__(endpoints, tls, protocol, token)
        self._lock = threading.Lock()
        self._open: tuple[LoopThread, Endpoints] | None = None
        self._closed = False

    def start(
        self,
        request: bytes,
        on_outcome: Callable[[Outcome], object],
        *,
        deadline: float | None,
        method: str = METHOD,
    ) -> Call:
        """Begin a call and return at once.

        Args:
            request: the message.
            on_outcome: called once, from another thread; it must be quick.
            deadline: monotonic seconds; None means no limit.
            method: the path of the method.

        Raises:
            CallFailed: CANCELLED; the channel is closed.
            ValueError: a header field cannot hold the function's token.
        """
        frame = self._protocol.frame(request)
        call = Call(frame, deadline, on_outcome, method, self._metadata())
        thread, endpoints = self._open or self.opened()
        thread.hand_over(endpoints.start, call)
        return call

    def call(self, request: bytes, *, deadline: float | None, method: str = METHOD) -> bytes:
        """Make one call and wait for it, on a bare lock: a future costs a fifth more CPU time.

        Raises:
            CallFailed: there was no reply; CANCELLED if the channel is or was closed.
        """
        outcomes: list[Outcome] = []
        gate = threading.Lock()
        gate.acquire()

        def on_outcome(outcome: Outcome) -> None:
            outcomes.append(outcome)
            gate.release()

        call = self.start(request, on_outcome, deadline=deadline, method=method)
        try:
            gate.acquire()
        except BaseException:  # an interrupt: the caller no longer waits
            self.cancel(call)
            raise
        return _reply(outcomes.pop())

    def stream(
        self,
        request: bytes,
        *,
        deadline: float | None,
        method: str,
        fields: bytes,
        decode: Callable[[bytes], T | None],
        explain: Callable[[CallFailed], CallFailed],
    ) -> Messages[T]:
        """Begin a call whose answer has several messages; see ``start`` and ``Messages``.

        ``fields``: a header block of further fields.
        """
        frame = self._protocol.frame(request)
        thread, endpoints = self._open or self.opened()

        def start(
            on_arrived: Callable[[Arrived], object], on_outcome: Callable[[Outcome], object]
        ) -> StreamCall:
            block = fields + self._metadata()
            call = StreamCall(frame, deadline, on_outcome, on_arrived, method, block)
            thread.hand_over(endpoints.start, call)
            return call

        return Messages(start, thread.hand_over, decode, explain)

    def cancel(self, call: Call) -> None:
        """Cancel a call, also on the server; no effect if it has ended."""
        if self._open is not None:
            self._open[0].hand_over(cancel, call)

    def close(self) -> None:
        """Disconnect and wait for it; in-flight calls end with CANCELLED."""
        with self._lock:
            opened, self._open = self._open, None
            self._closed = True
        if opened is not None:
            thread, endpoints = opened
            thread.close(endpoints)

    def opened(self) -> tuple[LoopThread, Endpoints]:
        """The thread of the calls, and the endpoints there.

        Raises:
            CallFailed: CANCELLED; the channel is closed.
        """
        with self._lock:
            if self._closed:
                raise failure(GrpcCode.CANCELLED, "the client was closed", sent=False)
            if self._open is None:
                self._open = opened = _open(self.endpoints, self._security, self._protocol)
                weakref.finalize(self, _drop, os.getpid(), *opened).atexit = False
            return self._open


def _reply(outcome: Outcome) -> bytes:
    if isinstance(outcome, CallFailed):
        # A copy: the traceback's frames hold the outcome, which would be a cycle.
        raise copy(outcome)
    return outcome


def _drop(process: int, thread: LoopThread, endpoints: Endpoints) -> None:
    if process == os.getpid():
        thread.begin_close(endpoints)


class AsyncChannel(_Channel):
    """The endpoints of one client, for the running event loop.

    A channel without references is closed by its finalizer.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        tls: Tls | None,
        rounding: Callable[[float], int] = ceil,
        on_health: Callable[[Endpoint, str | None], object] | None = None,
        protocol: CallProtocol = GRPC,
        token: Token | None = None,
    ) -> None:
        """Connect nothing yet.

        Args:
            endpoints: the endpoints.
            tls: None for connections without TLS.
            rounding: see ``EndpointChannel``.
            on_health: see ``EndpointChannel``.
            protocol: the protocol of the endpoints.
            token: a key or token, sent with each gRPC call.
        """
        super().__init__(endpoints, tls, protocol, token)
        self._loop = asyncio.get_running_loop()
        self._open = Endpoints(endpoints, self._loop, self._security, rounding, on_health, protocol)
        drop = weakref.finalize(self, _drop_async, os.getpid(), self._loop, self._open)
        drop.atexit = False

    def is_ours(self) -> bool:
        """Whether it was created in this process, on this loop."""
        return super().is_ours() and self._loop is asyncio.get_running_loop()

    def probe(self) -> None:
        """Connect to all endpoints, without waiting for it."""
        self._open.probe()

    @property
    def opened(self) -> Endpoints:
        """The endpoints."""
        return self._open

    async def call(
        self,
        request: bytes,
        *,
        deadline: float | None,
        method: str = METHOD,
        fields: bytes = b"",
    ) -> bytes:
        """Make one call, as in ``Channel.start``. Cancelling the task cancels the call."""
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def on_outcome(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        frame, block = self.framed(request, fields)
        call = Call(frame, deadline, on_outcome, method, block)
        self._open.start(call)
        try:
            outcome = await future
        except asyncio.CancelledError:
            cancel(call)
            raise
        return _reply(outcome)

    def stream(
        self,
        request: bytes,
        *,
        deadline: float | None,
        method: str,
        fields: bytes,
        decode: Callable[[bytes], T | None],
        explain: Callable[[CallFailed], CallFailed],
    ) -> AsyncMessages[T]:
        """Begin a call whose answer has several messages; see ``Channel.stream``."""
        frame = self._protocol.frame(request)

        def start(
            on_arrived: Callable[[Arrived], object], on_outcome: Callable[[Outcome], object]
        ) -> StreamCall:
            block = fields + self._metadata()
            call = StreamCall(frame, deadline, on_outcome, on_arrived, method, block)
            self._open.start(call)
            return call

        return AsyncMessages(start, decode, explain)

    async def close(self) -> None:
        """Disconnect and wait for it; in-flight calls end with CANCELLED."""
        self._open.close()
        await self._open.closed()


def _drop_async(process: int, loop: asyncio.AbstractEventLoop, endpoints: Endpoints) -> None:
    if process == os.getpid() and not loop.is_closed():
        loop.call_soon_threadsafe(endpoints.close)
