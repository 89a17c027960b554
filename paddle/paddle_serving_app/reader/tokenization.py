"""Splits text into the word pieces of BERT's vocabularies.

Text is split at white space, punctuation and Chinese characters. Each word is split, from its
beginning, into the longest pieces in the vocabulary; pieces that continue a word begin with ``##``.
Source: Devlin et al., "BERT", and the tokenizer published with it.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Mapping

UNKNOWN = "[UNK]"
LONGEST_WORD = 100  # in characters; longer words are unknown
CHINESE = (  # the blocks of CJK ideographs; kana and hangul are written with spaces, or as words
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class FullTokenizer:
    """Splits text into word pieces, and converts pieces to ids and back.

    Args:
        vocab_file: see ``load_vocab``.
        do_lower_case: lower-case text and remove accents.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a vocabulary.
    """

    def __init__(self, vocab_file: str | os.PathLike[str], do_lower_case: bool = True) -> None:
        self.vocab = load_vocab(vocab_file)
        self.inv_vocab = {number: token for token, number in self.vocab.items()}
        self.do_lower_case = do_lower_case

    def tokenize(self, text: str | bytes) -> list[str]:
        """Return the word pieces of a text."""
        return [
            piece
            for word in words(convert_to_unicode(text), self.do_lower_case)
            for piece in pieces(word, self.vocab)
        ]

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of word pieces.

        Raises:
            ValueError: a piece is not in the vocabulary.
        """
        try:
            return [self.vocab[token] for token in tokens]
        except KeyError as error:
            raise ValueError(f"the vocabulary has no token {error}") from error

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the word pieces of ids.

        Raises:
            ValueError: an id is not in the vocabulary.
        """
        try:
            return [self.inv_vocab[number] for number in ids]
        except KeyError as error:
            raise ValueError(f"the vocabulary has no number {error}") from error


def convert_to_unicode(text: str | bytes) -> str:
    """Decode UTF-8 bytes, without invalid ones; text is returned as it is.

    Raises:
        TypeError: ``text`` is neither text nor bytes.
    """
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    if isinstance(text, str):
        return text
    raise TypeError(f"the tokenizer takes text or bytes, got {type(text).__name__}")


def load_vocab(vocab_file: str | os.PathLike[str]) -> dict[str, int]:
    """Read tokens and their ids from a UTF-8 file.

    A line is a token, whose id is the line's number from 0, or a token, a tab and its id. A line
    with more tabs ends the vocabulary.

    Raises:
        OSError: the file cannot be read.
        ValueError: the text after a tab is not a number.
    """
    vocabulary = {}
    with open(vocab_file, encoding="utf-8") as lines:
        for place, line in enumerate(lines):
            token, *rest = line.strip().split("\t")
            if len(rest) > 1:
                break
            vocabulary[token.strip()] = int(rest[0]) if rest else place
    return vocabulary


def words(text: str, lower: bool = True) -> list[str]:
    """Split a text at white space, punctuation and Chinese characters."""
    found = "".join(_spaced(char) for char in text).split()
    if lower:
        found = [_without_accents(word.lower()) for word in found]
    return " ".join(
        "".join(f" {char} " if _is_punctuation(char) else char for char in word) for word in found
    ).split()


def pieces(word: str, vocabulary: Mapping[str, int]) -> list[str]:
    """Split a word into pieces of the vocabulary; ``[UNK]`` if that is not possible."""
    if len(word) > LONGEST_WORD:
        return [UNKNOWN]
    result = []
    start = 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                break
        else:
            return [UNKNOWN]
        result.append(piece)
        start = end
    return result


def _spaced(char: str) -> str:
    if char in "\t\n\r" or unicodedata.category(char) == "Zs":
        return " "
    if char == "\ufffd" or unicodedata.category(char).startswith("C"):
        return ""
    if any(first <= ord(char) <= last for first, last in CHINESE):
        return f" {char} "
    return char


def _without_accents(word: str) -> str:
    decomposed = unicodedata.normalize("NFD", word)
    return "".join(char for char in decomposed if unicodedata.category(char) != "Mn")


def _is_punctuation(char: str) -> bool:
    # In ASCII, all but letters and digits: also ^ and $, which are symbols in Unicode.
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    return unicodedata.category(char).startswith("P")
