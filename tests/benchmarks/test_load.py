import pytest

from benchmarks.load import CpuClock, Phase, Plan, Tally, report_of


async def test_the_window_opens_and_closes_with_an_answer() -> None:
    # Four bursts of three answers, the clock cutting through two of them: whole bursts count.
    tally = Tally()
    for burst in range(4):
        for answer in range(3):
            tally.answered(1000 * burst + answer)
            if (burst, answer) == (0, 1):
                tally.enter(Phase.OPENING)
            if (burst, answer) == (2, 1):
                tally.enter(Phase.CLOSING)
    assert list(tally.latencies_ns) == [1000, 1001, 1002, 2000, 2001, 2002]
    assert tally.phase is Phase.CLOSED
    assert tally.seconds > 0


async def test_answers_outside_the_window_do_not_count() -> None:
    tally = Tally(count=2)
    tally.answered(1)
    tally.enter(Phase.OPENING)
    for latency in (2, 3, 4, 5):
        tally.answered(latency)
    assert list(tally.latencies_ns) == [3, 4]
    assert tally.stopping


async def test_a_window_without_an_answer_is_a_fault() -> None:
    tally = Tally()
    tally.enter(Phase.OPENING)
    tally.enter(Phase.CLOSED)
    report = report_of(tally, Plan(seconds=1.0))
    assert (report.fault_count, report.requests, report.rps) == (1, 0, 0.0)


async def test_a_window_cannot_open_twice() -> None:
    tally = Tally()
    tally.enter(Phase.CLOSED)
    with pytest.raises(AssertionError, match="CLOSED"):
        tally.enter(Phase.OPENING)


def test_the_cpu_clock_runs_with_a_busy_process() -> None:
    import os

    clock = CpuClock(os.getpid())
    before = clock.seconds()
    assert sum(i * i for i in range(2_000_000)) > 0
    assert clock.seconds() > before
    assert CpuClock(None).seconds() == 0.0
