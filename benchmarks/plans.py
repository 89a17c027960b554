"""``python -m benchmarks.plans``: the predictions of ``penstock plan`` and the measured values.

    chain      an op that waits for 4 ms, then one that computes for 2 ms
    ensemble   two classifiers (ONNX) in batches of up to 8, and the mean of both
    ocr        the OCR example on five of its pictures, one thread for each run of a model

Each graph is planned and verified as it is; then with other settings, from the costs of the first
service, and verified on a service that is started with them. Everything runs on this machine, the
client as well, so nothing else should; the last column is the number of cores used by others.
Before each plan the run waits, for ``--patience`` seconds at most, until nothing else runs.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.graphs import small_pictures
from benchmarks.models import model_folder

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PICTURES = ("small", "strip", "plain", "upside_down", "downwards")
READY_SECONDS = 60
QUIET = 0.3
"""CPU seconds in two seconds below which the machine counts as idle (an estimate)."""

CHAIN = """
import time
import numpy as np
from penstock import Service, op

A = np.ones((300, 300))

@op()
def look(request):
    time.sleep(0.004)
    return request

@op(look)
def count(request):
    for _ in range(3):
        A @ A
    return {"y": 1}

service = Service("service", count)
"""
ENSEMBLE = """
from penstock import Model, Service, op

a = Model("classifier-a", name="a", batch=8)
b = Model("classifier-b", name="b", batch=8)

@op(a, b)
def mean(a, b):
    return {"y": 1}

service = Service("service", mean)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One graph.

    Attributes:
        make: writes the service's files and the requests (``requests.json``) into a folder; returns
            the script's name.
        route: the route of the requests.
        change: the other settings of the second service.
        measuring: duration of a step of the measuring run.
    """

    make: Callable[[Path], str]
    route: str
    change: Sequence[str]
    measuring: str


def chain(folder: Path) -> str:
    """Write the graph's service, see the module."""
    (folder / "service.py").write_text(CHAIN)
    (folder / "requests.json").write_text('{"x": 1}')
    return "service.py"


def ensemble(folder: Path) -> str:
    """Write the graph's service, see the module."""
    for name in ("classifier-a", "classifier-b"):
        built = model_folder(name, RESULTS / "models")
        shutil.copytree(built, folder / name)
    (folder / "service.py").write_text(ENSEMBLE)
    requests = [{"x": each.tolist()} for each in small_pictures()[:8]]
    (folder / "requests.json").write_text(json.dumps(requests))
    return "service.py"


def ocr(folder: Path) -> str:
    """Write the graph's service, see the module."""
    shutil.copytree(ROOT / "examples/ocr", folder, dirs_exist_ok=True)
    config = folder / "config.yml"
    config.write_text(config.read_text().replace("thread_num: 2", "thread_num: 1"))
    draw = [sys.executable, "pictures.py", "drawn"]
    subprocess.run(draw, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    files = [(folder / "drawn" / f"{name}.png").read_bytes() for name in PICTURES]
    texts = [base64.b64encode(each).decode() for each in files]
    requests = [{"key": ["image"], "value": [text]} for text in texts]
    (folder / "requests.json").write_text(json.dumps(requests))
    return "ocr_service.py"


GRAPHS = {
    "chain": Graph(make=chain, route="service", change=["look.concurrency=2"], measuring="4s"),
    "ensemble": Graph(
        make=ensemble, route="service", change=["a.batch_size=4", "b.batch_size=4"], measuring="4s"
    ),
    "ocr": Graph(make=ocr, route="ocr/prediction", change=["det.concurrency=1"], measuring="12s"),
}


@contextmanager
def serving(folder: Path, script: str, settings: Sequence[str]) -> Iterator[str]:
    """Run a service and yield its URL."""
    port = free_port()
    command = [sys.executable, "-m", "penstock", "run", script]
    for each in settings:
        command += ["-o", f"op.{each}"]
    environment = {
        **os.environ,
        "PENSTOCK_HTTP_PORT": str(port),
        "PENSTOCK_RPC_PORT": str(free_port()),
        "OPENBLAS_NUM_THREADS": "1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_ready(process, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    """Return when the service answers.

    Raises:
        RuntimeError: it does not.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(10 * READY_SECONDS):
        try:
            with opener.open(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
                if json.load(answer)["ready"]:
                    return
        except OSError:
            pass
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise RuntimeError("the service is not ready")


def planned(folder: Path, url: str, *arguments: str) -> dict[str, Any]:
    """The output of ``penstock plan`` as JSON."""
    command = [sys.executable, "-m", "penstock", "plan", url, "--data", "requests.json"]
    done = subprocess.run(
        [*command, *arguments, "--verify", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def wait_for_quiet(seconds: float) -> None:
    """Return when the machine was idle for two seconds, or after ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        idle = _idle()
        time.sleep(2.0)
        if _idle() - idle > 2.0 * (os.cpu_count() or 1) - QUIET:
            return


def _idle() -> float:
    """Seconds that the cores have been idle since the machine's start."""
    fields = Path("/proc/stat").read_text().split(maxsplit=6)
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def rows_of(name: str, found: dict[str, Any]) -> Iterator[str]:
    """A plan as rows of a table."""
    for each in found["verified"]:
        limit = f"{100 * each['limit']:.0f} %" if each["limit"] else ""
        yield (
            f"| {name} | {each['what']} | {each['predicted']:.4g} | {each['measured']:.4g} |"
            f" {100 * each['error']:+.0f} % | {limit} | {found['others']:.2f} |"
        )


def main() -> int:
    """Plan and verify; the exit status is 1 when a limit is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=[*GRAPHS], action="append")
    parser.add_argument("--duration", default="60s", help="of each verification")
    parser.add_argument("--patience", type=float, default=60.0)
    options = parser.parse_args()
    print("| Graph | Load, figure | Predicted | Measured | Error | Limit | Cores of others |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    kept = True
    for name in options.only or GRAPHS:
        graph = GRAPHS[name]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            script = graph.make(folder)
            settings = [f"--set={each}" for each in graph.change]
            plans: tuple[tuple[str, Sequence[str], Sequence[str]], ...] = (
                (name, [], ["-o", "costs.json", "--measuring", graph.measuring]),
                (f"{name}, {', '.join(graph.change)}", graph.change,
                 ["--costs", "costs.json", *settings]),
            )  # fmt: skip
            for title, running, arguments in plans:
                with serving(folder, script, running) as address:
                    url = f"{address}/{graph.route}"
                    wait_for_quiet(options.patience)
                    found = planned(folder, url, *arguments, "--duration", options.duration)
                print("\n".join(rows_of(title, found)), flush=True)
                for doubt in found["doubts"]:
                    print(f"doubt: {title}: {doubt}", file=sys.stderr, flush=True)
                kept = kept and all(each["kept"] for each in found["verified"])
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
