"""Converts words to ids, for sentiment models."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

DEFAULT = "senta_vocab.txt"  # the original downloads it into the current folder


class SentaReader:
    """Converts words to ids.

    Args:
        vocab_path: UTF-8 file with a word, a tab and the word's id on each line; a lone id belongs
            to the empty word. The default is ``senta_vocab.txt`` in the current folder.
        max_seq_len: no effect.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line has no id.
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
        """Read words and their ids; the id of ``<unk>`` is the number of words."""
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
        """Return ids of words; unknown words have the size of the vocabulary with ``<unk>``."""
        unknown = len(self.word_dict)
        return [self.word_dict.get(word, unknown) for word in cols]
