"""What is told of a worker that died: in one line of the log, and as a whole. Pure.

Nothing that a request brought is in it but its number; what the op's own code wrote is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LINES: Final = 20
BYTES: Final = 4 << 10
"""Most of what a worker wrote last that the line of the log has."""

_MOST_IDS: Final = 16
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One death.

    Attributes:
        op: the op's name.
        worker: the worker's number within the op.
        pid: its process.
        how: the signal or status that it ended with.
        data_ids: of the requests that it ran; empty when it ran none.
        batches: how many it had finished.
        peak: the most memory it ever had, in bytes.
        wrote: what it wrote last to standard error, line by line.
    """

    op: str
    worker: int
    pid: int
    how: str
    data_ids: Sequence[int]
    batches: int
    peak: int
    wrote: Sequence[str]

    def line(self) -> str:
        """For the log."""
        told = f"op {self.op}: worker {self.worker} (pid {self.pid}) died: {self.how}"
        if self.data_ids:
            more = len(self.data_ids) - _MOST_IDS
            told += f", with data_ids={list(self.data_ids[:_MOST_IDS])}"
            told += f" and {more} more" if more > 0 else ""
        told += f", after {self.batches} batches, with at most {self.peak // _MIB} MiB of memory"
        if self.wrote:
            told += "; it wrote last: " + " | ".join(map(printable, self.wrote))
        return told

    def text(self) -> str:
        """For a file."""
        return "\n".join(
            [
                f"op: {printable(self.op)}",
                f"worker: {self.worker}",
                f"pid: {self.pid}",
                f"ended: {self.how}",
                f"data_ids: {list(self.data_ids)}",
                f"batches: {self.batches}",
                f"peak_memory_bytes: {self.peak}",
                "standard error:",
                *(f"  {printable(line)}" for line in self.wrote),
                "",
            ]
        )


def printable(text: str) -> str:
    """The text with everything escaped that is no character to be seen."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
