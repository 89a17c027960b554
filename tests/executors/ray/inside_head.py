"""A service whose cluster loses its head, and a node that is stopped; run by test_cluster.py, where
there is only the loopback.

The head is at another address than the nodes, so that the service uses one of these as its node.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.executors.ray.inside_cluster import SCRIPT, answer, both_back, loaded, op_of
from tests.kit.ray_cluster import cluster
from tests.service.scripts import BackgroundCall, post, until
from tests.services.process import running

AWAY = "127.0.0.2"
ENDED = " (auto) ended: status "


@pytest.mark.timeout(600)
def test_the_head_is_lost_and_another_one_comes(tmp_path: Path) -> None:
    path = tmp_path / "service.py"
    path.write_text(SCRIPT)
    with (
        cluster(head=AWAY) as ray,
        running(path, environment={"RAY_ADDRESS": ray.address}, timeout=120) as server,
    ):
        assert answer(server, x="1")["x"] == "[2.]"
        enough = threading.Event()
        taken, failed = list[float](), list[str]()

        def call() -> None:
            while not enough.is_set():
                before = time.monotonic()
                number = len(taken)
                reply = post(server, timeout=300, x=str(number), wait="0.02").json
                taken.append(time.monotonic() - before)
                if reply["err_no"]:
                    failed.append(reply["err_msg"])
                else:
                    assert float(reply["value"][0].strip("[]")) == 2 * number

        calling = BackgroundCall(call)
        ray.kill_head()
        killed = time.monotonic()
        for _ in range(20):
            assert answer(server, x="1")["x"] == "[2.]", "its workers go on"
        until(lambda: ENDED in server.log(), "the end by Ray", timeout=200)
        print(f"Ray ended it {time.monotonic() - killed:.0f} s after the head")
        until(lambda: not loaded(server), "the end of the workers", timeout=60)
        assert server.is_ready() is False
        waiting = BackgroundCall(lambda: post(server, timeout=300, x="2"))
        ray.start_head()
        for _ in range(2):
            ray.add()
        back = time.monotonic()
        both_back(server)
        print(f"its workers are back {time.monotonic() - back:.0f} s after the cluster")
        assert waiting.result(120).json["value"][0] == "[4.]"
        enough.set()
        calling.result(120)
        print(f"{len(taken)} requests, of which the longest took {max(taken):.0f} s; {failed}")
        # Its nodes end one after the other: a request may run again on the next one that ends.
        assert len(failed) <= 1
        assert all("died" in each for each in failed)
        assert server.is_ready()
        assert server.stop() == 0
        assert server.leftovers() == []


@pytest.mark.timeout(400)
def test_the_workers_of_a_node_that_is_stopped_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "service.py"
    path.write_text(SCRIPT)
    with (
        cluster() as ray,
        running(path, environment={"RAY_ADDRESS": ray.address}, timeout=120) as server,
    ):
        assert answer(server, x="1")["x"] == "[2.]"
        deaths = op_of(server)["deaths"]

        def call(number: int) -> dict[str, Any]:
            return post(server, timeout=120, x=str(number)).json

        calls = [BackgroundCall(partial(call, number)) for number in range(20)]
        ray.stop(1)
        stopped = time.monotonic()
        calls += [BackgroundCall(partial(call, number)) for number in range(20, 40)]
        until(lambda: op_of(server)["deaths"] > deaths, "the loss of its worker", timeout=120)
        print(f"its worker is given up after {time.monotonic() - stopped:.0f} s")
        replies = [each.result(120) for each in calls]
        assert [reply["err_no"] for reply in replies if reply["err_no"]] in ([], [6000]), (
            "at most the one that runs there, at its deadline"
        )
        ray.go_on(1)
        ray.add()
        both_back(server)
        assert answer(server, x="1")["x"] == "[2.]"
        assert server.stop() == 0
        assert server.leftovers() == []
