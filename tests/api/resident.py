"""The resident memory of this process."""

from __future__ import annotations

import resource
from pathlib import Path


def memory() -> int:
    """The resident bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_memory() -> int:
    """The peak of resident bytes since the last reset."""
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return int(line.split()[1]) * 1024


def reset_peak_memory() -> None:
    """Resets ``peak_memory``."""
    Path("/proc/self/clear_refs").write_text("5")
