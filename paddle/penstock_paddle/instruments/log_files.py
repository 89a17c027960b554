"""The three log files of the original, in its folder ``PipelineServingLogs``.

A separate process writes them (``log_writer.py``); every process of the service sends it lines over
one socket, and blocks only briefly. Lines also go to standard error, except those of the tracer.
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
from penstock.instrument import Instrument, ProcessInfo
from penstock.observe.logs import AdditionalHandler, TextLines
from penstock_paddle.instruments import log_writer
from penstock_paddle.instruments.tracer import TRACER

FOLDER: Final = "PipelineServingLogs"
_LAST_LINES: Final = 2.0  # seconds for the writer to finish at the end
_BUFFER: Final = 1 << 20
_KEPT: Final = "penstock_paddle.log_files"


class ToFiles(AdditionalHandler):
    """Sends lines to the writer process. Lines that it does not accept are dropped and counted.

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
        except Exception:  # noqa: BLE001 - handleError reports it
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
        except OSError:  # the writer has ended, or is too slow
            self._waits_ms = 0
        self._lost += 1
        return False


class LogFiles(Instrument):
    """Logs to the files in the folder of ``log_dir`` or ``SERVING_LOG_PATH``, by default the
    working directory.
    """

    _line: socket.socket | None = None  # this process's

    @contextmanager
    def in_process(self, process: ProcessInfo) -> Iterator[None]:
        """See Instrument."""
        if not process.is_first:
            if self._line is None and _KEPT in process.kept:  # else a fork, which has the handler
                self._line = socket.socket(fileno=process.kept[_KEPT])
                _install(self._line)
            yield
        else:
            folder = process.config.log_dir or os.environ.get("SERVING_LOG_PATH") or "."
            with logging_to_files(folder) as self._line:
                process.kept[_KEPT] = self._line.fileno()
                try:
                    yield
                finally:
                    self._line = None
                    del process.kept[_KEPT]


@contextmanager
def logging_to_files(folder: str) -> Iterator[socket.socket]:
    """Make this process and its later forks log to the files in a folder.

    Args:
        folder: the parent of the log folder.

    Yields:
        the socket to the writer.

    Raises:
        StartupError: they cannot be written.
    """
    path = Path(folder) / FOLDER
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name in log_writer.FILES:
            (path / name).open("a").close()
    except OSError as error:
        text = "set log_dir, or the variable SERVING_LOG_PATH, to a folder that can be written"
        raise StartupError(f"the log files cannot be written: {error}; {text}") from error
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    with its:
        writer = subprocess.Popen(  # noqa: S603 - our program, and the operator's folder
            [sys.executable, "-I", "-S", log_writer.__file__, str(path)],
            stdin=its.fileno(),
            start_new_session=True,  # a terminal's Ctrl-C is for the service
        )
    handler = _install(ours)
    try:
        yield ours
    finally:
        root = logging.getLogger()
        root.handlers[:] = [each for each in root.handlers if each is not handler]
        _tracer_to(None)
        ours.close()
        # It continues while a process of the script holds the socket.
        with suppress(subprocess.TimeoutExpired):
            writer.wait(_LAST_LINES)


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
