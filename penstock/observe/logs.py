"""Log lines on standard error: one line per event, whatever clients send."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Full, Queue
from typing import TextIO

MOST_LINES = 10_000
"""Lines that wait to be written; a guess at what a burst of errors makes."""

LAST_LINES = 1.0
"""Seconds that the last lines are given at the end."""

# Control characters, line ends of Unicode, and what turns the direction of writing.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class OneLine(logging.Formatter):
    """Escapes control characters, so that no message and no traceback makes a line of its own.

    Args:
        writer: whose lines they are, where several processes write to one log.
    """

    def __init__(self, writer: str | None = None) -> None:
        tag = "" if writer is None else f"{writer} "
        super().__init__(f"%(levelname)s %(asctime)s {tag}[%(name)s] %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        return _CONTROL.sub(_escaped, super().format(record))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


class Unhurried(logging.Handler):
    """Hands lines to a thread that writes them, so that nobody waits for a disk or a reader.

    The queue is bounded. What does not fit, and what cannot be written, is dropped and counted; one
    line tells how many when writing works again.
    """

    def __init__(self, stream: TextIO, most: int = MOST_LINES) -> None:
        super().__init__()
        # Each is written by one side only: `emit` runs under the handler's lock, the rest in the
        # writer's thread.
        self._refused = 0
        self._unwritten = 0
        self._told = 0
        self._stream = stream
        self._lines: Queue[str | None] = Queue(most)
        # A daemon, because a reader who never comes must not keep the process from ending.
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    @property
    def dropped(self) -> int:
        """Lines that were lost and that no line has told of yet."""
        return self._refused + self._unwritten - self._told

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record's line; never blocks."""
        try:
            self._lines.put_nowait(self.format(record))
        except Full:
            self._refused += 1
        except Exception:  # noqa: BLE001 - a record that cannot be formatted harms nobody
            self.handleError(record)

    def close(self) -> None:
        """Write what is queued, for as long as a reader could be expected to take."""
        super().close()
        try:
            self._lines.put(None, timeout=LAST_LINES)
        except Full:
            return
        self._writer.join(LAST_LINES)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):  # the disk is full; the stream is closed
                self._unwritten += 1
                continue
            self._tell_dropped()

    def _tell_dropped(self) -> None:
        dropped = self.dropped
        if not dropped:
            return
        try:
            self._stream.write(f"WARNING {dropped} log lines were dropped\n")
            self._stream.flush()
        except (OSError, ValueError):
            return
        self._told += dropped


class AtOnce(logging.StreamHandler[TextIO]):
    """Writes lines itself, where no second thread may be or could come too late."""


@contextmanager
def logging_to_stderr(
    level: int = logging.INFO, *, at_once: bool = False, writer: str | None = None
) -> Iterator[None]:
    """Give the root logger a handler for a while, unless the program configured logging itself.

    Args:
        level: of the root logger meanwhile.
        at_once: for a process that will fork, or whose last lines before a sudden end count: then
            it starts no thread, and a log that nobody reads stops it. Children call this again.
        writer: see OneLine.
    """
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    inherited = [each for each in root.handlers if isinstance(each, AtOnce)]
    if len(inherited) < len(root.handlers) or ours.handlers:
        yield
        return
    for each in inherited:
        root.removeHandler(each)
    handler = AtOnce(sys.stderr) if at_once else Unhurried(sys.stderr)
    handler.setFormatter(OneLine(writer))
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
        root.setLevel(before)
