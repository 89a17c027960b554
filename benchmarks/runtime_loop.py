"""The floor of models: the bare ONNX Runtime called in a loop, nothing around it.

Several models are run back to back on the same input and count as one run, as in an ensemble.

    python -m benchmarks.runtime_loop --model FOLDER --batch 8 --seconds 10 --core 0
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from array import array
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.load import MANY, Report, percentile_us
from benchmarks.models import input_rows


def open_session(folder: Path, threads: int = 1) -> onnxruntime.InferenceSession:
    """The model as Penstock opens it: given threads, no idle spinning."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )


def input_of(session: onnxruntime.InferenceSession, rows: int) -> dict[str, NDArray[np.float32]]:
    """Seeded rows for the session's only input."""
    (node,) = session.get_inputs()
    return {node.name: input_rows(node.shape[1:], rows)}


def run_loop(folders: list[Path], *, batch: int, seconds: float, warmup_seconds: float) -> Report:
    """Run whole batches for at least ``seconds``; ``requests`` counts rows."""
    sessions = [open_session(folder) for folder in folders]
    feeds = [input_of(session, batch) for session in sessions]
    latencies_ns = array("q")

    def run_once() -> None:
        for session, feed in zip(sessions, feeds, strict=True):
            session.run(None, feed)

    warm = time.perf_counter() + warmup_seconds
    run_once()
    while time.perf_counter() < warm:
        run_once()
    cpu = time.process_time()
    began = before = time.perf_counter_ns()
    end = began + int(seconds * 1e9)
    while before < end and len(latencies_ns) < MANY:
        run_once()
        now = time.perf_counter_ns()
        latencies_ns.append(now - before)
        before = now
    took = (before - began) / 1e9
    rows = len(latencies_ns) * batch
    ordered = sorted(latencies_ns)
    return Report(
        requests=rows,
        seconds=took,
        rps=rows / took,
        p50_us=percentile_us(ordered, 0.50),
        p99_us=percentile_us(ordered, 0.99),
        client_cpu=0.0,
        server_cpu_s=time.process_time() - cpu,
        fault_count=0,
        faults=[],
    )


def main() -> int:
    """Print the report as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime_loop")
    parser.add_argument("--model", type=Path, action="append", required=True, help="folder")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warmup", type=float, default=0.5)
    parser.add_argument("--core", type=int)
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    report = run_loop(
        arguments.model,
        batch=arguments.batch,
        seconds=arguments.seconds,
        warmup_seconds=arguments.warmup,
    )
    print(report.to_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
