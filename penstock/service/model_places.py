"""How many workers a saved model has if nobody says, and where they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from penstock.runtimes.cpus import usable_cpus
from penstock.runtimes.runtime import HOLD_GIL, runtime_of

THREADS: Final = 4


def places(path: str, workers: int) -> dict[str, Any]:
    """The concurrency and executor: processes for a library that holds the GIL, at most one for
    each CPU, as each has its own copy of the library and the model.
    """
    if runtime_of(Path(path)) in HOLD_GIL:
        return {"executor": "process", "concurrency": min(workers, usable_cpus())}
    return {"concurrency": workers}
