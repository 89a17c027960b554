"""Chinese characters to numbers, and a tagger's answer to words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

DEFAULT = "lac_dict"  # the original downloads it into the current folder


class LACReader:
    """Before and after a model that cuts Chinese text into words.

    Args:
        dict_folder: has ``word.dic`` and ``tag.dic``, a number and its character or tag a line, and
            ``q2b.dic``, a character and what it is replaced by; all with a tab between them. By
            default ``lac_dict`` in the current folder.

    Raises:
        OSError: a file cannot be read.
        ValueError: a number, character or tag stands twice in a file, or a number is not one.
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
        """One more than the highest number of a character."""
        return max(self.word2id_dict.values()) + 1

    @property
    def num_labels(self) -> int:
        """One more than the highest number of a tag."""
        return max(self.label2id_dict.values()) + 1

    def word_to_ids(self, words: str) -> list[int]:
        """The number of each character, after replacement; of ``OOV`` for one that has none."""
        replaced = (self.word_replace_dict.get(char, char) for char in words)
        return [self._number(self.word2id_dict, char, "OOV") for char in replaced]

    def label_to_ids(self, labels: Iterable[str]) -> list[int]:
        """The number of each tag; of ``O`` for one that has none."""
        return [self._number(self.label2id_dict, label, "O") for label in labels]

    def process(self, sent: str) -> list[int]:
        """The number of each character of a sentence, without white space around it."""
        return self.word_to_ids(sent.strip())

    def parse_result(self, words: str, crf_decode: Sequence[Sequence[int]]) -> list[str]:
        """The words of a sentence.

        A word begins at a tag that ends in ``-B``, and where tags of ``O`` begin.

        Args:
            words: the sentence, without white space around it.
            crf_decode: the model's answer, ``[characters, 1]``, the number of each one's tag.

        Raises:
            ValueError: a number is not that of a tag, or there are more of them than characters.
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
    """First and second field of each line that has two."""
    with open(path, encoding="utf-8") as lines:
        fields = [line.strip("\n").split("\t") for line in lines]
    return _unique(path, [(pair[0], pair[1]) for pair in fields if len(pair) == 2])


def _numbers(path: Path) -> dict[str, int]:
    """The other way round: the number of each second field."""
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
