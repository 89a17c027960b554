"""The count of a hop's steps sees each op once."""

from benchmarks.hop_steps import LEAST, measure


def test_each_op_runs_each_step_once_for_a_request() -> None:
    steps = {each.function: each for each in measure()}
    for function in ("run_batch", "Engine.settle", "EchoOp.process"):
        assert steps[function].calls == 1.0
        assert steps[function].bytecodes > 1.0
    assert steps["Stage._take"].calls < 0.5, "hand-overs are shared"
    # Those without a row may be less than nothing: how often a timer rings depends on the machine.
    assert all(each.calls > 0.0 for each in steps.values() if each.bytecodes >= LEAST)
