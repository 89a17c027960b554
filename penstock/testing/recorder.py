"""The two lists of a history: what clients wrote, and what an engine told its instruments.

Plain values, written while things happen and read afterwards by ``penstock.testing.history``. A
request costs two entries on the client side and some four on the server side, in about 600 bytes.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from penstock.errors import RequestError
from penstock.instrument import Instrument, RequestInfo
from penstock.request import Batch


class Invoke(NamedTuple):
    """A client is about to ask; ``id`` is its own number, ``nonce`` what it expects back.

    ``graph`` is the name of the graph that it asks; None where it does not matter which.
    """

    id: int
    nonce: object
    t: float
    deadline: float | None = None
    graph: str | None = None


class Ok(NamedTuple):
    """The answer carried this nonce."""

    id: int
    nonce: object
    t: float


class Refused(NamedTuple):
    """The server took nothing on; a later retry would be a new request."""

    id: int
    code: object
    t: float


class Failed(NamedTuple):
    """The answer was an error."""

    id: int
    code: object
    t: float


class Info(NamedTuple):
    """The client does not know: it left, its connection broke, or its own patience ended."""

    id: int
    reason: str
    t: float


ClientEvent: TypeAlias = Invoke | Ok | Refused | Failed | Info


class Admitted(NamedTuple):
    """The engine gave a request its id."""

    data_id: int
    log_id: int
    t: float
    graph: str | None = None


class TurnedAway(NamedTuple):
    """The engine refused a request at the entrance."""

    code: str
    t: float


class Dispatched(NamedTuple):
    """A batch was handed over; ``batch`` is its number, the same when it is handed over again.

    ``deadline`` is the earliest of its samples'. Batches of one Work have the same ``t``.
    """

    op: str
    batch: int
    data_ids: tuple[int, ...]
    attempt: int
    deadline: float
    t: float


class TakenBack(NamedTuple):
    """A batch that had not begun was taken back from its worker."""

    op: str
    batch: int
    t: float


class Returned(NamedTuple):
    """A batch came back."""

    op: str
    batch: int
    errors: int
    t: float


class Late(NamedTuple):
    """A batch that had been given up came back."""

    op: str
    data_ids: tuple[int, ...]
    t: float


class Replied(NamedTuple):
    """A request was answered; ``code`` is None for success."""

    data_id: int
    code: str | None
    t: float


class Cancelled(NamedTuple):
    """The caller went away first."""

    data_id: int
    t: float


ServerEvent: TypeAlias = (
    Admitted | TurnedAway | Dispatched | TakenBack | Returned | Late | Replied | Cancelled
)


class ClientHistory:
    """The client side's list. Every method may be called from any thread; times are monotonic."""

    def __init__(self) -> None:
        self.events: list[ClientEvent] = []  # appending is atomic

    def invoke(
        self,
        id: int,
        nonce: object,
        t: float,
        deadline: float | None = None,
        graph: str | None = None,
    ) -> None:
        """Write this before the request is sent."""
        self.events.append(Invoke(id, nonce, t, deadline, graph))

    def ok(self, id: int, nonce: object, t: float) -> None:
        """A good answer, and the nonce in it."""
        self.events.append(Ok(id, nonce, t))

    def refused(self, id: int, code: object, t: float) -> None:
        """The server said that it did not start."""
        self.events.append(Refused(id, code, t))

    def failed(self, id: int, code: object, t: float) -> None:
        """An error for an answer."""
        self.events.append(Failed(id, code, t))

    def info(self, id: int, reason: str, t: float) -> None:
        """No answer will be known: the client left, or its connection did."""
        self.events.append(Info(id, reason, t))


class Recorder(Instrument):
    """The server side's list: an instrument that writes down what one engine tells it."""

    def __init__(self) -> None:
        self.events: list[ServerEvent] = []
        # Holds the batches that are out, so that no new one can be mistaken for them.
        self._numbers: dict[Batch, int] = {}
        self._next_number = 0

    def admitted(self, request: RequestInfo, now: float) -> None:
        """See Admitted."""
        self.events.append(Admitted(request.data_id, request.log_id, now, request.graph.name))

    def refused(self, request: RequestInfo, error: RequestError, now: float) -> None:
        """See TurnedAway."""
        self.events.append(TurnedAway(error.code, now))

    def dispatched(self, op: str, batch: Batch, now: float) -> None:
        """See Dispatched."""
        number = self._numbers.get(batch)
        if number is None:
            number = self._numbers[batch] = self._next_number
            self._next_number += 1
        samples = batch.samples
        ids = tuple([sample.data_id for sample in samples])
        deadline = min([sample.deadline for sample in samples])
        self.events.append(Dispatched(op, number, ids, batch.attempt, deadline, now))

    def taken_back(self, op: str, batch: Batch, now: float) -> None:
        """See TakenBack."""
        self.events.append(TakenBack(op, self._numbers.get(batch, -1), now))

    def returned(self, op: str, batch: Batch, errors: int, now: float) -> None:
        """See Returned."""
        self.events.append(Returned(op, self._numbers.pop(batch, -1), errors, now))

    def late(self, op: str, batch: Batch, now: float) -> None:
        """See Late."""
        self.events.append(Late(op, tuple(batch.data_ids), now))

    def replied(self, request: RequestInfo, error: RequestError | None, now: float) -> None:
        """See Replied."""
        self.events.append(Replied(request.data_id, None if error is None else error.code, now))

    def cancelled(self, request: RequestInfo, now: float) -> None:
        """See Cancelled."""
        self.events.append(Cancelled(request.data_id, now))
