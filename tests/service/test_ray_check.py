"""``penstock check --open`` of ops with executor ray: its cluster is tried, here a fake of it.

A real cluster: tests/executors/ray/inside_cluster.py.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from penstock import Service, op
from penstock.errors import StartupError
from penstock.service.blueprint import deploy
from penstock.service.ray_check import LIMIT, try_clusters

pytestmark = pytest.mark.real

FAKE = (sys.executable, "-m", "tests.executors.ray.fake_holder")

LOUD = (sys.executable, "-c", "import os; os.write(2, b'[W 1 1] rpc_client.h:153: no answer')")
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
        {"num_cpus": 2},  # in a cluster of the service's own
    )
    assert try_clusters(found, FAKE) == ["op op1: it wants much, which no node has"]


def test_a_cluster_that_cannot_be_used_is_an_error() -> None:
    with pytest.raises(StartupError, match=r"op 'op0': Ray at .* cannot be used"):
        try_clusters(options_of({"address": "127.0.0.1:1"}))


def test_a_cluster_that_does_not_answer_is_an_error_long_before_start_timeout() -> None:
    why = r"op 'op0': .*it has not answered for 0\.05 s \(the limit of this check\)"
    with pytest.raises(StartupError, match=why):
        try_clusters(options_of({"address": "127.0.0.1:1"}), SILENT, None, 0.05)
    assert LIMIT == 30.0


def test_a_cluster_of_the_service_has_the_time_of_its_start() -> None:
    why = r"op 'op0': Ray on this machine .*it has not answered for 0\.05 s \(start_timeout\)"
    with pytest.raises(StartupError, match=why):
        try_clusters(options_of({}), SILENT, 0.05)


def test_this_machine_is_an_error_if_it_is_too_small_for_a_cluster_of_its_own() -> None:
    why = r"op 'op1': Ray on this machine: it wants much, which no node has"
    with pytest.raises(StartupError, match=why):
        try_clusters(options_of({"num_cpus": 1}, {"num_cpus": 3}), FAKE)


def test_the_workers_of_such_a_cluster_need_room_together() -> None:
    assert try_clusters(options_of({"num_cpus": 1}, {"num_cpus": 1}), FAKE) == []
    why = r"Ray on this machine: it wants much, which no node has: all workers of its ops together"
    with pytest.raises(StartupError, match=why):
        try_clusters(options_of({"num_cpus": 2}, {"num_cpus": 1}), FAKE)


def test_what_ray_writes_is_not_in_the_output(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(StartupError, match="talks to it has ended"):
        try_clusters(options_of({"address": "auto"}), LOUD)
    assert capfd.readouterr() == ("", "")
    (record,) = [each for each in caplog.records if "rpc_client" in each.getMessage()]
    assert record.levelno == logging.DEBUG


def test_nothing_is_started_without_such_ops() -> None:
    assert try_clusters([], ("/no/such/program",)) == []
