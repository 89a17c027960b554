"""Functions for the original's ``benchmark.py`` scripts."""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from typing import Any

import numpy as np

__all__ = ["MultiThreadRunner", "benchmark_args", "show_latency"]

_PERCENTILES = (80, 90, 99)


def benchmark_args() -> argparse.Namespace:
    """Parse the command line of a benchmark script."""
    parser = argparse.ArgumentParser("benchmark")
    parser.add_argument("--thread", type=int, default=10, help="processes that send requests")
    parser.add_argument("--model", default="", help="the model's folder")
    parser.add_argument("--endpoint", default="127.0.0.1:9292", help="host:port of the server")
    parser.add_argument("--request", default="rpc", help="rpc or http")
    parser.add_argument("--batch_size", type=int, default=1, help="samples of one request")
    return parser.parse_args()


def show_latency(latency_list: Sequence[float]) -> None:
    """Write mean, median and percentiles of latencies in milliseconds to standard error."""
    taken = np.array(latency_list)
    figures = {"mean": taken.mean(), "median": np.median(taken)}
    figures |= {f"{each} percent": np.percentile(taken, each) for each in _PERCENTILES}
    sys.stderr.write("latency:\n" + "".join(f"{k} :{v} ms\n" for k, v in figures.items()))


class MultiThreadRunner:
    """Runs a function in several processes at once, and joins the results."""

    def run(
        self,
        thread_func: Callable[[int, Any], Sequence[list[Any]]],
        thread_num: int,
        global_resource: Any,
    ) -> list[list[Any]]:
        """Call ``thread_func(index, global_resource)`` in each process; index is 1, 2, ...

        Args:
            thread_func: returns lists, the same number in each process.
            thread_num: number of processes.
            global_resource: second argument of ``thread_func``.

        Returns:
            The lists of all processes, concatenated by position.

        Raises:
            BrokenProcessPool: a process was killed.
            Exception: what ``thread_func`` raised.
        """
        # Forked, because scripts do not guard __main__.
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(thread_num, context, _without_proxies) as pool:
            calls = [
                pool.submit(thread_func, index, global_resource)
                for index in range(1, thread_num + 1)
            ]
            returned = [call.result() for call in calls]
        return [list(chain.from_iterable(lists)) for lists in zip(*returned, strict=True)]


def _without_proxies() -> None:
    """Disable proxies: a benchmark measures the server."""
    os.environ.update(http_proxy="", https_proxy="")
