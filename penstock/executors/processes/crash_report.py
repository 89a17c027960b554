"""Reports of workers that died: in the log, and as files that only the service's user can read.

They have no content of requests except their ids.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

MOST_FILES: Final = 100
"""Most files in a folder, so that a worker that dies repeatedly does not fill the disk."""

_MOST_IDS: Final = 16
_INNERMOST: Final = 8
_OUTERMOST: Final = 4
"""Frames of a deep stack that are reported: the innermost show the current line, the outermost the
op's hook."""
_FRAME: Final = '  File "'
_PACKAGE: Final = Path(__file__).parents[2]
_OURS: Final = re.compile(f'  File "{re.escape(str(_PACKAGE))}/(executors|service)/')
_MODULES: Final = "Extension modules: "

_log = logging.getLogger(__name__)


def report(
    *,
    op: str,
    worker: int,
    pid: int,
    how: str,
    data_ids: Sequence[int],
    batches: int,
    peak: int,
    stacks: Sequence[str],
    by_us: bool,
    folder: str | None,
) -> None:
    """Report a worker's death in the log and, unless ``folder`` is None, in a file there.

    ``data_ids`` are those of the batch that it ran, if any; ``by_us``: we ended it because of that
    batch; ``peak`` is the most memory that it ever had; ``stacks`` is what ``faulthandler`` wrote.
    """
    line = f"op {op}: worker {worker} (pid {pid}) died: {how}"
    if data_ids:
        more = len(data_ids) - _MOST_IDS
        line += f", with data_ids={list(data_ids[:_MOST_IDS])}"
        line += f" and {more} more" if more > 0 else ""
    line += f", after {batches} batches, with at most {peak >> 20} MiB of memory"
    where = [printable(line) for line in frames_of_the_op(stacks)]
    _log.log(logging.WARNING if by_us else logging.ERROR, "%s", "\n".join([line, *where]))
    if folder is not None:
        name = re.sub(r"[^\w.-]", "_", op)[:64]
        _save(folder, f"{name}-{worker}-{pid}-", [line, *stacks, ""])


def frames_of_the_op(stacks: Sequence[str]) -> Iterator[str]:
    """The lines of the stacks, without our own frames below the op's, without the middle of a deep
    stack, and without the list of modules at the end.
    """
    frames: list[str] = []
    ours = False
    for line in stacks:
        if line.startswith(_FRAME):
            ours = ours or _OURS.match(line) is not None
            if not ours:
                frames.append(line)
            continue
        yield from _shortened(frames)
        frames, ours = [], False
        if line and not line.startswith(_MODULES):
            yield line
    yield from _shortened(frames)


def how_it_ended(status: int) -> str:
    """A wait status of ``os.waitpid`` as text."""
    code = os.waitstatus_to_exitcode(status)
    return signal_name(-code) if code < 0 else f"exit status {code}"


def signal_name(number: int) -> str:
    """The name of a signal, or its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def printable(text: str) -> str:
    """The text with unprintable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shortened(frames: list[str]) -> list[str]:
    left_out = len(frames) - _INNERMOST - _OUTERMOST
    if left_out > 1:
        frames[_INNERMOST:-_OUTERMOST] = [f"  ... {left_out} frames ..."]
    return frames


def _save(folder: str, name: str, lines: Sequence[str]) -> None:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if len(os.listdir(folder)) >= MOST_FILES:
            _log.warning("crash_dir: %s has %d files: no more", folder, MOST_FILES)
            return
        descriptor, _ = tempfile.mkstemp(".txt", name, folder)  # 0600, and new
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(map(printable, lines)))
    except OSError as error:
        _log.warning("crash_dir: a report cannot be written: %s", error)
