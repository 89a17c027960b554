"""Trains both models of this example and writes them as ONNX model folders.

    python train.py            writes models/bow, models/cnn and models/imdb.vocab

Takes about ten seconds; the same call always makes the same models.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import export
import networks
import numpy as np
import sentences
from networks import Array, Backward, Ids, Weights, softmax
from sentences import Sentences

LEARN_COUNT, LEARN_SEED = 30_000, 1
KEPT_OUT_COUNT, KEPT_OUT_SEED = 4_000, 2
ROUNDS = 4
BATCH = 256
RATE = 0.01

Network = Callable[[Weights, Ids, Ids], tuple[Array, Backward]]


class Adam:
    """Kingma and Ba, "Adam: a method for stochastic optimization", algorithm 1."""

    def __init__(self, weights: Weights) -> None:
        self._mean = {name: np.zeros_like(array) for name, array in weights.items()}
        self._square = {name: np.zeros_like(array) for name, array in weights.items()}
        self._steps = 0

    def step(self, weights: Weights, gradient: Weights) -> None:
        self._steps += 1
        for name, slope in gradient.items():
            mean, square = self._mean[name], self._square[name]
            mean += 0.1 * (slope - mean)
            square += 0.001 * (slope * slope - square)
            unbiased = mean / (1 - 0.9**self._steps)
            spread = np.sqrt(square / (1 - 0.999**self._steps)) + 1e-8
            weights[name] -= RATE * unbiased / spread


def fit(network: Network, weights: Weights, learn: Sentences, rounds: int = ROUNDS) -> Weights:
    """Train in place, by cross entropy."""
    rng = np.random.default_rng(3)
    adam = Adam(weights)
    for _ in range(rounds):
        order = rng.permutation(len(learn.labels))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            longest = learn.lengths[chosen].max()
            scores, backward = network(weights, learn.ids[chosen, :longest], learn.lengths[chosen])
            gradient = softmax(scores)
            gradient[np.arange(len(chosen)), learn.labels[chosen]] -= 1
            adam.step(weights, backward(gradient / len(chosen)))
    return weights


def predict(network: Network, weights: Weights, some: Sentences) -> Array:
    return softmax(network(weights, some.ids, some.lengths)[0])


def accuracy(prediction: Array, some: Sentences) -> float:
    return float((prediction.argmax(axis=1) == some.labels).mean())


def main(folder: Path, learn_count: int = LEARN_COUNT) -> dict[str, float]:
    """Accuracy on the sentences kept out: of ``bow``, ``cnn`` and both together."""
    valences = sentences.load_valences()
    words = sentences.vocabulary(valences)
    learn = sentences.make(valences, learn_count, LEARN_SEED)
    kept_out = sentences.make(valences, KEPT_OUT_COUNT, KEPT_OUT_SEED)
    rng = np.random.default_rng(7)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "imdb.vocab").write_text("\n".join(words) + "\n")

    bow = fit(networks.bow, networks.bow_weights(len(words), rng), learn)
    export.write(export.bow_graph(bow), "bow", folder / "bow")
    cnn = fit(networks.cnn, networks.cnn_weights(len(words), rng), learn)
    export.write(export.cnn_graph(cnn), "cnn", folder / "cnn")

    predictions = {
        "bow": predict(networks.bow, bow, kept_out),
        "cnn": predict(networks.cnn, cnn, kept_out),
    }
    predictions["both"] = (predictions["bow"] + predictions["cnn"]) / 2
    return {name: accuracy(prediction, kept_out) for name, prediction in predictions.items()}


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "models")
    for name, share in main(target).items():
        print(f"{name}: {share:.1%} of {KEPT_OUT_COUNT} sentences kept out are judged rightly")
