"""Logs, metrics and traces: listeners to the engine."""
