"""Typed functions of the law, each as a user writes it for batches.

The variable LAW has the options of every route, as JSON; with external workers ``sockets``, the
folder of their sockets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from penstock import App, Array

Rows = Annotated[np.ndarray, Array("float32", (None, 2))]

app = App("law")
OPTIONS = json.loads(os.environ.get("LAW", '{"batch": 1}'))
SOCKETS = OPTIONS.pop("sockets", None)

Target = TypeVar("Target", bound=Callable[..., Any])


def route(path: str) -> Callable[[Target], Target]:
    """A route with these options."""
    socket = {} if SOCKETS is None else {"socket": f"{SOCKETS}{path}.sock"}
    return app.route(path, **OPTIONS, **socket)


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


@route("/scaled")
def scaled(x: list[Rows], by: list[float] = [2.0]) -> list[Rows]:  # noqa: B006
    """Join the arrays, multiply each row by the factor of its request, and split again."""
    sizes = [len(each) for each in x]
    factors = np.repeat(np.array(by, np.float32), sizes)
    joined = np.concatenate(x) * factors[:, None]
    return np.split(joined, np.cumsum(sizes)[:-1])


@route("/grown")
def grown(x: list[Rows]) -> list[Rows]:
    """Write into the arrays, which belong to their requests."""
    for each in x:
        each += 1
    return x


@route("/counted")
def counted(texts: list[list[str]]) -> list[dict[str, int]]:
    return [{text: one.count(text) for text in one} for one in texts]


@route("/added")
def added(left: list[int], right: list[int], unit: list[str]) -> list[str]:
    return [f"{a + b} {c}" for a, b, c in zip(left, right, unit, strict=True)]


@route("/same")
def same(number: list[float], whole: list[int]) -> list[tuple[float, int]]:
    return list(zip(number, whole, strict=True))


@route("/inverse")
def inverse(number: list[int]) -> list[float]:
    """Fail for a 0."""
    return [1 / each for each in number]


@route("/described")
def described(items: list[Item]) -> list[Description]:
    return [
        Description(
            text=item.name.upper(), oneMore=item.count + 1, raw=item.raw[::-1], notes=[item.note]
        )
        for item in items
    ]


@route("/joined")
class Joined:
    """A class whose steps run one after another."""

    def preprocess(self, words: list[str]) -> str:
        return " ".join(words)

    def inference(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    def postprocess(self, length: int) -> dict[str, int]:
        return {"length": length}


@route("/short")
def short(number: list[int]) -> list[int]:
    """Return one result too few."""
    return number[1:]
