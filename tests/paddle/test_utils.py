"""Functions for benchmark scripts."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from paddle_serving_client.utils import MultiThreadRunner, benchmark_args, show_latency


def work(index: int, resource: dict[str, Any]) -> list[list[Any]]:
    assert os.environ["http_proxy"] == ""
    return [[index, index], [f"{resource['name']}{index}"], [os.getpid()]]


def test_the_lists_of_all_processes_are_joined_in_order() -> None:
    first, second, processes = MultiThreadRunner().run(work, 3, {"name": "n"})
    assert first == [1, 1, 2, 2, 3, 3]
    assert second == ["n1", "n2", "n3"]
    assert os.getpid() not in processes


def test_an_exception_of_a_process_is_raised() -> None:
    with pytest.raises(KeyError, match="name"):
        MultiThreadRunner().run(work, 2, {})


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
