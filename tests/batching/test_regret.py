"""The learned policy against one that knows all costs, and against ``fifo``, over twenty traces."""

from functools import cache

import pytest

from penstock.batching.batcher import Batcher, BatchPolicy
from penstock.batching.costs import BatchCosts
from penstock.batching.learned import MOST_PASSED, LearnedBatcher
from penstock.batching.partition import CostTable
from tests.batching.replay import Outcome, replay
from tests.batching.test_learned import join
from tests.batching.traces import MODELS, Trace, traces

TRACES = {str(each): each for each in traces()}


class TrueCosts(BatchCosts):
    """Those of a model, which are all known."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.model = MODELS[trace.model]
        self.quick = 0.8

    def table(self, most: int, more: float = 0.0) -> CostTable:
        rows = range(1, most + 1)
        fixed = [self.model(each, 0) for each in rows]
        each = [(self.model(n, 1000) - alone) / 1000 for n, alone in zip(rows, fixed, strict=True)]
        return CostTable([float("inf"), *(one + more for one in fixed)], [0.0, *each])


@cache
def outcome(trace: str, policy: str) -> Outcome:
    chosen = TRACES[trace]
    options = BatchPolicy(max_rows=32, join=join if chosen.pads else None)
    costs = TrueCosts(chosen) if policy == "knows" else BatchCosts()
    batcher = Batcher(options) if policy == "fifo" else LearnedBatcher(options, costs)
    learn = costs.learn if policy == "learned" else None
    return replay(chosen.arrivals, batcher, MODELS[chosen.model], learn=learn)


def busy(found: Outcome) -> float:
    """Seconds of the worker for each request that was answered in time."""
    return found.busy / len(found.latencies)


@pytest.mark.parametrize("trace", TRACES)
def test_a_request_costs_at_most_a_tenth_more_than_with_costs_that_are_known(trace: str) -> None:
    assert busy(outcome(trace, "learned")) <= 1.1 * busy(outcome(trace, "knows"))


@pytest.mark.parametrize("trace", TRACES)
def test_deadlines_are_met_as_often_as_with_fifo_and_nobody_is_passed_too_often(trace: str) -> None:
    learned, fifo = outcome(trace, "learned"), outcome(trace, "fifo")
    assert learned.late <= fifo.late
    assert learned.passed < MOST_PASSED
    assert len(learned.latencies) + learned.late == len(TRACES[trace].arrivals)
