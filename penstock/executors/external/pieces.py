"""PiecesFrom: the answer in pieces of the request that one external worker runs.

The worker is told of credit and cancellation only after its first piece: one that does not know
pieces gets no frame that it does not know.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from penstock.errors import RequestError
from penstock.executors.stream import MOST_BYTES, MOST_PIECES, TOLD_AFTER, TOLD_AFTER_BYTES, Stream
from penstock.protocols.worker_frames import FrameError, Told
from penstock.request import Batch, Outcome


class PiecesFrom:
    """See the module. Belongs to the engine's loop.

    Args:
        tell: sends the worker a frame.

    Attributes:
        fault: why a piece could not be passed on; the answer ends with it.
    """

    def __init__(self, tell: Callable[[Told], None]) -> None:
        self._tell = tell
        self._key = ""
        self._stream: Stream | None = None
        self._batch: Batch | None = None
        self._told = 0
        self._has_begun = self._cancelled = False
        self._sizes: deque[int] = deque()  # of the pieces of whose credit it has not been told
        self._bytes = 0  # their sum
        self.fault: RequestError | None = None

    def begin(self, key: str, stream: Stream, batch: Batch) -> None:
        """A request is sent to the worker."""
        self._key, self._stream, self._batch = key, stream, batch
        self._told, self._has_begun, self._cancelled, self.fault = 0, False, False, None
        self._sizes.clear()
        self._bytes = 0
        stream.notify, stream.changed = Stream.arrive, self._changed

    def end(self) -> None:
        """The worker has answered, or is gone."""
        if self._stream is not None:
            self._stream.changed = None
        self._stream = self._batch = None

    def take(self, piece: Outcome, size: int) -> None:
        """Pass on a piece.

        Args:
            piece: its value, or why it is none.
            size: its bytes.

        Raises:
            FrameError: the worker has no credit for it.
        """
        stream, batch = self._stream, self._batch
        assert stream is not None
        assert batch is not None
        if len(self._sizes) >= MOST_PIECES:
            raise FrameError("it sends more pieces than it has credit for")
        self._sizes.append(size)
        self._bytes += size
        self._has_begun = True
        if piece.error is not None:
            self.fault = piece.error
        if stream.cancelled or self.fault is not None:
            self._cancel()
            return
        # The time limit is that of each piece; who waits for credit is not late.
        waits = len(self._sizes) >= MOST_PIECES or self._bytes >= MOST_BYTES
        batch.started = None if waits else time.monotonic()
        stream.add(piece.value or {})

    def _changed(self, stream: Stream) -> None:
        if stream.cancelled:
            stream.changed = None
            if self._has_begun:
                self._cancel()
            return
        count = stream.credited - self._told
        if count < TOLD_AFTER and sum(islice(self._sizes, count)) < TOLD_AFTER_BYTES:
            return
        for _ in range(count):
            self._bytes -= self._sizes.popleft()
        self._told = stream.credited
        if self._batch is not None and self._batch.started is None:
            self._batch.started = time.monotonic()
        self._tell(Told({self._key: stream.credited}, frozenset()))

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._tell(Told({}, frozenset((self._key,))))
