"""Ops in workers that Ray places: the op that a benchmark runs, and the same as a service.

python -m penstock run benchmarks/servers/ray_service.py; the variables are RAY_BENCH_WORKERS, and
RAY_ADDRESS for the address of the cluster.
"""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import numpy as np

from penstock import App, Array

WORKERS = int(os.environ.get("RAY_BENCH_WORKERS", "1"))
NAP = 0.05  # seconds
PLACE: dict[str, Any] = {"address": "auto", "num_cpus": 0.01}

app = App("bench")


@app.route("/rows", batch=8, executor="ray", ray=PLACE)
def rows(
    x: list[Annotated[np.ndarray, Array("float32", (None,))]],
) -> list[Annotated[np.ndarray, Array("float32", (None,))]]:
    """The echo, in batches."""
    return x


@app.route("/echo", executor="ray", ray=PLACE)
def echo(number: int) -> int:
    """The echo of a number."""
    return number


@app.route("/nap", executor="ray", ray=PLACE, workers=WORKERS)
def nap(number: int) -> int:
    """An op that sleeps."""
    time.sleep(NAP)
    return number
