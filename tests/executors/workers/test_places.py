"""Where the workers of a pool are, why some are nowhere, and which were lost."""

from __future__ import annotations

from typing import Any

from penstock.executors.workers.places import MOST_LOST, Lack, Places

NODE = {"id": "ab", "address": "192.0.2.7", "host": "gpu-7"}
LACK = Lack("it wants 1 GPU (0 of 2 are free)", {"CPU": 1, "GPU": 0.0}, True)


def worker(places: Places, now: float, index: int = 0) -> dict[str, Any]:
    found = places.plain(now)[0][index]
    assert found["worker"] == index
    return found


def test_a_worker_is_placed_then_runs_since_it_is_ready() -> None:
    places = Places(2, 100.0)
    assert worker(places, 101.0, 1) == {
        "worker": 1, "state": "starting", "seconds": 1.0, "where": "", "node": None, "pid": None,
        "why": "", "wants": None, "possible": None,
    }  # fmt: skip
    places.begins(0)
    places.placed(0, "node ab at 192.0.2.7, pid 12", NODE)
    there = worker(places, 103.0)
    assert (there["state"], there["seconds"], there["node"]) == ("starting", 3.0, NODE)
    places.runs(0, 12, 104.0)
    there = worker(places, 110.0)
    assert (there["state"], there["seconds"], there["pid"]) == ("running", 6.0, 12)
    assert there["where"] == "node ab at 192.0.2.7, pid 12"
    assert places.plain(110.0)[1] == [], "nothing was lost"


def test_a_lost_worker_is_remembered_with_its_return() -> None:
    places = Places(1, 0.0)
    places.placed(0, "node ab, pid 12", NODE)
    places.runs(0, 12, 1.0)
    places.ended(0, "signal SIGKILL", 10.0, lost=True)
    (lost,) = places.plain(14.0)[1]
    assert lost == {
        "worker": 0, "ago": 4.0, "where": "node ab, pid 12", "node": NODE, "pid": 12,
        "how": "signal SIGKILL", "back": None,
    }  # fmt: skip
    assert worker(places, 14.0)["seconds"] == 4.0, "since the loss, not since the attempt"
    places.begins(0)
    places.placed(0, "node cd, pid 34", None)
    places.runs(0, 34, 15.5)
    (lost,) = places.plain(20.0)[1]
    assert (lost["ago"], lost["back"]) == (10.0, 5.5)
    places.ended(0, "exit status 0", 30.0, lost=False)
    assert len(places.plain(30.0)[1]) == 1, "a replacement that was wanted is no loss"


def test_only_the_latest_losses_are_remembered() -> None:
    places = Places(1, 0.0)
    for now in range(MOST_LOST + 3):
        places.runs(0, now, float(now))
        places.ended(0, "exit status 1", float(now), lost=True)
    assert [each["pid"] for each in places.plain(0.0)[1]] == [*range(3, MOST_LOST + 3)]


def test_a_worker_without_a_place_says_what_it_wants_until_it_has_one() -> None:
    places = Places(1, 0.0)
    places.begins(0)
    places.waits(0, LACK)
    waiting = worker(places, 70.0)
    assert (waiting["state"], waiting["seconds"], waiting["why"]) == ("waiting", 70.0, LACK.text)
    assert (waiting["wants"], waiting["possible"]) == ({"CPU": 1}, True)
    places.refused(0, f"{LACK.text}, for 60 s")
    places.begins(0)
    again = worker(places, 71.0)
    assert (again["state"], again["wants"], again["seconds"]) == ("waiting", {"CPU": 1}, 71.0)
    assert again["why"].endswith(", for 60 s")
    places.refused(0, "the cluster is gone")  # this attempt has not come to ask for a place
    gone = worker(places, 72.0)
    assert (gone["state"], gone["wants"], gone["why"]) == ("waiting", None, "the cluster is gone")
    places.placed(0, "node ab", NODE)
    placed = worker(places, 73.0)
    assert (placed["state"], placed["wants"], placed["why"]) == ("starting", None, "")


def test_the_reason_of_a_failed_start_stays_during_the_next_one() -> None:
    places = Places(1, 0.0)
    places.placed(0, "node ab", NODE)
    places.failed(0, "no file model.onnx")
    places.begins(0)
    failed = worker(places, 5.0)
    assert (failed["state"], failed["why"]) == ("failed", "no file model.onnx")
    assert (failed["where"], failed["node"], failed["seconds"]) == ("", None, 5.0)
