"""Predicts a service's throughput and latency from the costs of its ops: ``penstock plan``."""
