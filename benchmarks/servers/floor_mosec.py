"""Mosec: its Rust server and one worker process, on the same core."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mosec import Runtime, Server, SSEWorker, Worker
from mosec.mixin import MsgpackMixin
from pydantic import BaseModel

from benchmarks.graphs import open_session, padded
from benchmarks.servers.options import server_options
from benchmarks.servers.regression import session_of

_MODEL = "BENCHMARK_MODEL"


class Regression(Worker):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.session = session_of(Path.cwd())

    def forward(self, data: list[Any]) -> list[Any]:
        """The prices of a batch."""
        x = np.array([each["x"] for each in data], np.float32)
        (prices,) = self.session.run(None, {"x": x})
        return [{"price": price} for price in prices[:, 0].tolist()]


class PackedRegression(MsgpackMixin, Regression):
    """The same with msgpack."""


class Reader(Worker):
    """Token lists, padded to the longest of a batch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.session = open_session(Path(os.environ[_MODEL]))

    def forward(self, data: list[Any]) -> list[Any]:
        """The topics of a batch."""
        tokens = padded([np.array(each["tokens"][0], np.int64) for each in data])
        (topics,) = self.session.run(None, {"tokens": tokens})
        return [{"topic": [topic]} for topic in topics.tolist()]


class ReaderOneByOne(Reader):
    """The same, whose batches are run list by list."""

    def forward(self, data: list[Any]) -> list[Any]:
        """The topics of a batch."""
        return [super(ReaderOneByOne, self).forward([each])[0] for each in data]


class Piece(BaseModel):
    """A piece of an answer."""

    text: str
    index: int


class Pieces(SSEWorker):
    """Answers in pieces, those of a batch side by side."""

    def forward(self, data: list[Any]) -> list[Any]:
        """Send the pieces of a batch; what it gives is not sent."""
        counts = [each["count"] for each in data]
        for index in range(max(counts)):
            for number, count in enumerate(counts):
                if index < count:
                    piece = Piece(text="piece", index=index)
                    self.send_stream_event(piece.model_dump_json(), number)
        return data


def main() -> None:
    """Serve until it is terminated."""
    options = server_options()
    # It reads its own command line from here.
    sys.argv = [sys.argv[0], "--address", "127.0.0.1", "--port", str(options.http_port)]
    sys.argv += ["--log-level", "warning"]
    routes: dict[str, tuple[str, type[Worker], int]] = {
        "regress-json": ("/bench/prediction", Regression, 32),
        "regress-msgpack": ("/bench/prediction", PackedRegression, 32),
        "pieces": ("/pieces", Pieces, 64),
        "ragged": ("/reader", Reader, 32),
        "ragged-one": ("/reader", ReaderOneByOne, 32),
    }
    for model in options.models:
        os.environ[_MODEL] = str(model)  # workers are new interpreters
    path, worker, batch = routes[options.graph]
    server = Server()  # type: ignore[no-untyped-call]
    runtime = Runtime(worker, num=1, max_batch_size=batch, max_wait_time=1)
    server.register_runtime({path: [runtime]})
    server.run()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
