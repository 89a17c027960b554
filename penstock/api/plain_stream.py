"""PlainStream: a call to a graph over HTTP whose answer comes in pieces.

The pieces are dicts with arrays, and are encoded here: large ones in a thread, one by one. Those
that come meanwhile wait for them, and the op makes no more than are on their way.

Thread: the engine's loop, except ``encode``.
"""

from __future__ import annotations

import asyncio
from collections import deque

from penstock.api.graph_call import as_request_error, is_large
from penstock.api.http import HttpCall
from penstock.api.stream_call import StreamCall
from penstock.api.threads import run_aside
from penstock.protocols import media
from penstock.request import Feed, Outcome
from penstock.typed.signature import Schema


class PlainStream(StreamCall):
    """See the module.

    Attributes:
        piece_schema: of a piece; None accepts anything.
    """

    __slots__ = ("_last", "_waiting", "piece_schema")

    piece_schema: Schema | None
    _waiting: deque[Feed]
    _last: Outcome | None

    def run(self, call: HttpCall) -> None:
        """See ``StreamCall``."""
        self._waiting, self._last = deque(), None
        super().run(call)

    def encode(self, value: Feed) -> bytes:
        """See ``GraphCall``: a piece as JSON."""
        return encode(value, self.piece_schema, media.JSON)

    def piece(self, piece: Feed) -> bool:
        """See ``Submission``: send a piece, after those that wait for a thread."""
        if self._waiting or self._is_slow(piece):
            self._waiting.append(piece)
            if len(self._waiting) == 1:
                self._encode_first()
            return False
        return self.send_piece(self.encoded(piece))

    def answered(self, outcome: Outcome) -> None:
        """See ``StreamCall``: end the answer after its last piece; an error ends it now."""
        if outcome.error is None and self._waiting:
            self._last = outcome
            return
        self._drop()
        super().answered(outcome)

    def complete(self) -> None:
        """See ``Submission``."""
        self._drop()
        super().complete()

    def cancel(self) -> None:
        """See ``GraphCall``."""
        self._drop()
        super().cancel()

    def _is_slow(self, piece: Feed) -> bool:
        """Whether a thread must encode it; pictures are always encoded there."""
        schema = self.piece_schema
        return is_large(piece, as_text=True) or (schema is not None and schema.has_images)

    def _encode_first(self) -> None:
        self.aside = run_aside(self.threads, self.encoded, self._waiting[0])
        self.aside.add_done_callback(self._first_encoded)

    def _first_encoded(self, encoding: asyncio.Future[bytes]) -> None:
        if encoding.cancelled():
            return
        self.aside = None
        waiting = self._waiting
        waiting.popleft()
        try:
            more = self.send_piece(encoding.result())
            while waiting and not self._is_slow(waiting[0]):
                more = self.send_piece(self.encoded(waiting.popleft()))
        except Exception as error:  # noqa: BLE001 - the request must get an end
            self._drop()
            self.fail(as_request_error(error))
            self.cancel()
            return
        if waiting:
            self._encode_first()
        elif self._last is not None:
            super().answered(self._last)
        elif more:
            self.resume()

    def _drop(self) -> None:
        """Send no further piece."""
        self._waiting.clear()
        if self.aside is not None:
            self.aside.cancel()
            self.aside = None


def encode(value: Feed, schema: Schema | None, kind: str) -> bytes:
    """A graph's result, or a piece of it, with a media type.

    Raises:
        RequestError: it is not what the schema says.
        TypeError, ValueError: it has a value that cannot be encoded.
    """
    if schema is None:
        return media.encode(value, kind)
    return schema.write(schema.check(value), kind)
