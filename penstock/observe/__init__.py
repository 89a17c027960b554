"""Logs, metrics, traces and profiles: listeners to the engine."""
