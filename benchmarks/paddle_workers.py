"""Threads against processes for a Paddle model: python -m benchmarks.paddle_workers

``penstock serve`` runs a MobileNet on pictures of 96 pixels with two workers, once as threads and
once as processes, each with one thread of its own. Needs the libraries of ``make setup-runtimes``.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.bench import Load, Step, run, target_of

_MODEL = """
import sys
import paddle
from paddle.vision.models import mobilenet_v2

net = mobilenet_v2(scale=0.5)
net.eval()
image = paddle.static.InputSpec([None, 3, 96, 96], "float32", "image")
paddle.jit.save(net, sys.argv[1], input_spec=[image])
"""
_LOAD = Load(steps=tuple(Step(concurrency=each) for each in (1, 2, 8)), duration=5.0)


def main() -> None:
    """Print a table."""
    print("workers    in flight  answers/s   p50 ms   p99 ms")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "mobilenet"
        command = [sys.executable, "-W", "ignore", "-c", _MODEL, str(model / "inference")]
        subprocess.run(command, check=True, capture_output=True)
        for executor in ("thread", "process"):
            with _serving(model, executor) as url:
                target = target_of(url, shapes=["image:1,3,96,96"], binary=True)
                for result in run(target, _LOAD):
                    p50, p99 = result.latency.p50 * 1000, result.latency.p99 * 1000
                    row = f"{result.step.concurrency:9}  {result.rate:9.1f}  {p50:7.1f}  {p99:7.1f}"
                    print(f"{executor:9}  {row}")


@contextmanager
def _serving(model: Path, executor: str) -> Iterator[str]:
    entry = {
        "path": str(model),
        "executor": executor,
        "concurrency": 2,
        "local_service_conf": {"thread_num": 1},
    }
    port = 18431
    config = {"models": {"net": entry}, "server": {"http_port": port, "log_level": "error"}}
    file = model.parent / "serve.yml"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "penstock", "serve", "--config", str(file)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            _await_ready(port)
            yield f"http://127.0.0.1:{port}/v2/models/net/infer"
        finally:
            server.terminate()


def _await_ready(port: int) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(0.1)


if __name__ == "__main__":
    main()
