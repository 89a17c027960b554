"""Pages that operate a running service."""
