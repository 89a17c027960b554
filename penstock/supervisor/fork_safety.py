"""Whether this process may be forked: threads and native thread pools that do not survive it."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Final

_FORK_SAFE_POOLS: Final = re.compile(r"(lib)?((scipy_)?openblas|onnxruntime|cv2|opencv)")
"""Libraries, by file name, whose thread pools survive a fork: they start new threads in a child."""

_FORK_UNSAFE_POOLS: Final = re.compile(
    r"lib(gomp|i?omp|tbb|mkl|torch|tensorflow|paddle)|cygrpc|_pywrap_tensorflow"
)
"""Libraries whose thread pools deadlock in a forked child."""


def threads_that_prevent_fork() -> list[str]:
    """Names of threads that prevent a fork: Python threads, and native thread pools that do not
    survive it.
    """
    python = threading.enumerate()
    names = [each.name for each in python if each is not threading.main_thread()]
    try:
        native = len(os.listdir("/proc/self/task")) - len(python)
        maps = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:  # not available on this system
        return names
    return names + (fork_unsafe_pools(maps) if native > 0 else [])


def fork_unsafe_pools(maps: str) -> list[str]:
    """Libraries whose thread pools may not survive a fork, in a process with native threads.

    The library of a native thread is unknown. So a fork is prevented by any loaded library whose
    pool does not survive it; and by unknown threads, if no library is loaded whose pool does.

    Args:
        maps: ``/proc/self/maps``.
    """
    files = {line.rpartition("/")[2] for line in maps.split("\n") if "/" in line}
    lost = sorted(each for each in files if _FORK_UNSAFE_POOLS.match(each))
    if not lost and not any(map(_FORK_SAFE_POOLS.match, files)):
        return ["an unknown library"]
    return lost
