"""The results as an SVG 1.1 chart: throughput and latency over the load. Pure.

Steps have equal distances, because their loads often double. Both scales begin at zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10
from typing import Final, NamedTuple

from penstock.bench.results import StepResult

_WIDTH, _HEIGHT = 640, 560
_LEFT, _RIGHT = 64, 616
_PANELS: Final = ((56, 240), (310, 494))
"""Top and bottom of each panel."""
_TICKS: Final = 5
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#333}.name{font-size:14px}path{fill:none;stroke-width:2}"
    ".grid{stroke:#ddd;stroke-width:1}.a{stroke:#1f77b4}.b{stroke:#d62728}"
    ".wished{stroke:#999;stroke-dasharray:5 4}circle.a{fill:#1f77b4}circle.b{fill:#d62728}"
    "text.wished{fill:#777;stroke:none}text.a{fill:#1f77b4;stroke:none}text.b{fill:#d62728;stroke:none}"
)


class _Line(NamedTuple):
    """One line: its name, its class, and its value at each step."""

    name: str
    kind: str
    values: Sequence[float]


def as_svg(title: str, results: Sequence[StepResult]) -> str:
    """Draw the chart.

    Args:
        title: the chart's title.
        results: at least one; all open loop or all closed loop.
    """
    rates = [each.step.rate for each in results if each.step.rate is not None]
    levels = rates or [float(each.step.concurrency) for each in results]
    answers = [_Line("answers a second", "a", [each.rate for each in results])]
    if rates:
        answers.insert(0, _Line("requests a second", "wished", rates))
    times = [
        _Line("p99, ms", "b", [1000 * each.latency.p99 for each in results]),
        _Line("p50, ms", "a", [1000 * each.latency.p50 for each in results]),
    ]
    what = "requests a second (open loop)" if rates else "requests in flight (closed loop)"
    places = [_LEFT + (_RIGHT - _LEFT) * (at + 0.5) / len(levels) for at in range(len(levels))]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        _text(_LEFT, 24, title[:90], "name"),
        *_panel(_PANELS[0], places, answers),
        *_panel(_PANELS[1], places, times),
        *(
            _text(x, _PANELS[1][1] + 18, f"{level:g}", "x", anchor="middle")
            for x, level in zip(places, levels, strict=True)
        ),
        _text((_LEFT + _RIGHT) / 2, _PANELS[1][1] + 42, what, "x", anchor="middle"),
        "</svg>\n",
    ]
    return "\n".join(parts)


def step_of(most: float) -> float:
    """Return the distance of ticks on a scale up to ``most``: 1, 2 or 5 times a power of 10."""
    if most <= 0:
        return 1.0
    power = 10 ** floor(log10(most / _TICKS))
    return float(
        next(factor * power for factor in (1, 2, 5, 10) if factor * power * _TICKS >= most)
    )


def _panel(place: tuple[int, int], places: Sequence[float], lines: Sequence[_Line]) -> list[str]:
    top, bottom = place
    most = max(max(line.values) for line in lines)
    step = step_of(most)
    count = max(1, -int(-most // step))

    def y(value: float) -> float:
        return bottom - (bottom - top) * value / (step * count)

    parts = []
    for tick in range(count + 1):
        at = y(tick * step)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_RIGHT}"/>')
        parts.append(_text(_LEFT - 8, at + 4, f"{tick * step:g}", "y", anchor="end"))
    for number, line in enumerate(lines):
        points = [(x, y(value)) for x, value in zip(places, line.values, strict=True)]
        path = "L".join(f"{x:.1f} {at:.1f}" for x, at in points)
        parts.append(f'<path class="{line.kind}" d="M{path}"/>')
        if line.kind != "wished":
            parts += (
                f'<circle class="{line.kind}" cx="{x:.1f}" cy="{at:.1f}" r="3"/>'
                for x, at in points
            )
        parts.append(_text(_LEFT + 150 * number, top - 10, line.name, line.kind))
    return parts


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
