"""Reports of workers that died: in the log, and as files for the service's own user alone."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import threading
from dataclasses import replace
from typing import Final

from penstock.executors.processes.control import Exited
from penstock.executors.processes.report import BYTES, LINES, Report
from penstock.executors.processes.starting import how_it_ended
from penstock.executors.processes.worker import Worker
from penstock.request import Batch

MOST_FILES: Final = 100
"""In a folder; a worker that dies of each request must not fill the disk."""

_log = logging.getLogger(__name__)


class Crashes:
    """Of one op's. Files are written in a thread, one at a time: the next worker does not wait for
    a disk.

    Args:
        op: its name.
        folder: made when it is needed; None for the log alone.
    """

    def __init__(self, op: str, folder: str | None) -> None:
        self._op = op
        self._folder = folder
        self._thread: threading.Thread | None = None

    def tell(self, worker: Worker, end: Exited, lost: Batch | None) -> None:
        """Of one that has ended: in the log the last lines, in a file all that is known.

        Args:
            worker: its standard error is closed.
            end: how the kernel tells it.
            lost: the batch that it ran, if any.
        """
        how = how_it_ended(end.status)
        report = Report(
            op=self._op,
            worker=worker.index,
            pid=worker.pid,
            how=f"{how} at its time-out" if worker.late else how,
            data_ids=[] if lost is None else lost.data_ids,
            batches=worker.batches,
            peak=end.peak,
            wrote=worker.stderr.last(LINES, BYTES),
        )
        _log.log(logging.WARNING if worker.late else logging.ERROR, "%s", report.line())
        if self._folder is not None:
            self._write(self._folder, replace(report, wrote=worker.stderr.kept()))

    def _write(self, folder: str, report: Report) -> None:
        if self._thread is not None and self._thread.is_alive():
            _log.warning("crash_dir: a report was left out: one before it is still being written")
            return
        thread = threading.Thread(target=_save, args=(folder, report), daemon=True)
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


def _save(folder: str, report: Report) -> None:
    op = re.sub(r"[^\w.-]", "_", report.op)[:64]
    name = f"{op.replace('/', '-')}-{report.worker}-{report.pid}-"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if len(os.listdir(folder)) >= MOST_FILES:
            _log.warning("crash_dir: %s has %d files: no more", folder, MOST_FILES)
            return
        descriptor, _ = tempfile.mkstemp(".txt", name, folder)  # 0600, and new
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(report.text())
    except OSError as error:
        _log.warning("crash_dir: a report cannot be written: %s", error)
