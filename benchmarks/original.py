"""``python -m benchmarks.original --python OLD/bin/python``: a project for Paddle Serving as it is,
in the original and in Penstock.

The interpreter is one of Python 3.6 to 3.9 that has ``paddle_serving_server`` 0.9.0, its app and
client, and Paddle. The project is the one of the original's environment check, from its package: a
linear model behind one op in a process of its own. Each service is started in turn, loaded over
HTTP and gRPC by ``penstock bench``, measured in processes, threads and memory, and stopped; rounds
alternate, and the figures are medians. Server and client share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).parent.parent
WHERE = "import paddle_serving_server as p; print(p.__path__[0])"
HTTP, GRPC = 18082, 9998  # of the project's configuration
HOUSES = (
    "0.0137, -0.1136, 0.2553, -0.0692, 0.0582, -0.0727, -0.1583, -0.0584, 0.6283, 0.4919, 0.1856,"
    " 0.0795, -0.0332",
    "0.0582, -0.0727, 0.1583, 0.0137, -0.1136, 0.2553, -0.0692, 0.0584, 0.6283, -0.4919, 0.1856,"
    " -0.0795, 0.0332",
)
READY_SECONDS = 120
Figures = dict[str, float]


def main() -> int:
    """Print a table of both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--python", type=Path, required=True, help="one that has the original")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of each step")
    given = parser.parse_args()
    old = str(given.python.absolute())
    package = subprocess.check_output([old, "-c", WHERE], text=True, stderr=subprocess.DEVNULL)
    project = Path(package.splitlines()[-1]) / "env_check" / "simple_web_service"
    found: dict[str, list[Figures]] = {"original": [], "penstock": []}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(project, Path(folder) / "project"))
        for _ in range(given.rounds):
            found["original"].append(measured(copy, [old], {}, given.seconds))
            ours = {"PYTHONPATH": str(ROOT / "paddle")}
            found["penstock"].append(measured(copy, [sys.executable], ours, given.seconds))
    print_table(found)
    return 0


def measured(
    project: Path, python: Sequence[str], environment: dict[str, str], seconds: float
) -> Figures:
    """The figures of one run of a service."""
    started = time.monotonic()
    with served(project, python, environment) as server:
        figures: Figures = {"seconds until the first answer": time.monotonic() - started}
        for name, url in (
            ("HTTP", f"http://127.0.0.1:{HTTP}/uci/prediction"),
            ("gRPC", f"grpc://127.0.0.1:{GRPC}"),
        ):
            for step in load(url, seconds):
                in_flight = step["step"]["concurrency"]
                figures[f"{name}, {in_flight} in flight: answers/s"] = step["rate"]
                figures[f"{name}, {in_flight} in flight: p99 ms"] = 1e3 * step["latency"]["p99"]
                figures[f"{name}, {in_flight} in flight: failed"] = step["failed"]
        figures |= used(server.pid)
    return figures


@contextmanager
def served(
    project: Path, python: Sequence[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the project's service; yields when it has answered."""
    with (project / "service.log").open("wb") as log:
        server = subprocess.Popen(
            [*python, "web_service.py", "config_cpu.yml"], cwd=project, stdout=log, stderr=log,
            env=os.environ | environment, start_new_session=True,
        )  # fmt: skip
    try:
        body = json.dumps({"key": ["x"], "value": [HOUSES[0]]}).encode()
        until = time.monotonic() + READY_SECONDS
        while not answers(body):
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit((project / "service.log").read_text()[-2000:])
            time.sleep(0.05)
        yield server
    finally:
        # The original leaves processes running when it is terminated.
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                server.wait(10)
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(body: bytes) -> bool:
    """Whether the service gives the right answer."""
    try:
        with urlopen(f"http://127.0.0.1:{HTTP}/uci/prediction", body, timeout=10) as reply:
            return b"18.9" in reply.read()
    except (URLError, OSError):
        return False


def load(url: str, seconds: float) -> list[dict[str, Any]]:
    """The steps of ``penstock bench`` with different requests."""
    requests = [{"key": ["x"], "value": [house]} for house in HOUSES]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steps.json"
        command = [
            *(sys.executable, "-m", "penstock", "bench", url, "-d", json.dumps(requests)),
            *("-c", "1,16", "--duration", f"{seconds}s", "-o", str(file)),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if not file.exists():
            raise SystemExit(done.stdout + done.stderr)
        steps: list[dict[str, Any]] = json.loads(file.read_text())["steps"]
    return steps


def used(session: int) -> Figures:
    """Processes, threads and memory of a session, from ``/proc``."""
    processes = [
        int(each.name)
        for each in Path("/proc").iterdir()
        if each.name.isdigit() and _session(each) == session
    ]
    threads = memory = 0
    for each in processes:
        folder = Path(f"/proc/{each}")
        threads += len([*(folder / "task").iterdir()])
        for line in (folder / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                memory += int(line.split()[1])
    return {"processes": len(processes), "threads": threads, "memory, MiB (PSS)": memory / 1024}


def _session(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, IndexError):  # it has ended
        return -1


def print_table(found: dict[str, list[Figures]]) -> None:
    """Medians side by side, in Markdown."""
    print("| | Paddle Serving 0.9.0 | Penstock |\n| --- | ---: | ---: |")
    for name in found["penstock"][0]:
        cells = [
            f"{statistics.median(each[name] for each in found[side]):,.4g}"
            for side in ("original", "penstock")
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
