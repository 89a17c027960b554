"""Log lines on standard error: one line per event, whatever clients send."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Control characters, line ends of Unicode, and what turns the direction of writing.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class OneLine(logging.Formatter):
    """Escapes control characters, so that no message and no traceback makes a line of its own."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(asctime)s [%(name)s] %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        return _CONTROL.sub(_escaped, super().format(record))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


@contextmanager
def logging_to_stderr(level: int = logging.INFO) -> Iterator[None]:
    """Give the root logger a handler for a while, unless the program configured logging itself."""
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    if root.handlers or ours.handlers:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
