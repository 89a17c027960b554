"""The process that writes the three log files of the original, for all processes of a service.

A program of its own, which needs nothing but Python: ``python log_writer.py FOLDER``. It reads its
standard input, a socket that keeps messages apart: a letter (T for the tracer's lines, W for
warnings and worse, I for others) and a text. It ends when nobody can write there any more.
"""

import os
import signal
import socket
import sys
from logging import Formatter, makeLogRecord
from logging.handlers import RotatingFileHandler

FILES = {"pipeline.log": 20, "pipeline.log.wf": 10, "pipeline.tracer": 5}
"""How many old ones are kept of each."""
MOST_BYTES = 512_000_000
MOST_LETTER = 1 << 17
"""Bytes of a message."""


class Writer:
    """Writes, and turns files that have become too long into old ones.

    Args:
        folder: which there is.
        most: bytes of a file.
    """

    def __init__(self, folder: str, most: int = MOST_BYTES) -> None:
        self._files = []
        for name, kept in FILES.items():
            path = os.path.join(folder, name)
            handler = RotatingFileHandler(path, maxBytes=most, backupCount=kept, encoding="utf-8")
            handler.setFormatter(Formatter("%(message)s"))
            self._files.append(handler)

    def write(self, message: bytes) -> None:
        """Write one message where its letter says."""
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
    """Write until everybody who can send has ended; whoever stops a service stops those."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    writer = Writer(folder)
    line = socket.socket(fileno=0)
    while message := line.recv(MOST_LETTER):
        writer.write(message)
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
