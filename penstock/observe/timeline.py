"""The timeline of one request: its times in the door, the graph and its batches.

Times are monotonic seconds, the same for all processes of a machine. The phases of a request follow
each other without a gap::

    began ........ admitted ....................... replied ........ ended
          unpack            the graph's steps               pack

and so do those of a step, if it ran in a worker of this machine::

    queued ..... closed ........ began ... prepared ... processed ... ran ........ returned
           queue        transfer  preprocess    process     postprocess   transfer

Between processes timelines are sent as lists, numbers and texts.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, Final, TypeAlias

from penstock.errors import Raised

Plain: TypeAlias = list[Any]

GRPC: Final = "gRPC"
"""The value of ``method`` for gRPC calls."""


@dataclass(slots=True)
class BatchTimes:
    """The times of one batch; shared by the steps of its requests.

    Attributes:
        op: its name, as in instruments.
        number: counter of this engine's batches.
        worker: the worker's number within its op.
        reason: why the batch was closed, a value of ``CloseReason``.
        rows: its number of rows.
        data_ids: the ids of its requests.
        closed: when it was closed.
        began: when its worker began it; None if unknown.
        prepared, processed, ran: seconds of the worker: before the first ``process`` call, inside
            of these calls, and in total.
        returned: when its results arrived in the engine, or it timed out.
        errors: how many of its samples failed.
        given_up: whether it exceeded its op's ``timeout``.
        elements: elements of its arrays that may be padded, padding included.
        filled_in: how many of them are padding.
    """

    op: str
    number: int
    worker: int
    reason: str
    rows: int
    data_ids: list[int]
    closed: float
    began: float | None
    prepared: float
    processed: float
    ran: float
    returned: float
    errors: int = 0
    given_up: bool = False
    elements: int = 0
    filled_in: int = 0

    @property
    def took_up(self) -> float:
        """When it began to run, if known."""
        return self.closed if self.began is None else self.began

    @property
    def stages(self) -> list[tuple[str, float, float]]:
        """The consecutive parts: name, begin and end."""
        began = self.began
        if began is None or self.given_up:
            return [("run", self.took_up, self.returned)]
        prepared = began + self.prepared
        processed = prepared + self.processed
        ran = max(processed, began + self.ran)
        return [
            ("transfer in", self.closed, began),
            ("preprocess", began, prepared),
            ("process", prepared, processed),
            ("postprocess", processed, ran),
            ("transfer out", ran, max(ran, self.returned)),
        ]


@dataclass(slots=True)
class Step:
    """One attempt of a request at an op.

    Attributes:
        op: the op's name.
        queued: when its inputs were complete.
        attempt: 1 for the first.
        batch: its batch; None if its request ended while it waited or ran.
    """

    op: str
    queued: float
    attempt: int
    batch: BatchTimes | None

    @property
    def mates(self) -> list[int]:
        """The ids of the batch's requests, including its own."""
        return [] if self.batch is None else self.batch.data_ids

    def stages(self, ended: float) -> list[tuple[str, float, float]]:
        """The consecutive parts: name, begin and end.

        Args:
            ended: when the request ended.
        """
        if self.batch is None:
            return [("unfinished", self.queued, ended)]
        return [("queue", self.queued, self.batch.closed), *self.batch.stages]


@dataclass(slots=True)
class Timeline:
    """One request from its first byte to its last.

    Attributes:
        engine: the number of its engine.
        graph: the label of its graph (``GraphInfo.label``); empty for one without a name.
        route: the path's pattern, or the gRPC method; for a request that reached no graph the HTTP
            method and the path; empty without a door.
        data_id: its id in its engine.
        log_id: its caller's trace id.
        trace: its W3C ``traceparent``; empty for none.
        began: when its head, and for most requests the body, had arrived.
        admitted: when the engine admitted it.
        replied: when its outcome was known.
        ended: when its answer was passed to the connection.
        status: the HTTP status; 0 if no answer was sent. A gRPC call has 200 whatever its outcome.
        error: the code of its error; None if it has a result.
        method: the HTTP method, or GRPC; empty without a door.
        trace_state: its W3C ``tracestate``; empty for none.
        steps: in the order in which their batches returned.
        text: its error's text; empty without one.
        caller: the name of who made it; empty without an admission of callers.
        raised: the exception of user code behind its error; None without one.
        pieces: the number of pieces of its answer; 0 for an answer without pieces.
        first_piece: when the first one was there; None without one.
    """

    engine: int
    graph: str
    route: str
    data_id: int
    log_id: int
    trace: str
    began: float
    admitted: float
    replied: float
    ended: float
    status: int
    error: str | None
    method: str
    trace_state: str
    steps: list[Step]
    text: str = ""
    caller: str = ""
    raised: Raised | None = None
    pieces: int = 0
    first_piece: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds from the first byte to the last."""
        return self.ended - self.began

    def plain(self) -> Plain:
        """The timeline as plain values."""
        return [*astuple(self)]

    @classmethod
    def of(cls, plain: Plain) -> Timeline:
        """The timeline from plain values."""
        *head, steps, text, caller, raised, pieces, first_piece = plain
        made = [
            Step(op, queued, attempt, None if batch is None else BatchTimes(*batch))
            for op, queued, attempt, batch in steps
        ]
        why = None if raised is None else Raised(*raised)
        return cls(*[*head, made, text, caller, why, pieces, first_piece])
