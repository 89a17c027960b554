"""The partition of requests into batches against all partitions."""

from itertools import combinations
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from penstock.batching.partition import BestSizes, CostTable, partition

COSTS = st.tuples(st.floats(0, 100), st.floats(0.01, 10), st.floats(0, 1))


def all_partitions(count):
    for size in range(count):
        for cuts in combinations(range(1, count), size):
            yield [*cuts, count]


@given(
    requests=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50)), min_size=1, max_size=7),
    terms=COSTS,
    most=st.integers(1, 8),
)
def test_no_partition_takes_less_time(requests, terms, most):
    requests.sort(key=lambda each: each[1])
    rows, widths = [list(each) for each in zip(*requests, strict=True)]

    def cost(count, elements):
        return terms[0] + terms[1] * count + terms[2] * elements

    def time(ends):
        taken = 0.0
        for begin, end in zip([0, *ends], ends, strict=False):
            total = sum(rows[begin:end])
            if total > most and end - begin > 1:
                return float("inf")
            taken += cost(total, total * widths[end - 1])
        return taken

    least = min(map(time, all_partitions(len(rows))))
    assert time(partition(rows, widths, table(cost, 8), most)) <= least * (1 + 1e-9)


def table(cost, most):
    """Of a cost that is linear in the elements."""
    fixed = [cost(rows, 0) for rows in range(most + 1)]
    return CostTable(fixed, [cost(rows, 1) - fixed[rows] for rows in range(most + 1)])


def test_costly_hand_overs_join_all_and_costly_padding_none():
    rows, widths = [1, 1, 1, 1], [10, 11, 200, 210]
    for hand_over, ends in ((1000, [4]), (50, [2, 4]), (0.5, [1, 2, 3, 4])):
        costs = table(lambda r, e, hand_over=hand_over: hand_over + r + e, 4)
        assert partition(rows, widths, costs, 4) == ends


def test_a_batch_whose_cost_is_not_known_is_not_formed():
    costs = CostTable([inf, 10, 11], [1, 1, 1])
    assert partition([1, 1, 1, 3, 1], [5] * 5, costs, 4) == [2, 3, 4, 5]


def best_of(cost, most, **more):
    best = BestSizes([inf, *map(cost, range(1, most + 1))], **more)
    return [best.of(waiting) for waiting in range(most + 1)]


@given(
    terms=COSTS,
    jump=st.tuples(st.integers(2, 9), st.floats(0, 100)),
    waiting=st.integers(1, 9),
)
def test_no_sizes_take_less_time(terms, jump, waiting):
    def cost(rows):
        return terms[0] + terms[1] * rows + (jump[1] if rows >= jump[0] else 0)

    best = BestSizes([inf, *map(cost, range(1, 10))], slack=0)
    least = min(
        sum(cost(end - begin) for begin, end in zip([0, *ends], ends, strict=False))
        for ends in all_partitions(waiting)
    )
    taken = 0.0
    while waiting:
        size = best.of(waiting)
        taken += cost(size)
        waiting -= size
    assert taken <= least * (1 + 1e-9)


def test_of_sizes_that_cost_the_same_for_each_request_the_smallest_runs():
    best = best_of(lambda rows: max(8, rows), 32)  # no gain from 8 on
    # Of 15 or fewer, none would run as cheaply after a batch of 8, nor 9 and 8 of 17 as 17.
    assert best[:18] == [*range(16), 8, 9]
    assert (best[24], best[32]) == (8, 8)
    assert best_of(lambda rows: 100 + rows, 32, slack=0) == [*range(33)]
    assert best_of(float, 32) == [0, *[1] * 32]


def test_nobody_is_left_over_for_a_batch_that_costs_more():
    # 24 requests cost 2 % less each than 32, but the other 8 would cost more than that saves.
    best = best_of(lambda rows: 10 + rows + (6 if rows > 24 else 0), 32)
    assert best[32] == 32


def test_a_jump_of_the_cost_is_not_crossed():
    best = best_of(lambda rows: 1 + 0.1 * rows + (5 if rows >= 16 else 0), 32, slack=0)
    assert best[:16] == [*range(16)]
    assert set(best[16:]) <= {*range(9, 16)}
    assert best[30] == 15


def test_a_size_whose_cost_is_not_known_does_not_run():
    best = best_of(lambda rows: 100 + rows if rows < 5 else inf, 8)
    assert best[:5] == [0, 1, 2, 3, 4]
    assert max(best) == 4
    assert best_of(lambda rows: inf, 3) == [0, 1, 2, 3]
