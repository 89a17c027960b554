"""The count of a hand-over's steps sees both sides, and that batches share one."""

import pytest

from benchmarks.process_steps import measure


@pytest.mark.real
def test_batches_that_travel_together_share_what_a_hand_over_costs() -> None:
    one, several = measure(1), measure(8)
    for steps in (one, several):
        assert steps.worker["run_batch"] > 1.0
    assert several.engine["Worker._send"] < one.engine["Worker._send"] / 4
    assert sum(several.engine.values()) < sum(one.engine.values()) / 2
    assert sum(several.worker.values()) < sum(one.worker.values())
