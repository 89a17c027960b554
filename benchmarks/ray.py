"""The executor ray against bare actors and Ray Serve, on one machine, in one run.

python -m benchmarks.ray

Needs root: everything runs in a network namespace with the loopback only, on a cluster of Ray that
it starts. The figures of each round are measured one after the other, and only they are compared;
those of the executor are without HTTP, as those of the bare actor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import uvloop
from numpy.typing import NDArray

from benchmarks.load import Plan
from benchmarks.load_wrk import WrkFailed, load_wrk
from penstock.executors.elsewhere.opening import Opening, Program
from penstock.executors.executor import OpSource, Result, Work
from penstock.executors.kinds import ExecutorSpec
from penstock.executors.ray.executor import RayExecutor
from penstock.executors.ray.options import RayOptions
from penstock.request import REQUEST_OP_NAME, Batch, CloseReason, Sample
from penstock.supervisor.engine_id import EngineId

ROOT: Final = Path(__file__).parents[1]
SERVICE: Final = Path(__file__).parent / "servers" / "ray_service.py"
RUN: Final = ("-m", "penstock", "run", str(SERVICE))
_INSIDE: Final = 'hostname localhost && ip link set lo up && exec "$@"'
_FLAG: Final = "--inside"
ROWS: Final = 8
SMALL, LARGE = 4, 1 << 18  # floats; the second are a mebibyte
CALLERS: Final = 16


class BenchmarkRayError(Exception):
    """Something could not be measured."""


class Bare:
    """The program with the cluster, and with what is measured against."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address: str = self._read()["address"]

    def calls(self, floats: int, seconds: float) -> list[int]:
        """Nanoseconds of synchronous calls with an array of so many floats."""
        found: list[int] = self._ask(floats=floats, seconds=seconds)
        return found

    def serve(self, port: int) -> str | None:
        """Start Ray Serve; returns why it cannot be."""
        failed: str | None = self._ask(serve=port).get("failed")
        return failed

    def _ask(self, **what: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("{", "[")):  # Ray prints, too
                return json.loads(line)
        raise BenchmarkRayError("the cluster has ended")


@contextmanager
def bare() -> Iterator[Bare]:
    """Start the program; it ends with the block."""
    command = (sys.executable, "-m", "benchmarks.servers.ray_bare")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        try:
            yield Bare(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


class Ours:
    """The executor, with one worker, on this loop."""

    def __init__(self, address: str, route: str) -> None:
        source = OpSource(graph=route, op=route, label=route)
        program = Program(arguments=RUN, folder=str(ROOT), variables={"PENSTOCK_HTTP_PORT": "0"})
        spec = ExecutorSpec(
            op=route,
            workers=1,
            loop=asyncio.get_running_loop(),
            ops=(),
            source=source,
            opening=Opening(program=program, service=0, engine=asdict(EngineId()), source=source),
            ray=RayOptions(address=address, num_cpus=0.01),
        )
        self.executor = RayExecutor(spec)

    async def calls(self, floats: int, rows: int, seconds: float) -> list[int]:
        """Nanoseconds of batches of so many requests, one after the other."""
        x = np.ones(floats, np.float32)
        found = []
        before = time.perf_counter_ns()
        end = before + int(seconds * 1e9)
        while before < end:
            await self._run(x, rows)
            now = time.perf_counter_ns()
            found.append(now - before)
            before = now
        return found

    async def _run(self, x: NDArray[Any], rows: int) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Result]] = loop.create_future()
        samples = [Sample(n, {REQUEST_OP_NAME: {"x": x}}, math.inf) for n in range(rows)]
        work = Work([Batch(samples, CloseReason.FULL, 0.0)])
        self.executor.submit(work, lambda _, results: done.set_result(results))
        ((_, outcomes),) = await done
        for each in outcomes:
            if each.error is not None:
                raise BenchmarkRayError(str(each.error))


