"""Decisions read from an input's own bytes, so that a mutation of the bytes changes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Choice = TypeVar("Choice")


class Choices:
    """Reads an input from its start; gives zeros and empty bytes after its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def octet(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def of(self, things: Sequence[Choice]) -> Choice:
        return things[self.octet() % len(things)]

    def some(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def rest(self) -> bytes:
        return self.some(len(self._data))


def pieces(data: bytes, pattern: int) -> list[bytes]:
    """Split data into short pieces, whose lengths repeat by a pattern of one octet."""
    sizes = (1, 2, 3, 7, 9, 10, 64, 1000)
    cut = []
    at = turn = 0
    while at < len(data):
        size = sizes[(pattern >> (turn % 6)) % 8]
        cut.append(data[at : at + size])
        at += size
        turn += 1
    return cut
