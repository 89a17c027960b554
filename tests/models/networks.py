"""Two small networks with fixed weights, and their answers by numpy.

``regression``: x [n, 13] to price [n, 1] through 64 hidden values.
``sequence``: words [n, length] and scale [n, 1] to scores [n, length, 5] and best [n, 5], with any
number of rows, and of words in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

_RANDOM = np.random.default_rng(20)
W1 = (_RANDOM.standard_normal((13, 64)) / 4).astype(np.float32)
B1 = (_RANDOM.standard_normal(64) / 4).astype(np.float32)
W2 = (_RANDOM.standard_normal((64, 1)) / 8).astype(np.float32)
B2 = np.float32([0.5])

VOCABULARY = 50
EMBEDDING = (_RANDOM.standard_normal((VOCABULARY, 16)) / 2).astype(np.float32)
W3 = (_RANDOM.standard_normal((16, 5)) / 2).astype(np.float32)

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Network:
    """A network's public names, in the order of the model's own names."""

    name: str
    inputs: dict[str, tuple[type, tuple[int | None, ...]]]
    outputs: tuple[str, ...]


REGRESSION = Network("regression", {"x": (np.float32, (None, 13))}, ("price",))
SEQUENCE = Network(
    "sequence",
    {"words": (np.int64, (None, None)), "scale": (np.float32, (None, 1))},
    ("scores", "best"),
)
NETWORKS = {each.name: each for each in (REGRESSION, SEQUENCE)}


def answers(network: str, feed: Arrays) -> Arrays:
    """The expected outputs of a network, in float64."""
    if network == "regression":
        hidden = np.maximum(feed["x"].astype(np.float64) @ W1 + B1, 0)
        return {"price": hidden @ W2 + B2}
    scores = np.tanh(EMBEDDING.astype(np.float64)[feed["words"]] @ W3) * feed["scale"][:, None]
    return {"scores": scores, "best": scores.max(axis=1)}


def feed_of(network: str, rows: int, length: int = 7, seed: int = 0) -> Arrays:
    random = np.random.default_rng([rows, length, seed])
    if network == "regression":
        return {"x": random.standard_normal((rows, 13)).astype(np.float32)}
    return {
        "words": random.integers(VOCABULARY, size=(rows, length)),
        "scale": random.uniform(0.5, 2, (rows, 1)).astype(np.float32),
    }


def write_conf(folder: Path, network: str, inputs: list[str], outputs: list[str]) -> None:
    """Write the configuration that maps these own names of a model to its public ones."""
    names = NETWORKS[network]
    text = ""
    for kind, own, public in (
        ("feed_var", inputs, names.inputs),
        ("fetch_var", outputs, names.outputs),
    ):
        for name, alias in zip(own, public, strict=True):
            text += f'{kind} {{\n  name: "{name}"\n  alias_name: "{alias}"\n}}\n'
    (folder / "serving_server_conf.prototxt").write_text(text)
