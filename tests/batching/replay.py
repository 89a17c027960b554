"""Replays a trace of requests against a batcher and workers whose batches have known costs.

Time is virtual: a batch takes what ``truth`` says, times noise that depends on the seed only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from penstock.batching.batcher import Batcher, FifoQueue
from penstock.request import Batch, Sample


@dataclass(frozen=True)
class Arrival:
    """A request: when it comes, its rows, the elements of a row, and its deadline."""

    at: float
    rows: int = 1
    width: int = 0
    within: float = 60.0


@dataclass
class Outcome:
    """What became of a trace.

    Attributes:
        latencies: seconds of each answered request.
        late: requests that were not answered within their deadlines.
        busy: seconds that workers ran.
        batches: the rows of each.
        passed: the most requests of its kind that came later and ran earlier, over all requests.
        ended: when the last one was answered.
    """

    latencies: list[float] = field(default_factory=list)
    late: int = 0
    busy: float = 0.0
    batches: list[int] = field(default_factory=list)
    passed: int = 0
    ended: float = 0.0


def replay(
    trace: Sequence[Arrival],
    batcher: Batcher | FifoQueue,
    truth: Callable[[int, int], float],
    *,
    workers: int = 1,
    learn: Callable[[int, int, float], None] | None = None,
    seed: int = 0,
    noise: float = 0.1,
) -> Outcome:
    """Run a trace; see the module.

    Args:
        trace: in order of time.
        batcher: of the op.
        truth: seconds of a batch from its rows and padded elements.
        workers: that run batches.
        learn: told of each batch.
        seed: of the noise.
        noise: standard deviation of the logarithm of a batch's time.
    """
    random = Random(seed)
    outcome = Outcome()
    running: list[tuple[float, int, Batch, float]] = []
    order: dict[int, int] = {}
    ran: list[int] = []
    now, index, number, poll_at = 0.0, 0, 0, float("inf")
    while index < len(trace) or running or len(batcher):
        arrives = trace[index].at if index < len(trace) else float("inf")
        ends = running[0][0] if running else float("inf")
        now = max(now, min(arrives, ends, poll_at))
        poll_at = float("inf")
        while running and running[0][0] <= now:
            end, _, batch, seconds = heappop(running)
            if learn is not None:
                learn(batch.rows, batch.elements, seconds)
            for sample in batch.samples:
                if end > sample.deadline:
                    outcome.late += 1
                else:
                    outcome.latencies.append(end - sample.arrived)
            outcome.ended = end
        while index < len(trace) and trace[index].at <= now:
            each = trace[index]
            sample = Sample(index, {}, each.at + each.within, rows=each.rows)
            sample.shapes, sample.elements = ((each.width,),), each.rows * each.width
            batcher.offer(sample, now)
            order[index] = len(order)
            index += 1
        while len(running) < workers:
            waiting = len(batcher)
            polled = batcher.poll(now, draining=index == len(trace))
            taken = len(polled.samples) if isinstance(polled, Batch) else 0
            outcome.late += waiting - len(batcher) - taken
            if not isinstance(polled, Batch):
                poll_at = float("inf") if polled is None else polled
                break
            widest = max(sample.shapes[0][0] for sample in polled.samples)
            polled.elements = polled.rows * widest
            seconds = truth(polled.rows, polled.elements) * random.lognormvariate(0, noise)
            number += 1
            heappush(running, (now + seconds, number, polled, seconds))
            outcome.busy += seconds
            outcome.batches.append(polled.rows)
            ran += polled.data_ids
    outcome.passed = _most_passed(ran)
    return outcome


def _most_passed(ran: Sequence[int]) -> int:
    """The most later ones that ran before one, over all; positions within a batch do not count."""
    most = 0
    later: list[int] = []
    for data_id in ran:
        most = max(most, sum(each > data_id for each in later[-4096:]))
        later.append(data_id)
    return most
