"""A cluster of Ray on this machine: a head without CPUs, and two nodes with one each.

    with cluster() as ray:
        ray.address
        ray.remove(0)
        ray.kill_head()

A program of its own does it, so that the tests do not import Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from signal import SIGCONT, SIGSTOP
from typing import Any, Final

import psutil

STORE: Final = 80 << 20
PORT: Final = 16_379
"""Of the head, so that it can come back."""


class Cluster:
    """See the module.

    Attributes:
        address: of its head.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address: str = self._told()["address"]

    def remove(self, node: int) -> None:
        """Kill the processes of a node, by its number in the order of their start."""
        self._do(remove=node)

    def add(self) -> None:
        """Start a node with as many CPUs as the others."""
        self._do(add=True)

    def stop(self, node: int) -> None:
        """Stop the processes of a node with SIGSTOP, its workers too."""
        self._do(stop=node)

    def go_on(self, node: int) -> None:
        """Let them run again."""
        self._do(go_on=node)

    def kill_head(self) -> None:
        """Kill the processes of the head; its nodes stay, as long as Ray lets them."""
        self._do(kill_head=True)

    def start_head(self) -> None:
        """Start another head at the same address. It knows nothing of the one before."""
        self._do(start_head=True)

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
def cluster(
    nodes: int = 2,
    cpus: int = 1,
    head: str = "127.0.0.1",
    nodes_at: str = "127.0.0.1",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """Start a cluster, and end it.

    Args:
        nodes: their number, without the head.
        cpus: of each.
        head: its address. A program at 127.0.0.1 uses the head as its node if it is there.
        nodes_at: the address of all of them.
        environment: more variables of all its processes.
    """
    arguments = (
        *("--nodes", str(nodes), "--cpus", str(cpus)),
        *("--head", head, "--nodes-at", nodes_at),
    )
    command = [sys.executable, "-m", "tests.kit.ray_cluster", *arguments]
    pipe = subprocess.PIPE
    variables = {**os.environ, **(environment or {})}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables) as process:
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


class _Made:
    """The cluster, in the program of its own."""

    def __init__(self, nodes: int, cpus: int, head: str, nodes_at: str) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self._head = {
            "num_cpus": 0,
            "gcs_server_port": PORT,
            "node_ip_address": head,
            "object_store_memory": STORE,
            "include_dashboard": False,
        }
        self._node = {"num_cpus": cpus, "object_store_memory": STORE, "node_ip_address": nodes_at}
        self._made = RayCluster(initialize_head=True, head_node_args=self._head)
        self._nodes = [self._made.add_node(wait=False, **self._node) for _ in range(nodes)]
        self._made.wait_for_nodes()
        self.address: str = self._made.address

    def do(self, what: dict[str, Any]) -> None:
        """Do what the tests say."""
        match what:
            case {"add": _}:
                self._nodes.append(self._made.add_node(**self._node))
            case {"remove": node}:
                self._made.remove_node(self._nodes[node], allow_graceful=False)
            case {"stop": node}:
                for each in self._processes(node):
                    each.send_signal(SIGSTOP)
            case {"go_on": node}:
                for each in self._processes(node):
                    each.send_signal(SIGCONT)
            case {"kill_head": _}:
                self._made.remove_node(self._made.head_node, allow_graceful=False)
            case {"start_head": _}:
                self._made.add_node(**self._head)

    def end(self) -> None:
        """End it."""
        self._made.shutdown()

    def _processes(self, node: int) -> list[psutil.Process]:
        (raylet,) = self._nodes[node].all_processes["raylet"]
        found = psutil.Process(raylet.process.pid)
        return [found, *found.children(recursive=True)]


def join(address: str, at: str) -> None:
    """In a program of its own, which needs nothing else: be a node with one CPU, until its standard
    input ends.

    Args:
        address: of the cluster's head.
        at: the node's address.
    """
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    given = {"node_ip_address": at, "num_cpus": 1, "num_gpus": 0, "object_store_memory": STORE}
    ports = {"min_worker_port": 0, "max_worker_port": 0}
    Node(RayParams(gcs_address=address, **given, **ports), head=False, spawn_reaper=True)
    sys.stdin.read()


def _main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--cpus", type=int)
    parser.add_argument("--head")
    parser.add_argument("--nodes-at")
    parser.add_argument("--join", nargs=2)
    given = vars(parser.parse_args())
    if (joined := given.pop("join")) is not None:
        join(*joined)
        return
    made = _Made(**given)
    print(json.dumps({"address": made.address}), flush=True)
    for line in sys.stdin:
        made.do(json.loads(line))
        print(json.dumps({"done": True}), flush=True)
    made.end()


if __name__ == "__main__":
    _main()
