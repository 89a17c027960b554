"""Words of a sentence to numbers, for models of sentiment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

DEFAULT = "senta_vocab.txt"  # the original downloads it into the current folder


class SentaReader:
    """Words to numbers.

    Args:
        vocab_path: UTF-8, a word and its number a line, with a tab between them; a number alone is
            that of the empty word. By default ``senta_vocab.txt`` in the current folder.
        max_seq_len: no effect.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line has no number.
    """

    def __init__(self, vocab_path: str | os.PathLike[str] = "", max_seq_len: int = 20) -> None:
        self.max_seq_len = max_seq_len
        if vocab_path == "" and not Path(DEFAULT).exists():
            raise FileNotFoundError(
                f"SentaReader downloads no vocabulary, and there is no {DEFAULT} in"
                " the current folder: give the path of the model's, vocab_path"
            )
        self.word_dict = self.load_vocab(vocab_path or DEFAULT)

    def load_vocab(self, vocab_path: str | os.PathLike[str]) -> dict[str, int]:
        """The words of a file and their numbers; ``<unk>`` is how many there are."""
        vocabulary: dict[str, int] = {}
        with open(vocab_path, encoding="utf-8") as lines:
            for line in lines:
                entry = line.strip()
                if entry in vocabulary:
                    continue
                fields = entry.split("\t")
                word, number = fields[:2] if len(fields) > 1 else ("", entry)
                try:
                    vocabulary[word] = int(number)
                except ValueError as error:
                    raise ValueError(
                        f"SentaReader: {os.fspath(vocab_path)} has a line without number: {line!r}"
                    ) from error
        vocabulary["<unk>"] = len(vocabulary)
        return vocabulary

    def process(self, cols: Iterable[str]) -> list[int]:
        """Numbers of words; unknown ones have the size of the vocabulary with ``<unk>``."""
        unknown = len(self.word_dict)
        return [self.word_dict.get(word, unknown) for word in cols]
