"""Converts film reviews to word ids."""

from __future__ import annotations

import os
import re

SEPARATOR = re.compile(r"([;,.?!\s()])")


class IMDBDataset:
    """Converts reviews to word ids, with the vocabulary that ``load_resource`` reads."""

    def __init__(self) -> None:
        self._vocab: dict[str, int] = {}

    def load_resource(self, dictfile: str | os.PathLike[str]) -> None:
        """Read the vocabulary: one word per line, in UTF-8; ids count from 0.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file has no word.
        """
        with open(dictfile, encoding="utf-8") as lines:
            self._vocab = {line.strip(): number for number, line in enumerate(lines)}
        if not self._vocab:
            raise ValueError(f"IMDBDataset: {os.fspath(dictfile)} has no word")

    def get_words_only(self, line: str) -> list[int]:
        """Return the ids of a review's words.

        Text is lower-cased, and ``<br />`` is a space. Words end at spaces and at any of
        ``;,.?!()``, each of which is a word too. The id of unknown words is the size of the
        vocabulary.

        Raises:
            ValueError: ``load_resource`` was not called before.
        """
        if not self._vocab:
            raise ValueError("IMDBDataset has no vocabulary: call load_resource first")
        parts = SEPARATOR.split(line.lower().replace("<br />", " ").strip())
        unknown = len(self._vocab)
        return [self._vocab.get(part, unknown) for part in parts if part and part != " "]

    def get_words_and_label(self, line: str) -> tuple[list[int], list[int]]:
        """Return the ids of a review's words, and its label: the number after the last ``|``.

        Raises:
            ValueError: there is no such number, or ``load_resource`` was not called before.
        """
        review, bar, label = line.rpartition("|")
        if not bar:
            raise ValueError(f"IMDBDataset takes 'review | label', got {line!r}")
        return self.get_words_only(review), [int(label)]
