"""A rollout goes on or is taken back: certain differences, too few answers, crashes of engines."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.repository.rollout import (
    Decision,
    Limits,
    Plan,
    Reading,
    Rollout,
    Seen,
    State,
    Step,
    Verdict,
    Window,
    decided,
    interval,
    judge,
    quantile,
)

STEPS = (Step(share=5, hold=60), Step(share=25, hold=60), Step(share=50, hold=60))
FAST = {0.010: 99, 0.020: 1}


def rollout(limits: Limits | None = None, step: int = 0) -> Rollout:
    plan = Plan(steps=STEPS, limits=limits or Limits())
    return Rollout(number=1, stable="1", version="2", plan=plan, step=step)


def verdict(
    stable: Seen, new: Seen, held: float = 100.0, limits: Limits | None = None
) -> tuple[Decision, str]:
    found = judge(rollout(limits), Reading(held=held, stable=stable, new=new))
    return found.decision, found.why


def times(durations: dict[float, int], count: int) -> dict[float, int]:
    return {seconds: count * each for seconds, each in durations.items()}


GOOD = Seen(answers=1900, durations=times(FAST, 19))


def test_a_step_goes_on_when_it_was_held_and_the_limits_are_kept() -> None:
    new = Seen(answers=100, failed=1, durations=FAST)
    assert verdict(GOOD, new, held=59.0) == (Decision.WAIT, "the step has lasted 59 of 60 s")
    assert verdict(GOOD, new) == (Decision.GO_ON, "the limits are kept with 100 answers")


@pytest.mark.parametrize("answers", [0, 19, 99])
def test_a_step_waits_for_enough_answers(answers: int) -> None:
    why = f"there are {answers} of 100 answers"
    assert verdict(GOOD, Seen(answers=answers), held=1e6) == (Decision.WAIT, why)


def test_a_version_that_fails_is_taken_back_before_the_hold() -> None:
    new = Seen(answers=20, failed=20, durations={0.010: 20})
    why = "20 of its 20 answers failed, and 0 of the 1900 of version 1"
    assert verdict(GOOD, new, held=1.0) == (Decision.TAKE_BACK, why)


def test_errors_of_one_batch_are_no_evidence() -> None:
    new = Seen(answers=8, failed=8, durations={0.010: 8})
    assert verdict(GOOD, new, held=1.0)[0] is Decision.WAIT


def test_what_fails_for_both_versions_is_not_held_against_the_new_one() -> None:
    """A service that both call is down."""
    stable = replace(GOOD, failed=950)
    assert verdict(stable, Seen(answers=100, failed=50, durations=FAST))[0] is Decision.GO_ON


def test_errors_beside_none_of_the_stable_version_count() -> None:
    """No error is a rate of 0, not a missing value."""
    new = Seen(answers=1000, failed=50, durations=times(FAST, 10))
    assert verdict(GOOD, new)[0] is Decision.TAKE_BACK


def test_without_requests_to_the_stable_version_its_error_rate_is_zero() -> None:
    assert verdict(Seen(), Seen(answers=100, failed=60))[0] is Decision.TAKE_BACK
    limits = Limits(p99_ratio=None)
    assert verdict(Seen(), Seen(answers=100, failed=1), limits=limits)[0] is Decision.GO_ON


def test_a_step_waits_for_answers_of_the_stable_version_to_compare_with() -> None:
    new = Seen(answers=100, durations=FAST)
    why = "there are 19 of 20 answers of version 1, for its p99"
    assert verdict(Seen(durations={0.01: 19}), new, held=1e6) == (Decision.WAIT, why)
    whole = replace(rollout(), plan=Plan(steps=(Step(share=100, hold=1),)))
    assert judge(whole, Reading(held=2.0, new=new)).decision is Decision.GO_ON


@pytest.mark.parametrize("how", ["waiting", "given_up"])
def test_a_version_that_does_not_answer_is_taken_back(how: str) -> None:
    new = replace(Seen(), **{how: {5.0: 20, 0.001: 3}})
    why = "20 of its 20 answers took longer than 12.5 ms, 1.25 times the p99 of version 1"
    assert verdict(GOOD, new, held=1.0) == (Decision.TAKE_BACK, why)


def test_what_neither_version_answers_is_not_held_against_the_new_one() -> None:
    stable = replace(GOOD, waiting={5.0: 300}, given_up={1.0: 100})
    new = Seen(answers=100, durations=FAST, waiting={5.0: 20}, given_up={1.0: 5})
    assert verdict(stable, new, held=1.0)[0] is Decision.WAIT


def test_a_limit_that_is_exceeded_by_chance_lengthens_the_step() -> None:
    new = Seen(answers=100, failed=3, durations=FAST)
    decision, why = verdict(GOOD, new, held=1e6)
    assert decision is Decision.WAIT
    assert why.endswith("version 1, which is not certain yet")
    better = Seen(answers=400, failed=3, durations=times(FAST, 4))
    assert verdict(GOOD, better)[0] is Decision.GO_ON


def test_a_slower_version_is_taken_back() -> None:
    new = Seen(answers=40, durations={0.030: 40})
    why = "40 of its 40 answers took longer than 12.5 ms, 1.25 times the p99 of version 1"
    assert verdict(GOOD, new, held=1.0) == (Decision.TAKE_BACK, why)


def test_a_version_that_is_slow_only_at_times_is_taken_back() -> None:
    new = Seen(answers=1000, durations={0.010: 900, 0.500: 100})
    assert verdict(GOOD, new, held=1.0)[0] is Decision.TAKE_BACK


def test_a_version_whose_p99_is_within_the_ratio_goes_on() -> None:
    new = Seen(answers=1000, durations={0.012: 991, 0.500: 9})
    assert verdict(GOOD, new)[0] is Decision.GO_ON
    tight = Limits(p99_ratio=1.1)
    assert verdict(GOOD, new, limits=tight)[0] is Decision.TAKE_BACK


def test_answers_that_differ_are_counted_among_the_compared_ones() -> None:
    limits = Limits(disagreement=0.02)
    new = Seen(answers=100, durations=FAST, compared=30, differed=15)
    why = "15 of its 30 compared answers differ from those of version 1"
    assert verdict(GOOD, new, limits=limits) == (Decision.TAKE_BACK, why)
    agreeing = replace(new, differed=0)
    why = "there are 30 of 100 compared answers"
    assert verdict(GOOD, agreeing, limits=limits) == (Decision.WAIT, why)
    assert verdict(GOOD, replace(agreeing, compared=100), limits=limits)[0] is Decision.GO_ON
    assert verdict(GOOD, new)[0] is Decision.GO_ON


def test_without_limits_only_the_hold_and_the_answers_count() -> None:
    limits = Limits(error_rate=None, p99_ratio=None, samples=0)
    new = Seen(answers=100, failed=100, durations={9.0: 100})
    assert verdict(GOOD, new, limits=limits)[0] is Decision.GO_ON


def test_the_interval_holds_the_share_and_narrows() -> None:
    assert interval(0, 10)[0] == 0.0
    assert interval(10, 10)[1] == 1.0
    widths = [high - low for low, high in (interval(n // 10, n) for n in (10, 100, 1000, 100000))]
    assert widths == sorted(widths, reverse=True)
    low, high = interval(50, 100)
    assert low == pytest.approx(0.5 - 4 * 0.05, abs=0.02)
    assert high == pytest.approx(0.5 + 4 * 0.05, abs=0.02)


def test_quantiles() -> None:
    assert quantile({}, 0.99) is None
    assert quantile({0.2: 1, 0.1: 99}, 0.99) == 0.1
    assert quantile({0.2: 2, 0.1: 98}, 0.99) == 0.2


@pytest.mark.parametrize("share", [5, 50])
def test_an_equal_version_is_not_taken_back_by_chance(share: int) -> None:
    """A look each second, for minutes, with no difference allowed."""
    limits = Limits(error_rate=0.0, p99_ratio=1.0)
    for seed in range(40):
        chance = random.Random(seed)
        seen = {"1": Seen(), "2": Seen()}
        for second in range(120):
            for _ in range(20):
                version = "2" if chance.random() < share / 100 else "1"
                seconds = round(chance.lognormvariate(-4.0, 0.8), 4)
                failed = chance.random() < 0.02
                one = Seen(answers=1, failed=int(failed), durations={seconds: 1})
                seen[version] = seen[version].plus(one)
            decision, why = verdict(seen["1"], seen["2"], second, limits)
            assert decision is not Decision.TAKE_BACK, (seed, second, why)


def test_a_rollout_goes_through_its_steps_to_its_end() -> None:
    go_on = Verdict(Decision.GO_ON, "")
    state: Rollout | None = rollout()
    shares = []
    while state is not None and state.running:
        shares.append(state.weights["2"])
        state = decided(state, state, go_on)
    assert shares == [5, 25, 50]
    assert state is not None
    assert state.state is State.PROMOTED


def test_a_verdict_about_another_state_changes_nothing() -> None:
    back = Verdict(Decision.TAKE_BACK, "it fails")
    assert decided(rollout(step=1), rollout(step=0), back) == rollout(step=1)
    assert decided(None, rollout(), back) is None
    over = decided(rollout(), rollout(), back)
    assert over == rollout().taken_back("it fails")
    assert decided(over, rollout(), Verdict(Decision.GO_ON, "")) == over


def test_states_and_readings_are_plain_data() -> None:
    state = rollout(Limits(disagreement=0.1)).taken_back("it fails")
    assert Rollout.of_plain(json.loads(json.dumps(state.plain()))) == state
    new = Seen(answers=1, compared=2, differed=1, given_up={1.0: 1}, waiting={0.2: 3})
    reading = Reading(held=3.0, stable=GOOD, new=new)
    assert Reading.of_plain(json.loads(json.dumps(reading.plain()))) == reading


def test_a_window_counts_from_the_first_reading_of_a_step() -> None:
    window, first, second = Window(), rollout(), rollout(step=1)
    earlier = Seen(answers=10, failed=1, durations={0.1: 10})
    later = Seen(answers=15, failed=3, durations={0.1: 10, 0.2: 5}, compared=2, waiting={1.0: 1})
    assert window.read(first, earlier, Seen(), 7.0) == Reading()
    found = window.read(first, later, earlier, 9.0)
    since = Seen(answers=5, failed=2, durations={0.2: 5}, compared=2, waiting={1.0: 1})
    assert found == Reading(held=2.0, stable=since, new=earlier)
    nothing = Reading(stable=Seen(waiting={1.0: 1}))
    assert window.read(second, later, earlier, 9.0) == nothing
    other = Reading(held=5.0, stable=since)
    together = found.plus(other)
    assert together.held == 5.0
    both = Seen(answers=10, failed=4, durations={0.2: 10}, compared=4, waiting={1.0: 2})
    assert together.stable == both


class Engines(RuleBasedStateMachine):
    """Engines with a virtual clock, of which any may end at any time; the first one judges.

    The rollout's state is in the supervisor, and outlives them. ``errs``: whether the new version
    fails each fifth request at least; else it does not fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.state = rollout()
        self.began = 0.0
        self.answers = 0  # of the new version, in the current step
        self.history = [self.state]
        self.counts: dict[int, dict[str, Seen]] = {}
        self.windows: dict[int, Window] = {}
        self.judged: tuple[Rollout, Verdict] | None = None
        for engine in range(3):
            self.end(engine)

    @initialize(errs=st.booleans())
    def choose(self, errs: bool) -> None:
        self.errs = errs

    @rule(engine=st.integers(0, 2))
    def end(self, engine: int) -> None:
        """An engine ends, with its counts and the verdict it was about to send."""
        self.counts[engine] = {"1": Seen(), "2": Seen()}
        self.windows[engine] = Window()
        if engine == 0:
            self.judged = None

    @rule(seconds=st.sampled_from([1.0, 20.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(engine=st.integers(0, 2), count=st.sampled_from([1, 30, 200]))
    def serve(self, engine: int, count: int) -> None:
        """Requests come, in proportion to the weights, and some by the version's number."""
        share = self.state.weights["2"] if self.state.running else 10
        new = max(1, count * 20 * share // 100)
        failed = (new + 4) // 5 if self.errs else 0
        durations = {0.01: new}
        counts = self.counts[engine]
        counts["2"] = counts["2"].plus(Seen(answers=new, failed=failed, durations=durations))
        stable = count * 20
        counts["1"] = counts["1"].plus(Seen(answers=stable, durations={0.01: stable}))
        self.answers += new

    @precondition(lambda self: self.state.running)
    @rule(missing=st.sampled_from([None, 1, 2]))
    def look(self, missing: int | None) -> None:
        """The first engine judges; one of the others may not answer in time."""
        reading = Reading()
        for engine, counts in self.counts.items():
            if engine != missing:
                window = self.windows[engine]
                found = window.read(self.state, counts["1"], counts["2"], self.now)
                reading = reading.plus(Reading.of_plain(json.loads(json.dumps(found.plain()))))
        self.judged = self.state, judge(self.state, reading)

    @precondition(lambda self: self.judged is not None)
    @rule()
    def commit(self) -> None:
        assert self.judged is not None
        judged, verdict = self.judged
        self.judged = None
        before = Rollout.of_plain(json.loads(json.dumps(self.state.plain())))
        after = decided(before, judged, verdict)
        assert after is not None
        if after == before:
            return
        if after.state is not State.TAKEN_BACK:
            assert self.now - self.began >= STEPS[before.step].hold
            assert self.answers >= before.plan.limits.samples
            assert not self.errs
        self.change(after)

    @precondition(lambda self: self.state.running)
    @rule(engine=st.integers(0, 2), count=st.sampled_from([30, 200]), held=st.booleans())
    def be_busy(self, engine: int, count: int, held: bool) -> None:
        """What a step needs to go on, maybe but for its time or its answers."""
        self.look(None)
        self.serve(engine, count)
        self.wait(61.0 if held else 1.0)
        self.look(None)

    @precondition(lambda self: self.state.running)
    @rule(promote=st.booleans())
    def by_hand(self, promote: bool) -> None:
        """An operator decides, maybe between a verdict and its commit."""
        self.change(self.state.promoted() if promote else self.state.taken_back("by hand"))
        self.change(replace(rollout(), number=self.state.number + 1))

    def change(self, state: Rollout) -> None:
        self.state = state
        self.history.append(state)
        self.began, self.answers = self.now, 0

    @invariant()
    def goes_step_by_step(self) -> None:
        for before, after in zip(self.history, self.history[1:], strict=False):
            if after.number != before.number:
                assert not before.running
            else:
                assert before.running
                assert after.step in (before.step, before.step + 1)
                assert (after.step == before.step) == (not after.running)

    @invariant()
    def is_decided_rightly(self) -> None:
        for each in self.history:
            by_verdict = each.state is State.TAKEN_BACK and each.why != "by hand"
            assert not by_verdict or self.errs


Engines.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestEngines = Engines.TestCase
