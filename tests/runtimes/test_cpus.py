"""The number of usable CPUs, with cgroups as files, and once with a cgroup of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.runtimes.cpus import bound_native_pools, usable_cpus


@pytest.fixture(autouse=True)
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of 16 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


def machine(folder: Path, group: str, files: dict[str, str]) -> Path:
    """Writes ``/proc/self/cgroup`` and files below ``/sys/fs/cgroup``."""
    named = {"proc/self/cgroup": group, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}
    for name, text in named.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


UNLIMITED_1 = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
HOSTS_1 = "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:cpuset:/docker/abc"


@pytest.mark.parametrize(
    ("group", "files", "cpus"),
    [
        pytest.param("0::/", {"cpu.max": "400000 100000"}, 4, id="v2, in a container"),
        pytest.param("0::/", {"cpu.max": "max 100000"}, 16, id="v2, no quota"),
        pytest.param("0::/", {"cpu.max": "150000 100000"}, 2, id="v2, rounded up"),
        pytest.param("0::/", {"cpu.max": "50000 100000"}, 1, id="v2, half a CPU"),
        pytest.param("0::/", {"cpu.max": "6400000 100000"}, 16, id="v2, more than there are"),
        pytest.param(
            "0::/a.slice/b.scope",
            {"a.slice/cpu.max": "200000 100000", "a.slice/b.scope/cpu.max": "max 100000"},
            2,
            id="v2, a group above has the quota",
        ),
        pytest.param("0::/docker/abc", {"cpu.max": "300000 100000"}, 3, id="v2, a host's path"),
        pytest.param(
            HOSTS_1,
            {"cpu,cpuacct/cpu.cfs_quota_us": "300000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            3,
            id="v1, in a container",
        ),
        pytest.param(
            "1:cpu:/a",
            {**UNLIMITED_1, "cpu/a/cpu.cfs_quota_us": "25000", "cpu/a/cpu.cfs_period_us": "50000"},
            1,
            id="v1, a group of its own",
        ),
        pytest.param("1:cpu:/", UNLIMITED_1, 16, id="v1, no quota"),
        pytest.param("0::/\n1:name=systemd:/", {}, 16, id="no controller"),
        pytest.param("0::/", {"cpu.max": "something else"}, 16, id="not understood"),
    ],
)
def test_usable_cpus_are_those_of_the_quota(
    tmp_path: Path, group: str, files: dict[str, str], cpus: int
) -> None:
    assert usable_cpus(machine(tmp_path, group, files)) == cpus


def test_without_cgroups_the_affinity_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert usable_cpus(tmp_path) == 16
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3})
    assert usable_cpus(machine(tmp_path, "0::/", {"cpu.max": "400000 100000"})) == 2


def test_native_pools_are_bounded_by_a_quota_unless_the_operator_set_them(tmp_path: Path) -> None:
    environment = {"OMP_NUM_THREADS": "7"}
    bound_native_pools(environment, machine(tmp_path, "0::/", {"cpu.max": "max 100000"}))
    assert environment == {"OMP_NUM_THREADS": "7"}
    bound_native_pools(environment, machine(tmp_path, "0::/", {"cpu.max": "400000 100000"}))
    assert environment == {
        "OMP_NUM_THREADS": "7", "OPENBLAS_NUM_THREADS": "4", "MKL_NUM_THREADS": "4",
    }  # fmt: skip


def test_a_process_in_a_cgroup_of_this_machine_sees_its_quota() -> None:
    top = Path("/sys/fs/cgroup")
    first = (top / "cgroup.controllers").exists()
    group = (top if first else top / "cpu") / f"penstock-test-{os.getpid()}"
    quota = {"cpu.max": "50000 100000"} if first else {"cpu.cfs_quota_us": "50000"}
    try:
        group.mkdir()
    except OSError:
        pytest.skip("this user may create no cgroup")
    try:
        if not all((group / name).exists() for name in quota):
            pytest.skip("cgroups of this machine have no quota")
        for name, text in quota.items():
            (group / name).write_text(text)
        code = "import sys; sys.stdin.read(); from penstock.runtimes.cpus import usable_cpus;"
        code += "print(usable_cpus())"
        with subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as child:  # fmt: skip
            (group / "cgroup.procs").write_text(str(child.pid))
            output, _ = child.communicate(timeout=60)
        assert output == "1\n"
    finally:
        group.rmdir()
