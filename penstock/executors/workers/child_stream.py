"""ChildStream: the worker's end of a stream whose engine is at the other end of a link.

Of a ``JoiningStream``, the first piece, and one that took long to make, is sent at once. A piece
that follows another one quickly waits for its followers, so that one frame has several: they are
sent when there is no more credit, and by a thread as soon as the interpreter gives it a turn, while
the next piece is made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from math import inf
from time import monotonic
from typing import Any, Final, Protocol

from penstock.executors.stream import MOST_BYTES, MOST_PIECES, size_of
from penstock.request import Feed

SLOW: Final = 200e-6
"""Seconds between two pieces from which on the second one is sent at once: the thread's turn would
cost less than that."""
_ALONE: Final = 4 << 10
"""Bytes from which on a piece is sent at once."""
_PLAIN: Final = frozenset((bytes, int, float, bool, type(None)))


class Engine(Protocol):
    """The link to the engine, for a stream.

    Attributes:
        sending: held by whoever sends a frame.
    """

    sending: AbstractContextManager[Any]

    def send_pieces(self, number: int, pieces: list[Feed]) -> None:
        """Send pieces of the batch ``number`` in one frame.

        Raises:
            RequestError: one of them cannot be sent.
        """

    def read(self, wait: bool) -> bool:
        """Read frames, if there are any, or wait for one; returns False when the engine has
        ended.
        """

    def has_cancelled(self, number: int) -> bool | None:
        """Whether no further piece of the batch is wanted, without a system call; None if only
        ``read`` can tell.
        """


class Sender:
    """A thread that sends pieces while the next one is made."""

    def __init__(self) -> None:
        self._stream: JoiningStream | None = None
        self._asked = False
        self._due = threading.Lock()  # released when there are pieces
        self._due.acquire()
        threading.Thread(target=self._run, name="sender", daemon=True).start()

    def soon(self, stream: JoiningStream) -> None:
        """Send the stream's pieces; without giving up the interpreter's lock now."""
        if not self._asked:
            self._asked, self._stream = True, stream
            self._due.release()

    def _run(self) -> None:
        while True:
            self._due.acquire()
            self._asked = False
            stream, self._stream = self._stream, None
            if stream is not None:
                with suppress(OSError):  # the engine has ended, which the other thread notices
                    stream.flush()
            del stream


class ChildStream:
    """The pieces of one sample's answer; see ``Stream``, whose limits it keeps.

    Args:
        number: of the batch.
        send: sends a piece; returns False when the engine has ended.
        read: reads the engine's frames: waits for one if its argument says so; returns False when
            the engine has ended.

    Attributes:
        cancelled: no further piece is wanted.
    """

    def __init__(
        self, number: int, send: Callable[[int, Feed], None], read: Callable[[bool], bool]
    ) -> None:
        self.number = number
        self.cancelled = False
        self._send = send
        self._read = read
        self._made = 0
        self._uncredited: deque[int] = deque()  # the sizes of pieces without credit
        self._bytes = 0  # their sum

    def put(self, piece: Feed) -> bool:
        """Send a piece, and wait for credit; returns whether a further one is wanted.

        Raises:
            RequestError: it cannot be sent.
        """
        self.add(piece)
        return self._wait(alive=self._read(False))

    def add(self, piece: Feed) -> None:
        """Send a piece, without waiting.

        Raises:
            RequestError: it cannot be sent.
        """
        self._send(self.number, piece)
        self._count(size_of(piece))

    @property
    def is_full(self) -> bool:
        """Whether the worker must wait for credit."""
        return len(self._uncredited) >= MOST_PIECES or self._bytes >= MOST_BYTES

    def credit(self, count: int) -> None:
        """The caller has got the first ``count`` pieces."""
        uncredited = self._uncredited
        while uncredited and self._made - len(uncredited) < count:
            self._bytes -= uncredited.popleft()

    def _count(self, size: int) -> None:
        self._made += 1
        self._uncredited.append(size)
        self._bytes += size

    def _wait(self, *, alive: bool) -> bool:
        """Wait for credit, unless the engine has ended; returns whether a piece is wanted."""
        while alive and not self.cancelled and self.is_full:
            alive = self._read(True)
        return alive and not self.cancelled


class JoiningStream(ChildStream):
    """The same, where quick pieces share a frame.

    Args:
        number: of the batch.
        engine: the link.
        sender: makes it, when it is needed.
    """

    def __init__(self, number: int, engine: Engine, sender: Callable[[], Sender]) -> None:
        super().__init__(number, self._send_alone, engine.read)
        self._engine = engine
        self._sender = sender
        self._unsent: deque[Feed] = deque()
        self._put_at = -inf  # when ``put`` returned last

    def put(self, piece: Feed) -> bool:
        """See ``ChildStream``; the piece may be sent later."""
        cancelled = self._engine.has_cancelled(self.number)
        size = size_of(piece)
        quick = cancelled is not None and monotonic() - self._put_at < SLOW
        if not quick or size >= _ALONE or not _is_plain(piece):
            wanted = super().put(piece)
        else:
            self._unsent.append(piece)
            self._count(size)
            if self.is_full:
                self.flush()
            else:
                self._sender().soon(self)
            wanted = self._wait(alive=True)
        if cancelled:
            self.cancelled, wanted = True, False
        self._put_at = monotonic()
        return wanted

    def flush(self) -> None:
        """Send the pieces that wait, from either thread; those of the other one have been sent."""
        unsent = self._unsent
        with self._engine.sending:
            pieces = []
            while unsent:
                pieces.append(unsent.popleft())
            if pieces:
                self._engine.send_pieces(self.number, pieces)

    def _send_alone(self, number: int, piece: Feed) -> None:
        self.flush()
        self._engine.send_pieces(number, [piece])


def _is_plain(piece: Feed) -> bool:
    """Whether it can certainly be sent."""
    if type(piece) is not dict:
        return False
    for name, value in piece.items():
        if type(name) is not str or not name.isascii():
            return False
        if type(value) not in _PLAIN and not (type(value) is str and value.isascii()):
            return False
    return True
