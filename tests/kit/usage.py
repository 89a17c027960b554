"""Memory, threads, descriptors and children of a process, by default of this one."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

Pid = int | str


def memory(pid: Pid = "self", line: str = "VmRSS") -> int:
    """The resident bytes, or another line of the process's status."""
    for text in Path(f"/proc/{pid}/status").read_text().splitlines():
        if text.startswith(line + ":"):
            return int(text.split()[1]) * 1024
    raise AssertionError(f"no {line}")


def peak_memory(pid: Pid = "self") -> int:
    """The peak of resident bytes since the last reset."""
    return memory(pid, "VmHWM")


def reset_peak_memory(pid: Pid = "self") -> None:
    """Resets ``peak_memory``."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def resources(pid: int) -> dict[str, int]:
    """Numbers of threads, open descriptors and children."""
    process = Path(f"/proc/{pid}")
    return {
        "threads": len(os.listdir(process / "task")),
        "descriptors": len(os.listdir(process / "fd")),
        "children": len(psutil.Process(pid).children()),
    }
