"""What the learned policy decides, by costs that the test knows."""

from penstock.batching.batcher import BatchPolicy
from penstock.batching.costs import BatchCosts
from penstock.batching.learned import EXPLORE, MOST_PASSED, LearnedBatcher
from penstock.request import Batch, Sample

FAR = 1e9


def join(one, other):
    """Any sizes may share a batch."""
    return tuple(tuple(map(max, *each)) for each in zip(one, other, strict=True))


def taught(cost, rows=(1, 2, 4, 8, 15, 16, 32), widths=(0,)):
    costs = BatchCosts()
    for _ in range(40):
        for each in rows:
            for width in widths:
                costs.learn(each, each * width, cost(each, each * width))
    return costs


def batcher(cost, *, widths=(0,), window=None, **more):
    policy = BatchPolicy(
        max_rows=32, window=window, join=None if widths == (0,) else join, learned=True
    )
    return LearnedBatcher(policy, taught(cost, widths=widths, **more))


def offered(queue, widths, at=0.0, first=0):
    for number, width in enumerate(widths, first):
        sample = Sample(number, {}, FAR)
        sample.shapes, sample.elements = ((width,),), width
        queue.offer(sample, at)


def all_batches(queue, now=0.0):
    found = []
    while len(queue):
        polled = queue.poll(now)
        assert isinstance(polled, Batch)
        found.append(polled.data_ids)
    return found


def test_no_batch_crosses_a_jump_of_the_cost():
    queue = batcher(lambda rows, _: 1e-3 + 1e-4 * rows + (5e-3 if rows >= 16 else 0))
    offered(queue, [0] * 45)
    assert [len(each) for each in all_batches(queue)] == [15, 15, 15]


def test_what_gains_from_rows_runs_together_and_what_does_not_need_not():
    gains = batcher(lambda rows, _: 1e-2 + 1e-5 * rows)
    offered(gains, [0] * 32)
    assert [len(each) for each in all_batches(gains)] == [32]
    none = batcher(lambda rows, _: 1e-2 * rows)
    offered(none, [0] * 8)
    assert [len(each) for each in all_batches(none)] == [1] * 8


def test_padded_requests_run_with_their_like_and_the_oldest_first():
    queue = batcher(lambda _, elements: 1e-4 + 1e-6 * elements, widths=(10, 100, 1000))
    offered(queue, [1000, 10, 11, 1001, 12, 500])
    assert all_batches(queue) == [[0, 3], [1, 2, 4], [5]]


def test_a_request_is_passed_by_fewer_than_the_bound_of_later_ones():
    queue = batcher(lambda _, elements: 1e-4 + 1e-6 * elements, widths=(10, 100, 1000))
    offered(queue, [1000])
    first, number = None, 1
    passed = 0
    while first is None:
        offered(queue, [10] * 8, first=number)
        number += 8
        polled = queue.poll(0.0)
        assert isinstance(polled, Batch)
        first = 0 if 0 in polled.data_ids else None
        passed += first is None and len(polled.data_ids)
        assert passed < MOST_PASSED


def test_now_and_then_another_size_runs():
    queue = batcher(lambda rows, _: 1e-3 + 1e-4 * rows + (5e-3 if rows >= 16 else 0))
    sizes = []
    for number in range(2 * EXPLORE):
        offered(queue, [0] * 31, first=100 * number)
        polled = queue.poll(0.0)
        assert isinstance(polled, Batch)
        sizes.append(polled.rows)
        all_batches(queue)
    assert {15} < {*sizes}
    assert sizes.count(15) >= len(sizes) * 0.9


def test_with_unknown_costs_all_that_may_run_together_do():
    queue = LearnedBatcher(BatchPolicy(max_rows=8, learned=True))
    offered(queue, [0] * 20)
    assert [len(each) for each in all_batches(queue)] == [8, 8, 4]


def test_it_waits_for_company_only_while_that_pays():
    def started(cost, gap):
        queue = batcher(cost, window=1.0)
        for number in range(30):
            offered(queue, [0], at=number * gap, first=number)
        now = 29 * gap
        queue.poll(now, draining=True)
        offered(queue, [0], at=now + gap, first=99)
        return queue, now + gap

    def gains(rows, _):
        return 1e-2 + 1e-5 * rows

    queue, now = started(gains, gap=1e-3)
    until = queue.poll(now)
    assert isinstance(until, float)
    assert now < until < now + 0.01  # soon: nobody has come for some gaps
    assert isinstance(queue.poll(until), Batch)
    queue, now = started(gains, gap=0.1)  # a request saves 10 ms and would cost 100
    assert isinstance(queue.poll(now), Batch)
    queue, now = started(lambda rows, _: 1e-2 * rows, gap=1e-3)  # nothing is saved
    assert isinstance(queue.poll(now), Batch)
