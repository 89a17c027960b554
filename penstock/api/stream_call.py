"""StreamCall: a call over HTTP whose answer comes in pieces.

The head is sent with the first piece, so that an error before it has its own status. After it an
error ends the answer, which then never looks complete. A caller that reads slowly gets no further
pieces until it has read, and its op waits. A caller that speaks HTTP/1.0, in which an answer
without a length cannot be told from a truncated one, gets all pieces at once.

Thread: the engine's loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.api.errors import error_reply, noted
from penstock.api.graph_call import GraphCall
from penstock.api.http import JSON, HttpCall
from penstock.door.exchange import WRITABLE
from penstock.errors import RequestError, ServiceClosed
from penstock.protocols.pieces import Format
from penstock.request import Feed, Outcome
from penstock.typed.op import BODY

HEARTBEAT: Final = 15.0
"""Seconds of silence after which a format that can do so shows that the connection is alive."""


CUT: Final = "this process ends before the answer does: send the request again"
"""Why an answer ends in the middle when the service stops, or the process is replaced."""


class StreamCall(GraphCall):
    """See the module; its context is the format. A subclass has ``piece``, or ``pieces``.

    Attributes:
        status: of the answer.
    """

    __slots__ = ("_count", "_kept", "_sent_at", "_timer", "status")

    call: HttpCall
    context: Format
    status: int
    form = staticmethod(error_reply)
    """Makes the answer to an error."""
    _timer: asyncio.TimerHandle | None

    def run(self, call: HttpCall) -> None:
        """Run the graph, and send its pieces to the call, unless its caller disconnects before."""
        self._count = 0
        head = call.exchange.head
        self._kept: list[bytes] | None = None
        if head.version == "1.0" and head.method != "HEAD":
            self._kept = []
        self._timer = None
        if self.context.idle and self._kept is None:
            loop = asyncio.get_running_loop()
            self._sent_at = loop.time()
            self._timer = loop.call_later(HEARTBEAT, self._show_life)
            self.at_end(self._timer_off)
        super().run(call)

    def send_piece(self, body: bytes) -> bool:
        """Send a piece, encoded already; returns what ``piece`` returns.

        Raises:
            TooLarge: all pieces must be one answer, and are too many.
        """
        return self.pass_on(self.context.piece(body, first=self._count == 0))

    def send_pieces(self, bodies: list[bytes]) -> bool:
        """The same for one or more pieces, at once."""
        return self.pass_on(self.context.pieces(bodies, first=self._count == 0), len(bodies))

    def pass_on(self, text: bytes, count: int = 1) -> bool:
        """Send the text of so many pieces; returns and raises the same."""
        self._count += count
        if self._kept is not None:
            self.gathered.count(len(text), count)
            self.take(len(text))
            self._kept.append(text)
            return True
        if not self._begin():
            return False
        exchange = self.call.exchange
        exchange.send(text)
        if self._timer is not None:
            self._sent_at = asyncio.get_running_loop().time()
        if exchange.unsent > WRITABLE:
            exchange.on_writable = self.resume
            return False
        return True

    def whole(self, outcome: Outcome) -> Outcome:
        """See ``Submission``: the pieces have been sent."""
        return outcome

    def answered(self, outcome: Outcome) -> None:
        """End the answer."""
        call, error = self.call, outcome.error
        if error is not None:
            self.fail(error)
            return
        last = self.context.last(empty=self._count == 0)
        if self._kept is not None:
            call.reply(self.status, self.context.headers, b"".join((*self._kept, last)))
            return
        self._begin()
        call.exchange.send(last)
        call.exchange.finish()

    def fail(self, error: RequestError) -> None:
        """Send an error, or if the answer has begun, end it in the middle."""
        call, form = self.call, type(self).form
        if call.started and type(error) is ServiceClosed:
            error = ServiceClosed(CUT)
        reply = noted(call, error, self.log_id, form)
        if not call.started:
            call.send(reply)
            return
        if JSON not in reply.headers or b"\n" in reply.body:
            reply = form(error, self.log_id)
        text = self.context.error(reply.body)
        if text:
            call.exchange.send(text)
        call.exchange.count_error(error.code)
        call.exchange.abort()

    def _begin(self) -> bool:
        """Send the head, once; returns whether a body follows: not in the answer to HEAD."""
        call = self.call
        has_body: bool = call.exchange.head.method != "HEAD"
        if not call.started:
            call.exchange.on_half_closed = self._look_for_caller
            call.start(self.status, self.context.headers)
            if not has_body:
                self.complete()
        return has_body

    def _look_for_caller(self) -> None:
        """The caller has left, or only sends nothing more: the system of one that has left replies
        to what is written with a reset. In formats where nothing can be written it has left.
        """
        if self.context.filler:
            self.call.exchange.send(self.context.filler)
        else:
            self.call.exchange.abort()
            self.cancel()

    def _show_life(self) -> None:
        """Nothing may have been sent for a while: send what has no meaning."""
        loop = asyncio.get_running_loop()
        silent = loop.time() - self._sent_at
        if silent >= HEARTBEAT and self.call.exchange.unsent == 0:
            if not self._begin():
                return
            self.call.exchange.send(self.context.idle)
            self._sent_at, silent = loop.time(), 0.0
        self._timer = loop.call_later(max(1.0, HEARTBEAT - silent), self._show_life)

    def _timer_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BodyStream(StreamCall):
    """A call whose pieces the op has encoded."""

    __slots__ = ()

    def pieces(self, pieces: list[Feed]) -> bool:
        """See ``Submission``: send the pieces."""
        return self.send_pieces([each[BODY] for each in pieces])
