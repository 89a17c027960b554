"""The two networks in numpy, with their gradients: a bag of words and a small text CNN.

Both look up a vector per word, make one vector per sentence of them, and judge that with a linear
layer. ``bow`` adds the word vectors up; ``cnn`` slides over three words at a time and keeps the
largest answer of each filter. Sentences come filled up to one length; vectors after their end are
zero, as they are before their start.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

WIDTH = 3
EMBEDDING = 16
FILTERS = 24

Array = NDArray[np.float32]
Weights = dict[str, Array]
Ids = NDArray[np.int64]
Backward = Callable[[Array], Weights]
"""From the gradient of the scores to the gradient of each weight."""


def _random(rng: np.random.Generator, spread: float, *shape: int) -> Array:
    return rng.normal(0, spread, shape).astype(np.float32)


def bow_weights(words: int, rng: np.random.Generator) -> Weights:
    return {
        "embedding": _random(rng, 0.1, words, EMBEDDING),
        "judge": _random(rng, EMBEDDING**-0.5, EMBEDDING, 2),
        "bias": np.zeros(2, dtype=np.float32),
    }


def cnn_weights(words: int, rng: np.random.Generator) -> Weights:
    window = WIDTH * EMBEDDING
    return {
        "embedding": _random(rng, 0.1, words, EMBEDDING),
        "filters": _random(rng, window**-0.5, window, FILTERS),
        "filters_bias": np.zeros(FILTERS, dtype=np.float32),
        "judge": _random(rng, FILTERS**-0.5, FILTERS, 2),
        "bias": np.zeros(2, dtype=np.float32),
    }


def _inside(ids: Ids, lengths: Ids) -> Array:
    """1 where there is a word, ``[n, longest, 1]``."""
    return (np.arange(ids.shape[1]) < lengths[:, None])[..., None].astype(np.float32)


def _embedding_gradient(weights: Weights, ids: Ids, gradient: Array) -> Array:
    total = np.zeros_like(weights["embedding"])
    np.add.at(total, ids.reshape(-1), gradient.reshape(-1, EMBEDDING))
    return total


def bow(weights: Weights, ids: Ids, lengths: Ids) -> tuple[Array, Backward]:
    inside = _inside(ids, lengths)
    sentence = np.tanh((weights["embedding"][ids] * inside).sum(axis=1))
    scores = sentence @ weights["judge"] + weights["bias"]

    def backward(gradient: Array) -> Weights:
        summed = (gradient @ weights["judge"].T) * (1 - sentence**2)
        return {
            "embedding": _embedding_gradient(weights, ids, summed[:, None, :] * inside),
            "judge": sentence.T @ gradient,
            "bias": gradient.sum(axis=0),
        }

    return scores, backward


def cnn(weights: Weights, ids: Ids, lengths: Ids) -> tuple[Array, Backward]:
    inside = _inside(ids, lengths)
    count, longest = ids.shape
    padded = np.pad(weights["embedding"][ids] * inside, ((0, 0), (1, 1), (0, 0)))
    windows = np.concatenate([padded[:, i : i + longest] for i in range(WIDTH)], axis=2)
    answers = np.tanh(windows @ weights["filters"] + weights["filters_bias"])
    best = np.where(inside > 0, answers, -2).argmax(axis=1)[:, None, :]
    sentence = np.take_along_axis(answers, best, axis=1)[:, 0]
    scores = sentence @ weights["judge"] + weights["bias"]

    def backward(gradient: Array) -> Weights:
        slope = np.zeros_like(answers)
        kept = (gradient @ weights["judge"].T) * (1 - sentence**2)
        np.put_along_axis(slope, best, kept[:, None, :], axis=1)
        flat = slope.reshape(-1, FILTERS)
        by_window = (flat @ weights["filters"].T).reshape(count, longest, WIDTH, EMBEDDING)
        by_word = np.zeros_like(padded)
        for i in range(WIDTH):
            by_word[:, i : i + longest] += by_window[:, :, i]
        return {
            "embedding": _embedding_gradient(weights, ids, by_word[:, 1:-1] * inside),
            "filters": windows.reshape(-1, WIDTH * EMBEDDING).T @ flat,
            "filters_bias": flat.sum(axis=0),
            "judge": sentence.T @ gradient,
            "bias": gradient.sum(axis=0),
        }

    return scores, backward


def softmax(scores: Array) -> Array:
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)
