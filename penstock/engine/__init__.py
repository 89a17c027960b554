"""The only place that completes requests."""
