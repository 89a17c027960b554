"""Kills of workers, actors, nodes and the head while clients call; run by test_cluster.py, where
there is only the loopback.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil
import pytest

from tests.executors.ray.inside_cluster import loaded
from tests.faults.site import Service, Site, site, variables
from tests.kit.load import SERVICE
from tests.kit.ray_cluster import Cluster, cluster
from tests.service.scripts import until
from tests.services.process import ROOT

WORKERS: Final = 2
OPS: Final = {
    "work": {
        "executor": "ray",
        "concurrency": WORKERS,
        "retry_on_crash": True,
        "ray": {"address": "auto", "placement": "spread"},
    }
}
KILLS: Final = {"worker": 10, "actor": 9, "node": 7, "holder": 2, "head": 2}
LIMIT: Final = 10.0
"""Seconds of a request: shorter than the loss of a head."""
LOST: Final = 9000
# After so many seconds without its head a node ends, instead of after a minute.
SOON: Final = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}


class Storm:
    """Does the kills.

    Attributes:
        done: their kinds.
    """

    def __init__(self, at: Site, ray: Cluster, seed: int) -> None:
        self._at = at
        self._ray = ray
        self._rng = Random(seed)
        self._nodes = [0, 1]
        self._made = 2

    def run(self) -> None:
        """Kill, and wait until all workers are back, again and again."""
        kinds = list(Counter(KILLS).elements())
        self._rng.shuffle(kinds)
        for number, kind in enumerate(kinds, 1):
            before = {each["pid"] for each in loaded(self._at.server)}
            getattr(self, f"_{kind}")(self._rng.choice(sorted(before)))
            until(partial(self._are_back, before), f"all workers after {number}: {kind}", 200)

    def _are_back(self, before: set[int]) -> bool:
        now = {each["pid"] for each in loaded(self._at.server)}
        return len(now) == WORKERS and now != before

    def _worker(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def _actor(self, pid: int) -> None:
        psutil.Process(pid).parent().kill()

    def _holder(self, pid: int) -> None:
        everyone = self._at.server.descendants()
        (holder,) = [each for each in everyone if "penstock.executors.ray.holder" in each.cmdline()]
        holder.kill()

    def _node(self, pid: int) -> None:
        node = self._nodes.pop(self._rng.randrange(2))
        self._ray.remove(node)
        self._add()

    def _head(self, pid: int) -> None:
        self._ray.kill_head()
        until(lambda: not loaded(self._at.server), "the end of the workers", 200)
        self._ray.start_head()
        self._nodes.clear()
        for _ in range(2):
            self._add()

    def _add(self) -> None:
        self._ray.add()
        self._nodes.append(self._made)
        self._made += 1


async def call(at: Site, seed: int, enough: asyncio.Event) -> None:
    rng = Random(seed)
    while not enough.is_set():
        kind = rng.choice(("http", "grpc"))
        await at.clients.send_request(kind=kind, limit=LIMIT, do_work="sleep:0.05")


@pytest.mark.timeout(1800)
async def test_each_request_ends_once_through_thirty_kills(tmp_path: Path) -> None:
    services = {SERVICE: Service("one", OPS)}
    environment = {**variables(tmp_path, services), **SOON, "PYTHONPATH": str(ROOT)}
    with cluster(head="127.0.0.2", environment=environment) as ray:
        more = {**SOON, "RAY_ADDRESS": ray.address}
        async with site(tmp_path, ops=OPS, environment=more) as at:
            enough = asyncio.Event()
            calls = [asyncio.create_task(call(at, seed, enough)) for seed in range(4)]
            storm = Storm(at, ray, 1)
            try:
                await asyncio.to_thread(storm.run)
            finally:
                enough.set()
                await asyncio.gather(*calls)
            found: Counter[Any] = Counter(each.err_no for each in at.clients.answers)
            print(f"{sum(KILLS.values())} kills; answers by error: {dict(found)}")
            assert (await at.clients.send_request()).good
            assert found[0] > 20 * sum(KILLS.values())
            bad = [each for each in at.clients.answers if not (each.good or each.late)]
            # Its nodes end one after the other: a request may run again on the next one that ends.
            assert {each.err_no for each in bad} <= {LOST}, bad
            assert len(bad) <= WORKERS * KILLS["head"], bad
            at.end(attempts=2, failures=None)
