"""Ops with seats: requests join a running batch, and leave it between two steps."""
