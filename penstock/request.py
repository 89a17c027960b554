"""The values that pass through a graph: Samples go to ops in Batches, Outcomes come back.

Pure values. A request is one Sample per op; Samples that run together are a Batch; an op answers
each Sample with an Outcome, which holds a value or an error, never both.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeAlias

from penstock.caller import Caller
from penstock.errors import RequestError

Feed: TypeAlias = dict[str, Any]
"""Names to values (arrays, texts, numbers, lists of texts), as hooks take and return them."""

REQUEST_OP_NAME = "@DAGExecutor"
"""The name under which ops find the request's feed; the original's."""


class Outcome:
    """The result of one op for one sample: ``value`` when ``error`` is None.

    ``jump``: the op jumps over the targets named in ``jump_to_ops``. The error forgets its origin,
    which has been logged.
    """

    __slots__ = ("error", "jump", "value")

    def __init__(
        self, value: Feed | None, error: RequestError | None = None, jump: bool = False
    ) -> None:
        self.value = value
        self.error = error
        self.jump = jump
        if error is not None:
            error.forget_origin()

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<Outcome {self.error.code}: {self.error}>"
        return f"<Outcome {list(self.value or ())}{' jump' if self.jump else ''}>"


class Sample:
    """One request as one op sees it, from the moment its inputs are ready until its Outcome.

    Attributes:
        data_id: the request's id in this engine.
        log_id: the caller's trace id.
        inputs: predecessor name -> its output dict; this op owns the inner dicts.
        deadline: monotonic seconds.
        arrived: monotonic seconds when the sample was offered; unset before.
        caller: who makes the request, for an op that asks for it; else unset.
        rows: its rows in a batch, 1 or more.
        key: samples with different keys never share a batch (None is a key like any other).
        level: its priority level; 0 is the highest.
        late: whether it has waited so long in a queue that it goes behind others of its level.
        shapes: the shapes of its arrays, for an op that pads them; else unset.
        elements: the number of elements of these arrays.
        attempt: 1 for the first dispatch.
        spare: a copy of ``inputs`` for a later attempt, None when there will be none.
        waiting: True while it is in an op's queue.
        dropped: monotonic seconds when its queue dropped it, because it could not be answered in
            time; else unset.
        gone: True once it is answered, cancelled or expired; it must not be dispatched.
        flight: the submission it belongs to; opaque here.
        op: index of the op in the graph.
        piece: the index of this piece of a split sample; None for a whole one.
        turn: how many came to its queue before it, for a batcher that counts them; else unset.
        queue_due: of a queue with a time limit, the bucket of times that has it; else unset.
        store_key: in a worker elsewhere, the key under which its large outputs may be put into the
            external store, None if they may not; unset without one.
        stream: where the pieces of its answer go, for an op whose answers come in pieces; else
            unset.
    """

    __slots__ = (
        "arrived",
        "attempt",
        "caller",
        "data_id",
        "deadline",
        "dropped",
        "elements",
        "flight",
        "gone",
        "inputs",
        "key",
        "late",
        "level",
        "log_id",
        "op",
        "piece",
        "queue_due",
        "rows",
        "shapes",
        "spare",
        "store_key",
        "stream",
        "turn",
        "waiting",
    )

    arrived: float
    caller: Caller | None
    dropped: float
    elements: int
    queue_due: dict[Sample, None]
    shapes: Sequence[tuple[int, ...]]
    store_key: str | None
    stream: Any
    turn: int

    def __init__(
        self,
        data_id: int,
        inputs: dict[str, Feed],
        deadline: float,
        log_id: int = 0,
        op: int = 0,
        flight: Any = None,
        attempt: int = 1,
        *,
        rows: int = 1,
        key: Any = None,
    ) -> None:
        self.data_id = data_id
        self.log_id = log_id
        self.inputs = inputs
        self.deadline = deadline
        self.rows = rows
        self.key = key
        self.level = 0
        self.late = False
        self.attempt = attempt
        self.piece: Any = None
        self.spare: dict[str, Feed] | None = None
        self.waiting = False
        self.gone = False
        self.flight = flight
        self.op = op

    def __repr__(self) -> str:
        state = " gone" if self.gone else ""
        return f"<Sample {self.data_id} op={self.op} rows={self.rows} try={self.attempt}{state}>"


class CloseReason(Enum):
    """Why a batch stopped taking samples."""

    FULL = "full"
    IDLE_SLOT = "idle slot"
    WINDOW = "window"
    DEADLINE = "deadline"
    SHAPE = "shape"
    DRAIN = "drain"
    ALONE = "alone"


class Batch:
    """Samples that run together; once made it never grows.

    Attributes:
        samples: at least one, in order of arrival.
        rows: the sum of their rows.
        reason: why it was closed.
        closed: monotonic seconds when it was closed.
        began: monotonic seconds when its worker began it; None before.
        started: monotonic seconds when the running ``process`` call began, None outside of one.
            Written by the worker, read by the engine's time-out check.
        joins: whether that call is ``join``, of an op with seats.
        worker: the number of the worker that ran it, within the op.
        ran: seconds the worker spent on it, set by the worker at the end.
        prepared: seconds of that before the first ``process`` call.
        processed: seconds of that inside ``process`` calls.
        settled: True once the engine has taken its outcomes, or it has timed out.
        deaths: number of workers that died with this batch next in their hand-over, not begun.
        elements: number of elements of its arrays that may be padded, padding included.
        filled_in: how many of them are padding.
    """

    __slots__ = (
        "began",
        "closed",
        "deaths",
        "elements",
        "filled_in",
        "joins",
        "prepared",
        "processed",
        "ran",
        "reason",
        "rows",
        "samples",
        "settled",
        "started",
        "worker",
    )

    def __init__(
        self, samples: list[Sample], reason: CloseReason, closed: float, rows: int | None = None
    ) -> None:
        self.samples = samples
        self.rows = len(samples) if rows is None else rows
        self.reason = reason
        self.closed = closed
        self.began: float | None = None
        self.started: float | None = None
        self.worker = 0
        self.ran = self.prepared = self.processed = 0.0
        self.settled = self.joins = False
        self.deaths = self.elements = self.filled_in = 0

    @property
    def attempt(self) -> int:
        """The highest attempt among its samples."""
        return max(sample.attempt for sample in self.samples)

    @property
    def phases(self) -> tuple[float, float, float]:
        """Seconds that ``preprocess``, ``process`` and ``postprocess`` took, of all its samples."""
        return self.prepared, self.processed, self.ran - self.prepared - self.processed

    @property
    def data_ids(self) -> list[int]:
        """The ids of its requests, in order."""
        return [sample.data_id for sample in self.samples]

    def __repr__(self) -> str:
        return f"<Batch {self.data_ids} rows={self.rows} closed by {self.reason.value}>"
