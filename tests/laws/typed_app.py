"""Typed functions of the law, each as a user writes it for batches.

The variable LAW has the options of every route, as JSON.
"""

from __future__ import annotations

import json
import os
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field

from penstock import App, Array

Rows = Annotated[np.ndarray, Array("float32", (None, 2))]

app = App("law")
OPTIONS = json.loads(os.environ.get("LAW", '{"batch": 1}'))


class Item(BaseModel):
    """One request of ``described``."""

    name: str
    count: int = Field(alias="howMany")
    raw: bytes
    note: str | None = None


class Description(BaseModel):
    """Its answer."""

    text: str
    larger: int = Field(alias="oneMore")
    raw: bytes
    notes: list[str | None]


@app.route("/scaled", **OPTIONS)
def scaled(x: list[Rows], by: list[float] = [2.0]) -> list[Rows]:  # noqa: B006
    """Join the arrays, multiply each row by the factor of its request, and split again."""
    sizes = [len(each) for each in x]
    factors = np.repeat(np.array(by, np.float32), sizes)
    joined = np.concatenate(x) * factors[:, None]
    return np.split(joined, np.cumsum(sizes)[:-1])


@app.route("/grown", **OPTIONS)
def grown(x: list[Rows]) -> list[Rows]:
    """Write into the arrays, which belong to their requests."""
    for each in x:
        each += 1
    return x


@app.route("/counted", **OPTIONS)
def counted(texts: list[list[str]]) -> list[dict[str, int]]:
    return [{text: one.count(text) for text in one} for one in texts]


@app.route("/added", **OPTIONS)
def added(left: list[int], right: list[int], unit: list[str]) -> list[str]:
    return [f"{a + b} {c}" for a, b, c in zip(left, right, unit, strict=True)]


@app.route("/same", **OPTIONS)
def same(number: list[float], whole: list[int]) -> list[tuple[float, int]]:
    return list(zip(number, whole, strict=True))


@app.route("/inverse", **OPTIONS)
def inverse(number: list[int]) -> list[float]:
    """Fail for a 0."""
    return [1 / each for each in number]


@app.route("/described", **OPTIONS)
def described(items: list[Item]) -> list[Description]:
    return [
        Description(
            text=item.name.upper(), oneMore=item.count + 1, raw=item.raw[::-1], notes=[item.note]
        )
        for item in items
    ]


@app.route("/joined", **OPTIONS)
class Joined:
    """A class whose steps run one after another."""

    def preprocess(self, words: list[str]) -> str:
        return " ".join(words)

    def inference(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    def postprocess(self, length: int) -> dict[str, int]:
        return {"length": length}


@app.route("/short", **OPTIONS)
def short(number: list[int]) -> list[int]:
    """Return one result too few."""
    return number[1:]
