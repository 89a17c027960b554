"""A cluster of Ray on this machine: a head without CPUs, and two nodes with one each.

    with cluster() as ray:
        ray.address
        ray.remove(0)

A program of its own does it, so that the tests do not import Ray.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STORE = 80 << 20


class Cluster:
    """See the module.

    Attributes:
        address: of its head.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address: str = self._told()["address"]

    def remove(self, node: int) -> None:
        """End the processes of a node, by its number in the order of their start."""
        self._do(remove=node)

    def add(self) -> None:
        """Start a node with one CPU."""
        self._do(add=1)

    def _do(self, **what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        assert self._told() == {"done": True}

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while not line.startswith("{"):  # Ray prints, too
            assert line, "the cluster has ended"
            line = self._process.stdout.readline()
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def cluster(nodes: int = 2) -> Iterator[Cluster]:
    """Start a cluster, and end it."""
    command = [sys.executable, "-m", "tests.kit.ray_cluster", str(nodes)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Cluster(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster as RayCluster

    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    made = RayCluster(initialize_head=True, head_node_args=head)
    nodes = [
        made.add_node(wait=False, num_cpus=1, object_store_memory=STORE)
        for _ in range(int(sys.argv[1]))
    ]
    made.wait_for_nodes()
    print(json.dumps({"address": made.address}), flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        if "add" in what:
            nodes.append(made.add_node(num_cpus=1, object_store_memory=STORE))
        else:
            made.remove_node(nodes[what["remove"]], allow_graceful=False)
        print(json.dumps({"done": True}), flush=True)
    made.shutdown()


if __name__ == "__main__":
    _main()
