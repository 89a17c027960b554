"""A service with routes of every kind, for requests generated from its description."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from penstock import App, Cookie, File, Header, HttpError, Query, Response, op, redirect
from penstock.openai import ChatMessage
from penstock.typed.arrays import Array, Image

app = App("everything")


Rows = Annotated[np.ndarray, Array("float32", (None, 3))]
Sums = Annotated[np.ndarray, Array("float64", (None,))]
Small = Annotated[int, Field(ge=-(10**9), le=10**9)]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Flower(BaseModel):
    """A flower to classify."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"petals": 5, "color": "red"}]})
    petals: int = Field(ge=1, le=1000)
    color: Color
    name: str = Field(default="rose", min_length=1, max_length=20, pattern="^[a-z]+$")
    planted: datetime | None = None
    tags: list[str] = Field(default=[], max_length=5)


class Tree(BaseModel):
    value: float = Field(ge=-1e9, le=1e9)
    children: list[Tree] = []


class Species(BaseModel):
    name: Literal["setosa", "virginica"]
    scores: dict[str, float]


@app.route("/flowers", batch=8)
def flowers(items: list[Flower]) -> list[Species]:
    """Name the species."""
    return [Species(name="setosa", scores={each.name: each.petals / 1000}) for each in items]


@app.route("/tree")
def tree(tree: Tree) -> float:
    return total(tree)


def total(tree: Tree) -> float:
    return tree.value + sum(map(total, tree.children))


@app.route("/plain")
def plain(x: int, y: float = 1.5, on: bool = True, words: list[str] = []) -> dict[str, Any]:  # noqa: B006
    return {"x": x, "y": y, "on": on, "words": words}


@app.route("/rows", examples=[({"x": [[1, 2, 3]]}, [6.0])])
def rows(
    x: Annotated[np.ndarray, Array("float32", (None, 3))],
) -> Annotated[np.ndarray, Array("float64", (None,))]:
    return x.sum(axis=1, dtype="float64")


@app.route("/picture")
def picture(image: Annotated[np.ndarray, Image(max_pixels=1_000_000)], top: int = 1) -> list[int]:
    return list(image.shape)[:top]


@app.route("/file", batch=4)
def file(data: list[bytes], times: list[int]) -> list[int]:
    return [len(each) * some for each, some in zip(data, times, strict=True)]


@app.get("/items/{id:int}", batch=4)
def items(
    id: list[Small],
    color: list[Color],
    limit: list[Annotated[int, Query(ge=1, le=10)]] = [3],  # noqa: B006
    planted: list[datetime | None] = [None],  # noqa: B006
    x_token: list[Annotated[str, Header()]] = ["none"],  # noqa: B006
) -> list[list[Any]]:
    return [[*each] for each in zip(id, color, limit, planted, x_token, strict=True)]


@app.put("/named/{name}")
def item(
    name: str,
    flower: Flower,
    tags: Annotated[list[float], Query(max_length=3)] = [],  # noqa: B006
    session: Annotated[Small, Cookie()] = 0,
    numbers: Annotated[list[Small], Header(alias="X-Numbers")] = [],  # noqa: B006
) -> list[Any]:
    return [name, flower.petals, tags, session, numbers]


@app.delete("/files/{path:path}")
def remove(path: str, on: bool = False) -> list[Any]:
    return [path, on]


class Taken(Exception):
    pass


app.error(Taken, status=409)


@app.route("/orders", status=201, answers={303: None, 404: Flower, 402: HttpError})
def orders(count: int, item: Literal["rose", "gift", "none", "taken", "free"]) -> Response[Species]:
    if item == "gift":
        return redirect("/docs", status=303)  # type: ignore[return-value]
    if item == "none":
        flower = Flower(petals=1, color=Color.RED)
        return Response(flower, status=404)  # type: ignore[return-value]
    if item == "taken":
        raise Taken("by another")
    if item == "free":
        raise HttpError(402, "pay first")
    return Response(Species(name="setosa", scores={}), headers={"location": "/orders/1"})


@app.route("/nothing", status=204)
def nothing(x: int) -> None:
    return None


@app.get("/labels")
def labels(version: Literal["1", "2"] = "1") -> Response[list[str]]:
    return Response(["rose"], etag=version)


@app.route("/table")
def table(rows: Annotated[int, Field(ge=0, le=10)]) -> Response[str]:
    return Response("1,2\n" * rows, media_type="text/csv")


@app.get("/source")
def source() -> File:
    return File(__file__)


@op()
def shout(text: str = "") -> dict[str, str]:
    return {"text": str(text).upper()}


class Text(BaseModel):
    text: str


app.graph("/shout", shout, request=Text, response=Text)


@app.chat("echo", workers=2)
def chat(messages: list[ChatMessage]) -> Iterator[str]:
    yield from messages[-1].text[:10]


@app.embeddings("lengths")
def embed(input: list[str]) -> list[list[float]]:
    return [[len(each)] for each in input]


if __name__ == "__main__":
    app.run()
