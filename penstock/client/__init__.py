"""The SDK: calls a pipeline service."""
