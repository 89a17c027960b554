import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import Report, percentile_us
from benchmarks.rounds import Target, ceiling, cpu_s_per_1000, summarise, turn_order


def report(rps: float, cpu: float | None = 1.0, p50: float = 1.0, generator: float = 0.5) -> Report:
    return Report(
        requests=int(rps * 2),
        seconds=2.0,
        rps=rps,
        p50_us=p50,
        p99_us=2 * p50,
        client_cpu=generator,
        server_cpu_s=cpu,
        fault_count=0,
        faults=[],
    )


def test_rounds_run_forwards_and_backwards_in_turn() -> None:
    assert turn_order("abc", 0) == ["a", "b", "c"]
    assert turn_order("abc", 1) == ["c", "b", "a"]
    assert turn_order("abc", 2) == ["a", "b", "c"]


def test_ratios_are_taken_within_a_round_before_the_median() -> None:
    # The machine halves its speed in every round; the ratio does not notice.
    floor = [report(4000.0), report(2000.0), report(1000.0)]
    ours = [report(3000.0), report(1500.0), report(800.0)]
    summary = summarise(ours, floor)
    assert summary.ratio == 0.75
    assert (summary.ratio_min, summary.ratio_max) == (0.75, 0.8)
    assert summary.rps == 1500.0
    assert summary.rounds == 3


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9), st.floats(0.01, 100.0))
def test_a_drift_that_both_sides_feel_cancels(speeds: list[float], share: float) -> None:
    floor = [report(1000.0 * speed) for speed in speeds]
    ours = [report(1000.0 * speed * share) for speed in speeds]
    assert summarise(ours, floor).ratio == pytest.approx(share)


def test_cpu_time_is_compared_per_answer() -> None:
    summary = summarise([report(500.0, cpu=2.0)], [report(1000.0, cpu=2.0)])
    assert summary.cpu_s_per_1000 == pytest.approx(2.0)
    assert summary.cpu_ratio == pytest.approx(0.5)
    assert cpu_s_per_1000(report(500.0, cpu=None)) == 0.0


def test_a_ratio_has_no_room_beyond_the_cores_that_both_sides_need() -> None:
    # Two seconds in which the server computed 2.0 s and the generator 0.5 of the time.
    alone = report(1000.0, cpu=2.0, generator=0.5)
    assert ceiling(alone, 2) == pytest.approx(4 / 3)
    assert ceiling(alone, 4) == pytest.approx(8 / 3)
    assert ceiling(report(1000.0, cpu=None, generator=0.0), 2) == 0.0
    assert summarise([alone], [alone], 2).ceiling == pytest.approx(4 / 3)
    assert summarise([alone], [alone]).ceiling == 0.0


def test_median_latencies_are_compared_within_a_round() -> None:
    floor = [report(1.0, p50=100.0), report(1.0, p50=400.0), report(1.0, p50=1000.0)]
    ours = [report(1.0, p50=50.0), report(1.0, p50=100.0), report(1.0, p50=400.0)]
    assert summarise(ours, floor).p50_ratio == 0.4
    unknown = [report(1.0, p50=0.0)]
    assert summarise(unknown, unknown).p50_ratio == 0.0


def test_a_promise_is_kept_at_its_bound_and_not_beyond() -> None:
    found = summarise([report(1300.0, p50=50.0)], [report(1000.0, p50=100.0)])
    for kept in (Target(throughput=1.3), Target(p50=0.5), Target(throughput=1.3, p50=0.5)):
        assert kept.met_by(found)
    for broken in (
        Target(throughput=1.31),
        Target(p50=0.49),
        Target(throughput=1.3, p50=0.49),
        Target(throughput=1.31, p50=0.5),
    ):
        assert not broken.met_by(found)


def test_a_latency_that_nobody_took_keeps_no_promise() -> None:
    found = summarise([report(2.0, p50=0.0)], [report(1.0, p50=0.0)])
    assert not Target(p50=0.5).met_by(found)
    assert Target(throughput=2.0).met_by(found)


def test_a_promise_is_told_in_words() -> None:
    assert str(Target(throughput=1.3)) == ">= 1.3"
    assert str(Target(p50=0.5)) == "p50 <= 0.5"
    assert str(Target(throughput=10.0, p50=0.5)) == ">= 10, p50 <= 0.5"


def test_the_busiest_generators_are_told() -> None:
    ours = [report(1.0, generator=0.4), report(1.0, generator=0.6)]
    floor = [report(1.0, generator=0.9), report(1.0, generator=0.7)]
    found = summarise(ours, floor)
    assert (found.generator, found.floor_generator) == (0.6, 0.9)


@pytest.mark.parametrize(
    ("ours", "floor"),
    [([], []), ([1.0], [1.0, 1.0]), ([1.0], [0.0])],
    ids=["no rounds", "a round is missing", "a floor without answers"],
)
def test_rounds_that_cannot_be_compared_are_refused(ours: list[float], floor: list[float]) -> None:
    with pytest.raises(ValueError, match="floor"):
        summarise([report(rps) for rps in ours], [report(rps) for rps in floor])


def test_a_report_survives_the_way_between_two_processes() -> None:
    assert Report.from_json(report(12.5).to_json()) == report(12.5)


@given(st.lists(st.integers(1, 10**9), min_size=1))
def test_percentiles_are_values_that_were_measured(values: list[int]) -> None:
    ordered = sorted(values)
    assert percentile_us(ordered, 0.99) * 1000 == pytest.approx(ordered[int(0.99 * len(ordered))])
    assert percentile_us(ordered, 0.0) <= percentile_us(ordered, 0.5) <= percentile_us(ordered, 1.0)
    assert percentile_us([], 0.5) == 0.0
