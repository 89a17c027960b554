"""The process that writes the three log files of the original, for all processes of a service.

A program that needs only Python: ``python log_writer.py FOLDER``. Its standard input is a socket
with message boundaries; a message is a letter (T for the tracer's lines, W for warnings and errors,
I for others) and a text. It ends when all writers have closed the socket.
"""

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from logging import Formatter, LogRecord, makeLogRecord
from logging.handlers import RotatingFileHandler

FILES = {"pipeline.log": 20, "pipeline.log.wf": 10, "pipeline.tracer": 5}
"""The number of old files that are kept."""
MOST_BYTES = 512_000_000
MOST_LETTER = 1 << 17
"""Most bytes of a message."""
_REPORT = Formatter(
    "%(levelname)s %(asctime)s [penstock_paddle.instruments.log_writer] %(message)s"
)
_AGAIN = 60.0
"""Seconds between two reports of lines that cannot be written."""


class LogFile(RotatingFileHandler):
    """A log file. It loses lines on a full disk, and reports that on standard error."""

    _lost = 0
    _reported = -_AGAIN

    def handleError(self, record: LogRecord) -> None:
        """Count the lost line. Logging's own method would print a traceback for each."""
        self._lost += 1
        if time.monotonic() - self._reported < _AGAIN:
            return
        why = sys.exc_info()[1]
        text = f"{self.baseFilename} cannot be written: {why}; lines lost: {self._lost}"
        report = makeLogRecord({"levelname": "ERROR", "msg": text})
        with suppress(OSError, AttributeError):  # standard error may be full, or closed, as well
            sys.stderr.write(_REPORT.format(report) + "\n")
        self._reported, self._lost = time.monotonic(), 0

    def close(self) -> None:
        """Close the file, even if its last lines cannot be written."""
        try:
            super().close()
        except OSError:
            self.handleError(makeLogRecord({}))


class Writer:
    """Writes and rotates the files.

    Args:
        folder: an existing folder.
        most: most bytes of a file.
    """

    def __init__(self, folder: str, most: int = MOST_BYTES) -> None:
        self._files = []
        for name, kept in FILES.items():
            path = os.path.join(folder, name)
            handler = LogFile(path, maxBytes=most, backupCount=kept, encoding="utf-8")
            handler.setFormatter(Formatter("%(message)s"))
            self._files.append(handler)

    def write(self, message: bytes) -> None:
        """Write one message to the files of its letter."""
        kind, text = message[:1], message[1:].decode(errors="replace")
        record = makeLogRecord({"msg": text})
        log, warnings, tracer = self._files
        if kind == b"T":
            tracer.emit(record)
        else:
            log.emit(record)
        if kind == b"W":
            warnings.emit(record)

    def close(self) -> None:
        """Close the files."""
        for each in self._files:
            each.close()


def main(folder: str) -> None:
    """Write until all senders have ended. Ignores signals, which are for the senders."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    writer = Writer(folder)
    line = socket.socket(fileno=0)
    while message := line.recv(MOST_LETTER):
        writer.write(message)
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
