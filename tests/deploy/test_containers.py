"""Containers in namespaces of Linux: the user, the read-only file system, process 1, SIGTERM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.container import unavailable
from tests.kit.loopback import run_inside
from tests.services.process import ROOT

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    if why := unavailable():
        pytest.skip(why)


@pytest.mark.real
@pytest.mark.timeout(200)
def test_containers_without_their_own_packages() -> None:
    run_inside(HERE / "inside_containers.py", "-m", "not long", mounts=True)


@pytest.mark.real
@pytest.mark.long
@pytest.mark.timeout(900)
def test_containers_as_they_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet"]
    locked = ["--require-hashes", "-r", str(ROOT / "requirements/image.txt")]
    got = subprocess.run([*pip, "download", "--no-deps", "-d", str(tmp_path), *locked], check=False)
    if got.returncode:
        pytest.skip("the packages cannot be had here")
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run([*pip, *wheel], check=True)
    monkeypatch.setenv("WHEELS", str(tmp_path))
    run_inside(HERE / "inside_containers.py", "-m", "long", timeout=600, mounts=True)


@pytest.mark.real
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_service_beside_a_cluster_of_ray() -> None:
    run_inside(HERE / "inside_ray.py", timeout=900, mounts=True)
