"""The three log files of the original, in its folder ``PipelineServingLogs``.

A process of its own writes them (``log_writer.py``); every process of the service sends it lines
over one socket, and waits for nothing but a moment. The lines go there as well as to standard
error, but for those of the tracer, which would be lost between others.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.errors import StartupError
from penstock.observe import log_writer
from penstock.observe.logs import Beside, TextLines
from penstock.observe.tracer import TRACER

FOLDER: Final = "PipelineServingLogs"
_LAST_LINES: Final = 2.0  # seconds that the writer is given at the end
_BUFFER: Final = 1 << 20


class ToFiles(Beside):
    """Sends lines to the process that writes them. What it does not take is lost and counted.

    Args:
        line: the socket.
    """

    _waits_ms = 50

    def __init__(self, line: socket.socket) -> None:
        super().__init__()
        self.line = line
        self._lost = 0
        self._form = TextLines(
            form="%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s"
        )
        self._tracer_form = logging.Formatter("%(asctime)s %(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record's line."""
        try:
            warns = record.levelno >= logging.WARNING
            if record.name == TRACER:
                message = f"T{self._tracer_form.format(record)}"
            else:
                message = f"{'W' if warns else 'I'}{self._form.format(record)}"
            self._send(message)
            if self._lost and self._send(f"W{__name__}: {self._lost} lines were lost"):
                self._lost = 0
        except Exception:  # noqa: BLE001 - a record that cannot be formatted harms nobody
            self.handleError(record)

    def _send(self, message: str) -> bool:
        data = message.encode(errors="backslashreplace")[: log_writer.MOST_LETTER - 1]
        writable = select.poll()
        writable.register(self.line, select.POLLOUT)
        try:
            if writable.poll(self._waits_ms):
                self.line.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._waits_ms = ToFiles._waits_ms
                return True
        except OSError:  # the writer was ended, or is behind
            self._waits_ms = 0
        self._lost += 1
        return False


@contextmanager
def logging_to_files(folder: str | None) -> Iterator[None]:
    """Have all processes that are forked from now on log to the files below a folder.

    Args:
        folder: in which that of the files is made; None for no files.

    Raises:
        StartupError: they cannot be written.
    """
    if folder is None:
        yield
        return
    path = Path(folder) / FOLDER
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name in log_writer.FILES:
            (path / name).open("a").close()
    except OSError as error:
        raise StartupError(f"the log files cannot be written: {error}") from error
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    with its:
        writer = subprocess.Popen(  # noqa: S603 - this very program, and a folder of the operator's
            [sys.executable, "-I", "-S", log_writer.__file__, str(path)],
            stdin=its.fileno(),
            start_new_session=True,  # a terminal's Ctrl-C is for the service
        )
    handler = _install(ours)
    try:
        yield
    finally:
        root = logging.getLogger()
        root.handlers[:] = [each for each in root.handlers if each is not handler]
        _tracer_to(None)
        ours.close()
        # It goes on by itself while some process of the script's keeps the socket.
        with suppress(subprocess.TimeoutExpired):
            writer.wait(_LAST_LINES)


def files_line() -> int | None:
    """The descriptor of this process's socket to the writer, for a program that it becomes."""
    for each in logging.getLogger().handlers:
        if isinstance(each, ToFiles):
            return each.line.fileno()
    return None


def take_files_line(descriptor: int) -> None:
    """In such a program: log there until it ends."""
    os.set_inheritable(descriptor, False)
    _install(socket.socket(fileno=descriptor))


def _install(line: socket.socket) -> ToFiles:
    handler = ToFiles(line)
    logging.getLogger().addHandler(handler)
    _tracer_to(handler)
    return handler


def _tracer_to(handler: ToFiles | None) -> None:
    tracer = logging.getLogger(TRACER)
    tracer.handlers[:] = [] if handler is None else [handler]
    tracer.propagate = handler is None
    tracer.setLevel(logging.INFO)


def to_a_file() -> bool:
    """Whether the tracer's lines have a file of their own."""
    return not logging.getLogger(TRACER).propagate
