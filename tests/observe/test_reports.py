"""The sum of several engines' reports."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.executors.external_store.counts import StoreCounts, report_of
from penstock.observe.callers import MOST, OTHERS
from penstock.observe.reports import total, with_ended


def report_of_one_engine(ready: bool = True, **more: Any) -> dict[str, Any]:
    op = {"name": "a/op", "workers": 2, "batches": 3, "loaded": [{"pid": 1}]}
    return {
        "engines": 1,
        "ready": ready,
        "why": "ok" if ready else "stuck",
        "requests": {"admitted": 5},
        "answers": {"ok": 4, **more},
        "graphs": [{"name": "a", "version": "1", "state": "serving", "inside": 1, "ops": [op]}],
    }


def test_a_sum_adds_counts_and_is_ready_if_all_engines_are() -> None:
    summed = total([report_of_one_engine(), report_of_one_engine(ready=False, busy=2)])
    assert (summed["engines"], summed["ready"], summed["why"]) == (2, False, "stuck")
    assert summed["answers"] == {"ok": 8, "busy": 2}
    (graph,) = summed["graphs"]
    assert (graph["name"], graph["version"], graph["inside"]) == ("a", "1", 2)
    assert graph["ops"] == [
        {"name": "a/op", "workers": 4, "batches": 6, "loaded": [{"pid": 1}, {"pid": 1}]}
    ]


def test_the_workers_of_all_engines_are_listed_also_if_the_first_one_is_missing() -> None:
    one, other = report_of_one_engine(), report_of_one_engine()
    one["graphs"][0]["ops"][0] |= {"loaded": [None, {"pid": 1}], "places": [{"engine": 0}]}
    one["graphs"][0]["ops"][0]["lost"] = []
    other["graphs"][0]["ops"][0] |= {"places": [{"engine": 1}], "lost": [{"engine": 1}]}
    (op,) = total([one, other])["graphs"][0]["ops"]
    assert op["loaded"] == [None, {"pid": 1}, {"pid": 1}]
    assert op["places"] == [{"engine": 0}, {"engine": 1}]
    assert op["lost"] == [{"engine": 1}]
    assert not {"places", "lost"} & {*with_ended(None, one)["graphs"][0]["ops"][0]}


def test_requests_that_have_lost_a_value_are_counted_after_the_end_of_their_engine() -> None:
    counts = StoreCounts()
    counts.add(put=5, lost=3)
    report = report_of_one_engine() | {"external_store": report_of([counts])}
    ended = with_ended(None, report)
    assert (ended["external_store"]["put_bytes"], ended["external_store"]["lost"]) == (5, 3)
    assert total([report, ended])["external_store"]["lost"] == 6


def test_what_an_engine_does_not_have_adds_nothing() -> None:
    without, one, other = (report_of_one_engine() for _ in range(3))
    without["graphs"][0] |= {"copies": None, "share": None}
    one["graphs"][0] |= {"copies": {"same": 2}, "share": 90}
    other["graphs"][0] |= {"copies": {"same": 3}, "share": 90}
    for order in ([without, one, other], [one, without, other]):
        (graph,) = total(order)["graphs"]
        assert (graph["copies"], graph["share"]) == ({"same": 5}, 90)
    (graph,) = total([without, without])["graphs"]
    assert (graph["copies"], graph["share"]) == (None, None)


def test_a_version_that_one_engine_has_removed_is_left_out_of_the_sum() -> None:
    swapped = report_of_one_engine()
    swapped["graphs"] = [{**swapped["graphs"][0], "version": "2"}]
    swapped["removed"] = [("a", "1")]
    behind = report_of_one_engine()  # its last requests of version 1 are running
    behind["graphs"].append({**behind["graphs"][0], "version": "2"})
    summed = total([behind, swapped])
    assert [(each["version"], each["inside"]) for each in summed["graphs"]] == [("2", 2)]
    assert "removed" not in summed


def test_a_version_that_no_running_engine_has_is_left_out_of_the_sum() -> None:
    """An engine remembers some hundred removed versions, and one that ended may have had others."""
    running = report_of_one_engine()
    ended = with_ended(None, report_of_one_engine())
    ended["graphs"].append({**ended["graphs"][0], "version": "0"})
    assert [each["version"] for each in total([running, ended])["graphs"]] == ["1"]
    assert [each["version"] for each in total([ended])["graphs"]] == ["1", "0"]


def test_sketches_are_added_or_left_out() -> None:
    report = report_of_one_engine()
    report["seconds"] = {"sum": 1.0, "sketch": {"30": 1, "40": 2}}
    other = report_of_one_engine()
    other["seconds"] = {"sum": 2.0, "sketch": {"40": 1}}
    assert total([report, other])["seconds"] == {"sum": 3.0, "sketch": {"30": 1, "40": 3}}
    assert total([report, other], sketches=False)["seconds"] == {"sum": 3.0}


@pytest.mark.parametrize("key", ["callers", "caller_series"])
def test_the_callers_of_many_ended_engines_are_counted_in_bounded_memory(key: str) -> None:
    ended = None
    for engine in range(5):
        counts = [
            {
                "name": f"{engine}.{number}",
                "requests": 1 + engine,
                "failed": 0,
                "cancelled": 0,
                "refused": {},
            }
            for number in range(MOST)
        ]
        ended = with_ended(ended, report_of_one_engine() | {key: counts})
    assert ended is not None
    names = [each["name"] for each in ended[key]]
    kept = 4 if key == "callers" else 0  # the most active ones, or the first ones
    assert names == [*(f"{kept}.{number}" for number in range(MOST)), OTHERS]
    assert sum(each["requests"] for each in ended[key]) == (1 + 2 + 3 + 4 + 5) * MOST


def test_seats_end_with_their_engine_and_steps_remain_counted() -> None:
    report = report_of_one_engine()
    (op,) = report["graphs"][0]["ops"]
    op["seats"] = {"all": 16, "taken": 3}
    op["steps"] = {"count": 2, "running": {"sum": 5, "classes": {"<= 4": 2}}}
    ended = with_ended(None, report)
    summed = total([report, report, ended])
    (op,) = summed["graphs"][0]["ops"]
    assert op["seats"] == {"all": 32, "taken": 6}
    assert op["steps"] == {"count": 6, "running": {"sum": 15, "classes": {"<= 4": 6}}}
