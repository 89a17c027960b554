"""A cluster of Ray on this machine, its bare actors, and Ray Serve, as a program.

Prints its address as JSON; then reads a line of JSON for each measurement, and prints its result.
Everything as in Ray's own documents: one actor, ``ray.get(actor.method.remote(value))``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

CPUS = 8


def calls(actor: Any, value: Any, seconds: float) -> list[int]:
    """Nanoseconds of synchronous calls, one after the other."""
    import ray

    found = []
    end = time.perf_counter_ns() + int(seconds * 1e9)
    before = time.perf_counter_ns()
    while before < end:
        ray.get(actor.echo.remote(value))
        now = time.perf_counter_ns()
        found.append(now - before)
        before = now
    return found


def start_serve(port: int) -> None:
    """Serve the echo of a number at /echo, by one replica."""
    from ray import serve
    from starlette.requests import Request

    @serve.deployment(max_ongoing_requests=64, ray_actor_options={"num_cpus": 0.01})
    class Echo:
        """The echo."""

        async def __call__(self, request: Request) -> int:
            number: int = (await request.json())["number"]
            return number

    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Echo.bind(), route_prefix="/echo")  # type: ignore[attr-defined]


def main() -> None:
    """Run until standard input ends."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(address="local", num_cpus=CPUS, include_dashboard=False, log_to_driver=False)

    @ray.remote(num_cpus=0.01)
    class Actor:
        """A bare actor."""

        def echo(self, value: Any) -> Any:
            return value

    actor = Actor.remote()  # type: ignore[attr-defined]
    ray.get(actor.echo.remote(1))
    print(json.dumps({"address": ray.get_runtime_context().gcs_address}), flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        if "serve" in what:
            try:
                start_serve(what["serve"])
                result: Any = {}
            except Exception as error:  # noqa: BLE001 - a part of Ray that is not installed
                result = {"failed": f"{type(error).__name__}: {error}"}
        else:
            value = np.ones(what["floats"], np.float32)
            result = calls(actor, value, what["seconds"])
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
