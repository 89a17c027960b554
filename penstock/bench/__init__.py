"""The load generator, ``penstock bench``: loads a service and reports throughput, latency and
failures.

from penstock.bench import Load, Step, run, target_of

target = target_of("http://127.0.0.1:8080/uci/prediction", data='{"key": ["x"], "value": ["1"]}')
for result in run(target, Load(steps=(Step(concurrency=4), Step(rate=200)))):
    print(result.rate, result.latency.p99)
"""

from penstock.bench.requests import target_of
from penstock.bench.results import OpTimes, Percentiles, PieceTimes, StepResult
from penstock.bench.run import run
from penstock.bench.schedule import Load, Step
from penstock.bench.target import BadTarget, Target

__all__ = [
    "BadTarget",
    "Load",
    "OpTimes",
    "Percentiles",
    "PieceTimes",
    "Step",
    "StepResult",
    "Target",
    "run",
    "target_of",
]
