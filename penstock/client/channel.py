"""One endpoint's line, threaded and async: what the clients know of the transport.

Bytes go in, bytes or ``CallFailed`` come out; no type of the transport passes but ``Call``, as a
token. A connection is made by the first call and made again after it broke. A compressed reply is
refused, because its size is unknown until it is unpacked. Proxy settings of the environment are not
used.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable

from penstock.client.answers import Outcome, failure
from penstock.client.background import Background, open_line
from penstock.client.call import Call
from penstock.client.endpoints import Endpoint
from penstock.client.errors import CallFailed
from penstock.client.line import Line
from penstock.client.tls import Tls, read_files
from penstock.protocols.grpc import encode_message
from penstock.protocols.status import GrpcCode


def _closed() -> CallFailed:
    return failure(GrpcCode.CANCELLED, "the client was closed", sent=False)


class Channel:
    """A line to one endpoint for threaded callers. Any thread, but not in a forked child.

    The last reference to a channel closes it, though later than ``close`` would.
    """

    def __init__(self, endpoint: Endpoint, tls: Tls | None) -> None:
        """Nothing runs and nothing is connected before the first call.

        Raises:
            OSError: a file of ``tls`` cannot be read.
        """
        self._endpoint = endpoint
        self._security = None if tls is None else read_files(tls)
        self._lock = threading.Lock()
        self._open: tuple[Background, Line] | None = None
        self._closed = False

    def call(self, request: bytes, *, deadline: float | None) -> bytes:
        """Make one call and wait for it.

        Args:
            request: the message.
            deadline: monotonic seconds; None means no limit.

        Raises:
            CallFailed: no reply; CANCELLED when the channel is or was closed.
        """
        waiter = _Waiter()
        call = self.start(request, waiter.heard, deadline=deadline)
        try:
            waiter.gate.acquire()
        except BaseException:  # an interrupt: nobody waits any more
            self.cancel(call)
            raise
        outcome = waiter.outcome
        if isinstance(outcome, bytes):
            return outcome
        assert outcome is not None
        raise outcome

    def start(
        self, request: bytes, heard: Callable[[Outcome], None], *, deadline: float | None
    ) -> Call:
        """Begin a call and return at once; arguments as in ``call``.

        ``heard`` is called once with the outcome, from another thread, and must be quick.

        Raises:
            CallFailed: CANCELLED; the channel is closed.
        """
        call = Call(encode_message(request), deadline, heard)
        background, line = self._open or self._opened()
        background.hand_over(line.start, call)
        return call

    def cancel(self, call: Call) -> None:
        """Tell the server that nobody waits any more; nothing happens if the call has ended."""
        if self._open is not None:
            background, line = self._open
            background.hand_over(line.abandon, call)

    def close(self) -> None:
        """Disconnect and wait until it is done; calls under way end with CANCELLED."""
        with self._lock:
            opened, self._open = self._open, None
            self._closed = True
        if opened is not None:
            background, line = opened
            background.close(line)

    def _opened(self) -> tuple[Background, Line]:
        with self._lock:
            if self._closed:
                raise _closed()
            if self._open is None:
                self._open = opened = open_line(self._endpoint, self._security)
                weakref.finalize(self, _forsake, os.getpid(), *opened).atexit = False
            return self._open


class _Waiter:
    """Where one thread waits for one outcome."""

    __slots__ = ("gate", "outcome")

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.gate = threading.Lock()
        self.gate.acquire()

    def heard(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.gate.release()


def _forsake(process: int, background: Background, line: Line) -> None:
    if process == os.getpid():
        background.forsake(line)


class AsyncChannel:
    """A line to one endpoint for the running event loop.

    The last reference to a channel closes it, though later than ``close`` would.
    """

    def __init__(self, endpoint: Endpoint, tls: Tls | None) -> None:
        """Nothing is connected before the first call.

        Raises:
            OSError: a file of ``tls`` cannot be read.
        """
        self._loop = asyncio.get_running_loop()
        security = None if tls is None else read_files(tls)
        self._line = Line(endpoint, self._loop, security)
        weakref.finalize(self, _drop, os.getpid(), self._loop, self._line).atexit = False

    async def call(self, request: bytes, *, deadline: float | None) -> bytes:
        """Make one call. Cancelling the task cancels the call.

        Args:
            request: the message.
            deadline: monotonic seconds; None means no limit.

        Raises:
            CallFailed: no reply; CANCELLED when the channel is or was closed.
        """
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def heard(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        call = Call(encode_message(request), deadline, heard)
        self._line.start(call)
        try:
            outcome = await future
        except asyncio.CancelledError:
            self._line.abandon(call)
            raise
        if isinstance(outcome, bytes):
            return outcome
        raise outcome

    async def close(self) -> None:
        """Disconnect and wait until it is done; calls under way end with CANCELLED."""
        self._line.close()
        await self._line.closed()


def _drop(process: int, loop: asyncio.AbstractEventLoop, line: Line) -> None:
    if process == os.getpid() and not loop.is_closed():
        loop.call_soon_threadsafe(line.close)
