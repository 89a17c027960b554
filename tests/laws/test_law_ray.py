"""A batch never changes an answer, with workers that a cluster of Ray places."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.loopback import run_inside


@pytest.mark.real
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_law_holds_on_a_cluster_of_ray() -> None:
    run_inside(Path(__file__).with_name("inside_ray.py"), timeout=900.0)
