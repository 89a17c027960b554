"""The options of every server script; reading them pins the process to its core."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.callers import security

INSTRUMENTS: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "default": {},
    "tracer": {"dag": {"tracer": {"interval_s": 1}}},
    "requests": {"log_requests": True},
}
"""The settings besides the default instruments; ``none`` is without the default ones, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The address and the graph of a server."""

    http_port: int
    grpc_port: int
    graph: str
    executor: str
    batch_size: int
    window_ms: float | None
    policy: str | None
    concurrency: int
    ops: int
    engines: int | None
    steps: int
    instruments: str
    security: str | None
    models: list[Path]

    def config(self, ops: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Penstock's configuration: these options, defaults for the rest.

        ``ops`` gives the own entry of each op, to which what all have in common is added.
        """
        common: dict[str, Any] = {"executor": self.executor}
        if self.batch_size != 1:
            common["batch_size"] = self.batch_size
        if self.window_ms is not None:
            common["auto_batching_timeout"] = self.window_ms
        if self.policy is not None:
            common["policy"] = self.policy
        if self.concurrency != 1:
            common["concurrency"] = self.concurrency
        engines: dict[str, Any] = {}
        if self.engines is not None:
            engines = {"build_dag_each_worker": True, "worker_num": self.engines}
        return {
            **engines,
            "http_port": self.http_port,
            "rpc_port": self.grpc_port,
            **INSTRUMENTS[self.instruments],
            **(security(self.security, Path.cwd()) if self.security is not None else {}),
            "op": {name: {**common, **own} for name, own in ops.items()},
        }

    def model(self, number: int) -> dict[str, Any]:
        """The entry of an op that runs the ``number``-th model."""
        return {"local_service_conf": {"model_config": str(self.models[number])}}


def server_options() -> ServerOptions:
    """Parse the command line, then pin this process and all its threads to come to ``--core``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--every-core", action="store_true", help="not only the one")
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--graph", default="echo")
    parser.add_argument("--executor", choices=["thread", "inline", "process"], default="thread")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--window-ms", type=float, help="how long a request waits for company")
    parser.add_argument("--policy", choices=["fifo", "learned"])
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--ops", type=int, default=1, help="ops in a row")
    parser.add_argument("--engines", type=int, help="processes with a graph each; absent: none")
    parser.add_argument("--steps", type=int, default=0, help="of ops that compute")
    parser.add_argument("--instruments", choices=INSTRUMENTS, default="default")
    parser.add_argument("--security", choices=["keys", "jwt", "limits"], help="who may call")
    parser.add_argument("--model", type=Path, action="append", default=[], help="model folder")
    options = vars(parser.parse_args())
    if not options.pop("every_core"):
        os.sched_setaffinity(0, {options["core"]})
    del options["core"]
    return ServerOptions(models=options.pop("model"), **options)
