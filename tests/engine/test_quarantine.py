"""Handling of requests whose worker died."""

import logging
import math
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.quarantine import (
    BAN,
    BRIEF_BAN,
    LONGEST_BAN,
    MOST,
    SUSPICION,
    Quarantine,
    Suspicion,
    digest_of,
    runs_alone,
)
from penstock.errors import HookFailed, InferenceFailed
from penstock.ops.failures import broke_protocol, worker_died
from penstock.request import Batch, CloseReason, Outcome, Sample


def sample(number: int, x: Any = None, deadline: float = math.inf) -> Sample:
    return Sample(number, {"op": {"x": number if x is None else x}}, deadline, op=0)


def batch(*samples: Sample) -> Batch:
    return Batch(list(samples), CloseReason.FULL, 0.0)


def died(quarantine: Quarantine, lost: Batch, now: float = 1.0) -> dict[int, str]:
    """The answered samples, and the codes of their errors."""
    outcomes = [Outcome(None, worker_died("op", 0)) for _ in lost.samples]
    answered, answers = quarantine.died(lost, outcomes, now)
    errors = [answer.error.code for answer in answers if answer.error is not None]
    return dict(zip([each.data_id for each in answered], errors, strict=True))


def fill(quarantine: Quarantine, *queue: Batch, now: float = 2.0) -> tuple[list[Any], list[int]]:
    """All hand-overs made from these batches, and the refused data ids."""
    waiting = list(queue)
    handed: list[Any] = []
    refused: list[int] = []
    while True:
        batches, wait, culprits = quarantine.fill(
            8, lambda: now, lambda now: None, lambda: waiting.pop(0) if waiting else 7.5
        )
        refused += [each.data_id for each in culprits]
        if not batches:
            assert wait == 7.5
            return handed, refused
        handed.append([each.data_ids for each in batches])


def dispatch_alone(quarantine: Quarantine, number: int, x: Any, now: float = 2.0) -> Batch | None:
    """The batch that runs for one request with these inputs; None if it is refused."""
    queue = [batch(sample(number, x=x))]
    batches, _, _ = quarantine.fill(
        8, lambda: now, lambda now: None, lambda: queue.pop(0) if queue else None
    )
    return batches[0] if batches else None


def test_quarantine_is_active_from_the_first_death_until_suspicion_expires() -> None:
    quarantine = Quarantine("op", rerun=False)
    assert not quarantine.active
    died(quarantine, batch(sample(1)), 1.0)
    assert quarantine.active
    fill(quarantine, batch(sample(2)), now=1.0 + SUSPICION)
    assert not quarantine.active
    assert quarantine.suspects == 0


def test_without_a_rerun_all_are_answered_and_become_suspects() -> None:
    quarantine = Quarantine("op", rerun=False)
    assert died(quarantine, batch(sample(1), sample(2))) == {1: "worker_died", 2: "worker_died"}
    queue = batch(sample(3, x=1), sample(4), sample(5)), batch(sample(6, x=2))
    assert fill(quarantine, *queue) == ([[[4, 5]], [[3]], [[6]]], [])
    assert queue[0].rows == 2


def test_a_suspect_whose_run_succeeds_is_cleared() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1), sample(2)))
    for x in (1, 2):
        again = dispatch_alone(quarantine, 3, x=x)
        assert again is not None
        assert (again.reason, runs_alone(again.samples[0])) == (CloseReason.ALONE, True)
        assert quarantine.active
        quarantine.batch_returned(again, [Outcome({})], 2.5)
    assert not quarantine.active


def test_a_run_whose_request_was_cancelled_clears_no_suspect() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1)))
    again = dispatch_alone(quarantine, 3, x=1)
    assert again is not None
    again.samples[0].gone = True
    quarantine.batch_returned(again, [Outcome({})], 2.5)
    assert quarantine.suspects == 1


def test_a_failure_for_lack_of_workers_clears_no_suspect() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1)))
    again = dispatch_alone(quarantine, 3, x=1)
    assert again is not None
    quarantine.batch_returned(again, [Outcome(None, InferenceFailed("no worker"))], 2.5)
    assert quarantine.suspects == 1
    quarantine.batch_returned(again, [Outcome(None, HookFailed("it raised, so it ran"))], 2.5)
    assert quarantine.suspects == 0


