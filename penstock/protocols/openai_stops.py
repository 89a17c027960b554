"""Ends a text before the first of some others, wherever its pieces are cut."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Passes on the pieces of one text.

    What may be the beginning of a stop text is held back until it is known.

    Args:
        texts: where to end; none of them is empty.

    Attributes:
        found: whether the text has ended.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._longest = max(map(len, texts))
        self._held = ""
        self.found = False

    def add(self, piece: str) -> str:
        """Return what may be passed on after a further piece."""
        text = self._held + piece
        places = [place for each in self._texts if (place := text.find(each)) >= 0]
        if places:
            self.found = True
            self._held = ""
            return text[: min(places)]
        size = self._held_of(text)
        self._held = text[len(text) - size :]
        return text[: len(text) - size]

    def rest(self) -> str:
        """Return what was held back, at the end of the text."""
        found, self._held = self._held, ""
        return found

    def _held_of(self, text: str) -> int:
        """The length of the longest end of a text that is the beginning of a stop text."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-size:]
            if any(each.startswith(end) for each in self._texts):
                return size
        return 0
