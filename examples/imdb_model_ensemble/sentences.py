"""Labelled sentences, made from the words and valences of vaderSentiment's lexicon.

A sentence is filler words with one to three opinions among them. An opinion is a word of the
lexicon, sometimes with an adverb, sometimes negated ("not really funny"), which turns its valence
round. The label is 1 when the valences sum up to more than 0. The same seed makes the same
sentences on every machine.
"""

import random
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import vaderSentiment
from numpy.typing import NDArray

UNKNOWN = "<unk>"
UNKNOWN_ID = 0
NEGATIONS = ["not", "never", "hardly", "isn't"]
ADVERBS = ["very", "really", "so", "quite", "that", "at", "all"]
_FILLERS = (
    "the a this that it its his her i we they he she you am is are was were be been has had "
    "have and or but if then when while of in on at to from with by for about as than movie film "
    "plot story scene scenes actor actors actress cast director script music camera ending "
    "character characters dialogue screen hour hours minutes time watch watched watching saw see "
    "think thought felt seemed looked just also only even because there here some every one two "
    "first last which who what would could my your our their"
)
FILLERS = _FILLERS.split()
OPINION_WORDS_FROM = 1.5
"""Words of a weaker valence are left out: people rated them near to neutral."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentences:
    """Word ids ``[n, longest]`` filled up with 0, their lengths ``[n]``, labels ``[n]``, int64."""

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    labels: NDArray[np.int64]


def load_valences() -> dict[str, float]:
    """Opinion word -> valence, from -4 to 4, in the order of the alphabet."""
    lexicon = Path(vaderSentiment.__file__).parent / "vader_lexicon.txt"
    taken = {*NEGATIONS, *ADVERBS, *FILLERS}
    valences = {}
    for line in lexicon.read_text(encoding="utf-8").splitlines():
        word, valence, *_ = line.split("\t")
        strong = abs(float(valence)) >= OPINION_WORDS_FROM
        if strong and re.fullmatch("[a-z]+", word) and word not in taken:
            valences[word] = float(valence)
    return dict(sorted(valences.items()))


def vocabulary(valences: dict[str, float]) -> list[str]:
    """Every word that has an id; the id is the position."""
    return [UNKNOWN, *sorted({*NEGATIONS, *ADVERBS, *FILLERS, *valences})]


class SentenceMaker:
    def __init__(self, valences: dict[str, float], seed: int) -> None:
        self._random = random.Random(seed)
        self._valences = valences
        self._good = [word for word, valence in valences.items() if valence > 0]
        self._bad = [word for word, valence in valences.items() if valence < 0]

    def sentence(self) -> tuple[list[str], int]:
        """The words and the label."""
        words: list[str] = []
        total = 0.0
        for _ in range(self._random.randint(1, 3)):
            words += self._random.choices(FILLERS, k=self._random.randint(0, 4))
            opinion, valence = self._opinion()
            words += opinion
            total += valence
        words += self._random.choices(FILLERS, k=self._random.randint(0, 2))
        if abs(total) < 0.5:  # not even people would agree
            return self.sentence()
        return words, int(total > 0)

    def _opinion(self) -> tuple[list[str], float]:
        word = self._random.choice(self._random.choice([self._good, self._bad]))
        words, valence = [word], self._valences[word]
        if self._random.random() < 0.4:
            words.insert(0, self._random.choice(ADVERBS))
        if self._random.random() < 0.15:
            words.insert(0, self._random.choice(NEGATIONS))
            valence = -valence
        return words, valence


def make(valences: dict[str, float], count: int, seed: int) -> Sentences:
    maker = SentenceMaker(valences, seed)
    id_of = {word: number for number, word in enumerate(vocabulary(valences))}
    made = [maker.sentence() for _ in range(count)]
    lengths = np.array([len(words) for words, _ in made])
    ids = np.zeros((count, lengths.max()), dtype=np.int64)
    for row, (words, _) in enumerate(made):
        ids[row, : len(words)] = [id_of[word] for word in words]
    return Sentences(ids=ids, lengths=lengths, labels=np.array([label for _, label in made]))
