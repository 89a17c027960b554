"""The base class of readers for BERT."""

from __future__ import annotations


class BertBaseReader:
    """Holds the names of the inputs that a reader makes."""

    def __init__(self) -> None:
        self.feed_keys: list[str] = []

    def set_feed_keys(self, keys: list[str]) -> None:
        """Rename the inputs; ``keys`` has the new names in the order of the old ones."""
        self.feed_keys = keys

    def get_feed_keys(self) -> list[str]:
        """Return the names of the inputs."""
        return self.feed_keys
