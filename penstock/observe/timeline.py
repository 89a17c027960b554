"""Where the time of one request went: its way through the door, the graph and its batches.

Times are monotonic seconds of one machine, which its processes share. The parts of a request follow
each other without a gap::

    began ........ admitted ....................... replied ........ ended
          unpack            the graph's steps               pack

and so do those of a step, where it was run by a worker of this machine::

    queued ..... closed ........ began ... prepared ... processed ... ran ........ returned
           queue        transfer  preprocess    process     postprocess   transfer

A plain form of lists, numbers and texts travels between processes.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, Final, TypeAlias

Plain: TypeAlias = list[Any]

GRPC: Final = "gRPC"
"""Stands for the method of HTTP where it is a gRPC call."""


@dataclass(slots=True)
class BatchTimes:
    """One batch as it ran; shared by the steps of its requests.

    Attributes:
        op: its name, as instruments hear it.
        number: counts the batches of this engine.
        worker: the worker's number within its op.
        reason: why the batch was closed, a value of ``CloseReason``.
        rows: how many it had.
        data_ids: of its requests.
        closed: when it was closed.
        began: when its worker took it up; None when none has, as far as is known.
        prepared, processed, ran: seconds of the worker: before the first ``process`` call, inside
            of these calls, and of all of it.
        returned: when its results, or its time-out, came to the engine.
        errors: how many of its samples failed.
        given_up: whether it took longer than its op's ``timeout``.
        elements: of its arrays that may be padded, with what was filled in.
        filled_in: how many of them were.
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
        """When it began to run, as far as is known."""
        return self.closed if self.began is None else self.began

    @property
    def stages(self) -> list[tuple[str, float, float]]:
        """The parts that follow each other: name, begin and end."""
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
    """One try of a request at an op.

    Attributes:
        op: the op's name.
        queued: when its inputs were complete.
        attempt: 1 for the first.
        batch: what it ran in; None when its request ended while it waited or ran.
    """

    op: str
    queued: float
    attempt: int
    batch: BatchTimes | None

    @property
    def mates(self) -> list[int]:
        """The ids of the requests that shared the batch, its own among them."""
        return [] if self.batch is None else self.batch.data_ids

    def stages(self, ended: float) -> list[tuple[str, float, float]]:
        """The parts that follow each other: name, begin and end.

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
        engine: the number of the engine that had it.
        graph: what answered it; empty for one without a name.
        route: the path's pattern, or the method of a gRPC call; of a request that came to no graph
            the method and the path; empty without a door.
        data_id: its id in its engine.
        log_id: its caller's trace id.
        trace: the W3C ``traceparent`` that came with it; empty for none.
        began: when its head, and of most requests the body, had come.
        admitted: when the engine took it on.
        replied: when its outcome was known.
        ended: when its answer was given to the connection.
        status: of HTTP; 0 when no answer was sent. A gRPC call has 200 whatever its outcome.
        error: the code of its error; None when it has a result.
        method: of HTTP, or GRPC; empty without a door.
        trace_state: the W3C ``tracestate`` that came with it; empty for none.
        steps: in the order in which their batches returned.
        text: what its error says; empty without one.
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

    @property
    def seconds(self) -> float:
        """From the first byte to the last."""
        return self.ended - self.began

    def plain(self) -> Plain:
        """Its plain form."""
        return [*astuple(self)]

    @classmethod
    def of(cls, plain: Plain) -> Timeline:
        """Of its plain form."""
        *head, steps, text = plain
        made = [
            Step(op, queued, attempt, None if batch is None else BatchTimes(*batch))
            for op, queued, attempt, batch in steps
        ]
        return cls(*[*head, made, text])
