"""Log lines on standard error: text for people, or one JSON object per event.

Nothing here runs on import, and a program that configures logging itself keeps its configuration.
Text from clients cannot forge a line: control characters are escaped, and further lines of an
event, such as a traceback, are indented.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, Final, Literal, TextIO, TypeAlias

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error", "critical"]
LogFormat: TypeAlias = Literal["text", "json"]

Request: TypeAlias = Callable[[], dict[str, Any]]
"""Makes the member ``request`` of an event, which only JSON lines have."""

MOST_LINES: Final = 10_000
"""Most queued events; a guess at a burst of errors."""

LAST_LINES: Final = 1.0
"""Seconds to write the last lines at the end."""

_PAUSE: Final = 0.005
"""Seconds between two writes, whose lines are written together: waking the writer costs more than a
line. The first line after a pause is written at once."""

# Control characters, Unicode line ends, and characters that change the writing direction.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_INDENT: Final = "    "


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Level and format of the log."""

    level: LogLevel = "info"
    format: LogFormat = "text"

    @property
    def number(self) -> int:
        """The level as a number of the standard library."""
        return logging.getLevelNamesMapping()[self.level.upper()]


class TextLines(logging.Formatter):
    """A line for each event, followed by the indented lines of its traceback.

    Args:
        writer: the name of this process, if several write to one log.
        form: format of the line; None for ours.
    """

    def __init__(self, writer: str | None = None, form: str | None = None) -> None:
        self._tag = "" if writer is None else f"{writer} "
        super().__init__(form or f"%(levelname)s %(asctime)s {self._tag}[%(name)s] %(message)s")

    def info(self, logger: str, text: str, request: Request) -> str:
        """The line that ``format`` makes, by our form, of a record of level INFO."""
        level = logging.getLevelName(logging.INFO)
        return f"{level} {_clock(time.time())} {self._tag}[{logger}] {_escaped(text)}"

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The event's first line."""
        return _escaped(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        """The traceback, indented."""
        return _indented(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:
        """The requested stack, indented."""
        return _indented(stack_info)


class JsonLines(logging.Formatter):
    """An object for each event, on one line, in ASCII. ``writer`` as in TextLines."""

    def __init__(self, writer: str | None = None) -> None:
        super().__init__()
        import orjson  # not for the help of the command

        self._dumps = orjson.dumps
        self._writer = writer

    def format(self, record: logging.LogRecord) -> str:
        """The event as one line."""
        event = self._event(record.created, record.levelname, record.name, record.getMessage())
        request = getattr(record, "request", None)
        if request is not None:
            event["request"] = request
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            event["stack"] = record.stack_info
        return self._line(event)

    def info(self, logger: str, text: str, request: Request) -> str:
        """The line that ``format`` makes of a record of level INFO."""
        event = self._event(time.time(), logging.getLevelName(logging.INFO), logger, text)
        event["request"] = request()
        return self._line(event)

    def _event(self, created: float, level: str, logger: str, message: str) -> dict[str, Any]:
        when = _clock(created).replace(" ", "T").replace(",", ".")
        event = {"time": when, "level": level, "logger": logger, "message": message}
        return event if self._writer is None else {**event, "process": self._writer}

    def _line(self, event: dict[str, Any]) -> str:
        try:
            line = self._dumps(event)
        except TypeError:  # an integer of more than 64 bits
            return json.dumps(event)
        return line.decode() if line.isascii() else json.dumps(event)


@lru_cache(1)
def _second(whole: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(whole))


def _clock(now: float) -> str:
    """The local time with milliseconds, as ``logging`` shows it."""
    whole = int(now)
    return f"{_second(whole)},{int((now - whole) * 1000):03d}"


def _escaped(text: str) -> str:
    if text.isprintable():  # faster than the search
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _indented(text: str) -> str:
    return "\n".join(_INDENT + _escaped(line) for line in text.split("\n"))


def _formatter(options: LogOptions, writer: str | None) -> logging.Formatter:
    return JsonLines(writer) if options.format == "json" else TextLines(writer)


class BackgroundHandler(logging.Handler):
    """Passes lines to a writer thread, so that logging does not block on a disk or a reader.

    The queue is bounded, unlike that of ``logging.handlers.QueueHandler``. Lines that do not fit or
    cannot be written are dropped and counted; a later line reports the number.
    """

    def __init__(self, stream: TextIO, most: int = MOST_LINES) -> None:
        self._refusing = threading.Lock()
        self._refused = 0  # under the lock; the rest belongs to the writer thread
        self._unwritten = 0
        self._reported = 0
        self._stream = stream
        self._most = most
        self._taken = 0  # by the writer, and not yet written
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        # A daemon, because a blocked reader must not keep the process from ending.
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        super().__init__()  # from now on the interpreter's exit closes it, even if a signal comes
        self._writer.start()

    @property
    def dropped(self) -> int:
        """The number of dropped lines that has not been reported."""
        return self._refused + self._unwritten - self._reported

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record's line; never blocks."""
        try:
            self.put(self.format(record))
        except Exception:  # noqa: BLE001 - handleError reports it
            self.handleError(record)

    def put(self, line: str) -> None:
        """Queue a line; never blocks."""
        if self._lines.qsize() + self._taken < self._most:
            self._lines.put(line)
        else:
            with self._refusing:
                self._refused += 1

    def close(self) -> None:
        """Write the queued lines, within a time limit."""
        super().close()
        self._lines.put(None)
        if self._writer.is_alive():  # a signal may have interrupted its start
            self._writer.join(LAST_LINES)

    def _write(self) -> None:
        lines: list[str | None] = []
        while None not in lines:
            lines = [self._lines.get()]
            more = self._taken = self._lines.qsize()
            lines += [self._lines.get() for _ in range(more)]
            text = [f"{line}\n" for line in lines if line is not None]
            try:
                self._stream.write("".join(text))
                self._stream.flush()
            except (OSError, ValueError):  # the disk is full; the stream is closed
                self._unwritten += len(text)
                continue
            finally:
                self._taken = 0
            self._report_dropped()
            if None not in lines:
                select.select((), (), (), _PAUSE)  # unlike time.sleep, not until an absolute time

    def _report_dropped(self) -> None:
        dropped = self.dropped
        if not dropped:
            return
        record = logging.makeLogRecord({
            "name": __name__, "levelno": logging.WARNING, "levelname": "WARNING",
            "msg": f"{dropped} log lines were dropped",
        })  # fmt: skip
        try:
            self._stream.write(self.format(record) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return
        self._reported += dropped


def info_without_record(logger: logging.Logger, text: str, request: Request) -> bool:
    """Log an event of level INFO, which is enabled, without a LogRecord: that takes most of the
    time.

    Returns False, and does nothing, if others than our handler for standard error would get the
    record, or anything might filter or change it.
    """
    above, handlers = logger, [*logger.handlers]
    while above.propagate and above.parent is not None:
        above = above.parent
        handlers += above.handlers
    changed = logger.filters or logging.getLogRecordFactory() is not logging.LogRecord
    if len(handlers) != 1 or changed:
        return False
    (handler,) = handlers
    if type(handler) is not BackgroundHandler or handler.filters or handler.level > logging.INFO:
        return False
    form = handler.formatter
    if not isinstance(form, (TextLines, JsonLines)):
        return False
    handler.put(form.info(logger.name, text, request))
    return True


class DirectHandler(logging.StreamHandler[TextIO]):
    """Writes lines synchronously, for processes without threads, or before a sudden end.

    A full pipe loses lines instead of blocking the process: it waits briefly once, and not again
    until the pipe is read.
    """

    _waits_ms = 100

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record's line, a page at a time, while the pipe accepts it."""
        try:
            descriptor = self.stream.fileno()
        except (OSError, ValueError, AttributeError):
            super().emit(record)
            return
        try:
            data = (self.format(record) + self.terminator).encode(errors="backslashreplace")
            self.flush()
            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            for at in range(0, len(data), select.PIPE_BUF):
                if not writable.poll(self._waits_ms):
                    self._waits_ms = 0
                    return
                os.write(descriptor, data[at : at + select.PIPE_BUF])
            self._waits_ms = DirectHandler._waits_ms
        except OSError:  # the disk is full; it cannot be reported
            return
        except Exception:  # noqa: BLE001 - handleError reports it
            self.handleError(record)


class AdditionalHandler(logging.Handler):
    """A handler of ours that is kept beside the one for standard error."""


class _Default(int):
    """A level that we set, recognised by its type."""


@contextmanager
def logging_of_imports(options: LogOptions) -> Iterator[None]:
    """Show log lines of a script's import, unless it configures logging itself.

    Without a handler of the root logger, which would disable ``logging.basicConfig``.
    """
    root, before, last = logging.getLogger(), logging.getLogger().level, logging.lastResort
    handler = DirectHandler(sys.stderr)
    handler.setFormatter(_formatter(options, None))
    logging.lastResort = handler
    root.setLevel(_Default(options.number))
    try:
        yield
    finally:
        logging.lastResort = last
        if isinstance(root.level, _Default):
            root.setLevel(before)


@contextmanager
def logging_to_stderr(
    options: LogOptions | None = None, *, at_once: bool = False, writer: str | None = None
) -> Iterator[None]:
    """Give the root logger a handler within the context, unless the program configured logging
    itself.

    Args:
        options: level and format.
        at_once: write synchronously, for a process that will fork, or may end suddenly: it starts
            no thread, and loses lines if the log is not read. Children call this again.
        writer: see TextLines.
    """
    options = options or LogOptions()
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    before, level = root.handlers[:], root.level
    stay = [each for each in before if isinstance(each, AdditionalHandler)]
    if ours.handlers or not all(_may_go(each) for each in before if each not in stay):
        if isinstance(level, _Default):  # the program has not set the level
            root.setLevel(logging.WARNING)
        yield
        return
    handler = DirectHandler(sys.stderr) if at_once else BackgroundHandler(sys.stderr)
    handler.setFormatter(_formatter(options, writer))
    root.handlers[:] = [handler, *stay]
    root.setLevel(options.number)
    try:
        yield
    finally:
        root.handlers[:] = [each for each in before if not isinstance(each, DirectHandler)]
        handler.close()
        root.setLevel(level)


def _may_go(handler: logging.Handler) -> bool:
    """Whether a handler may be removed: an older one of ours, or the one that ``logging.info``
    creates before logging is configured.
    """
    return isinstance(handler, DirectHandler) or (
        type(handler) is logging.StreamHandler
        and handler.stream is sys.stderr
        and getattr(handler.formatter, "_fmt", None) == logging.BASIC_FORMAT
    )
