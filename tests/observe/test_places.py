"""Where workers are, as text."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.executors.workers.places import Lack, Places
from penstock.observe.places import called, idle, lines_of, missing, span

NODE = {"id": "ab", "address": "192.0.2.7", "host": "gpu-7"}
OTHER = {"id": "cd", "address": "192.0.2.8", "host": "192.0.2.8"}
LACK = Lack("it has no place in the cluster: it wants 1 GPU (0 of 2 are free)", {"GPU": 1}, True)


def report(places: Places, now: float, engine: int = 0) -> dict[str, Any]:
    workers, lost = places.plain(now)
    return {
        "places": [{"engine": engine, **each} for each in workers],
        "lost": [{"engine": engine, **each} for each in lost],
    }


def test_workers_are_shown_by_their_node_and_those_without_one_by_their_reason() -> None:
    places = Places(5, 0.0)
    for index, node in enumerate((NODE, OTHER, NODE)):
        places.placed(index, f"node {node['id']}, pid {index + 10}", node)
    places.runs(0, 10, 40.0)
    places.runs(1, 11, 95.0)
    for index in (3, 4):
        places.waits(index, LACK)
    op = report(places, 100.0)
    assert lines_of(op, 1) == [
        "on gpu-7 (192.0.2.7): worker 0 pid 10 for 60 s, worker 2 starting for 100 s",
        "on 192.0.2.8: worker 1 pid 11 for 5.0 s",
        f"not started for 100 s: workers 3, 4: {LACK.text}",
    ]
    assert missing(op) == 2
    assert lines_of(report(places, 100.0, 2), 3)[1].startswith("on 192.0.2.8: worker 2/1 pid 11")


def test_lost_workers_are_shown_with_how_they_ended_and_whether_they_are_back() -> None:
    places = Places(2, 0.0)
    for index in range(2):
        places.placed(index, f"pid {index}", None)
        places.runs(index, index, 0.0)
    places.ended(0, "signal SIGKILL", 10.0, lost=True)
    places.runs(0, 3, 17.5)
    places.ended(1, "exit status 1", 100.0, lost=True)
    places.failed(1, "ValueError: no file")
    assert lines_of(report(places, 160.0), 1) == [
        "failed for 60 s: worker 1: ValueError: no file",
        "lost 2 min ago: worker 0 (pid 0): signal SIGKILL, back after 7.5 s",
        "lost 60 s ago: worker 1 (pid 1): exit status 1, not back",
    ]
    for now in range(5):
        places.runs(0, 4, 200.0 + now)
        places.ended(0, "exit status 9", 200.0 + now, lost=True)
    assert len([each for each in lines_of(report(places, 300.0), 1) if "lost" in each]) == 3


def test_workers_that_run_on_this_machine_and_ops_without_processes_have_no_lines() -> None:
    places = Places(1, 0.0)
    places.placed(0, "pid 1", None)
    places.runs(0, 1, 0.0)
    assert lines_of(report(places, 9.0), 1) == lines_of({}, 1) == []
    assert missing({}) == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (119, "119 s"),
        (150, "2 min"),
        (7200, "2 h"),
        (2e5, "2 d"),
    ],
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_node_has_its_address_once() -> None:
    assert [called(each) for each in (NODE, OTHER)] == ["gpu-7 (192.0.2.7)", "192.0.2.8"]


@pytest.mark.parametrize(
    ("workers", "slots", "ready", "expected"),
    [
        (1, 1, 0, 0),  # the only one is lost
        (2, 2, 1, 1),  # one of two is starting
        (2, 1, 1, 0),  # the one that is there has a batch
        (2, 0, 1, 0),  # and another batch waits for the other one
        (2, 2, 2, 2),
        (1, 1, 2, 1),  # the other slot is disabled, but its worker has just started
    ],
)
def test_a_worker_that_is_not_there_is_not_idle(
    workers: int, slots: int, ready: int, expected: int
) -> None:
    assert idle({"workers": workers, "idle": slots, "ready": ready}) == expected


def test_every_free_slot_of_an_op_without_processes_is_an_idle_worker() -> None:
    assert idle({"workers": 3, "idle": 2}) == 2
