"""``python -m benchmarks.startup``: how long a service with worker processes takes to be there.

A script with two ops, a small model and a process each, is started again and again. ``ready`` is
the time from the start of the interpreter until ``/readyz`` says so; ``again`` is the time from a
worker's death until its replacement has answered a request; ``model`` is what opening that model
costs in a process that has ONNX Runtime imported, which is part of ``again``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.models import LINEAR_FEATURES, model_folder
from benchmarks.processes import START_SECONDS, BenchmarkError, ask_http, free_port, is_ready
from penstock.runtimes.model import Model
from penstock.runtimes.runtime import ModelOptions

MODEL = "linear"
PATH = "/startup/prediction"
DEATHS = 5
LOOK = 0.002

SCRIPT = """\
import os
from pathlib import Path
import numpy as np
from penstock import Op, WebService

class ModelOp(Op):
    def init_op(self):
        Path("pids", self.name).write_text(str(os.getpid()))

    def preprocess(self, input_dicts, data_id, log_id):
        return {"x": np.zeros((1, %(features)d), np.float32)}

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"y": str(float(next(iter(fetch_data.values()))[0, 0]))}

class Startup(WebService):
    def get_pipeline_response(self, read_op):
        first = ModelOp("first", input_ops=[read_op])
        return ModelOp("second", input_ops=[first])

service = Startup("startup")
conf = {"local_service_conf": {"model_config": %(model)r}}
service.prepare_pipeline_config(yml_dict={
    "rpc_port": %(rpc)d, "http_port": %(http)d, "dag": {"is_thread_op": %(threads)r},
    "op": {"first": conf, "second": conf},
})
service.run_service()
"""


class Started:
    """One start, ready when made; use it as a context manager."""

    def __init__(self, folder: Path, model: Path, *, threads: bool) -> None:
        self._folder = folder
        (folder / "pids").mkdir(parents=True)
        self._port = free_port()
        script = folder / "service.py"
        script.write_text(
            SCRIPT
            % {
                "features": LINEAR_FEATURES,
                "model": str(model),
                "rpc": free_port(),
                "http": self._port,
                "threads": threads,
            }
        )
        began = time.perf_counter()
        with (folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script)], cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            while not is_ready(self._port):
                if self._process.poll() is not None or time.perf_counter() - began > START_SECONDS:
                    raise BenchmarkError((folder / "server.log").read_text()[-2000:])
                time.sleep(LOOK)
        except BaseException:
            self.close()
            raise
        self.ready = time.perf_counter() - began

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def death(self) -> float:
        """Seconds from the death of the first op's worker until another one has answered."""
        self._ask()
        victim = self._worker()
        os.kill(victim, signal.SIGKILL)
        began = time.perf_counter()
        while not self._ask() or self._worker() == victim:
            if time.perf_counter() - began > START_SECONDS:
                raise BenchmarkError("no other worker answers")
        return time.perf_counter() - began

    def _worker(self) -> int:
        text = (self._folder / "pids" / "first").read_text()
        return int(text) if text else 0

    def _ask(self) -> bool:
        answer = json.loads(ask_http(self._port, PATH, b'{"key": ["a"], "value": ["1"]}'))
        return bool(answer["err_no"] == 0)


def opening(model: Path) -> float:
    """Seconds to open the model, once the library is there."""
    Model.open(ModelOptions(path=str(model), thread_num=1))
    began = time.perf_counter()
    Model.open(ModelOptions(path=str(model), thread_num=1))
    return time.perf_counter() - began


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds: ``ready`` and ``again`` with processes, ``ready in threads``, ``model``."""
    found: dict[str, list[float]] = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = model_folder(MODEL, folder)
        for at in range(rounds):
            with Started(folder / f"processes{at}", model, threads=False) as started:
                found.setdefault("ready", []).append(started.ready)
                found.setdefault("again", []).extend(started.death() for _ in range(DEATHS))
            with Started(folder / f"threads{at}", model, threads=True) as started:
                found.setdefault("ready in threads", []).append(started.ready)
            found.setdefault("model", []).append(opening(model))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often a service is started")
    rounds = parser.parse_args(arguments).rounds
    for what, seconds in measure(rounds).items():
        low, middle, high = (1000 * f(seconds) for f in (min, median, max))
        sys.stdout.write(f"{what:>16}  {middle:8.1f} ms  ({low:.1f} to {high:.1f})\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
