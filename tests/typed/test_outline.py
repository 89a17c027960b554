"""Schemas in one line."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field

from penstock.typed.arrays import Array, Image
from penstock.typed.outline import outline
from penstock.typed.signature import Schema


class Flower(BaseModel):
    length: float
    kind: Literal["iris", "rose"] = "iris"


class Bunch(BaseModel):
    flowers: list[Flower]
    first: Flower | None = None


class Wide(BaseModel):
    text: str = Field(description="x" * 200)
    picture: Annotated[np.ndarray, Image()]
    x: Annotated[np.ndarray, Array("float32", (None, 3))]
    data: bytes


@pytest.mark.parametrize(
    ("annotation", "line"),
    [
        (float, "number"),
        (list[str], "[text]"),
        (tuple[int, str], "[integer, text]"),
        (tuple[int, ...], "[integer]"),
        (dict[str, int], "{text: integer}"),
        (Any, "anything"),
        (Flower, "{length: number, kind?: 'iris' | 'rose'}"),
        (Bunch, "{flowers: [Flower], first?: Flower | null}"),
        (Wide, "{text: text, picture: image/*, x: array of float32, any × 3, data: bytes}"),
    ],
)
def test_a_schema_is_outlined_in_one_line(annotation: Any, line: str) -> None:
    assert outline(Schema(annotation, "it").describe(refs="{model}")) == line


def test_a_long_outline_is_shortened() -> None:
    names = {f"member_{number}": float for number in range(20)}
    schema = Schema(type("Long", (BaseModel,), {"__annotations__": names}), "it")
    assert len(outline(schema.describe(refs="{model}"))) == 100
