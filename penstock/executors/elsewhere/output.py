"""Logs what a worker on another machine writes, with its op and where it runs.

Lines that our own log has written there, as JSON, become events with the same level, logger, time
and members; every other line is one of level INFO that no ``log_level`` leaves out, as for worker
processes, whose output is the service's own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from penstock.executors.elsewhere.listener import Connected
from penstock.executors.processes.crash_report import printable

_log = logging.getLogger(__name__)

_LONGEST: Final = 64 << 10  # bytes of a line; a longer one is cut
_AT_ONCE: Final = 100  # lines between two pauses, so that a worker cannot occupy the engine
_PAUSE: Final = 0.01  # seconds
_BUFFER: Final = 64 << 10  # bytes that wait in the kernel; the worker's side keeps the newest
_LEVELS: Final = logging.getLevelNamesMapping()
_EVENT: Final = '{"time":'  # the begin of our log's lines
_TEXT: Final = "op %s: worker %s (%s): %s"


class Lines:
    """Bytes to lines."""

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete with these bytes, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        yield from filter(None, map(_last_shown, lines))
        while len(self._rest) >= _LONGEST:
            yield self._rest[:_LONGEST]
            self._rest = self._rest[_LONGEST:]

    def end(self) -> bytes:
        """What follows the last line's end; may be empty."""
        rest, self._rest = _last_shown(self._rest), b""
        return rest


def _last_shown(line: bytes) -> bytes:
    """What a terminal would show of a line that returns to its start, as those of progress do."""
    return line.rstrip(b"\r \t").rpartition(b"\r")[2]


def records_of(op: str, index: int, where: str, line: bytes) -> Iterator[logging.LogRecord]:
    """The events for a line: two if our log has written after a text without an end of line.

    Args:
        op: the op's name.
        index: the worker's number.
        where: where it runs.
        line: without its end.
    """
    text = line.decode(errors="backslashreplace")
    at = text.find(_EVENT)
    event = _event_of(text[at:]) if at >= 0 else None
    plain = text if event is None else text[:at]
    if plain:
        yield _record(op, index, where, plain, logging.INFO, _log.name)
    if event is not None:
        yield _logged(op, index, where, event)


def _logged(op: str, index: int, where: str, event: dict[str, Any]) -> logging.LogRecord:
    """An event of the worker as one of the engine."""
    level = _LEVELS.get(event["level"], logging.INFO)
    record = _record(op, index, where, event["message"], level, event["logger"])
    with suppress(ValueError):
        # The middle of the millisecond, which no rounding changes.
        record.created = datetime.fromisoformat(event["time"]).timestamp() + 0.0005
    for name, value in event.items():
        if not hasattr(record, name):
            setattr(record, name, value)
    stacks = [event.get(key) for key in ("exception", "stack")]
    more = "\n".join(each for each in stacks if type(each) is str)
    if more:
        record.exc_text = "\n".join(f"    {printable(each)}" for each in more.splitlines())
    return record


def _event_of(text: str) -> dict[str, Any] | None:
    """The members of a line of our log; None if it is another one."""
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return None
    texts = ("time", "level", "logger", "message")
    return event if all(type(event.get(each)) is str for each in texts) else None


def _record(
    op: str, index: int, where: str, text: str, level: int, logger: str
) -> logging.LogRecord:
    record = logging.makeLogRecord({
        "name": logger, "levelno": level, "levelname": logging.getLevelName(level),
        "msg": _TEXT, "args": (op, index, where, text),
    })  # fmt: skip
    record.op, record.worker, record.where = op, index, where
    return record


async def log_output(op: str, index: int, connected: Connected) -> None:
    """Log what arrives on a connection, until it ends. Its first line says where the worker runs.

    Args:
        op: the op's name.
        index: the worker's number.
        connected: a future of the connection.
    """
    link = await connected
    with link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        where = None
        async for line in _lines(link):
            if where is None:
                where = printable(line.decode(errors="backslashreplace"))
                continue
            for record in records_of(op, index, where, line):
                logging.getLogger(record.name).handle(record)  # its log_level has decided there


async def _lines(link: socket.socket) -> AsyncIterator[bytes]:
    loop, lines, count = asyncio.get_running_loop(), Lines(), 0
    while data := await _received(loop, link):
        for line in lines.receive(data):
            yield line
            count += 1
            if count % _AT_ONCE == 0:
                await asyncio.sleep(_PAUSE)
    if last := lines.end():
        yield last


async def _received(loop: asyncio.AbstractEventLoop, link: socket.socket) -> bytes:
    try:
        return await loop.sock_recv(link, _BUFFER)
    except OSError:
        return b""