@pytest.mark.parametrize("others_run", [True, False])
def test_a_suspect_that_kills_a_worker_alone_is_banned_for_increasing_times(
    others_run: bool, caplog: pytest.LogCaptureFixture
) -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1), sample(2)))
    if others_run:
        quarantine.batch_returned(batch(sample(9)), [Outcome({})], 1.5)
    now, bans = 2.0, []
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            lone = dispatch_alone(quarantine, 3, x=1, now=now)
            assert lone is not None
            assert died(quarantine, lone, now) == {3: "kills_workers"}
            end = next(
                now + n
                for n in range(100)
                if dispatch_alone(quarantine, 4, x=1, now=now + n) is not None
            )
            bans.append(end - now)
            now = end
    first = BAN if others_run else BRIEF_BAN
    assert bans == [first, 2 * BAN, 4 * BAN, LONGEST_BAN, LONGEST_BAN]
    assert "op op: two workers have died of one request (data_id=3" in caplog.text
    assert quarantine.refused > 0
    lone = dispatch_alone(quarantine, 5, x=1, now=now)
    assert lone is not None
    quarantine.batch_returned(lone, [Outcome({})], now)  # the card works again
    assert not quarantine.active


def test_all_requests_are_accepted_within_2_s_of_the_end_of_a_glitch_of_2_s() -> None:
    quarantine = Quarantine("op", rerun=False)
    accepted_after: dict[int, float] = {}
    for step in range(500):
        now = step / 100
        for x in range(3):
            lone = dispatch_alone(quarantine, step, x, now)
            if lone is None:
                continue
            if now < 2.0:
                died(quarantine, lone, now)
            else:
                accepted_after.setdefault(x, now - 2.0)
                quarantine.batch_returned(lone, [Outcome({})], now)
    assert accepted_after.keys() == {0, 1, 2}
    assert max(accepted_after.values()) <= 2.0
    assert not quarantine.active


def test_all_bans_end_when_banned_inputs_have_run() -> None:
    quarantine = Quarantine("op", rerun=False)
    for now in (0.0, 0.0, BRIEF_BAN):  # a glitch that lasts longer than the first ban
        for x in (1, 2):
            lone = dispatch_alone(quarantine, x, x, now)
            assert lone is not None
            died(quarantine, lone, now + 5.0 * (x == 2 and now > 0))
    now = BRIEF_BAN + 2 * BAN
    assert dispatch_alone(quarantine, 3, 2, now) is None
    lone = dispatch_alone(quarantine, 4, 1, now)
    assert lone is not None
    quarantine.batch_returned(lone, [Outcome({})], now)
    assert dispatch_alone(quarantine, 5, 2, now) is not None


def test_a_worker_that_breaks_its_protocol_makes_no_request_suspect() -> None:
    for rerun in (False, True):
        quarantine = Quarantine("op", rerun=rerun)
        outcome = Outcome(None, broke_protocol("op", 0))
        answered, _ = quarantine.died(batch(sample(1), sample(2)), [outcome] * 2, 1.0)
        assert len(answered) == (0 if rerun else 2)
        assert quarantine.active == rerun
        assert quarantine.suspects == 0
        if rerun:  # each runs once more, alone
            assert fill(quarantine) == ([[[1]], [[2]]], [])
        lone = Sample(3, {"op": {"x": 3}}, math.inf, op=0)
        lone.key = Suspicion(digest_of(lone.inputs))
        answered, answers = quarantine.died(batch(lone), [outcome], 2.0)
        assert [each.error for each in answers] == [outcome.error]
        assert dispatch_alone(quarantine, 4, x=3, now=2.0) is not None


def test_two_deaths_of_shared_batches_ban_no_request() -> None:
    quarantine = Quarantine("op", rerun=False)
    for n in range(5):
        lost = batch(sample(1, x="common"), sample(2, x=n))
        assert set(died(quarantine, lost).values()) == {"worker_died"}


def test_with_a_rerun_each_sample_runs_once_more_alone_in_order() -> None:
    quarantine = Quarantine("op", rerun=True)
    assert died(quarantine, batch(sample(1), sample(2), sample(3))) == {}
    assert len(quarantine) == 3
    assert fill(quarantine) == ([[[1]], [[2]], [[3]]], [])


def test_a_sample_that_kills_a_worker_in_its_rerun_is_answered_and_banned() -> None:
    quarantine = Quarantine("op", rerun=True)
    died(quarantine, batch(sample(1)))
    (lone,), _, _ = quarantine.fill(8, lambda: 2.0, lambda now: None, lambda: None)
    assert died(quarantine, lone, 2.0) == {1: "kills_workers"}
    assert len(quarantine) == 0
    assert dispatch_alone(quarantine, 2, x=1, now=3.0) is None


def test_a_sample_without_a_digest_runs_at_most_twice() -> None:
    quarantine = Quarantine("op", rerun=True)
    died(quarantine, batch(sample(1, x=object())))
    (lone,), _, _ = quarantine.fill(8, lambda: 2.0, lambda now: None, lambda: None)
    assert died(quarantine, lone, 2.0) == {1: "kills_workers"}
    assert quarantine.suspects == 0
    fill(quarantine)
    assert not quarantine.active


