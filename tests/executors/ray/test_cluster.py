"""Real clusters of Ray, where there is no network but the loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.loopback import run_inside

HERE = Path(__file__).parent


@pytest.mark.real
@pytest.mark.timeout(400)
def test_a_cluster_that_the_service_starts() -> None:
    run_inside(HERE / "inside_local.py", "-m", "not long")


@pytest.mark.real
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_cluster_that_the_service_starts_and_loses() -> None:
    run_inside(HERE / "inside_local.py", "-m", "long", timeout=600.0)


@pytest.mark.real
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_cluster_of_several_nodes() -> None:
    run_inside(HERE / "inside_cluster.py", timeout=600.0)


@pytest.mark.real
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_head_that_is_lost_and_a_node_that_is_stopped() -> None:
    run_inside(HERE / "inside_head.py", timeout=900.0)


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.timeout(2000)
def test_thirty_kills_of_workers_actors_nodes_and_the_head() -> None:
    run_inside(HERE / "inside_storm.py", timeout=2000.0)


@pytest.mark.real
@pytest.mark.long
@pytest.mark.timeout(600)
def test_large_values_between_two_nodes() -> None:
    run_inside(HERE / "inside_store.py", "-k", "killed_store", timeout=600.0)


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.timeout(1600)
def test_twenty_kills_with_large_values() -> None:
    run_inside(HERE / "inside_store.py", "-k", "killed_with", timeout=1600.0)


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.timeout(700)
def test_a_node_whose_cable_is_cut() -> None:
    run_inside(HERE / "inside_cut.py", timeout=700.0, mounts=True)
