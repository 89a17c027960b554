"""Trains the transformer on the help texts that come with Python and writes it as textgen.onnx.

    python train.py [FOLDER] [STEPS]

Takes some three minutes. The texts are those that Python's ``help`` shows for topics, in the module
pydoc_data.topics; the last twentieth is kept out.
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics

import export
import network
import numpy as np
from network import Array, Ids, Weights

STEPS = 800
TEXTS = 4
"""Texts of LONGEST characters in a step."""
RATE = 2e-3
WARM_UP = 30


class Adam:
    """Kingma and Ba, "Adam: a method for stochastic optimization", algorithm 1; the rate rises, and
    falls as a cosine.
    """

    def __init__(self, weights: Weights, steps: int) -> None:
        self._mean = {name: np.zeros_like(array) for name, array in weights.items()}
        self._square = {name: np.zeros_like(array) for name, array in weights.items()}
        self._step, self._steps = 0, steps

    def step(self, weights: Weights, gradient: Weights) -> None:
        self._step += 1
        rate = RATE * min(
            self._step / WARM_UP, 0.55 + 0.45 * np.cos(np.pi * self._step / self._steps)
        )
        length = np.sqrt(sum(float((slope * slope).sum()) for slope in gradient.values()))
        for name, slope in gradient.items():
            slope = slope / max(1, length)
            mean, square = self._mean[name], self._square[name]
            mean += 0.1 * (slope - mean)
            square += 0.02 * (slope * slope - square)
            unbiased = mean / (1 - 0.9**self._step)
            spread = np.sqrt(square / (1 - 0.98**self._step)) + 1e-8
            weights[name] -= np.float32(rate) * unbiased / spread


def loss(logits: Array, wanted: Ids) -> tuple[float, Array]:
    """The mean cross entropy in nats, and its gradient."""
    shares = network.softmax(logits)
    right = np.take_along_axis(shares, wanted[..., None], 2)
    np.put_along_axis(shares, wanted[..., None], right - 1, 2)
    return float(-np.log(right + 1e-30).mean()), shares / np.float32(wanted.size)


def main(folder: Path, steps: int = STEPS) -> float:
    """The loss on the text kept out, in bits of a character."""
    rng = np.random.default_rng(7)
    text = network.ids_of("\n".join(topics.values()))
    learn, kept_out = np.split(text, [len(text) * 19 // 20])
    weights = network.new_weights(rng)
    adam = Adam(weights, steps)
    for step in range(1, steps + 1):
        ids = cut(learn, rng.integers(len(learn) - network.LONGEST, size=TEXTS))
        logits, backward = network.forward(weights, ids[:, :-1])
        nats, gradient = loss(logits, ids[:, 1:])
        adam.step(weights, backward(gradient))
        if step % 50 == 0:
            print(f"step {step} of {steps}: {nats / np.log(2):.2f} bits", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    export.write(weights, folder / "textgen.onnx")
    ids = cut(kept_out, np.arange(0, len(kept_out) - network.LONGEST, 5 * network.LONGEST))
    nats, _ = loss(network.forward(weights, ids[:, :-1])[0], ids[:, 1:])
    return nats / float(np.log(2))


def cut(text: Ids, starts: Ids) -> Ids:
    """Pieces of LONGEST characters and one more."""
    return text[starts[:, None] + np.arange(network.LONGEST + 1)]


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "models")
    bits = main(target, int(sys.argv[2]) if len(sys.argv) > 2 else STEPS)
    print(f"{target}: {bits:.2f} bits for each character kept out")
