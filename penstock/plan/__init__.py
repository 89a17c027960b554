"""Predicts a service's throughput and waiting from what its ops cost: ``penstock plan``."""
