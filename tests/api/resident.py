"""The memory of this very process."""

from __future__ import annotations

import resource
from pathlib import Path


def memory() -> int:
    """Bytes that are resident."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def most_memory() -> int:
    """The most bytes that were resident since the mark was taken down."""
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return int(line.split()[1]) * 1024


def take_the_mark_down() -> None:
    """Let ``most_memory`` begin anew."""
    Path("/proc/self/clear_refs").write_text("5")
