"""Values between two ops elsewhere: through the engine, and through an external store.

python -m benchmarks.external_store
python -m benchmarks.external_store --services    the ops call another service

Needs the program redis-server. Prints, for each size, the median time of a request and the CPU time
of the engine's process. Everything is on this machine: the network costs nothing, and the processes
share its cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import psutil

SERVERS: Final = Path(__file__).parent / "servers"
RUN: Final = (sys.executable, "-m", "penstock", "run")
SIZES: Final = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 50_000_000)
START_SECONDS: Final = 120.0


class Cost(NamedTuple):
    """What a request costs, in milliseconds."""

    time: float
    engine: float


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(*command: str, port: int, **variables: str) -> Iterator[psutil.Process]:
    """A program that listens on a port of this machine."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            until = time.monotonic() + START_SECONDS
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} did not start: {log.read()[-2000:]!r}")
                time.sleep(0.05)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def measured(port: int, engine: psutil.Process, nbytes: int, seconds: float) -> Cost:
    """The cost of requests with a value of this size, one after the other."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    body = json.dumps({"bytes": nbytes})

    def ask() -> float:
        began = time.perf_counter()
        connection.request("POST", "/sizes", body)
        answer = json.loads(connection.getresponse().read())
        if answer != {"bytes": nbytes}:
            raise RuntimeError(f"{answer} is not the answer to {body}")
        return time.perf_counter() - began

    ask()
    times, before, until = list[float](), _cpu(engine), time.monotonic() + seconds
    while time.monotonic() < until:
        times.append(ask())
    connection.close()
    return Cost(1e3 * median(times), 1e3 * (_cpu(engine) - before) / len(times))


def _cpu(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument(
        "--services", action="store_true", help="the ops are those of another service"
    )
    arguments = parser.parse_args()
    redis = shutil.which("redis-server")
    if redis is None:
        parser.error("redis-server is not installed")
    port = _free_port()
    kept = ("--save", "", "--bind", "127.0.0.1", "--port", str(port))
    with ExitStack() as stack:
        stack.enter_context(started(redis, *kept, port=port))
        store = {"STORE": f"redis://127.0.0.1:{port}", "SHARED_SECRET": "only-for-a-measurement"}
        start = _with_services if arguments.services else _with_workers
        print("| Size | through the engine | its CPU | through the store | its CPU |")
        print("| ---: | ---: | ---: | ---: | ---: |")
        through_engine, past_engine = start(stack, {}), start(stack, store)
        for nbytes in SIZES:
            one = measured(*through_engine, nbytes, arguments.seconds)
            two = measured(*past_engine, nbytes, arguments.seconds)
            cells = (one.time, one.engine, two.time, two.engine)
            name = f"{nbytes >> 10} KiB" if nbytes < 1 << 20 else f"{nbytes / (1 << 20):.0f} MiB"
            print(f"| {name} | {' | '.join(f'{each:.1f} ms' for each in cells)} |", flush=True)
    return 0


def _with_workers(stack: ExitStack, store: dict[str, str]) -> tuple[int, psutil.Process]:
    """The port and the process of a service whose ops have workers."""
    port = _free_port()
    serve = (*RUN, str(SERVERS / "external_store.py"), "--set", f"http_port={port}")
    return port, stack.enter_context(started(*serve, port=port, **store))


def _with_services(stack: ExitStack, store: dict[str, str]) -> tuple[int, psutil.Process]:
    """The same of one whose ops call another service."""
    script, port, other = str(SERVERS / "stored_services.py"), _free_port(), _free_port()
    far = (*RUN, script, "--set", f"http_port={other}", "--set", f"rpc_port={other}")
    stack.enter_context(started(*far, port=other, **store))
    near = (*RUN, script, "--set", f"http_port={port}")
    store = {**store, "FAR": f"127.0.0.1:{other}"}
    return port, stack.enter_context(started(*near, port=port, **store))


if __name__ == "__main__":
    sys.exit(main())
