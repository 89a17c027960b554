"""The counts of an engine: what stays of graphs that were removed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.errors import ServiceBusy
from penstock.observe.counters import Counters


def graph(version: str) -> Any:
    return SimpleNamespace(key=("m", version), stages=[SimpleNamespace(name=f"m@{version}")])


def answered(counters: Counters, of: Any, seconds: float) -> None:
    counters.requests[of.key].seconds.append(seconds)
    counters.worker_started(of.stages[0].name, 0, 1.0)


def test_a_removed_graph_leaves_its_counts_in_the_sums_only() -> None:
    counters = Counters()
    one, two = graph("1"), graph("2")
    answered(counters, one, 0.002)
    answered(counters, two, 0.3)
    request: Any = SimpleNamespace(graph=one, copied=False)
    counters.refused(request, ServiceBusy("busy"), 1.0)
    before = counters.of_requests()
    counters.forget(one)
    counters.forget(one)
    assert counters.of_requests() == before
    assert counters.of_requests()["answers"] == {"ok": 2}
    assert counters.of_requests()["refusals"] == {ServiceBusy.code: 1}
    assert counters.of_graph(two)["answers"] == {"ok": 1}
    assert counters.of_graph(one)["answers"] == {"ok": 0}
    assert [*counters.ops] == ["m@2"]


def test_a_thousand_versions_take_no_more_memory_than_one() -> None:
    counters = Counters()
    for number in range(1000):
        of = graph(str(number))
        answered(counters, of, 0.1)
        counters.copies[of.key].seconds.append(0.1)
        counters.streams[of.key].begin(0.1)
        counters.forget(of)
    kept = (counters.requests, counters.copies, counters.streams, counters.ops)
    assert [len(each) for each in kept] == [0] * 4
    assert counters.of_requests()["answers"] == {"ok": 1000}
