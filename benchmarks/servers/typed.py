"""Penstock's typed functions: an echo of a model, and a regression model in batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import onnxruntime
from pydantic import BaseModel

from benchmarks.servers.options import server_options
from benchmarks.servers.regression import session_of
from penstock import App, Array


class Flower(BaseModel):
    """The body."""

    length: float
    width: float
    names: list[str]
    count: int


def echo(flower: Flower) -> Flower:
    """The echo."""
    return flower


def echo_batch(flowers: list[Flower]) -> list[Flower]:
    """The echo, in batches."""
    return flowers


class Piece(BaseModel):
    """A piece of an answer."""

    text: str
    index: int


def pieces(count: int) -> Iterator[Piece]:
    """Pieces, as fast as they are read."""
    for index in range(count):
        yield Piece(text="piece", index=index)


async def pieces_async(count: int) -> AsyncIterator[Piece]:
    """The same on the event loop."""
    for index in range(count):
        yield Piece(text="piece", index=index)


class Regression:
    """One linear layer."""

    def __init__(self) -> None:
        self.session: onnxruntime.InferenceSession = session_of(Path.cwd())

    def predict(
        self, x: list[Annotated[np.ndarray, Array("float32", (7,))]]
    ) -> list[dict[str, float]]:
        """The prices of a batch."""
        (prices,) = self.session.run(None, {"x": np.stack(x)})
        return [{"price": price} for price in prices[:, 0].tolist()]


if __name__ == "__main__":
    options = server_options()
    app = App("bench", http_port=options.http_port, rpc_port=options.grpc_port)
    routes: dict[str, tuple[Callable[..., object], int | None]] = {
        "echo": (echo, None),
        "echo-batch": (echo_batch, 32),
        "regress": (Regression, 32),
        "pieces": (pieces, None),
        "pieces-async": (pieces_async, None),
    }
    route, batch = routes[options.graph]
    executor = options.executor if options.graph == "pieces" else None
    path = "/pieces" if options.graph.startswith("pieces") else "/bench/prediction"
    app.route(path, batch=batch, executor=executor)(route)
    app.run()
