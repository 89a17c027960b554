"""What the learned policy decides, by costs that the test knows."""

import pytest

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
    queue = LearnedBatcher(policy, taught(cost, widths=widths, **more))
    queue._choices = 8 * EXPLORE  # the first ones explore more often
    return queue


def offered(queue, widths, at=0.0, first=0, deadlines=None):
    for number, width in enumerate(widths, first):
        sample = Sample(number, {}, FAR if deadlines is None else deadlines[number - first])
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
    # 14 is as good: 171 us a row instead of 167.
    assert {len(each) for each in all_batches(queue)[:3]} <= {14, 15}


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


def test_of_different_deadlines_the_earliest_runs_first():
    queue = batcher(lambda rows, _: 1e-2 * rows)
    offered(queue, [0] * 4, deadlines=[9.0, 5.0, 7.0, 5.0])
    assert all_batches(queue) == [[1], [3], [2], [0]]
    queue = batcher(lambda _, elements: 1e-4 + 1e-6 * elements, widths=(10, 100, 1000))
    offered(queue, [1000, 10, 11, 1001, 500], deadlines=[9.0, 9.0, 7.0, 8.0, 5.0])
    assert all_batches(queue) == [[4], [1, 2], [0, 3]]


def test_an_early_deadline_does_not_pass_the_bound():
    queue = batcher(lambda rows, _: 1e-2 * rows)
    queue.most_passed = 10
    offered(queue, [0], deadlines=[1e6])
    for number in range(1, 15):
        offered(queue, [0], first=number, deadlines=[1e3])
        polled = queue.poll(0.0)
        assert isinstance(polled, Batch)
        if 0 in polled.data_ids:
            break
    assert number == 10


def test_what_cannot_be_in_time_is_not_run_while_another_waits():
    queue = batcher(lambda rows, _: 0.1 * rows)
    offered(queue, [0] * 3, deadlines=[0.05, 0.06, 9.0])
    assert all_batches(queue) == [[2]]
    offered(queue, [0] * 2, first=3, deadlines=[0.05, 0.06])
    assert all_batches(queue) == [[4]]  # it teaches what a run costs now


def test_what_it_drops_has_the_time_of_that():
    queue = batcher(lambda _, elements: 1e-4 + 1e-6 * elements, widths=(10, 100, 1000))
    offered(queue, [10] * 4, deadlines=[0.5 + 1e-6, 9.0, 0.1, 0.4])
    samples = [*queue._order]
    assert all_batches(queue, now=0.5) == [[1]]
    hopeless, _, *late = samples
    assert [each.dropped for each in (hopeless, *late)] == [0.5] * 3


def test_a_batch_is_smaller_if_its_first_request_would_be_late_otherwise():
    queue = batcher(lambda rows, _: 0.1 + 0.01 * rows)
    offered(queue, [0] * 32, deadlines=[0.25] + [9.0] * 31)
    first, *_ = all_batches(queue)
    assert 8 <= len(first) <= 15


def sizes_of(queue, polls):
    sizes = []
    for number in range(polls):
        offered(queue, [0] * 31, first=100 * number)
        polled = queue.poll(0.0)
        assert isinstance(polled, Batch)
        sizes.append(polled.rows)
        for each in [*queue._order]:
            if each.waiting:
                queue.cancel(each)
    return sizes


def test_now_and_then_another_size_runs():
    sizes = sizes_of(batcher(lambda rows, _: 1e-2 * rows), 2 * EXPLORE)
    assert sorted(sizes) == [1] * (2 * EXPLORE - 2) + [2, 2]
    fresh = LearnedBatcher(
        BatchPolicy(max_rows=32, learned=True), taught(lambda rows, _: 1e-2 * rows)
    )
    assert sizes_of(fresh, 2 * EXPLORE).count(2) == 8


def test_sizes_before_a_jump_are_tried():
    # Between 8 and 16 the cost is not known, and from 16 on it is larger.
    queue = batcher(
        lambda rows, _: 1e-3 + 1e-4 * rows + (9e-3 if rows >= 16 else 0), rows=(1, 2, 4, 8, 16)
    )
    assert {*sizes_of(queue, 16 * EXPLORE)} == {8, 10, 12, 16}


def test_a_size_that_is_known_to_be_worse_is_tried_less_often():
    queue = batcher(
        lambda rows, _: 1e-3 + 1e-4 * rows + (5e-3 if rows >= 16 else 0),
        rows=(1, 2, 4, 8, 14, 15, 16, 18, 21, 28, 32),
    )
    assert len([each for each in sizes_of(queue, 8 * EXPLORE) if each > 15]) == 1


def test_while_costs_are_unknown_powers_of_two_are_tried_from_both_ends():
    queue = LearnedBatcher(BatchPolicy(max_rows=6, learned=True))
    offered(queue, [0] * 16)
    assert [len(each) for each in all_batches(queue)] == [1, 4, 2, 1, 4, 2, 1, 1]
    queue = LearnedBatcher(BatchPolicy(max_rows=32, learned=True))
    offered(queue, [0] * 63)
    assert [len(each) for each in all_batches(queue)] == [1, 32, 2, 16, 4, 8]


