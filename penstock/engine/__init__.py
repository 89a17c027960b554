"""The engine: admits requests, dispatches batches, and completes requests."""
