"""What the cost model learns from batches whose true cost the test knows."""

import re
from random import Random

import pytest

from penstock.batching.costs import BatchCosts


def taught(cost, sizes, batches=400, *, seed=1, widths=(0,)):
    """A model after batches of random sizes; times vary by 15 %, one in 50 by a factor of 8."""
    random = Random(seed)
    costs = BatchCosts()
    for _ in range(batches):
        rows = random.choice(sizes)
        elements = rows * random.choice(widths)
        noise = random.lognormvariate(0, 0.15) * (8 if random.random() < 0.02 else 1)
        costs.learn(rows, elements, cost(rows, elements) * noise)
    return costs


@pytest.mark.parametrize("seed", range(5))
def test_rows_and_padded_elements_are_told_apart(seed):
    def cost(rows, elements):
        return 2e-4 + 1e-5 * rows + 1e-7 * elements

    costs = taught(cost, [1, 2, 3, 5, 8, 12, 20, 32], seed=seed, widths=range(10, 500, 7))
    for rows in (1, 4, 16, 32, 60):
        for width in (10, 200, 490):
            assert costs.seconds(rows, rows * width) == pytest.approx(
                cost(rows, rows * width), rel=0.4
            )


@pytest.mark.parametrize("seed", range(5))
def test_a_jump_is_known_where_it_was_met(seed):
    def cost(rows, _=0):
        return 1e-3 + 1e-4 * rows + (5e-3 if rows >= 16 else 0)

    costs = taught(cost, [1, 2, 4, 8, 12, 15, 16, 24, 32], 1000, seed=seed)
    for rows in (1, 2, 4, 8, 12, 14, 15, 16, 20, 32):
        assert costs.seconds(rows) == pytest.approx(cost(rows), rel=0.35)


def test_what_a_small_batch_costs_is_still_known_after_many_large_ones():
    def cost(rows, _=0):
        return 1e-3 + 1e-4 * rows

    costs = taught(cost, [1, 2, 32])
    for _ in range(5000):
        costs.learn(32, 0, cost(32))
    assert costs.seconds(1) == pytest.approx(cost(1), rel=0.3)


def test_a_model_that_becomes_slower_is_followed():
    costs = taught(lambda rows, _: 1e-3 * rows, [1, 2, 4])
    for _ in range(256):
        costs.learn(4, 0, 40e-3)
    assert costs.seconds(4) == pytest.approx(40e-3, rel=0.1)


def test_a_size_that_ceases_to_be_dear_is_known_after_a_few_of_its_batches():
    costs = taught(lambda rows, _: 1e-2 * rows, [1, 2, 4, 8])
    for _ in range(6):  # what seems to be dear is seldom tried
        for _ in range(127):
            costs.learn(1, 0, 2e-3)
        costs.learn(8, 0, 2e-3)
    assert (costs.seconds(8) or 1) < 8e-3


def test_nothing_is_known_before_enough_batches_of_two_sizes():
    costs = BatchCosts()
    assert costs.seconds(1) is None
    assert costs.words() == "not known yet"
    for _ in range(20):
        costs.learn(4, 0, 4e-3)
    assert costs.seconds(4) == pytest.approx(4e-3, rel=0.01)
    assert costs.seconds(1) is None  # a + b * rows: one size tells neither
    assert costs.table(32) is None
    for _ in range(16):
        costs.learn(1, 0, 2e-3)
    assert costs.seconds(8) is not None
    assert costs.seconds(9) is None  # beyond twice the largest
    table = costs.table(32, 1.0)
    assert table is not None
    assert len(table.fixed) == 9
    assert table.fixed[4] == pytest.approx(1.0 + (costs.seconds(4) or 0))


def test_words_and_report():
    costs = taught(lambda rows, _: 1e-3 * (1 + 0.13 * (rows - 1)), [1, 2, 4, 8])
    assert re.fullmatch(r"8 rows cost (1\.[6-9]|2\.[0-2]) × one", costs.words())
    report = costs.report()
    assert report["batches"] == 400
    assert list(report["seconds"]) == ["1", "2", "4", "8"]


def test_a_time_that_is_not_positive_is_not_recorded():
    costs = BatchCosts()
    for seconds in (0.0, -1.0, float("nan")):
        costs.learn(1, 0, seconds)
    assert costs.report()["batches"] == 0


def test_how_quick_a_batch_may_be_is_known_for_steady_and_for_unsteady_models():
    steady = taught(lambda rows, _: 1e-3 * rows, [1, 2, 4])
    assert 0.7 < steady.quick < 0.9
    random = Random(3)
    unsteady = taught(lambda rows, _: 1e-3 * rows * random.choice([0.1, 1, 3]), [1, 2, 4])
    assert unsteady.quick < 0.15
    assert BatchCosts().quick == 0.0
