"""Log lines on standard error: one line per event, whatever clients send."""

from __future__ import annotations

import logging
import re
import sys

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class OneLine(logging.Formatter):
    """Escapes control characters, so that no message and no traceback makes a line of its own."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(asctime)s [%(name)s] %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        return _CONTROL.sub(_escaped, super().format(record))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def log_to_stderr(level: int = logging.INFO) -> None:
    """Give the root logger a handler, unless the program configured one itself."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    root.addHandler(handler)
    root.setLevel(level)
