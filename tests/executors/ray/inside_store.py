"""Two ops on two nodes of a cluster of Ray, with a Redis between them; run by test_cluster.py,
where there is only the loopback.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil
import pytest

from tests.kit.ray_cluster import cluster
from tests.kit.redis_server import RedisServer, redis_server
from tests.service.scripts import BackgroundCall, fetch, until
from tests.services.process import ServiceProcess, running

SCRIPT = """
import numpy as np
from penstock import Service, op

far = {{
    "executor": "ray", "retry_on_crash": {again},
    "ray": {{"address": "auto", "placement": "spread"}},
}}

@op(**far)
def make(request):
    return {{"x": np.arange(request["n"], dtype=np.float64)}}

@op(make, **far)
def total(made):
    return {{"total": float(made["x"].sum())}}

dag = {{"external_store": "{url}", "retry": 2}}
Service("sums", total, http_port=0, rpc_port=0, deadline=120, dag=dag).run()
"""
HUGE = 6_250_000  # numbers: 50 MB


def ask(server: ServiceProcess, times: int) -> None:
    for _ in range(times):
        answer = fetch(f"{server.http_url}/sums", json.dumps({"n": HUGE}).encode(), timeout=130)
        assert (answer.status, answer.json) == (200, {"total": HUGE * (HUGE - 1) / 2})


def commands(store: RedisServer, name: str) -> int:
    with store.client() as client:
        return int(client.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"])


@pytest.mark.timeout(500)
def test_large_values_pass_between_nodes_and_a_killed_store_costs_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "service.py"
    with cluster() as ray, redis_server(tmp_path) as store:
        path.write_text(SCRIPT.format(url=store.url, again=False))
        with running(path, environment={"RAY_ADDRESS": ray.address}, timeout=120) as server:
            graphs = fetch(f"{server.http_url}/status").json["graphs"]
            nodes = [each["loaded"][0]["where"].partition(",")[0] for each in graphs[0]["ops"]]
            assert nodes[0] != nodes[1]
            ask(server, 2)
            assert (commands(store, "hset"), commands(store, "hget")) == (2, 2)
            calls = BackgroundCall(lambda: ask(server, 20))
            for _ in range(5):
                put = commands(store, "hset")
                until(lambda put=put: commands(store, "hset") > put, "a value", timeout=120)  # type: ignore[misc]
                store.kill()
                store.start()
            calls.result(300)
            with store.client() as client:
                until(lambda: not client.keys(), "the deletion of all keys")
            assert server.stop() == 0
            assert server.leftovers() == []


KILLS: Final = {"worker": 9, "actor": 6, "node": 5}


def loaded(server: ServiceProcess) -> list[dict[str, Any]]:
    (graph,) = fetch(f"{server.http_url}/status").json["graphs"]
    return [op["loaded"][0] for op in graph["ops"] if op["loaded"][0] is not None]


@pytest.mark.timeout(1500)
def test_workers_and_nodes_killed_with_large_values_leave_nothing_in_the_store(
    tmp_path: Path,
) -> None:
    """Every request is answered, because it may run again; none meets two kills."""
    path = tmp_path / "service.py"
    answers: list[list[tuple[int, dict[str, Any]]]] = [[], []]  # of each caller
    sizes = itertools.count(HUGE)  # inputs that are the same would be refused after two deaths
    over = threading.Event()
    with cluster() as ray, redis_server(tmp_path) as store:
        path.write_text(SCRIPT.format(url=store.url, again=True))
        with running(path, environment={"RAY_ADDRESS": ray.address}, timeout=120) as server:

            def call(mine: list[tuple[int, dict[str, Any]]]) -> None:
                while not over.is_set():
                    n = next(sizes)
                    body = json.dumps({"n": n}).encode()
                    mine.append((n, fetch(f"{server.http_url}/sums", body, timeout=130).json))

            calls = [BackgroundCall(partial(call, each)) for each in answers]
            rng, kinds = Random(5), list(Counter(KILLS).elements())
            rng.shuffle(kinds)
            nodes, made = [0, 1], 2
            for number, kind in enumerate(kinds, 1):
                put = commands(store, "hset")
                until(lambda put=put: commands(store, "hset") > put, "a value", timeout=200)  # type: ignore[misc]
                with store.client() as client:
                    assert all(client.ttl(each) != -1 for each in client.scan_iter())
                before = {each["pid"] for each in loaded(server)}
                victim = psutil.Process(rng.choice(sorted(before)))
                if kind == "worker":
                    os.kill(victim.pid, signal.SIGKILL)
                elif kind == "actor":
                    victim.parent().kill()
                else:
                    ray.remove(nodes.pop(rng.randrange(2)))
                    ray.add()
                    nodes.append(made)
                    made += 1

                def are_back(before: set[int] = before) -> bool:
                    now = {each["pid"] for each in loaded(server)}
                    return len(now) == 2 and now != before

                until(are_back, f"both workers after {number}: {kind}", timeout=200)
                counts = [*map(len, answers)]

                def are_answered(counts: list[int] = counts) -> bool:
                    return all(len(each) > n for each, n in zip(answers, counts, strict=True))

                until(are_answered, "the requests that have met it", timeout=200)
            over.set()
            for each in calls:
                each.result(300)
            given = [each for mine in answers for each in mine]
            bad = [each for n, each in given if each != {"total": n * (n - 1) / 2}]
            print(f"{sum(KILLS.values())} kills, {len(given)} answers, errors: {bad}")
            assert bad == []
            assert len(given) >= sum(KILLS.values())
            with store.client() as client:
                until(lambda: not client.keys(), "the deletion of all keys", timeout=60)
            assert server.stop() == 0
            assert server.leftovers() == []
