"""Gathered: the pieces of an answer, for a caller that gets them all at once."""

from __future__ import annotations

from typing import Final

from penstock.errors import TooLarge
from penstock.executors.stream import size_of
from penstock.request import Feed

MOST_GATHERED: Final = 64 << 20
"""Most bytes of the pieces of one answer."""
_OF_A_PIECE: Final = 512
"""Bytes that a piece takes besides its texts, bytes and arrays; a guess for pieces of numbers."""

RESULT: Final = "result"
"""The name of the list of pieces, and of the value of a piece that is no dict."""


class Gathered:
    """See the module.

    Attributes:
        pieces: those that are kept.
        bytes: those of all pieces.
    """

    __slots__ = ("bytes", "pieces")

    def __init__(self) -> None:
        self.pieces: list[Feed] = []
        self.bytes = 0

    def count(self, size: int, pieces: int = 1) -> None:
        """Count pieces of so many bytes in all that are kept elsewhere.

        Raises:
            TooLarge: all of them are over the limit.
        """
        self.bytes += size + pieces * _OF_A_PIECE
        if self.bytes > MOST_GATHERED:
            raise TooLarge(
                f"its pieces are too many for one answer, over {MOST_GATHERED >> 20} MiB in memory:"
                " ask for them one by one, over HTTP/1.1"
            )

    def add(self, piece: Feed) -> None:
        """Keep a piece.

        Raises:
            TooLarge: all of them are over the limit.
        """
        self.count(size_of(piece))
        self.pieces.append(piece)

    def whole(self) -> Feed:
        """All of them, as the list ``result``."""
        bare = all(each.keys() == {RESULT} for each in self.pieces)
        return {RESULT: [each[RESULT] if bare else each for each in self.pieces]}
