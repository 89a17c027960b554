"""Functions for benchmark scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paddle_serving_client.utils import benchmark_args, show_latency

# Scripts of their own, as the original's benchmarks are: they fork before they have threads.
JOINED = """
import os
from paddle_serving_client.utils import MultiThreadRunner

def work(index, resource):
    return [[index] * 2, [f"{resource['name']}{index}"], [os.getpid()], [os.environ["http_proxy"]]]

first, second, processes, proxies = MultiThreadRunner().run(work, 3, {"name": "n"})
print(first, second, os.getpid() in processes, set(proxies))
"""
FAILING = """
import os, signal
from paddle_serving_client.utils import MultiThreadRunner

def work(index, resource):
    return [[resource["name"]]] if resource else os.kill(os.getpid(), signal.SIGKILL)

for resource in ({"other": 1}, {}):
    try:
        MultiThreadRunner().run(work, 2, resource)
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        (JOINED, "[1, 1, 2, 2, 3, 3] ['n1', 'n2', 'n3'] False {''}\n"),
        (FAILING, "KeyError\nBrokenProcessPool\n"),
    ],
    ids=["the lists are joined in order", "what a process raises, or its death, is raised"],
)
def test_a_function_runs_in_several_processes(script: str, printed: str, tmp_path: Path) -> None:
    path = tmp_path / "benchmark.py"
    path.write_text(script)
    run = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == (printed, 0), run.stderr


def test_flags_have_the_originals_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark.py"])
    assert vars(benchmark_args()) == {
        "thread": 10,
        "model": "",
        "endpoint": "127.0.0.1:9292",
        "request": "rpc",
        "batch_size": 1,
    }
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--thread", "2", "--batch_size", "8"])
    given = benchmark_args()
    assert (given.thread, given.batch_size) == (2, 8)


def test_latencies_are_printed_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    show_latency([float(each) for each in range(1, 102)])
    assert capsys.readouterr() == (
        "",
        "latency:\nmean :51.0 ms\nmedian :51.0 ms\n80 percent :81.0 ms\n90 percent :91.0 ms\n"
        "99 percent :100.0 ms\n",
    )
