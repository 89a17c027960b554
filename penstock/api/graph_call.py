"""A call that runs a graph: from its decoded request to its one reply, for every protocol.

A protocol makes a subclass, which encodes the graph's result and sends it, or an error. Large
replies are encoded in a thread, within the budget of bytes in flight.

Thread: the engine's loop, except ``encode``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any, ClassVar, Final

import numpy as np

from penstock.api.body import LARGE
from penstock.api.threads import run_aside
from penstock.door.budget import Reservation
from penstock.engine.submission import Submission
from penstock.errors import RequestError, ServiceBusy
from penstock.ops.failures import log_unsendable
from penstock.request import Feed, Outcome

_A_NUMBER: Final = 20
"""Usual maximum of bytes of an array's element in JSON."""

_log = logging.getLogger(__name__)


class GraphCall(Submission):
    """See the module. A subclass has slots for what else it needs to reply.

    Attributes:
        call: the call from the door.
        held: reserves the bytes of a large reply, and of pieces that are kept.
        threads: encode large replies; None for the loop's default threads.
        aside: its work in a thread, such as the encoding of a large reply; None if there is none.
        as_text: whether ``encode`` writes arrays as text.
    """

    __slots__ = ("aside", "held", "threads")

    aside: asyncio.Future[Any] | None
    held: Reservation
    threads: Executor | None
    as_text: ClassVar[bool] = False
    on_outcome: ClassVar[Callable[[Any, Outcome], None]]
    """``answered`` of the class, as a function."""

    def __init_subclass__(cls) -> None:
        cls.on_outcome = cls.answered

    def encode(self, value: Feed) -> Any:
        """The reply with the last op's dict. Called from any thread.

        Raises:
            RequestError: there is no such reply.
            TypeError, ValueError: the dict has a value that cannot be encoded.
        """
        raise NotImplementedError

    def send(self, reply: Any) -> None:
        """Send what ``encode`` has returned."""
        raise NotImplementedError

    def fail(self, error: RequestError) -> None:
        """Send an error."""
        raise NotImplementedError

    def run(self, call: Any) -> None:
        """Run the graph, and reply to the call, unless its caller disconnects before."""
        self.call = call
        self.reply_within(call.exchange, call.shared.threads)
        self.start(type(self).on_outcome)
        if not self.over or self.aside is not None:
            call.exchange.on_gone = self.cancel

    def reply_within(self, held: Reservation, threads: Executor | None) -> None:
        """Set what a large reply needs; see the class."""
        self.held = held
        self.threads = threads
        self.aside = None

    def piece(self, piece: Feed) -> bool:
        """See ``Submission``: those that are kept count in the budget of bytes in flight."""
        before = self.gathered.bytes
        self.gathered.add(piece)
        try:
            self.take(self.gathered.bytes - before)
        except ServiceBusy as error:
            error.after_begin()
            raise
        return True

    def take(self, size: int) -> None:
        """Reserve bytes that pieces take until the answer is whole.

        Raises:
            RequestError: they do not fit.
        """
        self.held.take(size)

    def answered(self, outcome: Outcome) -> None:
        """Reply with the graph's outcome, or its refusal."""
        if outcome.error is not None:
            self.fail(outcome.error)
            return
        value = outcome.value or {}
        if self.is_large(value):
            self.reply_aside(value)
            return
        try:
            reply = self.encoded(value)
        except Exception as error:  # noqa: BLE001 - the request must get an answer
            self.fail(as_request_error(error))
        else:
            self.send(reply)

    def is_large(self, value: Feed) -> bool:
        """Whether a thread must encode the reply."""
        return is_large(value, as_text=self.as_text)

    def reply_aside(self, value: Feed) -> None:
        """Encode a large reply in a thread, and send it."""
        try:
            reply = self.encode_aside(value)
        except RequestError as error:
            self.fail(error)
        else:
            self.reply_with(reply)

    def encode_aside(self, value: Feed) -> asyncio.Future[Any]:
        """Encode a large reply in a thread.

        Raises:
            RequestError: it does not fit into the budget of bytes in flight.
        """
        try:
            self.reserve(value)
        except ServiceBusy as error:
            error.after_begin()  # clients repeat what was refused before
            raise
        return run_aside(self.threads, self.encoded, value)

    def reserve(self, value: Feed) -> None:
        """Reserve the bytes of a large reply, as text.

        Raises:
            ServiceBusy: they do not fit.
        """
        most = self.held.limit // _A_NUMBER
        arrays = (each for each in dict.values(value) if isinstance(each, np.ndarray))
        size = sum(each.size for each in arrays)
        size = (size + items(dict.values(value), most)) * _A_NUMBER
        if size > self.held.limit:
            raise ServiceBusy("the answer exceeds the budget of bytes in flight")
        self.held.take(size)

    def encoded(self, value: Feed) -> Any:
        """``encode``, whose other errors become that of the last op."""
        try:
            return self.encode(value)
        except (TypeError, ValueError) as error:
            last = self.graph.stages[self.plan.last].name
            raise log_unsendable(last, self.data_id, self.log_id, error) from None

    def reply_with(self, reply: asyncio.Future[Any]) -> None:
        """Send this reply once it is made, unless the call is cancelled before."""
        self.aside = reply
        reply.add_done_callback(self._made)

    def _made(self, reply: asyncio.Future[Any]) -> None:
        if reply.cancelled():
            return
        self.aside = None
        error = reply.exception()
        if error is None:
            self.send(reply.result())
        else:
            self.fail(as_request_error(error))

    def cancel(self) -> None:
        """Cancel the call, because its caller has disconnected."""
        if self.aside is not None:
            self.aside.cancel()
        super().cancel()


def is_large(value: Feed, *, as_text: bool) -> bool:
    """Whether a result takes long to encode: the text of a number takes as long as 64 bytes, and an
    item of a list in every form.
    """
    size = 0
    for each in dict.values(value):  # a user's own kind of dict may do anything
        if isinstance(each, np.ndarray):
            size += each.size << 6 if as_text else each.nbytes
        elif type(each) is str:
            size += len(each)
        elif type(each) in _CONTAINERS:
            size += items([each], LARGE >> 6) << 6
    return size > LARGE


_CONTAINERS: Final = frozenset({list, tuple, dict})
_MOST_LEVELS: Final = 64
"""As many as an array may have; a list that has itself as an item has no end."""


def items(values: Iterable[Any], most: int) -> int:
    """The number of items in the lists, tuples and dicts among values, also of those in them;
    counted no further than beyond ``most``, and without a step of Python for each item.
    """
    count = 0
    level = [each for each in values if type(each) in _CONTAINERS]
    for _ in range(_MOST_LEVELS):
        if not level:
            break
        below: list[Any] = []
        for each in level:
            count += len(each)
            if count > most:
                return count
            inside = each.values() if type(each) is dict else each
            if not _CONTAINERS.isdisjoint(map(type, inside)):
                below += [one for one in inside if type(one) in _CONTAINERS]
        level = below
    return count


def as_request_error(error: BaseException) -> RequestError:
    """The error itself; or if it is a bug of ours, an error whose text has no details."""
    if isinstance(error, RequestError):
        return error
    _log.error("a request failed inside penstock; please report this", exc_info=error)
    return RequestError("internal error")