def test_the_cost_of_slow_batches_is_known_after_two():
    queue = LearnedBatcher(BatchPolicy(max_rows=8, learned=True))
    offered(queue, [0] * 24)
    sizes = []
    while len(queue):
        polled = queue.poll(0.0)
        assert isinstance(polled, Batch)
        queue.costs.learn(polled.rows, 0, 0.5)
        sizes.append(polled.rows)
    assert sizes == [1, 8, 8, 7]


def gains(rows, _):
    return 1e-2 + 1e-5 * rows


def started(cost, gap, **more):
    """A queue with one request, and the time at which it came, ``gap`` after the one before."""
    queue = batcher(cost, window=1.0)
    for number in range(30):
        offered(queue, [0], at=number * gap, first=number)
    now = 29 * gap
    while len(queue):
        queue.poll(now, draining=True)
    offered(queue, [0], at=now + gap, first=99, **more)
    return queue, now + gap


def test_it_waits_for_company_only_while_that_pays():
    queue, now = started(gains, gap=1e-3)
    until = queue.poll(now)
    assert isinstance(until, float)
    assert now < until < now + 0.01  # soon: nobody has come for some gaps
    assert isinstance(queue.poll(until), Batch)
    queue, now = started(gains, gap=0.1)  # a request saves 10 ms and would cost 100
    assert isinstance(queue.poll(now), Batch)
    queue, now = started(lambda rows, _: 1e-2 * rows, gap=1e-3)  # nothing is saved
    assert isinstance(queue.poll(now), Batch)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_single_client_does_not_wait_for_company_for_ever(rows):
    queue = LearnedBatcher(BatchPolicy(max_rows=32, window=1.0, learned=True))
    now, waited = 0.0, []
    for number in range(40):  # each as soon as the one before is answered
        queue.offer(Sample(number, {}, FAR, rows=rows), now)
        came = now
        while not isinstance(polled := queue.poll(now), Batch):
            now = polled
        waited.append(now - came)
        queue.costs.learn(rows, 0, 0.01)
        now += 0.0101
    assert waited[0] == pytest.approx(1.0)  # nothing is known
    assert waited[20:] == [0.0] * 20


def test_it_waits_for_company_that_comes_sooner_than_a_run_takes():
    queue, now = started(gains, gap=1e-3)
    queue.costs = taught(gains, rows=(1,))
    until = queue.poll(now)
    assert isinstance(until, float)
    assert now < until < now + 0.01
    assert isinstance(queue.poll(until), Batch)


def test_it_waits_while_the_ops_after_it_have_work_for_longer_than_its_batch_takes():
    queue, now = started(gains, gap=0.1)
    ahead = 0.3
    queue.ahead = lambda: ahead
    until = queue.poll(now)
    assert until == pytest.approx(now + 0.29, abs=1e-3)
    assert queue.poll(until) == pytest.approx(until + 0.29, abs=1e-3)
    assert queue.poll(now + 0.9) == pytest.approx(now + 1.0)  # not beyond the window
    ahead = 0.0105  # it is needed as soon as it can be ready
    batch = queue.poll(now + 0.9)
    assert isinstance(batch, Batch)
    ahead = 9.0
    offered(queue, [0], at=now + 0.9, first=100)
    assert isinstance(queue.poll(now + 0.9), float)
    assert isinstance(queue.poll(now + 1.9), Batch)  # the end of its window
    offered(queue, [0] * 32, at=now + 2.0, first=101)
    assert isinstance(queue.poll(now + 2.0), Batch)  # full
    offered(queue, [0], at=now + 2.1, first=200)
    assert isinstance(queue.poll(now + 2.1, draining=True), Batch)


def test_it_does_not_wait_for_the_ops_after_it_if_nobody_would_join_or_deadlines_differ():
    queue, now = started(lambda rows, _: 1e-2 * rows, gap=0.1)
    queue.ahead = lambda: 9.0
    assert isinstance(queue.poll(now), Batch)
    queue, now = started(gains, gap=0.1, deadlines=[50.0])  # the others have more time
    queue.ahead = lambda: 9.0
    assert isinstance(queue.poll(now), Batch)


def test_a_hand_over_has_as_many_small_batches_as_its_seconds_allow():
    queue = batcher(lambda rows, _: 1e-3 * rows)
    offered(queue, [0] * 32)
    batches, wait = queue.poll_several(1, 0.0, seconds=0.0075)
    assert [batch.rows for batch in batches] == [1] * 8
    assert wait is None
    assert len(queue.poll_several(1, 0.0)[0]) == 1
    assert sum(batch.rows for batch in queue.poll_several(1, 0.0, seconds=9.0)[0]) == 23
    offered(queue, [0] * 40)
    assert sum(batch.rows for batch in queue.poll_several(1, 0.0, seconds=9.0)[0]) == 32


def test_while_costs_are_unknown_those_who_wait_run_in_one_hand_over():
    unknown = LearnedBatcher(BatchPolicy(max_rows=8, learned=True))
    offered(unknown, [0] * 32)
    batches, _ = unknown.poll_several(1, 0.0, seconds=0.005)
    assert [batch.rows for batch in batches] == [1, 8]


def test_a_hand_over_has_one_batch_where_deadlines_differ():
    mixed = batcher(lambda rows, _: 1e-3 * rows)
    offered(mixed, [0] * 2, deadlines=[9.0, 5.0])
    assert len(mixed.poll_several(1, 0.0, seconds=9.0)[0]) == 1
