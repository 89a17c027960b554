"""From reports to rows: ratios within a round, targets, the table."""

import pytest

from benchmarks.load import Report, percentile_us, report_of
from benchmarks.results import Row, cells, summarise
from benchmarks.scenarios import Target


def report(answers: int, *, cpu_s: float = 0.5, p50_us: float = 100.0) -> Report:
    return Report(
        answers=answers,
        seconds=1.0,
        p50_us=p50_us,
        p99_us=2 * p50_us,
        generator=0.5,
        server_cpu_s=cpu_s,
        loop_cpu_s=0.1,
    )


def row(target: Target | None = None, *, cpu_s: float = 0.5, floor_generator: float = 0.5) -> Row:
    floor = Report(
        answers=100,
        seconds=1.0,
        p50_us=1000.0,
        p99_us=1.0,
        generator=floor_generator,
        server_cpu_s=0.5,
    )
    summary_of_rounds = summarise([report(200, cpu_s=cpu_s, p50_us=1500.0)], [floor])
    return Row(
        scenario="s",
        title="A",
        load="1",
        contender="thread",
        target=target,
        summary=summary_of_rounds,
    )


def test_ratios_are_computed_within_a_round() -> None:
    # A machine that slows down to a tenth does not change the ratios.
    summary_of_rounds = summarise([report(200), report(22)], [report(100), report(10)])
    assert (summary_of_rounds.ratio, summary_of_rounds.ratio_min, summary_of_rounds.ratio_max) == (
        pytest.approx(2.1),
        2.0,
        2.2,
    )
    assert summary_of_rounds.cpu_ratio == pytest.approx(2.1)
    assert summary_of_rounds.later_ms == 0.0


def test_rounds_without_a_floor_are_refused() -> None:
    with pytest.raises(ValueError, match="1 rounds against 0"):
        summarise([report(1)], [])
    with pytest.raises(ValueError, match="no answer"):
        summarise([report(1)], [report(0)])


@pytest.mark.parametrize(
    ("target", "cpu_s", "cell"),
    [
        (Target(ratio=2.0), 0.5, "≥ 2: met"),
        (Target(ratio=2.0), 1.0, "≥ 2: met by time only"),
        (Target(ratio=2.5), 0.25, "≥ 2.5: met by CPU only"),
        (Target(ratio=2.5), 0.5, "≥ 2.5: **missed**"),
        (Target(p50=1.5), 0.5, "≤ 1.5 of the floor's p50: met (1.5)"),
        (Target(later_ms=0.4), 0.5, "≤ 0.4 ms later: **missed** (0.5)"),
        (Target(cpu_ms=0.1), 0.5, "≤ 0.1 ms more CPU: met (-2.5)"),
        (Target(loop_ms=1.0), 0.5, "≤ 1 ms CPU of the loop: met (0.5)"),
        (Target(loop_ms=0.4), 0.5, "≤ 0.4 ms CPU of the loop: **missed** (0.5)"),
        (None, 0.5, ""),
    ],
)
def test_the_table_shows_which_target_was_met(
    target: Target | None, cpu_s: float, cell: str
) -> None:
    assert cells(row(target, cpu_s=cpu_s))[-1] == cell


def test_percentiles_use_the_nearest_rank() -> None:
    assert percentile_us([], 0.5) == 0.0
    assert percentile_us([1000, 2000, 3000], 0.5) == 2.0
    assert percentile_us([1000, 2000, 3000], 0.99) == 3.0


def test_a_report_is_equal_after_a_round_trip_through_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    original = report_of([2000, 1000], seconds=2.0, server_cpu_s=1.0, faults=["odd"] * 9)
    assert original.print() == 1
    assert Report.read(capsys.readouterr().out) == original
    assert (original.rate, original.fault_count, len(original.faults)) == (1.0, 9, 5)
    assert report_of([], seconds=1.0, server_cpu_s=0.0).fault_count == 1
