"""Parses a request's head, and determines how its body is framed.

A request that could be framed or addressed in two ways is refused, because a proxy might choose the
other one. Parsed lines are cached, because most lines of a client's requests repeat. For a field
whose values differ, such as a trace id, only the name is cached.

The lines of a partial head are validated in order, each at its end or where it exceeds a limit. So
the result does not depend on the boundaries of reads, and no byte is scanned twice. Source: RFC
9112, sections 2 to 6, strictly.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.protocols.heads import (
    BLANKS,
    HTTP_1_0,
    HTTP_1_1,
    TOKEN,
    VALUE,
    Headers,
    RequestHead,
    is_host,
    is_value,
    parse_length,
)
from penstock.protocols.http1.limits import BrokenRule, Http1Limits

_END: Final = b"\r\n"
_LINE: Final = rb"(%b++) ([!-~]++) HTTP/1\.([01])" % TOKEN
_is_request_line: Final = re.compile(rb"%b\r\n" % _LINE).fullmatch
_is_other_version: Final = re.compile(rb"%b++ [!-~]++ HTTP/[0-9]\.[0-9]\r\n" % TOKEN).fullmatch
_is_field: Final = re.compile(rb"%b++:%b*+\r\n" % (TOKEN, VALUE)).fullmatch
_begins_token: Final = re.compile(TOKEN).match
_split_request_line: Final = re.compile(_LINE).fullmatch
_VALUES: Final = bytes(byte for byte in range(256) if is_value(bytes((byte,))))
_split_field: Final = re.compile(rb"(%b++):[ \t]*+(%b*+)" % (TOKEN, VALUE)).fullmatch
_absolute: Final = re.compile(rb"(?i:https?)://([^/?]*+)(.*+)").fullmatch
_ONLY_ONCE: Final = (b"host", b"content-length", b"transfer-encoding")


class _RequestLine(NamedTuple):
    """A parsed request line. ``authority``: None if the target names none."""

    method: str
    path: bytes
    query: bytes
    authority: bytes | None
    version: str


class _RequestLines(dict[bytes, _RequestLine]):
    def __missing__(self, line: bytes) -> _RequestLine:
        match = _split_request_line(line)
        if match is None:
            raise BrokenRule(400, "malformed request line")
        method = match[1].decode()
        target, authority = _target(method, match[2])
        path, _, query = target.partition(b"?")
        version = HTTP_1_1 if match[3] == b"1" else HTTP_1_0
        found = _RequestLine(method, path, query, authority, version)
        if len(line) <= LineCache.LONGEST:
            if len(self) >= LineCache.MOST:
                self.clear()
            self[line] = found
        return found


class LineCache:
    """A cache of parsed lines, shared by the connections of a door.

    For a field whose value differs between requests, such as a trace id, only the name is cached:
    its lines would never be found again. A full cache is cleared: the lines in use return with the
    next requests, and clearing bounds the cost that a client can cause.

    Attributes:
        requests: request lines.
        fields: field lines.
        varying: names as sent, in lower case, for which ``LINES`` different lines were received.
    """

    MOST: Final = 1024
    LONGEST: Final = 192
    LINES: Final = 32

    def __init__(self) -> None:
        self.requests = _RequestLines()
        self.fields: dict[bytes, tuple[bytes, bytes]] = {}
        self.varying: dict[bytes, bytes] = {}
        self._counts: dict[bytes, int] = {}

    def complete(self, pairs: list[tuple[bytes, bytes] | None], lines: list[bytes]) -> None:
        """Parse the lines that are not cached.

        Args:
            pairs: the fields of a head; None is replaced by the parsed field.
            lines: the head's lines, including the request line.

        Raises:
            BrokenRule: a line is not a field.
        """
        varying = self.varying
        at = 0
        for _ in range(pairs.count(None)):
            at = pairs.index(None, at)
            line = lines[at + 1]
            sent, colon, value = line.partition(b":")
            name = varying.get(sent)
            if name is not None and colon and not value.translate(None, _VALUES):
                pairs[at] = name, value.strip(BLANKS)
            else:
                pairs[at] = self._learn(line)

    def _learn(self, line: bytes) -> tuple[bytes, bytes]:
        match = _split_field(line)
        if match is None:
            raise BrokenRule(400, "malformed header field")
        sent = match[1]
        found = name, value = sent.lower(), match[2].rstrip(BLANKS)
        if name == b"host":
            if is_host(value) is None:
                raise BrokenRule(400, "the header host is malformed")
        elif len(sent) <= self.LONGEST:
            count = self._counts[sent] = self._counts.get(sent, 0) + 1
            if count >= self.LINES:
                self.varying[sent] = name
        if len(line) <= self.LONGEST:
            self.fields[line] = found
        if len(self.fields) > self.MOST or len(self._counts) > self.MOST:
            self.fields.clear()
            self.varying.clear()
            self._counts.clear()
        return found


class Http1RequestHead(RequestHead):
    """A request's head, and its effects on the connection.

    Attributes:
        raw: the head as sent.
        body_length: bytes of the body; None if it is chunked.
        keep_alive: whether the client allows the connection to stay open.
        is_usual: neither HTTP/1.0 nor HEAD.
        awaits_continue: the client may wait for 100 Continue before it sends the body.
    """

    __slots__ = ("awaits_continue", "body_length", "is_usual", "keep_alive", "raw")

    raw: bytes
    body_length: int | None
    keep_alive: bool
    is_usual: bool
    awaits_continue: bool


_new_head: Final = Http1RequestHead.__new__


def _unread() -> Http1RequestHead:
    head = Http1RequestHead("", b"", (), version=HTTP_1_1, authority=b"", content_length=None)
    head.raw = b"\0"  # matches no head
    head.body_length = None
    head.keep_alive = head.awaits_continue = False
    head.is_usual = True
    return head


UNREAD: Final = _unread()
"""Stands for a head that was not received, or not understood, while its refusal is written."""


def parse_head(raw: bytes, limits: Http1Limits, cache: LineCache) -> Http1RequestHead:
    """Parse a head.

    Args:
        raw: the head, from the request line to the empty line.
        limits: the connection's limits.
        cache: the cache of lines.

    Raises:
        BrokenRule: the head is refused. Of several malformed lines or exceeded limits, the first
            one is reported.
    """
    lines = raw.split(_END)
    try:
        if len(raw) > limits.smallest:
            Lines(limits).advance(raw, 0)
        found = [*map(cache.fields.get, lines[1:-2])]
        if not all(found):
            cache.complete(found, lines)
        pairs: Headers = tuple(found)  # type: ignore[arg-type]
        method, path, query, authority, version = cache.requests[lines[0]]
    except BrokenRule:
        Lines(limits).advance(raw, 0)  # raises for the first malformed line
        raise
    if len(pairs) > limits.max_header_fields:
        raise BrokenRule(431, f"more than {limits.max_header_fields} header fields")
    fields = dict(pairs)
    if len(fields) != len(pairs):
        _refuse_repeated(pairs)
    host = fields.get(b"host")
    if host is None:
        if version == HTTP_1_1:
            raise BrokenRule(400, "the header host is missing")
        host = b""
    announced = fields.get(b"content-length")
    length: int | None = 0
    if announced is not None:
        length = parse_length(announced)
        if length is None:
            raise BrokenRule(400, "content-length is no number, or too large a one")
    # ``RequestHead.__init__``, inlined: half the time.
    head: Http1RequestHead = _new_head(Http1RequestHead)
    head.raw = raw
    head.method = method
    head.path = path
    head.query = query
    head.authority = host if authority is None else authority
    head.version = version
    head.headers = pairs
    head.fields = fields
    head.content_length = None if announced is None else length
    if b"transfer-encoding" in fields:
        _check_coding(fields[b"transfer-encoding"], announced, version)
        length = None
    head.body_length = length
    head.is_usual = version is HTTP_1_1 and method != "HEAD"
    head.keep_alive = version is HTTP_1_1
    if b"connection" in fields:
        head.keep_alive = _keep_alive(pairs, version)
    head.awaits_continue = (
        b"expect" in fields
        and fields[b"expect"].lower() == b"100-continue"
        and version is HTTP_1_1
        and length != 0
    )
    return head


def _refuse_repeated(headers: Headers) -> None:
    names = [name for name, _ in headers]
    for name in _ONLY_ONCE:
        if names.count(name) > 1:
            raise BrokenRule(400, f"the header {name.decode()} occurs more than once")


def _target(method: str, raw: bytes) -> tuple[bytes, bytes | None]:
    """Return the target in origin form, and the authority if the target names one."""
    if method == "CONNECT":
        raise BrokenRule(400, "CONNECT is for proxies")
    if b"#" in raw:
        raise BrokenRule(400, "malformed request target")
    if raw.startswith(b"/"):
        return raw, None
    if raw == b"*":
        if method != "OPTIONS":
            raise BrokenRule(400, "the target * is for OPTIONS")
        return raw, None
    match = _absolute(raw)
    if match is None or is_host(match[1]) is None:
        raise BrokenRule(400, "malformed request target")
    # It overrides Host, which must still be present and valid (RFC 9112, 3.2.2).
    authority, rest = match.groups()
    if rest.startswith(b"/"):
        return rest, authority
    return (b"*" if method == "OPTIONS" and not rest else b"/" + rest), authority


def _check_coding(coding: bytes, announced: bytes | None, version: str) -> None:
    if announced is not None:
        raise BrokenRule(400, "content-length and transfer-encoding exclude each other")
    if version == HTTP_1_0:
        raise BrokenRule(400, "HTTP/1.0 knows no transfer-encoding")
    if coding.lower() == b"chunked":
        return
    # An unknown coding below chunked is 501; a body without chunked has no defined end: 400.
    *others, last = [name.strip(BLANKS).lower() for name in coding.split(b",")]
    if last == b"chunked" and others and b"chunked" not in others and all(others):
        raise BrokenRule(501, "the only transfer-encoding known is chunked")
    raise BrokenRule(400, "transfer-encoding must be chunked")


def _keep_alive(headers: Headers, version: str) -> bool:
    words: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            words.update(word.strip(BLANKS).lower() for word in value.split(b","))
    return b"close" not in words and (version == HTTP_1_1 or b"keep-alive" in words)


class Lines:
    """Scans the lines of a head, or of trailers, up to the empty line.

    Args:
        limits: the connection's limits.
        trailers: there is no request line, and exceeding a limit is status 400.
    """

    def __init__(self, limits: Http1Limits, *, trailers: bool = False) -> None:
        self._limits = limits
        self._status = 400 if trailers else 431
        self._most_bytes = limits.max_trailer_bytes if trailers else limits.max_header_bytes
        self._most_field = limits.max_trailer_bytes if trailers else limits.max_header_field
        self._wants_request_line = not trailers
        # Offsets from ``at``, because buffers move:
        self._begin = 0  # of the fields
        self._line = 0  # of the incomplete line
        self._seen = 0  # up to which the end of that line was searched
        self._fields = 0

    def advance(self, buffer: bytes | bytearray, at: int) -> int | None:
        """Scan the bytes that were added since the last call.

        Args:
            buffer: has the lines received so far.
            at: where the lines begin in it.

        Returns:
            The length of all lines with the empty line; None while they are incomplete.

        Raises:
            BrokenRule: for the first malformed line or exceeded limit.
        """
        if self._wants_request_line:
            self._request_line(buffer, at)
            if self._wants_request_line:
                return None
        while True:
            left = self._most_bytes - (self._line - self._begin)
            stop = at + self._line + min(self._most_field + len(_END), left)
            end = buffer.find(b"\n", at + self._seen, max(stop, 0)) + 1
            if not end:
                if len(buffer) >= stop:
                    raise BrokenRule(self._status, "the header fields are too large")
                self._seen = len(buffer) - at
                return None
            line = buffer[at + self._line : end]
            self._line = self._seen = end - at
            if line == _END:
                return self._line
            if _is_field(line) is None:
                raise BrokenRule(400, "malformed header field")
            self._fields += 1
            most = self._limits.max_header_fields
            if self._fields > most:
                raise BrokenRule(self._status, f"more than {most} header fields")

    def _request_line(self, buffer: bytes | bytearray, at: int) -> None:
        # At once, because the first bytes of another protocol may never contain a line end.
        if not self._seen and len(buffer) > at and _begins_token(buffer, at) is None:
            raise BrokenRule(400, "malformed request line")
        stop = at + self._limits.max_request_line + len(_END)
        end = buffer.find(b"\n", at + self._seen, stop) + 1
        if not end:
            if len(buffer) >= stop:
                raise BrokenRule(414, "the request line is too long")
            self._seen = len(buffer) - at
            return
        line = buffer[at:end]
        if _is_request_line(line) is None:
            if _is_other_version(line) is not None:
                raise BrokenRule(505, "the version of HTTP must be 1.0 or 1.1")
            raise BrokenRule(400, "malformed request line")
        self._wants_request_line = False
        self._begin = self._line = self._seen = end - at
