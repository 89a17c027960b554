"""Public fakes and checkers: clock, executors, simulation, history.

``penstock.testing.simulate`` is a command too, so it is imported by its own name only.
"""

from penstock.testing.clock import ManualClock
from penstock.testing.executor import FakeExecutor
from penstock.testing.history import ClientHistory, Limits, Recorder, check

__all__ = ["ClientHistory", "FakeExecutor", "Limits", "ManualClock", "Recorder", "check"]
