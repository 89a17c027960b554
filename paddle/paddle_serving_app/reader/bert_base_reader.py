"""What readers for BERT have in common."""

from __future__ import annotations


class BertBaseReader:
    """Names of the inputs that a reader makes, for readers to inherit."""

    def __init__(self) -> None:
        self.feed_keys: list[str] = []

    def set_feed_keys(self, keys: list[str]) -> None:
        """Give the inputs other names, as many and in the same order."""
        self.feed_keys = keys

    def get_feed_keys(self) -> list[str]:
        """The names of the inputs."""
        return self.feed_keys
