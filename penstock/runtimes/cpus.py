"""How many CPUs this process may use: those of its affinity, or fewer by its cgroup's quota.

A container's limit (``docker run --cpus``, a limit of Kubernetes) is a quota. Affinity, and
libraries that size their pools by it, show the cores of the node. A pool of that size uses up its
quota at the begin of each period, and then all its threads stand still until the next one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path, PurePosixPath
from typing import Final

_POOLS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Read by native libraries when they are imported: NumPy's, PyTorch's and OpenCV's among them."""

_ROOT: Final = Path("/")


def usable_cpus(root: Path = _ROOT) -> int:
    """The number of CPUs that this process may use at once, at least 1.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    return min([len(os.sched_getaffinity(0)), *_quotas(root)])


def bound_native_pools(environment: MutableMapping[str, str], root: Path = _ROOT) -> None:
    """Let native libraries that are imported later have pools within the quota of this process.

    Variables that are set stay as they are, and without a quota nothing is set: libraries know the
    affinity.

    Args:
        environment: of this process.
        root: as for ``usable_cpus``.
    """
    count = usable_cpus(root)
    if count < len(os.sched_getaffinity(0)):
        for name in _POOLS:
            environment.setdefault(name, str(count))


def _quotas(root: Path) -> Iterator[int]:
    """The quotas of this process's cgroup and of those above, in CPUs, rounded up."""
    for folder in _groups(root):
        quota, period = _quota(folder)
        if quota > 0 and period > 0:
            yield max(1, math.ceil(quota / period))


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's cgroup and of those above, for both versions.

    A container may see its own group as the root, although the path in ``/proc`` is the host's.
    """
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in [*lines, "0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "cpu") or "cpu" in controllers.split(","):
            mounts = (top / controllers, top / "cpu") if controllers else (top, top / "unified")
            inner = PurePosixPath(path.removeprefix("/"))
            for mount in dict.fromkeys(mounts):
                yield from (mount / each for each in (inner, *inner.parents))


def _quota(group: Path) -> tuple[int, int]:
    """Quota and period of one group, in microseconds; 0 if it has none."""
    try:
        if (group / "cpu.max").exists():  # version 2
            quota, period = (group / "cpu.max").read_text().split()
            return (0, 0) if quota == "max" else (int(quota), int(period))
        quota = (group / "cpu.cfs_quota_us").read_text()
        return int(quota), int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):  # no such group, or a kernel that writes something else
        return 0, 0
