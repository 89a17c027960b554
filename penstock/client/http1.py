"""Calls over HTTP/1.1: each call in flight has a connection to itself, and then the next one.

A request is the fields and the body that its codec has made, behind the head; a reply is the size
of the JSON in its body, a line end, and the body. The protocol has no cancellation: the connection
of a cancelled call is closed. Use on the loop's thread only.

Sources: RFC 9112; the Open Inference Protocol (REST).
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

import orjson

from penstock.client.call import OF_PROXIES, RETRYABLE, Call, Outcome, failure, nonsense
from penstock.client.connection import CallProtocol, Connection, Owner
from penstock.client.errors import CallFailed
from penstock.client.http_answer import AnswerHead, AnswerReader, BrokenAnswer
from penstock.client.messages import MAX_MESSAGE_BYTES
from penstock.protocols.heads import joined
from penstock.protocols.oip_json import JSON_SIZE
from penstock.protocols.status import GRPC_OF_HTTP, GrpcCode

IDLE: Final = 4.0
"""Seconds without a call after which a connection is closed: a server may close an idle one just
when a call is sent. Less than the 5 seconds of uvicorn."""

MOST_CONNECTIONS: Final = 100
"""Maximum connections to a server, as brpc's default of ``max_connection_per_host``; further calls
wait."""

_SILENT_MS: Final = 20_000
"""TCP_USER_TIMEOUT: milliseconds after which a peer that acknowledges no data counts as lost."""

_NUMBER: Final = re.compile("[0-9]{1,9}")
_MOST_TEXT: Final = 500
_CODES: Final = {
    **GRPC_OF_HTTP,
    408: GrpcCode.DEADLINE_EXCEEDED,
    502: GrpcCode.UNAVAILABLE,
}


class HttpConnections(Connection):
    """The connections to one server. The first is that which its owner makes.

    Args:
        owner: decides when to connect.
        loop: its loop.
        name: the endpoint, for error texts.
    """

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, name: str) -> None:
        super().__init__(owner, loop, name)
        self._idle: list[_Link] = []
        self._links: set[_Link] = set()
        self._dialing: set[asyncio.Task[None]] = set()
        self._head = f"host: {owner.authority}\r\nuser-agent: penstock\r\n".encode()

    @property
    def usable(self) -> bool:
        return bool(self._links) and not self._leaving

    def open(self, call: Call) -> bool:
        """False means that all connections are busy; another one is made."""
        now = time.monotonic()
        while self._idle:
            link = self._idle.pop()
            if now - link.free_since > IDLE or link.closing:
                link.close()
                continue
            self.opened += 1
            call.attempts += 1
            call.connection, call.stream = self, link
            link.send(call, self._request(call))
            return True
        wanted = len(self._owner.waiting) + 1
        while len(self._dialing) < min(wanted, MOST_CONNECTIONS - len(self._links)):
            task = self._loop.create_task(self._dial())
            self._dialing.add(task)
            task.add_done_callback(self._dialed)
        return False

    def leave(self, call: Call) -> None:
        """Closes its connection."""
        link = call.stream
        call.detach()
        self.given_up = True
        link.drop()

    def close(self, failed: CallFailed | None = None) -> None:
        if self._leaving and not self._links:
            return
        self._leaving = True
        self._end_calls(failed)
        for task in self._dialing:
            task.cancel()
        for link in list(self._links):
            link.close()
        if not self._links and not self._dialing:
            self._end()

    def abort(self) -> None:
        for link in list(self._links):
            link.drop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept calls from now on."""
        link = _Link(self)
        transport.set_protocol(link)
        link.connection_made(transport)
        self.settled.set_result(None)

    def added(self, link: _Link) -> None:
        """A connection was made."""
        if self._leaving:
            link.close()
            return
        self._links.add(link)
        self._idle.append(link)

    def freed(self, link: _Link, *, reusable: bool) -> None:
        """A connection has no call any more."""
        if reusable and not self._leaving:
            self._idle.append(link)
        else:
            link.close()
        if self._owner.waiting:
            self._owner.capacity_freed(self)

    def answered(self, call: Call, outcome: Outcome) -> None:
        """A call has its outcome."""
        self.has_answered = True
        call.detach()
        self._owner.call_ended(outcome)
        call.end(outcome if isinstance(outcome, bytes) else outcome.at(self._name))

    def removed(self, link: _Link) -> None:
        """A connection was closed."""
        self._links.discard(link)
        if link in self._idle:
            self._idle.remove(link)
        if not self._links and not self._dialing:
            self._end()
        elif self._owner.waiting:
            self._owner.capacity_freed(self)

    def _end(self) -> None:
        if not self.gone.done():
            self.connection_lost(None)

    def _take_calls(self) -> Collection[Call]:
        return [call for link in self._links if (call := link.take()) is not None]

    async def _dial(self) -> None:
        link = _Link(self)
        try:
            await self._owner.dial(self, link)
        except OSError:
            link.drop()
            if self._owner.waiting:
                # It may be stopping. Its calls go on, and the owner decides about those that wait.
                self._leave()
                for idle in list(self._idle):
                    idle.close()

    def _dialed(self, task: asyncio.Task[None]) -> None:
        self._dialing.discard(task)
        if not task.cancelled():
            task.result()
        if not self._links and not self._dialing:
            self._end()
        elif self._owner.waiting:
            self._owner.capacity_freed(self)

    def _request(self, call: Call) -> bytes:
        left = self._owner.left_ms(call)
        limit = b"" if left is None else b"penstock-timeout: %.3f\r\n" % (left / 1000)
        return b"POST %b HTTP/1.1\r\n%b%b%b%b" % (
            call.method.encode(), self._head, limit, call.fields, call.request,
        )  # fmt: skip


