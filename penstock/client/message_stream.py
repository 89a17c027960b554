"""One gRPC call whose answer has several messages, and their iterators, for threads and for an
event loop.

Messages are returned to the server's window when they are taken: a slow reader holds up its own
call and no other one of the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from copy import copy
from queue import SimpleQueue
from typing import Final, Generic, Self, TypeAlias, TypeVar

from penstock.client.call import Call, Outcome, cancel, of_bad_message, of_end
from penstock.client.errors import CallFailed
from penstock.client.messages import MAX_MESSAGE_BYTES
from penstock.protocols.grpc import GrpcError, MessageReader
from penstock.protocols.status import GrpcCode

T = TypeVar("T")

_GIVEN_BACK_AT_ONCE: Final = 64 << 10
_MOST_HELD: Final = 1 << 20
"""Most bytes that are held of one message: a quarter of the window, since a message may be larger
than that. So a reader that stops holds up its server at four large messages."""
_CANCELLED: Final = "cancelled by the caller"

Arrived: TypeAlias = tuple[list[bytes], int]
"""Complete messages, and the bytes of the window that they hold."""


class StreamCall(Call):
    """A call whose answer has any number of messages; its outcome is empty if it ended well.

    Args:
        on_arrived: called with messages, in their order, before the outcome.

    Attributes:
        begun: a message has arrived, so that the call is not sent again.
    """

    __slots__ = ("_held", "_on_arrived", "begun")

    def __init__(
        self,
        request: bytes,
        deadline: float | None,
        on_outcome: Callable[[Outcome], object],
        on_arrived: Callable[[Arrived], object],
        method: str,
        fields: bytes,
    ) -> None:
        super().__init__(request, deadline, on_outcome, method, fields)
        self._on_arrived = on_arrived
        self._held = 0  # bytes of the window, of a message that is not complete
        self.begun = False

    def take(self, data: bytes, counted: int) -> tuple[int, CallFailed | None]:
        """Process a part of the answer.

        Args:
            data: the part.
            counted: its bytes in the window.

        Returns:
            The bytes to return to the window now, and a failure if it is invalid.
        """
        if self._reader is None:
            self._reader = MessageReader(MAX_MESSAGE_BYTES)
        try:
            messages = self._reader.feed(data)
        except GrpcError as error:
            return counted, of_bad_message(error, self.encoding)
        held, self._held = self._held + counted, 0
        if messages:
            self.begun = True
            self.untried = ()
            self._on_arrived((messages, held))
        elif held >= _MOST_HELD:
            return held, None
        else:
            self._held = held
        return 0, None

    def outcome(self, trailers: Mapping[bytes, bytes]) -> Outcome:
        """Return the outcome from trailers."""
        if self._reader is not None:
            try:
                self._reader.finish()
            except GrpcError as error:
                return of_bad_message(error)
        return of_end(trailers, b"")


GivenBack: TypeAlias = tuple[StreamCall, int]
"""A call, and bytes of taken messages."""

Starts: TypeAlias = Callable[[Callable[[Arrived], object], Callable[[Outcome], object]], StreamCall]
"""Begins a call; it is given what to call with messages and with the outcome."""


def give_back(order: GivenBack) -> None:
    """Return bytes of taken messages to the server's window. The loop's thread only."""
    call, count = order
    if call.connection is not None:
        call.connection.consumed(call, count)


class _Messages(Generic[T]):
    """What both iterators share.

    Args:
        decode: makes a value of a message; None if it has none. It raises CallFailed for an error.
        explain: makes the failure that is raised of the one that occurred.
    """

    def __init__(
        self, decode: Callable[[bytes], T | None], explain: Callable[[CallFailed], CallFailed]
    ) -> None:
        self._decode = decode
        self._explain = explain
        self._ready: deque[bytes] = deque()
        self._end: Outcome | None = None
        self._held = 0

    def _take(self, arrived: Arrived | Outcome) -> int:
        """Add what has arrived; returns how many bytes are to be returned to the window."""
        if not isinstance(arrived, tuple):
            self._end = arrived
            return 0
        messages, counted = arrived
        self._ready += messages
        self._held += counted
        if self._held < _GIVEN_BACK_AT_ONCE:
            return 0
        count, self._held = self._held, 0
        return count

    def _next(self) -> T | None:
        """The next value that has arrived; None if there is none.

        Raises:
            CallFailed: the message is an error, or cannot be decoded.
        """
        while self._ready:
            try:
                value = self._decode(self._ready.popleft())
            except CallFailed as failed:
                self._fail(failed)
                raise
            if value is not None:
                return value
        return None

    def _fail(self, failed: CallFailed) -> None:
        self._ready.clear()
        self._end = failed

    def _cancel(self) -> None:
        if self._ready or not isinstance(self._end, bytes):
            self._fail(CallFailed(GrpcCode.CANCELLED, _CANCELLED))

    def _raise_failure(self) -> None:
        if isinstance(self._end, CallFailed):
            # A copy, because raising an exception changes its traceback.
            raise copy(self._explain(self._end))


class Messages(_Messages[T], Iterator[T]):
    """The values of a call's messages. One thread at a time iterates; any may close it.

    Args:
        start: begins the call.
        hand_over: calls a function with an argument on the loop's thread.
        decode, explain: see ``_Messages``.
    """

    def __init__(
        self,
        start: Starts,
        hand_over: Callable[
            [Callable[[tuple[StreamCall, int]], None], tuple[StreamCall, int]], None
        ],
        decode: Callable[[bytes], T | None],
        explain: Callable[[CallFailed], CallFailed],
    ) -> None:
        super().__init__(decode, explain)
        self._closed = False
        self._arrived: SimpleQueue[Arrived | Outcome] = SimpleQueue()
        self._hand_over = hand_over
        self._call = start(self._arrived.put, self._arrived.put)

    def __next__(self) -> T:
        """Wait for the next value.

        Raises:
            StopIteration: the answer is complete.
            CallFailed: it is not; CANCELLED after ``close``.
        """
        while not self._closed:
            try:
                value = self._next()
                if value is not None:
                    return value
                if self._end is not None:
                    break
                count = self._take(self._arrived.get())
            except BaseException as error:
                if not isinstance(error, CallFailed):  # an interrupt: the caller no longer waits
                    self._cancel()
                self._stop()
                raise
            if count:
                self._hand_over(give_back, (self._call, count))
        if self._closed:
            self._cancel()
        self._raise_failure()
        raise StopIteration

    def close(self) -> None:
        """Cancel the call, unless it has ended; a thread that waits gets CallFailed."""
        self._closed = True
        self._stop()

    def _stop(self) -> None:
        self._hand_over(_cancel, (self._call, 0))

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call") and self._end is None:
            self._stop()


def _cancel(order: GivenBack) -> None:
    cancel(order[0])


class AsyncMessages(_Messages[T], AsyncIterator[T]):
    """``Messages`` for an event loop. One task at a time; cancelling it cancels the call.

    Args:
        start, decode, explain: see ``Messages``.
    """

    def __init__(
        self,
        start: Starts,
        decode: Callable[[bytes], T | None],
        explain: Callable[[CallFailed], CallFailed],
    ) -> None:
        super().__init__(decode, explain)
        self._arrived: asyncio.Queue[Arrived | Outcome] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._call = start(self._arrived.put_nowait, self._arrived.put_nowait)

    async def __anext__(self) -> T:
        """Wait for the next value.

        Raises:
            StopAsyncIteration: the answer is complete.
            CallFailed: it is not; CANCELLED after ``aclose``.
        """
        while True:
            try:
                value = self._next()
                if value is not None:
                    return value
                if self._end is not None:
                    break
                count = self._take(await self._arrived.get())
            except BaseException as error:
                if not isinstance(error, CallFailed):
                    self._cancel()
                cancel(self._call)
                raise
            if count:
                give_back((self._call, count))
        self._raise_failure()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Cancel the call, unless it has ended."""
        self._cancel()
        cancel(self._call)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_call") and not self._call.ended and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(cancel, self._call)
