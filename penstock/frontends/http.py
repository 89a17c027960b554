"""HTTP routes: a request's parts in, a reply's parts out. Knows no server.

    POST /{name}/{method}    the pipeline protocol
    GET  /livez /readyz      probes

Errors of the transport have the original gateway's JSON form; 404 and 405 are plain text, as there.
Source: ``docs/compatibility.md`` (the HTTP gateway), RFC 9110.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

from penstock.engine.budget import Reservation
from penstock.errors import RequestError, ServiceBusy, TooLarge, Undecodable
from penstock.frontends.body import decompress
from penstock.frontends.health import Health
from penstock.frontends.pipeline import PipelineProtocol
from penstock.protocols import paddle
from penstock.protocols.status import GRPC_OF_HTTP, GrpcCode, status_of

Headers: TypeAlias = list[tuple[bytes, bytes]]
Reader: TypeAlias = Callable[[], Awaitable[bytes | None]]
"""Gives the body piece by piece; None at its end."""

JSON: Final = (b"content-type", b"application/json")
TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
CLOSE: Final = (b"connection", b"close")

_MOST_PATHS = 1024
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_GRPC_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[-A-Za-z0-9._~!$&'()*+,;=%]*)(?::[0-9]*)?")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BLANK = b" \t"
_BAD_SEGMENT = re.compile(r"[/\\\x00-\x1f\x7f]")


class HttpReply(NamedTuple):
    """A whole answer. ``content-length`` is added by the server."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What the routes enforce themselves; the rest is the server's."""

    max_body: int = 64 << 20
    body_timeout: float = 30.0
    body_pace: int = 64 << 10  # bytes a second that the time for a body grows by


class Refused(Exception):
    """Ends the exchange with this reply; not an error of ours."""

    def __init__(self, reply: HttpReply) -> None:
        self.reply = reply
        super().__init__(f"HTTP {reply.status}")


class HttpRoutes:
    """Every route of the HTTP port. Belongs to the engine's loop."""

    def __init__(self, protocol: PipelineProtocol, health: Health, limits: HttpLimits) -> None:
        self._protocol = protocol
        self._health = health
        self._limits = limits
        self._paths: dict[bytes, tuple[str, str]] = {}
        self._hosts: set[bytes | None] = set()

    async def respond(
        self,
        method: str,
        path: bytes,
        headers: Headers,
        read: Reader,
        held: Reservation,
        *,
        version: str = "1.1",
    ) -> HttpReply:
        """Answer one request; every failure is a reply.

        Args:
            method: as sent.
            path: raw, without the query.
            headers: names in lower case.
            read: gives the body.
            held: counts the bytes of body and answer; its owner gives them back when the answer
                has been read.
            version: of HTTP, as the request says.
        """
        try:
            fields = dict(headers)
            if (
                len(fields) != len(headers)
                or version != "1.1"
                or fields.get(b"host") not in self._hosts
                or b"transfer-encoding" in fields
            ):
                self._refuse_ambiguity(headers, fields, version)
            route = self._paths.get(path) or self._parse(path)
            if route is None:
                return self._plain(method, path)
            if method != "POST":
                return _text(405, "Method Not Allowed", (b"allow", b"POST"))
            timeout = _client_timeout(fields)
            # No name for the body: the call's texts are copies, so it is gone once it is decoded.
            call = paddle.decode_json(
                await self._body(fields, read, held), name=route[0], method=route[1]
            )
            if call.tensors:
                held.take(call.nbytes)  # what they decode to
            reply = await self._protocol.answer(call, timeout)
            data = paddle.encode_json(reply)
            held.add(len(data))
            return HttpReply(200, (JSON,), data)
        except RequestError as error:
            return self._failure(error)
        except Refused as refused:
            return refused.reply

    def _plain(self, method: str, path: bytes) -> HttpReply:
        """Routes that are no pipeline calls."""
        probe = {b"/livez": self._health.live, b"/readyz": self._health.ready}.get(path)
        if probe is None and path == b"*" and method != "OPTIONS":
            return failure(400, "the target * is for OPTIONS")
        if probe is None:
            return _text(404, "Not Found")
        if method not in ("GET", "HEAD"):
            return _text(405, "Method Not Allowed", (b"allow", b"GET, HEAD"))
        good, why = probe()
        return _text(200 if good else 503, why)

    async def _body(
        self, fields: dict[bytes, bytes], read: Reader, held: Reservation
    ) -> bytes | bytearray:
        """The whole body in plain. What was announced is reserved before it is read."""
        most = self._limits.max_body
        announced = _length(fields, most)
        held.take(announced)
        body: bytes | bytearray = await read() or b""
        if len(body) < announced:
            body = await _fill(bytearray(announced), body, read)
        elif not announced:
            # Grown in place: pieces kept until they are joined would be there twice.
            body = bytearray(body)
            held.take(len(body))
            while (piece := await read()) is not None:
                if len(body) + len(piece) > most:
                    raise TooLarge(f"the body is over {most} bytes")
                held.take(len(piece))
                body += piece
        encoding = fields.get(b"content-encoding")
        if encoding is not None:
            body = decompress(encoding, body, most)
            held.take(len(body))
        return body

    def _failure(self, error: RequestError) -> HttpReply:
        """The reply for what ends the call itself."""
        reply = self._protocol.as_reply(error)
        if reply is not None:
            return HttpReply(200, (JSON,), paddle.encode_json(reply))
        status = status_of(error)
        extra: tuple[tuple[bytes, bytes], ...] = ()
        if isinstance(error, ServiceBusy):
            extra = ((b"retry-after", b"1"),)
        elif isinstance(error, TooLarge):
            extra = (CLOSE,)
        return _gateway(status.http, status.grpc, str(error), *extra)

    def _parse(self, path: bytes) -> tuple[str, str] | None:
        """``(name, method)`` of a two-segment path, split before decoding; None for others."""
        route: tuple[str, str] | None = None
        if _BAD_ESCAPE.search(path):
            text = "bad percent escape in the path"
            raise Refused(_gateway(400, GrpcCode.INVALID_ARGUMENT, text))
        parts = path.split(b"/")
        if len(parts) == 3 and not parts[0] and parts[1] and parts[2]:
            name, method = _segment(parts[1]), _segment(parts[2])
            route = None if name is None or method is None else (name, method)
        if route is not None and len(self._paths) < _MOST_PATHS:
            self._paths[path] = route  # bounded, because clients choose the paths
        return route

    def _refuse_ambiguity(self, headers: Headers, fields: dict[bytes, bytes], version: str) -> None:
        """Refuse what could be framed or addressed in two ways: a proxy might read it otherwise."""
        if version not in ("1.1", "1.0"):
            raise Refused(failure(505, "the version of HTTP must be 1.0 or 1.1"))
        names = [name for name, _ in headers]
        for name in (b"host", b"content-length", b"content-encoding", b"transfer-encoding"):
            if names.count(name) > 1:
                status = 415 if name == b"content-encoding" else 400
                raise Refused(failure(status, f"the header {name.decode()} stands more than once"))
        coding = fields.get(b"transfer-encoding")
        if coding is not None and version == "1.0":
            raise Refused(failure(400, "HTTP/1.0 knows no transfer-encoding"))
        if coding is not None and coding.strip(_BLANK).lower() != b"chunked":
            raise Refused(failure(501, "the only transfer-encoding known is chunked"))
        host = fields.get(b"host")
        if host is None and version == "1.1":
            raise Refused(failure(400, "the header host is missing"))
        if host is not None and _HOST.fullmatch(host.strip(_BLANK)) is None:
            raise Refused(failure(400, "the header host is malformed"))
        if host is not None and len(self._hosts) < _MOST_PATHS:
            self._hosts.add(host)


def _segment(raw: bytes) -> str | None:
    """A path segment decoded once; None when it could be taken for more than a name."""
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        return None
    return None if text in (".", "..") or _BAD_SEGMENT.search(text) else text


def _length(fields: dict[bytes, bytes], most: int) -> int:
    """The announced length, 0 when it is not announced; refuses too much before reading it."""
    raw = fields.get(b"content-length")
    if raw is None:
        return 0
    raw = raw.strip(_BLANK)
    if not raw.isdigit():
        raise Refused(
            _gateway(400, GrpcCode.INVALID_ARGUMENT, "content-length is no number", CLOSE)
        )
    length = int(raw)
    if length > most:
        raise TooLarge(f"the body is over {most} bytes")
    return length


async def _fill(body: bytearray, piece: bytes | bytearray, read: Reader) -> bytearray:
    """Put the pieces into the space for the announced body; the server sees to its length."""
    end = 0
    with memoryview(body) as view:
        more: bytes | bytearray | None = piece
        while more is not None:
            view[end : end + len(more)] = more
            end += len(more)
            more = await read()
    return body


def _client_timeout(fields: dict[bytes, bytes]) -> float | None:
    """Seconds from ``Grpc-Timeout`` or ``Penstock-Timeout``; None when neither is there."""
    raw = fields.get(b"grpc-timeout")
    if raw is not None:
        match = _GRPC_TIMEOUT.fullmatch(raw.strip(_BLANK))
        if match is None:
            raise Undecodable("malformed grpc-timeout")
        return int(match[1]) * _UNITS[match[2]]
    raw = fields.get(b"penstock-timeout")
    if raw is None:
        return None
    if _SECONDS.fullmatch(raw.strip(_BLANK)) is None:
        raise Undecodable("malformed penstock-timeout: give seconds, such as 1.5")
    return float(raw)


def _text(status: int, text: str, *headers: tuple[bytes, bytes]) -> HttpReply:
    return HttpReply(status, (TEXT, *headers), text.encode() + b"\n")


def _gateway(status: int, code: GrpcCode, text: str, *headers: tuple[bytes, bytes]) -> HttpReply:
    return HttpReply(status, (JSON, *headers), paddle.gateway_error(code, text))


def failure(status: int, text: str) -> HttpReply:
    """A transport failure in the gateway's form; the connection closes."""
    other = GrpcCode.INVALID_ARGUMENT if status < 500 else GrpcCode.UNIMPLEMENTED
    code = GRPC_OF_HTTP.get(status, other)
    return _gateway(status, code, text, CLOSE)