class _Link(asyncio.Protocol):
    """One connection.

    Attributes:
        free_since: monotonic seconds; when its last call ended.
    """

    def __init__(self, owner: HttpConnections) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._reader = AnswerReader()
        self._parts: list[bytes] = []
        self._size = 0
        self.free_since = time.monotonic()

    def send(self, call: Call, request: bytes) -> None:
        """Send a request."""
        assert self._transport is not None, "only connected ones are free"
        self._call = call
        self._reader, self._parts, self._size = AnswerReader(), [], 0
        self._transport.write(request)

    def take(self) -> Call | None:
        """Forget its call, and return it."""
        call, self._call = self._call, None
        return call

    @property
    def closing(self) -> bool:
        """Whether it is closed, or about to be: the server may have done it."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Disconnect."""
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Disconnect at once, and forget the call."""
        self._call = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        link = transport.get_extra_info("socket")
        with suppress(OSError):  # not supported by every system
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)
        self._owner.added(self)

    def data_received(self, data: bytes) -> None:
        if self._call is None:
            self.drop()  # nothing was asked
            return
        try:
            parts = self._reader.receive(data)
        except BrokenAnswer as broken:
            text = f"the server broke the protocol: {broken}"
            self._ended(nonsense(text), reusable=False)
            return
        self._parts += parts
        self._size += sum(map(len, parts))
        if self._size > MAX_MESSAGE_BYTES:
            text = f"the reply is over {MAX_MESSAGE_BYTES} bytes"
            self._ended(failure(GrpcCode.RESOURCE_EXHAUSTED, text), reusable=False)
        elif self._reader.ended:
            self._complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        call = self._call
        if call is not None:
            try:
                self._reader.eof()
            except BrokenAnswer:
                why = "the server closed the connection" if exc is None else f"{exc}"
                self._ended(
                    failure(GrpcCode.UNAVAILABLE, f"the connection broke: {why}"), reusable=False
                )
            else:
                self._complete()
        self._owner.removed(self)

    def _complete(self) -> None:
        head = self._reader.head
        assert head is not None, "an answer has a head"
        call = self._call
        if call is not None and call.on_head is not None:
            call.on_head(_fields(head))
        reader = self._reader
        reusable = head.reusable and not (reader.ends_with_connection or reader.surplus)
        self._ended(outcome_of(head, b"".join(self._parts)), reusable=reusable)

    def _ended(self, outcome: Outcome, *, reusable: bool) -> None:
        call = self.take()
        self._parts = []
        self.free_since = time.monotonic()
        self._owner.freed(self, reusable=reusable)
        if call is not None and not call.ended:
            self._owner.answered(call, outcome)


def outcome_of(head: AnswerHead, body: bytes) -> Outcome:
    """The reply, or the failure, that an answer is. Pure."""
    if head.status == 200:
        size = head.field(JSON_SIZE)
        if size and not (_NUMBER.fullmatch(size) and int(size) <= len(body)):
            return nonsense(f"the answer has no {size[:20]} bytes of JSON")
        return b"%d\n%b" % (int(size) if size else -1, body)
    code = _CODES.get(head.status, GrpcCode.UNKNOWN)
    told = _object_in(body)
    text = (
        _error_in(told) or body[:_MOST_TEXT].decode(errors="replace").strip() or "no reason given"
    )
    text = f"HTTP status {head.status}: {text}"
    pause = head.field("retry-after")
    if head.status in (429, 503) and _NUMBER.fullmatch(pause):
        # The server has not begun it.
        return CallFailed(code, text, retryable=True, retry_after=float(pause))
    # Servers have their own forms for errors of the caller, such as {"detail": "Not Found"}.
    is_of_caller = head.status in OF_PROXIES or (told and 400 <= head.status < 500)
    if not (is_of_caller or isinstance(told.get("error"), str)):
        return nonsense(text, code)
    return CallFailed(code, text, retryable=code in RETRYABLE)


def _object_in(body: bytes) -> dict[str, Any]:
    """The object in JSON that a body is; empty if it is none."""
    with suppress(orjson.JSONDecodeError):
        found = orjson.loads(body)
        if isinstance(found, dict):
            return found
    return {}


def _error_in(found: Mapping[str, Any]) -> str:
    """The text of an error of the Open Inference Protocol; empty if it is none."""
    text = found.get("error")
    return text[:_MOST_TEXT].strip() if isinstance(text, str) else ""


def _fields(head: AnswerHead) -> dict[bytes, bytes]:
    lines = head.raw.split(b"\r\n")[1:-1]
    pairs = (line.partition(b":") for line in lines)
    return joined((name.lower(), value.strip()) for name, _, value in pairs)


def field_lines(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header fields as lines."""
    return b"".join(b"%b: %b\r\n" % field for field in fields)


def _same(request: bytes) -> bytes:
    return request


HTTP1: Final = CallProtocol(_same, HttpConnections, encode_fields=field_lines, alpn="http/1.1")