def test_cancelled_and_expired_samples_are_not_rerun_but_are_suspects() -> None:
    quarantine = Quarantine("op", rerun=True)
    gone, leaving, late = sample(1), sample(2), sample(3, deadline=5.0)
    gone.gone = True
    assert died(quarantine, batch(gone, leaving, late), 4.0) == {1: "worker_died"}
    leaving.gone = True
    assert fill(quarantine, now=5.0) == ([], [])
    assert quarantine.suspects == 3


def test_an_abandoned_batch_is_not_rerun() -> None:
    quarantine = Quarantine("op", rerun=True)
    lost = batch(sample(1))
    lost.settled = True
    assert died(quarantine, lost) == {1: "worker_died"}
    assert quarantine.suspects == 1


def test_a_suspect_has_its_own_hand_over_directly_after_the_current_one() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1)))
    queue = [batch(sample(n, x=x)) for n, x in ((2, "a"), (3, "b"), (4, 1), (5, "c"))]
    assert fill(quarantine, *queue) == ([[[2], [3]], [[4]], [[5]]], [])


def test_a_suspect_that_was_taken_back_still_runs_alone() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(1)))
    lone = dispatch_alone(quarantine, 2, x=1)
    assert lone is not None
    again = [batch(sample(3)), lone, None]
    batches, _, _ = quarantine.fill(8, lambda: 2.0, lambda now: again.pop(0), lambda: None)
    assert [each.data_ids for each in batches] == [[3]]
    batches, _, _ = quarantine.fill(8, lambda: 2.0, lambda now: None, lambda: None)
    assert [each.data_ids for each in batches] == [[2]]


def slow_clock(step: float) -> Callable[[], float]:
    """A clock by which each look at a batch takes ``step`` seconds."""
    return count(2.0, step).__next__


def test_the_checks_of_one_turn_are_limited_to_a_millisecond() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(sample(0, x="bad")))
    lone = dispatch_alone(quarantine, 1, x="bad")
    assert lone is not None
    died(quarantine, lone, 2.0)
    bad = [batch(sample(n, x="bad")) for n in range(5)]
    batches, wait, refused = quarantine.fill(
        8, slow_clock(0.0006), lambda now: None, lambda: bad.pop()
    )
    assert (batches, wait, len(refused), len(bad)) == ([], pytest.approx(2.0012), 2, 3)
    good = [batch(sample(n)) for n in range(5)]
    batches, wait, refused = quarantine.fill(
        8, slow_clock(0.0006), lambda now: None, lambda: good.pop(0)
    )
    assert ([each.data_ids for each in batches], wait, refused) == ([[0], [1]], None, [])


def test_the_number_of_suspects_is_bounded() -> None:
    quarantine = Quarantine("op", rerun=False)
    died(quarantine, batch(*map(sample, range(MOST + 5))))
    assert quarantine.suspects == MOST


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_equal_inputs_and_no_others_have_equal_digests(a: Any, b: Any) -> None:
    assert digest_of({"op": {"x": a}}) == digest_of({"op": {"x": a}})
    same = digest_of({"op": {"x": a}}) == digest_of({"op": {"x": b}})
    assert same == (repr(a) == repr(b))


@pytest.mark.parametrize("dtype", ["f4", "u1", "U3", "bool", "M8[s]"])
@pytest.mark.parametrize("shape", [(3,), (300, 400), (0, 2), ()])
def test_digests_of_arrays_depend_on_dtype_shape_and_content(
    dtype: str, shape: tuple[int, ...]
) -> None:
    array = np.zeros(shape, dtype)
    digest = digest_of({"op": {"x": array}})
    assert digest is not None
    assert digest == digest_of({"op": {"x": array.copy(order="F")}})
    assert digest != digest_of({"op": {"x": array.reshape(*shape, 1)}})
    if array.size:
        for place in (0, -1):
            other = array.copy()
            other.flat[place] = 1
            assert digest != digest_of({"op": {"x": other}})


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((4000, 4000), "f4"),
        np.zeros((4000, 4000), "f4")[::2, ::3],
        b"x" * (64 << 20),
        "ü" * (32 << 20),
        list(range(2_000_000)),
        [[0.5] * 100] * 50_000,
        {str(n): n for n in range(100_000)},
    ],
    ids=["array", "array with gaps", "bytes", "text", "list", "lists", "dict"],
)
def test_the_time_for_a_digest_does_not_depend_on_the_size(value: Any) -> None:
    inputs = {"op": {"x": value}}
    assert digest_of(inputs) is not None
    times = []
    for _ in range(5):
        began = time.process_time()
        digest_of(inputs)
        times.append(time.process_time() - began)
    assert min(times) < 0.02


def test_inputs_without_a_stable_form_have_no_digest() -> None:
    nested: list[Any] = []
    nested.append(nested)
    for value in (object(), nested, np.array([object()])):
        assert digest_of({"op": {"x": value}}) is None
