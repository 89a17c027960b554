"""Log lines on standard error: text for people, or one JSON object per event, for programs.

Times are UTC. An object has members for what identifies the request: see ``JsonLines``.

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
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, Final, Literal, TextIO, TypeAlias

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error", "critical"]
LogFormat: TypeAlias = Literal["text", "json"]

Facts: TypeAlias = Callable[[], dict[str, Any]]
"""Makes the further members of an event, which only JSON lines have."""

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

# The placeholders of our own texts whose values are also members of JSON lines, and all others.
_PLACEHOLDER: Final = re.compile(
    r"(?:(?:^|\b)(?P<op>op) |(?P<id>data_id|log_id)=)?%(?!%)[^a-z]*[a-z]"
)

_OWN_MEMBERS: Final = ("time", "level", "logger", "message", "process")
_ATTRIBUTES: Final = frozenset([*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"])
"""Those of every record; others are a caller's ``extra``."""

_ORIGINAL: Final = "paddle_serving_server"
"""The package of Paddle Serving's names, which services written for it import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Level and format of the log; format None is the one of ``default_format``."""

    level: LogLevel = "info"
    format: LogFormat | None = None

    @property
    def number(self) -> int:
        """The level as a number of the standard library."""
        return logging.getLevelNamesMapping()[self.level.upper()]

    @property
    def is_json(self) -> bool:
        """Whether lines are JSON."""
        return (self.format or default_format()) == "json"


def default_format() -> LogFormat:
    """JSON if standard error is no terminal: then a program reads it.

    Text for services written for Paddle Serving, whose operators read its lines.
    """
    terminal = sys.stderr is not None and sys.stderr.isatty()
    return "text" if terminal or _ORIGINAL in sys.modules else "json"