@contextmanager
def service(address: str, workers: int) -> Iterator[int]:
    """The service with ops on the cluster; gives its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"RAY_ADDRESS": address, "RAY_BENCH_WORKERS": str(workers)}
    process = subprocess.Popen(
        [sys.executable, *RUN, "--set", f"http_port={port}"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **variables},
    )
    try:
        assert process.stdout is not None
        if not any("/nap" in line for line in process.stdout):
            raise BenchmarkRayError("the service has ended")
        yield port
    finally:
        process.terminate()
        process.wait(60)


def rate_of(port: int, path: str, seconds: float, folder: Path) -> float:
    """Answers a second of a service over HTTP."""
    body = folder / "body.json"
    body.write_text('{"number": 7}')
    found = load_wrk(
        port=port,
        path=path,
        body=body,
        expected=b"7",
        connections=CALLERS,
        heads="same",
        plan=Plan(seconds=seconds),
    )
    if found.faults:
        raise BenchmarkRayError(f"{path}: {found.faults}")
    return found.rate


async def of_calls(there: Bare, seconds: float, rounds: int) -> None:
    """Print the figures without HTTP."""
    rows = Ours(there.address, "rows")
    await rows.executor.start()
    ones, batches, larges = list[float](), list[float](), list[float]()
    try:
        for _ in range(rounds):
            small = median(there.calls(SMALL, seconds))
            one = median(await rows.calls(SMALL, 1, seconds))
            batch = median(await rows.calls(SMALL, ROWS, seconds)) / ROWS
            large = median(there.calls(LARGE, seconds))
            ours = median(await rows.calls(LARGE, 1, seconds))
            ones.append(one / small)
            batches.append(small / batch)
            larges.append(large / ours)
            print(
                f"p50 of a bare call {small / 1e3:.0f} us, of a batch of one {one / 1e3:.0f} us,"
                f" of a request in a batch of {ROWS} {batch / 1e3:.0f} us; with 1 MiB both ways"
                f" bare {large / 1e3:.0f} us, ours {ours / 1e3:.0f} us",
                flush=True,
            )
    finally:
        await rows.executor.close(5.0)
    print(f"a batch of one takes {median(ones):.2f} x a bare call (at most 1)")
    print(f"batches of {ROWS} make {median(batches):.1f} x the requests (at least 4)")
    print(f"with 1 MiB {median(larges):.2f} x the calls of bare ones (at least 0.8)", flush=True)


def of_naps(there: Bare, seconds: float, folder: Path) -> None:
    """Print how an op that sleeps scales."""
    rates = []
    for workers in (1, 2, 4):
        with service(there.address, workers) as port:
            rates.append(rate_of(port, "/nap", seconds, folder))
    scale = [rate / rates[0] for rate in rates]
    print(
        f"an op that sleeps, on 1, 2 and 4 workers: {rates[0]:.1f}, {rates[1]:.1f} and"
        f" {rates[2]:.1f} answers/s; {scale[1] / 2:.2f} and {scale[2] / 4:.2f} x linear"
        " (at least 0.9)",
        flush=True,
    )


def of_http(there: Bare, seconds: float, rounds: int, folder: Path) -> None:
    """Print the rates over HTTP."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        serve_port = probe.getsockname()[1]
    failed = there.serve(serve_port)
    if failed is not None:
        print(f"Ray Serve is not measured: {failed}", flush=True)
    ratios = []
    with service(there.address, 1) as port:
        for _ in range(rounds):
            ours = rate_of(port, "/echo", seconds, folder)
            text = f"over HTTP {ours:.0f} answers/s"
            if failed is None:
                serve = rate_of(serve_port, "/echo", seconds, folder)
                ratios.append(ours / serve)
                text += f", Ray Serve {serve:.0f}"
            print(text, flush=True)
    if ratios:
        print(f"over HTTP {median(ratios):.1f} x the answers of Ray Serve (at least 3)")


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("calls", "naps", "http"), action="append")
    parser.add_argument(_FLAG, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        command = ("unshare", "--net", "--uts", "sh", "-c", _INSIDE, "sh", sys.executable)
        again = [*command, "-m", "benchmarks.ray", _FLAG, *sys.argv[1:]]
        return subprocess.call(again, cwd=ROOT)
    os.environ["RAY_AUTH_MODE"] = "disabled"  # else a token is needed, which Ray writes to the home
    only = options.only or ("calls", "naps", "http")
    with bare() as there, tempfile.TemporaryDirectory() as folder:
        if "calls" in only:
            uvloop.run(of_calls(there, options.seconds, options.rounds))
        if "naps" in only:
            of_naps(there, options.seconds, Path(folder))
        if "http" in only:
            of_http(there, options.seconds, options.rounds, Path(folder))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BenchmarkRayError, WrkFailed) as error:
        sys.exit(f"benchmarks.ray: {error}")
