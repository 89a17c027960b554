"""Mosec with the regression model: its Rust server and one worker process, on the same core."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from mosec import Runtime, Server, Worker
from mosec.mixin import MsgpackMixin

from benchmarks.servers.options import server_options
from benchmarks.servers.regression import session_of


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


def main() -> None:
    """Serve until it is terminated."""
    options = server_options()
    # It reads its own command line from here.
    sys.argv = [sys.argv[0], "--address", "127.0.0.1", "--port", str(options.http_port)]
    sys.argv += ["--log-level", "warning"]
    worker = PackedRegression if options.graph == "regress-msgpack" else Regression
    server = Server()  # type: ignore[no-untyped-call]
    runtime = Runtime(worker, num=1, max_batch_size=32, max_wait_time=1)
    server.register_runtime({"/bench/prediction": [runtime]})
    server.run()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
