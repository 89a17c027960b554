"""Public test doubles and checkers: clock, executor, history."""

from penstock.testing.client import client
from penstock.testing.clock import ManualClock
from penstock.testing.executor import FakeExecutor
from penstock.testing.history import ClientHistory, Limits, Recorder, check

__all__ = ["ClientHistory", "FakeExecutor", "Limits", "ManualClock", "Recorder", "check", "client"]
