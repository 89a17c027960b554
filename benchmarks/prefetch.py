"""``python -m benchmarks.prefetch``: what a busy worker process gains by what it is handed ahead.

One op in one worker process, whose ``process`` takes a set time, is asked by more clients than it
can serve at once. What it is told is the share of that time in which it worked: batches that came
back times the time of one, over the time that has passed. The rest is waiting for the next one.
Worker, service and generator have two cores between them.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.load import Plan
from benchmarks.load_http import load_http
from benchmarks.processes import START_SECONDS, BenchmarkError, free_port, is_ready

LOOK = 0.002
PATH = "/timed/prediction"
BODY = b'{"key": ["x"], "value": ["1"]}'
CALLS = (0.0003, 0.001, 0.004)
DEPTHS = (0, 1, 2)
BATCHES = (1, 8)

SCRIPT = """\
import time
import numpy as np
from penstock import Op, WebService

class Timed(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return {"x": np.zeros((1, 4), np.float32)}

    def process(self, feed_batch, typical_logid=0):
        until = time.perf_counter() + %(call)r
        while time.perf_counter() < until:
            pass
        return feed_batch[0]

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"y": str(fetch_data["x"][0, 0])}

class TimedService(WebService):
    def get_pipeline_response(self, read_op):
        return Timed("timed", input_ops=[read_op])

service = TimedService("timed")
service.prepare_pipeline_config(yml_dict={
    "rpc_port": %(rpc)d, "http_port": %(http)d,
    "op": {"timed": {"executor": "process", "prefetch": %(depth)d, "batch_size": %(batch)d}},
})
service.run_service()
"""


@contextmanager
def served(folder: Path, call: float, depth: int, batch: int) -> Iterator[int]:
    """The service; gives its port."""
    port = free_port()
    values = {"call": call, "depth": depth, "batch": batch, "rpc": free_port(), "http": port}
    script = folder / "service.py"
    script.write_text(SCRIPT % values)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, str(script)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError((folder / "log").read_text()[-2000:])
            time.sleep(LOOK)
        yield port
    finally:
        process.terminate()
        process.wait()


def worked(folder: Path, call: float, depth: int, batch: int, seconds: float) -> float:
    """The share of its time in which the worker worked."""
    with served(folder, call, depth, batch) as port:
        load = load_http(
            port=port,
            path=PATH,
            body=BODY,
            expected=None,
            connections=4 * batch,
            plan=Plan(seconds=seconds, warmup_seconds=0.3),
        )
        report = asyncio.run(load)
    if report.fault_count:
        raise BenchmarkError(report.faults[0])
    return report.rps * call / batch


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefetch", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    asked = parser.parse_args(arguments)
    sys.stdout.write("batch_size   call    share of its time in which the worker worked\n")
    for batch in BATCHES:
        for call in CALLS:
            found: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
            for _ in range(asked.rounds):
                for depth in DEPTHS:
                    with TemporaryDirectory() as folder:
                        share = worked(Path(folder), call, depth, batch, asked.seconds)
                    found[depth].append(share)
            told = "   ".join(
                f"prefetch {depth}: {median(shares):.3f} ({min(shares):.3f} to {max(shares):.3f})"
                for depth, shares in found.items()
            )
            sys.stdout.write(f"{batch:>10}  {1000 * call:>4g} ms   {told}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
