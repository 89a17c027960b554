"""Converts Chinese characters to ids, and a tagger's output to words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

DEFAULT = "lac_dict"  # the original downloads it into the current folder


class LACReader:
    """Pre- and postprocessing of a model that segments Chinese text into words.

    Args:
        dict_folder: folder of three files with two columns, separated by a tab: ``word.dic`` (id,
            character), ``tag.dic`` (id, tag) and ``q2b.dic`` (character, replacement). The default
            is ``lac_dict`` in the current folder.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file has an id, character or tag twice, or an id that is not a number.
    """

    def __init__(self, dict_folder: str | os.PathLike[str] = "") -> None:
        folder = Path(dict_folder or DEFAULT)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"LACReader downloads no dictionaries, and there is no folder {folder}:"
                " give the path of the model's, dict_folder"
            )
        self.id2word_dict = _pairs(folder / "word.dic")
        self.word2id_dict = _numbers(folder / "word.dic")
        self.id2label_dict = _pairs(folder / "tag.dic")
        self.label2id_dict = _numbers(folder / "tag.dic")
        self.word_replace_dict = _pairs(folder / "q2b.dic")

    @property
    def vocab_size(self) -> int:
        """The highest id of a character, plus 1."""
        return max(self.word2id_dict.values()) + 1

    @property
    def num_labels(self) -> int:
        """The highest id of a tag, plus 1."""
        return max(self.label2id_dict.values()) + 1

    def word_to_ids(self, words: str) -> list[int]:
        """Return each character's id, after replacement; unknown ones have the id of ``OOV``."""
        replaced = (self.word_replace_dict.get(char, char) for char in words)
        return [self._number(self.word2id_dict, char, "OOV") for char in replaced]

    def label_to_ids(self, labels: Iterable[str]) -> list[int]:
        """Return each tag's id; unknown ones have the id of ``O``."""
        return [self._number(self.label2id_dict, label, "O") for label in labels]

    def process(self, sent: str) -> list[int]:
        """Strip a sentence, and return the ids of its characters."""
        return self.word_to_ids(sent.strip())

    def parse_result(self, words: str, crf_decode: Sequence[Sequence[int]]) -> list[str]:
        """Segment a sentence into words.

        A word begins at a tag that ends in ``-B``, and at the first tag of a run of ``O``.

        Args:
            words: the sentence, stripped.
            crf_decode: the model's output ``[characters, 1]``: the id of each character's tag.

        Raises:
            ValueError: a tag's id is unknown, or there are more tags than characters.
        """
        try:
            tags = [self.id2label_dict[str(row[0])] for row in crf_decode]
        except KeyError as error:
            raise ValueError(f"LACReader: tag.dic has no number {error}") from error
        if len(tags) > len(words):
            raise ValueError(f"LACReader got {len(tags)} tags for {len(words)} characters")
        result: list[str] = []
        before = ""
        for char, tag in zip(words, tags, strict=False):
            if not result or tag.endswith("-B") or (tag == "O" and before != "O"):
                result.append(char)
            else:
                result[-1] += char
            before = tag
        return result

    def _number(self, dictionary: dict[str, int], key: str, unknown: str) -> int:
        number = dictionary.get(key, dictionary.get(unknown))
        if number is None:
            raise ValueError(f"LACReader: the dictionary has neither {key!r} nor {unknown!r}")
        return number


def _pairs(path: Path) -> dict[str, str]:
    """Read the lines of two columns; other lines are skipped."""
    with open(path, encoding="utf-8") as lines:
        fields = [line.strip("\n").split("\t") for line in lines]
    return _unique(path, [(pair[0], pair[1]) for pair in fields if len(pair) == 2])


def _numbers(path: Path) -> dict[str, int]:
    """Read a file of ids and names, by name."""
    turned = _unique(path, [(value, number) for number, value in _pairs(path).items()])
    try:
        return {value: int(number) for value, number in turned.items()}
    except ValueError as error:
        raise ValueError(f"LACReader: {path}: {error}") from error


def _unique(path: Path, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    result: dict[str, str] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"LACReader: {path} has {key!r} twice")
        result[key] = value
    return result
