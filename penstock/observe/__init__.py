"""What is heard of the engine: logs."""
