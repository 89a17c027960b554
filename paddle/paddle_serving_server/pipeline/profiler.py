"""Has none of the original's profiler classes: Penstock measures each request without them."""

from typing import Any

from penstock_paddle import refuse_name

_MISSING = dict.fromkeys(
    ("PerformanceTracer", "TimeProfiler", "UnsafeTimeProfiler"),
    "set dag.tracer or dag.use_profile, or run penstock trace",
)


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name, _MISSING)
