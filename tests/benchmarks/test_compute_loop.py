import pytest

from benchmarks.compute_loop import added, run_loops


def test_the_sum_is_that_of_the_lowest_three_bits() -> None:
    assert added(17) == 2 * sum(range(8))


@pytest.mark.real
def test_every_process_adds_at_the_same_time() -> None:
    report = run_loops(2, 1000, seconds=0.2, warmup_seconds=0.1)
    assert report.fault_count == 0
    assert report.rps > 0
    assert report.requests > 0
    assert report.seconds > 0.1
    assert report.server_cpu_s is not None
    assert report.server_cpu_s > 0
