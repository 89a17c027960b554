"""``python -m benchmarks.way``: how long a result is on its way from one process op to the next.

From the return of one op's ``process`` to the call of the next one's, by a clock that both
processes read: for a text, for an array of 5 MiB that was written in place, and for one that has to
be copied. One request at a time; nothing that the client does is in it.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from benchmarks.processes import START_SECONDS, BenchmarkError, free_port, is_ready

KINDS = ("text", "in place", "copied")
WARM_UP = 300
LOOK = 0.01

SCRIPT = """\
import time
import numpy as np
from penstock import Op, WebService, empty

ONES = np.ones(5 << 18, np.float32)

class MakeOp(Op):
    def process(self, feed_batch, typical_logid=0):
        kind = feed_batch[0]["kind"]
        made = {}
        if kind == "copied":
            made["array"] = ONES
        elif kind == "in place":
            made["array"] = empty(ONES.shape, ONES.dtype)
        return {**made, "at": str(time.monotonic_ns())}

class TakeOp(Op):
    def process(self, feed_batch, typical_logid=0):
        now = time.monotonic_ns()
        return {"ns": str(now - int(feed_batch[0]["at"]))}

class Way(WebService):
    def get_pipeline_response(self, read_op):
        return TakeOp("take", input_ops=[MakeOp("make", input_ops=[read_op])])

service = Way("way")
service.prepare_pipeline_config(yml_dict={
    "rpc_port": %(rpc)d, "http_port": %(http)d, "dag": {"is_thread_op": False},
})
service.run_service()
"""


def measure(rounds: int, requests: int) -> dict[str, list[list[float]]]:
    """Microseconds of each request, by kind and round."""
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        script = folder / "service.py"
        script.write_text(SCRIPT % {"rpc": free_port(), "http": port})
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(script)], cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            until = time.monotonic() + START_SECONDS
            while not is_ready(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise BenchmarkError((folder / "server.log").read_text()[-2000:])
                time.sleep(LOOK)
            for _ in range(rounds):
                for kind in KINDS:
                    found[kind].append(_ways(port, kind, requests))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(START_SECONDS)
    return found


def _ways(port: int, kind: str, requests: int) -> list[float]:
    """Of so many requests, after some others that warm up."""
    took = []
    body = json.dumps({"key": ["kind"], "value": [kind]})
    connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        for _ in range(WARM_UP + requests):
            connection.request(
                "POST", "/way/prediction", body, {"Content-Type": "application/json"}
            )
            answer = json.loads(connection.getresponse().read())
            if answer["err_no"]:
                raise BenchmarkError(answer["err_msg"])
            took.append(int(answer["value"][0]) / 1000)
    finally:
        connection.close()
    return took[WARM_UP:]


def main() -> int:
    """Print the middle of each round, and of all of them the quarters."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.way")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2000)
    arguments = parser.parse_args()
    print("microseconds from one op in a process to the next: a quarter, half, three quarters")
    for kind, rounds in measure(arguments.rounds, arguments.requests).items():
        quarter, half, most = quantiles([each for every in rounds for each in every], n=4)
        middles = ", ".join(f"{quantiles(each, n=2)[0]:.0f}" for each in rounds)
        print(f"{kind:>9} {quarter:6.0f} {half:6.0f} {most:6.0f}   (by round: {middles})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
