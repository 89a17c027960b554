"""The events of a Recorder, written to a file as they happen.

A service whose memory is measured cannot hold its own history, and its engine may be a process of
its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.testing import Recorder, history
from penstock.testing.history import ServerEvent


class _File(list[ServerEvent]):
    """A list of events that writes them to a file instead."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append(self, event: ServerEvent) -> None:
        os.write(self._file, json.dumps([type(event).__name__, *event]).encode() + b"\n")


def recorder(path: str) -> Recorder:
    """An instrument that writes one line of JSON for each event; forked processes write too."""
    file_recorder = Recorder()
    file_recorder.events = _File(path)
    return file_recorder


def recorded(path: Path) -> Iterator[ServerEvent]:
    """The events in such a file."""
    with path.open() as lines:
        for line in lines:
            kind, *values = json.loads(line)
            # JSON has lists in place of tuples.
            yield getattr(history, kind)(*(tuple(v) if isinstance(v, list) else v for v in values))
