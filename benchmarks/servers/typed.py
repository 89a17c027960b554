"""Penstock's typed functions: an echo of a model, and a regression model in batches."""

from __future__ import annotations

from collections.abc import Callable
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
    }
    route, batch = routes[options.graph]
    app.route("/bench/prediction", batch=batch)(route)
    app.run()