class TextLines(logging.Formatter):
    """A line for each event, followed by the indented lines of its traceback.

    Args:
        writer: the name of this process, if several write to one log.
        form: format of the line; None for ours.
    """

    def __init__(self, writer: str | None = None, form: str | None = None) -> None:
        self._tag = "" if writer is None else f"{writer} "
        self._ours = form is None
        super().__init__(form or f"%(levelname)s %(asctime)s {self._tag}[%(name)s] %(message)s")

    def info(self, logger: str, text: str, facts: Facts) -> str:
        """The line that ``format`` makes, by our form, of a record of level INFO."""
        level = logging.getLevelName(logging.INFO)
        return f"{level} {_clock(time.time())} {self._tag}[{logger}] {_escaped(text)}"

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """The event's time; with a form of the caller's the local time, as ``logging`` has it."""
        return _clock(record.created) if self._ours else super().formatTime(record, datefmt)

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
    """An object for each event, on one line, in ASCII. ``writer`` as in TextLines.

    Members: ``time``, ``level``, ``logger``, ``message``, ``process`` (the writer); ``op``,
    ``data_id`` and ``log_id`` of our own messages that have them; what the caller passed as
    ``extra``; of an exception ``exception_type``, and ``exception``, its traceback.
    """

    def __init__(self, writer: str | None = None) -> None:
        super().__init__()
        import orjson  # not for the help of the command

        self._dumps = orjson.dumps
        self._writer = writer

    def format(self, record: logging.LogRecord) -> str:
        """The event as one line."""
        event = self._event(record.created, record.levelname, record.name, record.getMessage())
        if record.name.startswith("penstock"):
            event |= _members_of(record.msg, record.args)
        extra = {key: each for key, each in vars(record).items() if key not in _ATTRIBUTES}
        event |= {key: each for key, each in extra.items() if key not in _OWN_MEMBERS}
        if record.exc_info and record.exc_info[0] is not None:
            event["exception_type"] = type_name(record.exc_info[0])
            event["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            event["stack"] = record.stack_info
        return self._line(event)

    def info(self, logger: str, text: str, facts: Facts) -> str:
        """The line that ``format`` makes of a record of level INFO."""
        event = self._event(time.time(), logging.getLevelName(logging.INFO), logger, text)
        return self._line(event | facts())

    def _event(self, created: float, level: str, logger: str, message: str) -> dict[str, Any]:
        event = {"time": _clock(created), "level": level, "logger": logger, "message": message}
        return event if self._writer is None else {**event, "process": self._writer}

    def _line(self, event: dict[str, Any]) -> str:
        try:
            line = self._dumps(event)
        except TypeError:  # an integer of more than 64 bits, or a value of an ``extra``
            return json.dumps(event, default=str, skipkeys=True)
        return line.decode() if line.isascii() else json.dumps(event)


def type_name(kind: type[BaseException]) -> str:
    """The name of an exception's class, as tracebacks show it."""
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _members_of(text: object, values: object) -> dict[str, Any]:
    """The op and the ids in the arguments of one of our messages."""
    if not isinstance(values, tuple):
        return {}
    return {name: values[at] for name, at in _named_places(str(text)) if at < len(values)}


@lru_cache(256)
def _named_places(text: str) -> tuple[tuple[str, int], ...]:
    """Which arguments of a message are members, by their position."""
    found = [each["op"] or each["id"] for each in _PLACEHOLDER.finditer(text.replace("%%", ""))]
    return tuple((name, at) for at, name in enumerate(found) if name)


@lru_cache(1)
def _second(whole: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


def _clock(now: float) -> str:
    """The time by RFC 3339, in UTC, with milliseconds."""
    whole = int(now)
    return f"{_second(whole)}.{int((now - whole) * 1000):03d}+00:00"


def _escaped(text: str) -> str:
    if text.isprintable():  # faster than the search
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _indented(text: str) -> str:
    return "\n".join(_INDENT + _escaped(line) for line in text.split("\n"))


def _formatter(options: LogOptions, writer: str | None) -> logging.Formatter:
    return JsonLines(writer) if options.is_json else TextLines(writer)


def log_line(
    options: LogOptions,
    text: str,
    level: LogLevel = "info",
    error: BaseException | None = None,
) -> str:
    """A message of the command as one line of the log; as text it stays as it is.

    Args:
        options: the log's.
        text: the message.
        level: its level.
        error: the exception that it shows.
    """
    if not options.is_json:
        return text
    name = level.upper()
    record = logging.makeLogRecord({
        "name": "penstock", "levelno": logging.getLevelNamesMapping()[name], "levelname": name,
        "msg": text,
    })  # fmt: skip
    if error is not None:
        record.exception_type = type_name(type(error))
    return JsonLines().format(record)


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


def info_without_record(logger: logging.Logger, text: str, facts: Facts) -> bool:
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
    handler.put(form.info(logger.name, text, facts))
    return True


def write_while_accepted(descriptor: int, data: bytes, wait_ms: int = 0) -> bool:
    """Write a page at a time, while the descriptor accepts it within ``wait_ms`` milliseconds each;
    returns whether all is written. The rest is lost: a full pipe must not block the process.

    Raises:
        OSError: as ``write``.
    """
    writable = select.poll()
    writable.register(descriptor, select.POLLOUT)
    at = 0
    while at < len(data):
        if not writable.poll(wait_ms):
            return False
        at += os.write(descriptor, data[at : at + select.PIPE_BUF])
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
            accepted = write_while_accepted(descriptor, data, self._waits_ms)
            self._waits_ms = DirectHandler._waits_ms if accepted else 0
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
        with _other_lines_logged() if options.is_json else nullcontext():
            yield
    finally:
        root.handlers[:] = [each for each in before if not isinstance(each, DirectHandler)]
        handler.close()
        root.setLevel(level)


@contextmanager
def _other_lines_logged() -> Iterator[None]:
    """Log what the interpreter would print: warnings, and exceptions that end a thread."""
    shown, hook = warnings.showwarning, threading.excepthook

    def log_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        where = f"{filename}:{lineno}"
        logging.getLogger("py.warnings").warning("%s: %s: %s", where, category.__name__, message)

    def log_exception(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        name = None if args.thread is None else args.thread.name
        error = args.exc_value or args.exc_type()
        logging.getLogger("threading").error("thread %s ended", name, exc_info=error)

    warnings.showwarning, threading.excepthook = log_warning, log_exception
    try:
        yield
    finally:
        warnings.showwarning, threading.excepthook = shown, hook


def _may_go(handler: logging.Handler) -> bool:
    """Whether a handler may be removed: an older one of ours, or the one that ``logging.info``
    creates before logging is configured.
    """
    return isinstance(handler, DirectHandler) or (
        type(handler) is logging.StreamHandler
        and handler.stream is sys.stderr
        and getattr(handler.formatter, "_fmt", None) == logging.BASIC_FORMAT
    )
