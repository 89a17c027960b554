"""EncodedPieces: a call whose answer comes in pieces that are encoded here, for every protocol.

Large pieces are encoded in a thread, one by one, within the budget of bytes in flight. Those that
come meanwhile wait for them, and the op gets credit for further ones when all of them are sent.

Thread: the engine's loop, except ``encode``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.api.graph_call import GraphCall, as_request_error, is_large
from penstock.errors import DeadlineExceeded, ServiceClosed
from penstock.request import Feed, Outcome

_AT_ONCE: Final = (DeadlineExceeded, ServiceClosed)
"""Errors that end an answer before the pieces that wait."""


class Waiting:
    """What waits for the piece that a thread encodes.

    Attributes:
        pieces: those that have come after it.
        last: the end of the answer; None before it.
        reserved: bytes of the budget for its encoded form.
    """

    __slots__ = ("last", "pieces", "reserved")

    def __init__(self) -> None:
        self.pieces: deque[Feed] = deque()
        self.last: Outcome | None = None
        self.reserved = 0


class EncodedPieces(GraphCall):
    """See the module. A base beside that of the protocol, before it; ``aside`` is the encoding.

    A subclass has a slot for ``waiting``, and makes it before it runs.
    """

    __slots__ = ()

    waiting: Waiting
    send_piece: Callable[[bytes], bool]
    """Sends an encoded piece; returns what ``piece`` returns."""

    def is_large(self, value: Feed) -> bool:
        """See ``GraphCall``; of a piece."""
        return is_large(value, as_text=self.as_text)

    def piece(self, piece: Feed) -> bool:
        """See ``Submission``: send a piece, after those that wait for a thread."""
        if self.aside is not None:
            self.waiting.pieces.append(piece)
        elif self.is_large(piece):
            self._encode(piece)
        else:
            return self.send_piece(self.encoded(piece))
        return False

    def answered(self, outcome: Outcome) -> None:
        """End the answer after its last piece; some errors end it at once."""
        if self.aside is not None and not isinstance(outcome.error, _AT_ONCE):
            self.waiting.last = outcome
            return
        self._drop()
        self.end(outcome)

    def end(self, outcome: Outcome) -> None:
        """Send the end of the answer, or its error."""
        super().answered(outcome)

    def resume(self) -> None:
        """See ``Submission``; not while pieces wait."""
        if self.aside is None:
            super().resume()

    def complete(self) -> None:
        """See ``Submission``."""
        self._drop()
        super().complete()

    def cancel(self) -> None:
        """See ``GraphCall``."""
        self._drop()
        super().cancel()

    def _encode(self, piece: Feed) -> None:
        """Encode a piece in a thread.

        Raises:
            RequestError: it does not fit into the budget of bytes in flight.
        """
        before = self.held.taken
        self.aside = self.encode_aside(piece)
        self.waiting.reserved = self.held.taken - before
        self.aside.add_done_callback(self._encoded)

    def _encoded(self, encoding: asyncio.Future[bytes]) -> None:
        """Send the piece, and those that have waited for it."""
        if encoding.cancelled():
            return
        self.aside = None
        waiting = self.waiting
        # The door counts what is sent; and it releases everything if that cuts off the caller.
        self.held.give_back(waiting.reserved)
        try:
            more = self.send_piece(encoding.result())
            while waiting.pieces:
                piece = waiting.pieces.popleft()
                if self.is_large(piece):
                    self._encode(piece)
                    return
                more = self.send_piece(self.encoded(piece))
        except Exception as error:  # noqa: BLE001 - the request must get an end
            self._drop()
            self.fail(as_request_error(error))
            self.cancel()
            return
        if waiting.last is not None:
            self.end(waiting.last)
        elif more:
            self.resume()

    def _drop(self) -> None:
        """Send no further piece."""
        self.waiting.pieces.clear()
        if self.aside is not None:
            self.aside.cancel()
            self.aside = None
