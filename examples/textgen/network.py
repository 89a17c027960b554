"""A character transformer in numpy, with its gradients.

A decoder (Vaswani et al., "Attention is all you need", 2017) with normalisation before each part
(Xiong et al., 2020) by root mean square (Zhang and Sennrich, 2019) and learned positions. What
comes in at a place is its character and the BEFORE ones before it, so that a few minutes of
training are enough for words. Shapes: B texts of S characters, WIDTH numbers for each.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
LONGEST = 256
"""Characters of a text, prompt and answer together."""
BEFORE = 4
LAYERS = 4
WIDTH = 144
HEADS = 4
INNER = 4 * WIDTH
EPSILON = 1e-5

Array = NDArray[np.float32]
Weights = dict[str, Array]
Ids = NDArray[np.int64]
Backward = Callable[[Array], Weights]
"""From the gradient of the logits to the gradient of each weight."""


def ids_of(text: str) -> Ids:
    """The number of each character; of those that the network does not know, a space's."""
    known = {character: number for number, character in enumerate(CHARACTERS)}
    return np.array([known.get(character, 1) for character in text], np.int64)


def with_earlier(ids: Ids) -> Ids:
    """``[..., S, 1 + BEFORE]``: at each place its character and those before it, 0 for none."""
    padded = np.pad(ids, [(0, 0)] * (ids.ndim - 1) + [(BEFORE, 0)])
    return np.lib.stride_tricks.sliding_window_view(padded, 1 + BEFORE, axis=-1)[..., ::-1]


def new_weights(rng: np.random.Generator) -> Weights:
    def random(*shape: int, spread: float = WIDTH**-0.5) -> Array:
        return rng.normal(0, spread, shape).astype(np.float32)

    weights = {
        "characters": random((1 + BEFORE) * len(CHARACTERS), WIDTH, spread=0.05),
        "next": random(WIDTH, len(CHARACTERS)),
        "positions": random(LONGEST, WIDTH, spread=0.02),
        "scale": np.ones(WIDTH, np.float32),
    }
    for layer in range(LAYERS):
        weights |= {
            f"{layer}.attend.scale": np.ones(WIDTH, np.float32),
            f"{layer}.attend.in": random(WIDTH, 3 * WIDTH),
            f"{layer}.attend.out": random(WIDTH, WIDTH, spread=(2 * LAYERS * WIDTH) ** -0.5),
            f"{layer}.think.scale": np.ones(WIDTH, np.float32),
            f"{layer}.think.in": random(WIDTH, INNER),
            f"{layer}.think.out": random(INNER, WIDTH, spread=(2 * LAYERS * INNER) ** -0.5),
        }
    return weights


def forward(weights: Weights, ids: Ids) -> tuple[Array, Backward]:
    """Logits ``[B, S, characters]`` of the character that follows each, and their gradients."""
    rows = with_earlier(ids) + np.arange(1 + BEFORE) * len(CHARACTERS)
    x = weights["characters"][rows].sum(axis=2) + weights["positions"][: ids.shape[1]]
    steps: list[tuple[str, Callable[[Array], tuple[Array, Weights]]]] = []
    for layer in range(LAYERS):
        for part, run in (("attend", attend), ("think", think)):
            name = f"{layer}.{part}"
            normal, back_normal = normalise(x, weights[f"{name}.scale"])
            change, back = run(normal, weights[f"{name}.in"], weights[f"{name}.out"])
            x = x + change
            steps.append((name, _joined(name, back_normal, back)))
    last, back_last = normalise(x, weights["scale"])
    logits = last @ weights["next"]

    def backward(gradient: Array) -> Weights:
        found = {"next": flat(last).T @ flat(gradient)}
        slope, found["scale"] = back_last(gradient @ weights["next"].T)
        for _, back in reversed(steps):
            through, some = back(slope)
            slope = slope + through
            found |= some
        chosen = np.zeros((ids.size, len(weights["characters"])), np.float32)
        np.put_along_axis(chosen, rows.reshape(ids.size, -1), 1, axis=1)
        found["characters"] = chosen.T @ flat(slope)
        found["positions"] = np.zeros_like(weights["positions"])
        found["positions"][: ids.shape[1]] = slope.sum(axis=0)
        return found

    return logits, backward


def _joined(
    name: str,
    back_normal: Callable[[Array], tuple[Array, Array]],
    back: Callable[[Array], tuple[Array, Array, Array]],
) -> Callable[[Array], tuple[Array, Weights]]:
    def backward(slope: Array) -> tuple[Array, Weights]:
        through, into, out = back(slope)
        through, scale = back_normal(through)
        return through, {f"{name}.scale": scale, f"{name}.in": into, f"{name}.out": out}

    return backward


def normalise(x: Array, scale: Array) -> tuple[Array, Callable[[Array], tuple[Array, Array]]]:
    size = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)
    normal = x * size

    def backward(slope: Array) -> tuple[Array, Array]:
        scaled = slope * scale
        along = (scaled * normal).mean(axis=-1, keepdims=True)
        return size * (scaled - normal * along), (slope * normal).sum(axis=(0, 1))

    return normal * scale, backward


def attend(
    x: Array, into: Array, out: Array
) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """Causal attention of several heads."""
    count, length, _ = x.shape
    split = count, length, 3, HEADS, WIDTH // HEADS
    query, key, value = (x @ into).reshape(split).transpose(2, 0, 3, 1, 4)
    root = (WIDTH // HEADS) ** -0.5
    later = np.triu(np.full((length, length), -np.inf, np.float32), 1)
    shares = softmax(query @ key.swapaxes(2, 3) * np.float32(root) + later)
    heads = (shares @ value).transpose(0, 2, 1, 3).reshape(x.shape)

    def backward(slope: Array) -> tuple[Array, Array, Array]:
        of_out = flat(heads).T @ flat(slope)
        of_heads = (slope @ out.T).reshape(count, length, HEADS, -1).transpose(0, 2, 1, 3)
        of_value = shares.swapaxes(2, 3) @ of_heads
        of_shares = of_heads @ value.swapaxes(2, 3)
        of_scores = shares * (of_shares - (of_shares * shares).sum(axis=-1, keepdims=True))
        of_scores *= np.float32(root)
        of_query, of_key = of_scores @ key, of_scores.swapaxes(2, 3) @ query
        of_all = np.stack([of_query, of_key, of_value]).transpose(1, 3, 0, 2, 4)
        of_all = of_all.reshape(count, length, 3 * WIDTH)
        return of_all @ into.T, flat(x).T @ flat(of_all), of_out

    return heads @ out, backward


def think(
    x: Array, into: Array, out: Array
) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """Two layers, with a squared rectifier (So et al., "Primer", 2021) between them."""
    inner = np.maximum(x @ into, 0)
    squared = inner * inner

    def backward(slope: Array) -> tuple[Array, Array, Array]:
        of_inner = (slope @ out.T) * 2 * inner
        return of_inner @ into.T, flat(x).T @ flat(of_inner), flat(squared).T @ flat(slope)

    return squared @ out, backward


def flat(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def softmax(scores: Array) -> Array:
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Array = raised / raised.sum(axis=-1, keepdims=True)
    return shares
