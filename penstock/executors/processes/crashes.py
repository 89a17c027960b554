"""Reports of workers that died, as files that only the service's own user can read."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import threading
from typing import Final

from penstock.executors.processes.report import Report

MOST_FILES: Final = 100
"""In a folder; a worker that dies of each request must not fill the disk."""

_log = logging.getLogger(__name__)


class Crashes:
    """Writes them in a thread, one at a time: the next worker does not wait for a disk.

    Args:
        folder: made when it is needed.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None

    def save(self, report: Report) -> None:
        """Write a report; what goes wrong is told in the log."""
        if self._thread is not None and self._thread.is_alive():
            _log.warning("crash_dir: a report was left out: one before it is still being written")
            return
        thread = threading.Thread(target=self._save, args=(report,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("crash_dir: a report was left out: %s", error)
            return
        self._thread = thread

    def wait(self, timeout: float) -> None:
        """Give the last one the time to be written."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _save(self, report: Report) -> None:
        op = re.sub(r"[^\w.-]", "_", report.op)[:64]
        name = f"{op}-{report.worker}-{report.pid}-"
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            if len(os.listdir(self._folder)) >= MOST_FILES:
                _log.warning("crash_dir: %s has %d files: no more", self._folder, MOST_FILES)
                return
            descriptor, _ = tempfile.mkstemp(".txt", name, self._folder)  # 0600, and new
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(report.text())
        except OSError as error:
            _log.warning("crash_dir: a report cannot be written: %s", error)
