"""Public fakes and checkers: clock, executors, simulation, history."""
