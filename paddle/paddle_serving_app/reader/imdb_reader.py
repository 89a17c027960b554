"""Film reviews to the numbers of their words."""

from __future__ import annotations

import os
import re

SEPARATOR = re.compile(r"([;,.?!\s()])")


class IMDBDataset:
    """Reviews to the numbers of their words, by a vocabulary that ``load_resource`` reads."""

    def __init__(self) -> None:
        self._vocab: dict[str, int] = {}

    def load_resource(self, dictfile: str | os.PathLike[str]) -> None:
        """Read the vocabulary: a word a line, in UTF-8, numbered from 0.

        Raises:
            OSError: the file cannot be read.
            ValueError: it has no word.
        """
        with open(dictfile, encoding="utf-8") as lines:
            self._vocab = {line.strip(): number for number, line in enumerate(lines)}
        if not self._vocab:
            raise ValueError(f"IMDBDataset: {os.fspath(dictfile)} has no word")

    def get_words_only(self, line: str) -> list[int]:
        """Numbers of the words of a review.

        Letters are turned small and ``<br />`` is a space. Words end at spaces and at any of
        ``;,.?!()``, each of which is a word too. All unknown words have the number that follows
        the vocabulary's.

        Raises:
            ValueError: ``load_resource`` was not called before.
        """
        if not self._vocab:
            raise ValueError("IMDBDataset has no vocabulary: call load_resource first")
        parts = SEPARATOR.split(line.lower().replace("<br />", " ").strip())
        unknown = len(self._vocab)
        return [self._vocab.get(part, unknown) for part in parts if part and part != " "]

    def get_words_and_label(self, line: str) -> tuple[list[int], list[int]]:
        """Numbers of the words of a review, and its label, a number after the last ``|``.

        Raises:
            ValueError: no such number, or ``load_resource`` was not called before.
        """
        review, bar, label = line.rpartition("|")
        if not bar:
            raise ValueError(f"IMDBDataset takes 'review | label', got {line!r}")
        return self.get_words_only(review), [int(label)]
