"""The options every server script has; reading them pins the process to its core."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compute_loop import STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where to listen and what to serve."""

    http_port: int
    grpc_port: int
    executor: str
    batch_size: int
    concurrency: int
    ops: int
    engines: int | None
    steps: int
    copies: Path | None
    in_place: bool
    models: list[Path]

    def config(self, ops: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Penstock's configuration: these options, defaults for the rest.

        ``ops`` gives each op's own entry, to which what all have in common is added.
        """
        common: dict[str, Any] = {"executor": self.executor, "batch_size": self.batch_size}
        if self.concurrency != 1:
            common["concurrency"] = self.concurrency
        engines: dict[str, Any] = {}
        if self.engines is not None:
            engines = {"build_dag_each_worker": True, "worker_num": self.engines}
        return {
            **engines,
            "http_port": self.http_port,
            "rpc_port": self.grpc_port,
            "op": {name: {**common, **own} for name, own in ops.items()},
        }

    def model(self, number: int = 0) -> dict[str, Any]:
        """The entry of an op that runs the ``number``-th model on one CPU thread."""
        path = str(self.models[number])
        return {"local_service_conf": {"model_config": path, "thread_num": 1}}


def server_options() -> ServerOptions:
    """Parse the command line, then pin this process and all its threads to come to ``--core``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--executor", choices=["thread", "inline", "process"], default="thread")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--ops", type=int, default=1, help="ops in a row, where that can be chosen")
    parser.add_argument("--engines", type=int, help="processes with a graph each; absent: none")
    parser.add_argument("--steps", type=int, default=STEPS, help="of ops that compute")
    parser.add_argument("--in-place", action="store_true", help="write where others read it")
    parser.add_argument("--copies", type=Path, help="gets an octet for each copy of a large array")
    parser.add_argument("--every-core", action="store_true", help="not only the one")
    parser.add_argument("--model", type=Path, action="append", default=[], help="model folder")
    arguments = parser.parse_args()
    if not arguments.every_core:
        os.sched_setaffinity(0, {arguments.core})
    return ServerOptions(
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        executor=arguments.executor,
        batch_size=arguments.batch_size,
        concurrency=arguments.concurrency,
        ops=arguments.ops,
        engines=arguments.engines,
        steps=arguments.steps,
        copies=arguments.copies,
        in_place=arguments.in_place,
        models=arguments.model,
    )
