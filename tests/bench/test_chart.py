"""The chart: well-formed, to scale, and with the measured values."""

from __future__ import annotations

from array import array
from xml.etree import ElementTree

import pytest

from penstock.bench.chart import as_svg, step_of
from penstock.bench.results import Measured, StepResult, result_of
from penstock.bench.schedule import Step

NAME = "{http://www.w3.org/2000/svg}"


def result(step: Step, rate: int, latency: float) -> StepResult:
    part = Measured(latencies=array("d", [latency]), good=1, answered=rate, seconds=1.0)
    return result_of(step, [part])


@pytest.mark.parametrize(
    ("most", "step"), [(0, 1), (0.04, 0.01), (5, 1), (6, 2), (10, 2), (11, 5), (8000, 2000)]
)
def test_ticks_are_at_round_numbers(most: float, step: float):
    assert step_of(most) == pytest.approx(step)


def test_the_chart_of_a_closed_loop_has_a_point_for_each_step():
    steps = [result(Step(concurrency=4**n), 100 * n, 0.01 * n) for n in (1, 2, 3)]
    root = ElementTree.fromstring(as_svg("a <b> & c", steps))
    assert root.findtext(f"{NAME}title") == "a <b> & c"
    texts = [each.text for each in root.iter(f"{NAME}text")]
    assert {"4", "16", "64", "300", "requests in flight (closed loop)"} <= {*texts}
    points = [each.attrib for each in root.iter(f"{NAME}circle")]
    assert len(points) == 9
    heights = [float(each["cy"]) for each in points[:3]]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    assert heights[2] == pytest.approx(56)  # 300 of a scale up to 300


def test_the_chart_of_an_open_loop_has_target_rates_and_draws_zeros():
    steps = [result(Step(rate=n), 0, 0.0) for n in (100, 200)]
    root = ElementTree.fromstring(as_svg("t", steps))
    texts = [each.text for each in root.iter(f"{NAME}text")]
    assert {"100", "200", "requests a second", "requests a second (open loop)"} <= {*texts}
