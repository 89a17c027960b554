"""Decisions taken from an input's own bytes, so that whoever changes the bytes changes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Choice = TypeVar("Choice")


class Choices:
    """Reads an input from its front; gives zeros and nothing when it is used up."""

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
    """Cut data: every few octets, with lengths that repeat by a pattern of one octet."""
    sizes = (1, 2, 3, 7, 9, 10, 64, 1000)
    made = []
    at = turn = 0
    while at < len(data):
        size = sizes[(pattern >> (turn % 6)) % 8]
        made.append(data[at : at + size])
        at += size
        turn += 1
    return made
