"""Load over HTTP from one event loop, written down for the judge of histories."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from typing import Any, NamedTuple, Self

from penstock.testing.history import ClientHistory

PATIENCE = 20.0
"""Seconds after which a client gives an answer up; far above what any of these tests takes."""

BUSY, TIMED_OUT = 3004, 6000


class Answer(NamedTuple):
    """What a client got: ``err_no`` is None when the call itself failed."""

    status: int
    err_no: int | None
    text: str
    value: dict[str, str]
    seconds: float

    @property
    def good(self) -> bool:
        return self.status == 200 and self.err_no == 0

    @property
    def refused(self) -> bool:
        return self.err_no == BUSY or self.status == 503


class Connection:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.reusable = True

    async def answer(self) -> tuple[int, bytes]:
        """The next answer's status and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        line, *fields = head[:-4].split(b"\r\n")
        headers = dict(field.lower().split(b": ", 1) for field in fields)
        self.reusable = headers.get(b"connection") != b"close"
        body = await self.reader.readexactly(int(headers[b"content-length"]))
        return int(line.split()[1]), body

    def reset(self) -> None:
        """Vanish, without an orderly end."""
        self.writer.transport.abort()


class Clients:
    """Many callers of one service. ``history`` is their side of the story."""

    def __init__(self, port: int) -> None:
        self.history = ClientHistory()
        self._port = port
        self._free: deque[Connection] = deque()
        self._made: list[Connection] = []
        self._numbers = itertools.count(1)

    async def connect(self) -> Connection:
        """A connection; ended by ``close`` at the latest."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        connection = Connection(reader, writer)
        self._made.append(connection)
        return connection

    async def ask(self, *, limit: float | None = None, **pairs: str) -> Answer:
        """One request; its number is the log id and the nonce ``n``. Never raises for its fate.

        Args:
            limit: seconds the caller gives it, sent along.
            **pairs: more names and texts; ``n`` for another nonce than the number.
        """
        number = next(self._numbers)
        now = time.monotonic()
        nonce = pairs.get("n", str(number))
        self.history.invoke(number, nonce, now, None if limit is None else now + limit)
        try:
            async with asyncio.timeout(PATIENCE):
                connection = self._free.pop() if self._free else await self.connect()
                connection.writer.write(message(number, limit, **pairs))
                status, body = await connection.answer()
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.history.info(number, repr(error), time.monotonic())
            return Answer(0, None, repr(error), {}, time.monotonic() - now)
        if connection.reusable:
            self._free.append(connection)
        else:
            connection.writer.close()
        return self.note(number, status, body, time.monotonic() - now)

    def note(self, number: int, status: int, body: bytes, seconds: float) -> Answer:
        """Write an answer down."""
        reply: dict[str, Any] = json.loads(body)
        value = dict(zip(reply.get("key", []), reply.get("value", []), strict=True))
        answer = Answer(status, reply.get("err_no"), reply.get("err_msg", ""), value, seconds)
        now = time.monotonic()
        if answer.good:
            self.history.ok(number, value.get("n"), now)
        elif answer.refused:
            self.history.refused(number, answer.err_no or status, now)
        else:
            self.history.failed(number, answer.err_no or status, now)
        return answer

    def begin(self, pairs: dict[str, str]) -> tuple[int, bytes]:
        """A request to be sent by hand: its number, noted as asked, and its bytes."""
        number = next(self._numbers)
        self.history.invoke(number, str(number), time.monotonic())
        return number, message(number, None, **pairs)

    def left(self, number: int) -> None:
        """Note that the caller of a request went away."""
        self.history.info(number, "left", time.monotonic())

    async def close(self) -> None:
        """End every connection."""
        for connection in self._made:
            connection.writer.close()
        # A connection that the service broke has ended as well.
        endings = [connection.writer.wait_closed() for connection in self._made]
        await asyncio.gather(*endings, return_exceptions=True)


def message(number: int, limit: float | None = None, **pairs: str) -> bytes:
    """The bytes of one request."""
    whole = {"n": str(number), **pairs}
    document = {"key": list(whole), "value": list(whole.values()), "logid": number}
    body = json.dumps(document).encode()
    lines = [b"POST /faults/prediction HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body)]
    if limit is not None:
        lines.append(b"Penstock-Timeout: %.6f" % limit)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Noise:
    """How late this process itself is woken on a machine that others use too: ``worst`` seconds.

    Bounds on times add twice that, because the service is woken as late as we are.
    """

    def __init__(self) -> None:
        self.worst = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    def allows(self, seconds: float, limit: float) -> bool:
        """Whether a time is within a limit, as far as can be told."""
        return seconds < limit + 2 * self.worst

    async def _listen(self) -> None:
        pause = 0.005
        while True:
            before = time.monotonic()
            await asyncio.sleep(pause)
            self.worst = max(self.worst, time.monotonic() - before - pause)


def percentile(values: list[float], percent: float) -> float:
    """The value that so many percent of the others do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
