"""``penstock check --open`` of ops with executor ray: its cluster is tried, here a fake of it.

A real cluster: tests/executors/ray/inside_cluster.py.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from penstock import Service, op
from penstock.errors import StartupError
from penstock.service.blueprint import deploy
from penstock.service.ray_check import try_clusters

pytestmark = pytest.mark.real

FAKE = (sys.executable, "-m", "tests.executors.ray.fake_holder")

SILENT = (sys.executable, "-c", "import time; time.sleep(60)")


def options_of(*ray: dict[str, Any]) -> list[Any]:
    """The options of a service whose ops have these keys ``ray``."""
    found = []
    for at, each in enumerate(ray):
        made = op(executor="ray", ray=each, name=f"op{at}")(lambda request: request)
        service = Service("a", made)
        service.prepare_beside({})
        found += deploy([service.blueprint()]).graphs[0].options
    return found


def test_each_op_is_compared_with_the_nodes_of_its_cluster() -> None:
    found = options_of(
        {"address": "auto", "num_cpus": 2},
        {"address": "auto", "num_cpus": 3},
        {"num_cpus": 99},
    )
    assert try_clusters(found, FAKE) == ["op op1: it wants much, which no node has"]


def test_a_cluster_that_cannot_be_used_is_an_error() -> None:
    with pytest.raises(StartupError, match=r"op 'op0': Ray at .* cannot be used"):
        try_clusters(options_of({"address": "127.0.0.1:1"}))


def test_a_cluster_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(StartupError, match=r"op 'op0': .*it has not answered for 0\.05 s"):
        try_clusters(options_of({"address": "127.0.0.1:1"}), SILENT, 0.05)


def test_nothing_is_started_without_such_ops() -> None:
    assert try_clusters(options_of({"num_cpus": 1}), ("/no/such/program",)) == []
