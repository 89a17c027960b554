"""Two ops on two nodes of a cluster of Ray, with a Redis between them; run by test_cluster.py,
where there is only the loopback.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.ray_cluster import cluster
from tests.kit.redis_server import RedisServer, redis_server
from tests.service.scripts import BackgroundCall, fetch, until
from tests.services.process import ServiceProcess, running

SCRIPT = """
import numpy as np
from penstock import Service, op

far = {{"executor": "ray", "ray": {{"address": "auto", "placement": "spread"}}}}

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
        path.write_text(SCRIPT.format(url=store.url))
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
