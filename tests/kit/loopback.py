"""Runs a file of tests where there is no network but the loopback, in namespaces of Linux.

Ray replaces 127.0.0.1 by the machine's own address; there, that is 127.0.0.1.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_INSIDE = 'hostname localhost && ip link set lo up && exec "$@"'


def run_inside(file: Path, *more: str, timeout: float = 300.0, mounts: bool = False) -> None:
    """Run a file with pytest, in this namespace; needs root.

    Args:
        file: its name does not begin with ``test_``, so that it is not run outside.
        more: further arguments of pytest.
        timeout: seconds for all of its tests.
        mounts: whether it has mounts of its own, which end with it.

    Raises:
        AssertionError: a test failed, with the output.
    """
    own = ("--net", "--uts", *(("--mount",) if mounts else ()))
    command = ("unshare", *own, "sh", "-c", _INSIDE, "sh")
    tests = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(file), *more)
    done = subprocess.run(
        [*command, *tests],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout
