"""HTTP routes: a request's parts in, a reply's parts out. Knows no server.

    POST /{name}/{method}    the pipeline protocol
    GET  /livez /readyz      probes

Errors of the transport have the original gateway's JSON form; 404 and 405 are plain text, as there.
Source: ``docs/compatibility.md`` (the HTTP gateway), RFC 9110.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from penstock.api.body import LARGE, SMALL, SMALL_PACKED, PartialBody, decompress
from penstock.api.health import Health
from penstock.api.pipeline import Answer, PipelineProtocol
from penstock.api.replies import decode_aside, encoded, what_is_left
from penstock.door.exchange import Exchange, HttpReply, Limit, Receiver
from penstock.errors import RequestError, ServiceBusy, TooLarge, Undecodable
from penstock.protocols import paddle
from penstock.protocols.grpc import GrpcError, parse_timeout
from penstock.protocols.heads import Headers, RequestHead
from penstock.protocols.status import GRPC_OF_HTTP, GrpcCode, status_of

JSON: Final = (b"content-type", b"application/json")
TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")

_JSON_ONLY: Final[Headers] = (JSON,)
_SECONDS = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BAD_SEGMENT = re.compile(r"[/\\\x00-\x1f\x7f]")


class _Refused(Exception):
    """The answer follows from the head alone: it is this one."""

    def __init__(self, reply: HttpReply) -> None:
        self.reply = reply
        super().__init__(f"HTTP {reply.status}")


@dataclass(frozen=True, slots=True)
class _Route:
    """What a head says, worked out once for all requests that share it; see RequestHead.route."""

    name: str
    method: str
    timeout: float | None
    encoding: bytes | None


class HttpRoutes:
    """Every route over HTTP; a port of the protocol. Belongs to the engine's loop.

    Args:
        protocol: answers the pipeline's calls.
        health: answers probes.
        max_body: bytes of a body, before and after decompression.
    """

    write = staticmethod(paddle.write_json)

    def __init__(self, protocol: PipelineProtocol, health: Health, *, max_body: int) -> None:
        self._protocol = protocol
        self._health = health
        self._most = max_body

    def begin(self, exchange: Exchange) -> Receiver | None:
        """Route one request. What was announced is reserved before it is read."""
        head = exchange.head
        plan: _Route | HttpReply | None = head.route
        if plan is None:
            plan = head.route = self._plan(head)
        if type(plan) is _Route:
            if exchange.over_limit:
                exchange.count_refusal(Limit.CALLS)
                self._send(exchange, _TOO_MANY)
                return None
            announced = head.content_length
            if announced is None:
                return self
            try:
                if announced > self._most:
                    raise TooLarge(f"the body is over {self._most} bytes")
                if announced <= SMALL:
                    exchange.take_small(announced)
                elif plan.encoding is not None:
                    exchange.take(announced)
                else:
                    exchange.announce(announced)
            except RequestError as error:
                self._refuse(exchange, error)
                return None
            return self
        self._send(exchange, plan if isinstance(plan, HttpReply) else self._plain(head))
        return None

    def data(self, exchange: Exchange, piece: bytes, ended: bool) -> None:
        """Take the body, which is whole in one piece as a rule, and answer at its end."""
        body = piece
        try:
            head = exchange.head
            if head.content_length is None:
                if len(piece) > self._most:
                    raise TooLarge(f"the body is over {self._most} bytes")
                exchange.take(len(piece))
            elif exchange.to_come:
                exchange.arrive(len(piece))
            partial: PartialBody | None = exchange.state
            if exchange.state is not None or not ended:
                if partial is None:
                    partial = exchange.state = PartialBody()
                partial.add(piece)
                if partial.size > self._most:
                    raise TooLarge(f"the body is over {self._most} bytes")
                if not ended:
                    return
                exchange.state = None
                if partial.size > LARGE:
                    self._later(exchange, partial)
                    return
                body = partial.join()
            route: _Route = head.route
            if route.encoding is not None and len(body) <= SMALL_PACKED:
                body = decompress(route.encoding, body, self._most)
                exchange.take(len(body))
            elif route.encoding is not None or len(body) > LARGE:
                partial = PartialBody()
                partial.add(body)
                self._later(exchange, partial)
                return
            size = len(body)
            if size > SMALL:
                exchange.decode(size)
            call = paddle.decode_json(body, name=route.name, method=route.method)
            if size > SMALL:
                exchange.decoded(size, call.held())
        except RequestError as error:
            self._refuse(exchange, error)
            return
        exchange.on_gone = self._protocol.start(call, route.timeout, self, exchange)

    def _later(self, exchange: Exchange, partial: PartialBody) -> None:
        task = asyncio.get_running_loop().create_task(self._large(exchange, partial))
        exchange.on_gone = task.cancel

    async def _large(self, exchange: Exchange, partial: PartialBody) -> None:
        """A body that others do not wait for."""
        begun = time.monotonic()
        route: _Route = exchange.head.route
        try:
            body = await self._protocol.writers.run(_whole, partial, route, self._most)
            if route.encoding is not None:
                exchange.take(len(body))

            def decode() -> paddle.Call:
                return paddle.decode_json(body, name=route.name, method=route.method)

            call = await decode_aside(self._protocol, exchange, len(body), decode)
        except RequestError as error:
            self._refuse(exchange, error)
            return
        left = what_is_left(route.timeout, begun)
        exchange.on_gone = self._protocol.start(call, left, self, exchange)

    def late(self, exchange: Exchange) -> None:
        """The body took too long to arrive."""
        self._send(exchange, failure(408, "the request took too long to arrive"))

    def done(
        self, exchange: Exchange, answer: Answer | None, error: RequestError | None, /
    ) -> None:
        """Answer a call; see Port."""
        if answer is not None:
            if not isinstance(answer, bytes):
                answer = encoded(paddle.encode_json, answer)
            exchange.reply(200, _JSON_ONLY, answer)
        elif error is not None:
            self._fail(exchange, error)

    def _refuse(self, exchange: Exchange, error: RequestError) -> None:
        """The body is not taken."""
        if isinstance(error, TooLarge):
            exchange.count_refusal(Limit.BODY)
        elif isinstance(error, ServiceBusy):
            exchange.count_refusal(Limit.BUDGET)
        self._fail(exchange, error)

    def _fail(self, exchange: Exchange, error: RequestError) -> None:
        exchange.state = None
        self._send(exchange, self._failure(error))

    @staticmethod
    def _send(exchange: Exchange, reply: HttpReply) -> None:
        exchange.reply(reply.status, reply.headers, reply.body, close=reply.close)

    def _plan(self, head: RequestHead) -> _Route | HttpReply | None:
        """What the head alone decides: a route, or an answer; None for probes, which change."""
        try:
            if head.method not in _METHODS:
                return failure(400, "unknown method")
            route = _parse(head.path)
            if route is None:
                return None if head.path in _PROBES else _no_route(head)
            if head.method != "POST":
                return _text(405, "Method Not Allowed", (b"allow", b"POST"))
            names = [name for name, _ in head.headers]
            if names.count(b"content-encoding") > 1:
                text = "the header content-encoding stands more than once"
                return failure(415, text)
            encoding = head.fields.get(b"content-encoding")
            if encoding is not None and encoding.strip().lower() == b"identity":
                encoding = None
            return _Route(*route, _client_timeout(head.fields), encoding)
        except _Refused as refused:
            return refused.reply
        except RequestError as error:
            return self._failure(error)

    def _plain(self, head: RequestHead) -> HttpReply:
        """The probes."""
        if head.method not in ("GET", "HEAD"):
            return _text(405, "Method Not Allowed", (b"allow", b"GET, HEAD"))
        good, why = self._health.live() if head.path == b"/livez" else self._health.ready()
        return _text(200 if good else 503, why)

    def _failure(self, error: RequestError) -> HttpReply:
        """The reply for what ends the call itself."""
        reply = self._protocol.as_reply(error)
        if reply is not None:
            return HttpReply(200, (JSON,), paddle.encode_json(reply))
        status = status_of(error)
        extra: tuple[tuple[bytes, bytes], ...] = ()
        if isinstance(error, ServiceBusy):
            extra = ((b"retry-after", b"1"),)
        body = paddle.gateway_error(status.grpc, str(error))
        return HttpReply(status.http, (JSON, *extra), body, isinstance(error, TooLarge))


_METHODS = frozenset(
    ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
)
_PROBES = (b"/livez", b"/readyz")


def _whole(partial: PartialBody, route: _Route, most: int) -> bytes:
    body = partial.join()
    return body if route.encoding is None else decompress(route.encoding, body, most)


def failure(status: int, text: str) -> HttpReply:
    """A failure of the transport, as the gateway says it; an HTTP/1.1 connection ends with it."""
    other = GrpcCode.INVALID_ARGUMENT if status < 500 else GrpcCode.UNIMPLEMENTED
    body = paddle.gateway_error(GRPC_OF_HTTP.get(status, other), text)
    return HttpReply(status, (JSON,), body, close=True)


def _no_route(head: RequestHead) -> HttpReply:
    if head.path == b"*" and head.method != "OPTIONS":
        return failure(400, "the target * is for OPTIONS")
    return _text(404, "Not Found")


def _parse(path: bytes) -> tuple[str, str] | None:
    """``(name, method)`` of a two-segment path, split before decoding; None for others."""
    if _BAD_ESCAPE.search(path):
        text = "bad percent escape in the path"
        raise _Refused(_gateway(400, GrpcCode.INVALID_ARGUMENT, text))
    parts = path.split(b"/")
    if len(parts) != 3 or parts[0] or not parts[1] or not parts[2]:
        return None
    name, method = _segment(parts[1]), _segment(parts[2])
    return None if name is None or method is None else (name, method)


def _segment(raw: bytes) -> str | None:
    """A path segment decoded once; None when it could be taken for more than a name."""
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        return None
    return None if text in (".", "..") or _BAD_SEGMENT.search(text) else text


def _client_timeout(fields: dict[bytes, bytes]) -> float | None:
    """Seconds from ``Grpc-Timeout`` or ``Penstock-Timeout``; None when neither is there."""
    raw = fields.get(b"grpc-timeout")
    if raw is not None:
        try:
            return parse_timeout(raw)
        except GrpcError as error:
            raise Undecodable(error.text) from error
    raw = fields.get(b"penstock-timeout")
    if raw is None:
        return None
    if _SECONDS.fullmatch(raw) is None:
        raise Undecodable("malformed penstock-timeout: give seconds, such as 1.5")
    return float(raw)


def _busy(text: str) -> HttpReply:
    body = paddle.gateway_error(GrpcCode.RESOURCE_EXHAUSTED, text)
    return HttpReply(503, (JSON, (b"retry-after", b"1")), body)


def _text(status: int, text: str, *headers: tuple[bytes, bytes]) -> HttpReply:
    return HttpReply(status, (TEXT, *headers), text.encode() + b"\n")


def _gateway(status: int, code: GrpcCode, text: str, *, close: bool = False) -> HttpReply:
    return HttpReply(status, (JSON,), paddle.gateway_error(code, text), close)


_TOO_MANY: Final = _busy("too many requests are open; try again later")
