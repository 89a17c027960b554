"""Typed routes that return how much they got."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel

from penstock import App, Array

app = App("typed-sizes")


class Tree(BaseModel):
    """A model of itself."""

    children: list[Tree] = []


@app.route("/tree")
def tree(root: Tree) -> int:
    return len(root.children)


@app.route("/lists")
def lists(x: list[list[Any]]) -> int:
    return len(x)


@app.route("/array")
def array(x: Annotated[np.ndarray, Array("float32", (None,))]) -> int:
    return int(x.size)


@app.route("/file")
def file(x: bytes) -> int:
    return len(x)


if __name__ == "__main__":
    app.run()
