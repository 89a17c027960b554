"""The decisions of the SDK: variants, replicas, repetitions, backup requests."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock.client.errors import CallFailed
from penstock.client.health import State
from penstock.client.routing import (
    HEDGE_RESERVE,
    Attempts,
    HedgeBudget,
    Load,
    choose,
    weighted,
)
from penstock.protocols.status import GrpcCode

READY, APART, OUT = State.READY, State.APART, State.OUT
REFUSED = CallFailed(GrpcCode.UNAVAILABLE, "cannot connect", retryable=True, sent=False)
LOST = CallFailed(GrpcCode.UNAVAILABLE, "the connection was lost", retryable=True)
BUSY = CallFailed(GrpcCode.RESOURCE_EXHAUSTED, "busy", retryable=True, retry_after=1.0)
WRONG = CallFailed(GrpcCode.INVALID_ARGUMENT, "no such input")


def loads(*given: tuple[State, int]) -> list[Load]:
    return [Load(f"r{at}", state, busy, 0) for at, (state, busy) in enumerate(given)]


def chosen(
    strategy: str,
    replicas: list[Load],
    without: tuple[int, ...] = (),
    chances: tuple[float, float] = (0.0, 0.0),
    key: str | None = None,
) -> int | None:
    return choose(strategy, replicas, without, chances=chances, key=key)


def in_turn(
    strategy: str, replicas: list[Load], calls: int, without: tuple[int, ...] = ()
) -> list[int | None]:
    found: list[int | None] = []
    for call in range(1, calls + 1):
        at = chosen(strategy, replicas, without)
        assert at is not None
        replicas[at] = replicas[at]._replace(last=call)
        found.append(at)
    return found


def test_weights_divide_the_range_of_chances_and_zero_has_no_part() -> None:
    counts = Counter(weighted([75, 0, 25], at / 100) for at in range(100))
    assert counts == {0: 75, 2: 25}
    for wrong in ([0], [1, -1], [-5]):
        with pytest.raises(ValueError, match="weights of variants"):
            weighted(wrong, 0.5)


def test_least_requests_prefers_health_then_the_shorter_queue_then_takes_turns() -> None:
    replicas = loads((OUT, 0), (READY, 3), (READY, 1), (APART, 0))
    assert chosen("least_requests", replicas) == 2
    assert chosen("least_requests", replicas, without=(2,)) == 1
    assert chosen("least_requests", replicas, without=(1, 2)) == 3
    assert chosen("least_requests", replicas, without=(1, 2, 3)) == 0
    assert chosen("least_requests", replicas, without=(0, 1, 2, 3)) is None
    equal = loads(*[(READY, 0)] * 3)
    assert in_turn("least_requests", equal, 6) == [0, 1, 2] * 2


def test_two_choices_takes_the_less_busy_of_two_random_ones() -> None:
    replicas = loads((READY, 9), (READY, 2), (READY, 0), (OUT, 0))
    assert chosen("two_choices", replicas, chances=(0.0, 0.0)) == 1  # of 0 and 1
    assert chosen("two_choices", replicas, chances=(0.99, 0.0)) == 2  # of 2 and 0
    assert {
        chosen("two_choices", replicas, chances=(a / 10, b / 10))
        for a in range(10)
        for b in range(10)
    } == {1, 2}


def test_random_and_round_robin_use_the_healthy_ones_alike() -> None:
    replicas = loads((READY, 5), (OUT, 0), (READY, 0))
    counts = Counter(chosen("random", replicas, chances=(at / 100, 0)) for at in range(100))
    assert counts == {0: 50, 2: 50}
    assert in_turn("round_robin", replicas, 4) == [0, 2, 0, 2]


@pytest.mark.parametrize("strategy", ["round_robin", "least_requests"])
def test_the_calls_of_a_replica_that_gets_none_are_shared_by_all_others(strategy: str) -> None:
    out = loads((OUT, 0), (READY, 0), (READY, 0))
    assert in_turn(strategy, out, 4) == [1, 2, 1, 2]
    assert in_turn(strategy, loads(*[(READY, 0)] * 3), 4, without=(0,)) == [1, 2, 1, 2]


def test_a_key_stays_with_its_replica_and_only_keys_of_one_that_is_out_move() -> None:
    replicas = loads(*[(READY, 0)] * 4)
    keys = [f"user-{number}" for number in range(200)]
    before = {key: chosen("sticky", replicas, key=key) for key in keys}
    assert set(before.values()) == {0, 1, 2, 3}
    apart = loads((READY, 9), (APART, 0), (READY, 0), (READY, 0))
    assert {key: chosen("sticky", apart, key=key) for key in keys} == before
    out = loads((READY, 0), (OUT, 0), (READY, 0), (READY, 0))
    after = {key: chosen("sticky", out, key=key) for key in keys}
    assert {key for key in keys if after[key] != before[key]} == {
        key for key in keys if before[key] == 1
    }
    assert chosen("sticky", apart) == 2  # without a key: least requests, of equals in turn


def test_a_call_that_no_server_has_begun_goes_to_each_replica_at_once() -> None:
    attempts = Attempts(0, None, idempotent=False)
    assert attempts.pause_after(REFUSED, 0, 0.5, others=True) == 0
    assert attempts.pause_after(REFUSED, 0, 0.5, others=True) == 0
    assert attempts.pause_after(REFUSED, 0, 0.5, others=False) is None  # no retries are left


def test_rounds_over_all_replicas_have_pauses_that_double() -> None:
    attempts = Attempts(3, None, idempotent=False)
    pauses = [attempts.pause_after(REFUSED, 0, 0.5, others=False) for _ in range(4)]
    assert pauses[:3] == pytest.approx([0.05, 0.1, 0.2])
    assert pauses[3] is None


def test_a_call_that_may_have_run_is_repeated_only_if_it_is_idempotent() -> None:
    assert Attempts(2, None, idempotent=False).pause_after(LOST, 0, 0.5, others=True) is None
    attempts = Attempts(1, None, idempotent=True)
    assert attempts.pause_after(LOST, 0, 0.5, others=True) == 0
    assert attempts.pause_after(LOST, 0, 0.5, others=True) is None  # one retry
    assert Attempts(2, None, idempotent=True).pause_after(WRONG, 0, 0.5, others=True) is None


def test_a_servers_hint_is_followed_within_the_deadline() -> None:
    attempts = Attempts(3, 10.0, idempotent=False)
    assert attempts.pause_after(BUSY, 8.0, 0.5, others=True) == 0
    assert attempts.pause_after(BUSY, 8.0, 0.5, others=False) == 1.0
    assert attempts.pause_after(BUSY, 9.0, 0.5, others=False) is None


def test_a_cancelled_call_is_never_repeated() -> None:
    cancelled = CallFailed(GrpcCode.CANCELLED, "closed", sent=False)
    assert Attempts(2, None, idempotent=True).pause_after(cancelled, 0, 0.5, others=True) is None


def test_backup_requests_never_exceed_their_share_of_the_calls_and_the_reserve() -> None:
    budget = HedgeBudget(0.05)
    taken = 0
    for calls in range(1, 10_001):
        budget.called()
        taken += budget.take()
        assert taken <= HEDGE_RESERVE + 0.05 * calls + 1e-6
    assert taken == HEDGE_RESERVE + 500
    none = HedgeBudget(0.0)
    none.called()
    assert not none.take()


def test_the_first_calls_of_a_client_may_have_backup_requests() -> None:
    budget = HedgeBudget(0.01)
    budget.called()
    assert sum(budget.take() for _ in range(100)) == HEDGE_RESERVE == 5


def test_a_quiet_time_saves_up_a_bounded_number_of_backup_requests() -> None:
    budget = HedgeBudget(0.05)
    for _ in range(100_000):
        budget.called()
    assert sum(budget.take() for _ in range(1000)) == 20


def test_hedging_cuts_the_p99_of_a_stuttering_replica_within_its_budget() -> None:
    # Calls take 10 ms; one of two replicas has three pauses of a second in 100 answers. Backup
    # requests are sent after 30 ms, as ``RoutedCall`` does.
    chance = random.Random(7)

    def seconds(stutters: bool) -> float:
        return 1.0 if stutters and chance.random() < 0.03 else 0.01

    def p99(hedge_after: float) -> tuple[float, int]:
        budget, times, backups = HedgeBudget(), [], 0
        for turn in range(20_000):
            budget.called()
            taken = seconds(turn % 2 == 0)
            if taken > hedge_after and budget.take():
                backups += 1
                taken = min(taken, hedge_after + seconds(turn % 2 == 1))
            times.append(taken)
        return sorted(times)[19_800], backups

    (without, none), (with_backups, some) = p99(9.0), p99(0.03)
    assert none == 0
    assert with_backups <= 0.3 * without
    assert 0 < some <= HEDGE_RESERVE + 0.05 * 20_000
