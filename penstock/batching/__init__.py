"""Batching and padding: pure, no threads, sockets or clocks."""
