import pytest

from benchmarks.copy_loop import run_rounds


@pytest.mark.real
def test_both_processes_are_counted() -> None:
    report = run_rounds(0.2, 0.05)
    assert report.fault_count == 0
    assert report.requests > 1
    assert report.rps == pytest.approx(report.requests / report.seconds)
    assert report.server_cpu_s is not None
    # One copies 5 MiB, which no memory does in less than this, and both are woken.
    assert report.server_cpu_s / report.requests > 20e-6
    assert report.p50_us > 20
