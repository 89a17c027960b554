"""A request's head: from its bytes to what it says and how its body is framed.

What could be framed or addressed in two ways is refused, because a proxy before us might read it
the other way. Valid heads are remembered by their bytes, so that a client that sends the same one
again costs a look into a dict. Source: RFC 9112, RFC 9110.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.protocols.heads import HTTP_1_0, HTTP_1_1, Headers, RequestHead
from penstock.protocols.http1.events import Http1Head
from penstock.protocols.http1.limits import BrokenRule, Http1Limits
from penstock.protocols.http1.lines import FIELD, REQUEST_LINE, HeadLines

_HEAD = re.compile(rb"%b((?:%b)*+)\r\n" % (REQUEST_LINE, FIELD))
_NAME_AND_VALUE = re.compile(rb"([^:]++):[ \t]*+([^\r]*+)\r\n")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?]*+)(.*+)")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[-A-Za-z0-9._~!$&'()*+,;=%]+)(?::[0-9]{0,5})?")
_ONLY_ONCE = (b"host", b"content-length", b"transfer-encoding")
_MOST_DIGITS = 19  # of 2**63
_MOST_LENGTH = 2**63 - 1
_BLANKS = b" \t"


class Framing:
    """A valid head and what follows from it for the connection; shared like the head.

    Attributes:
        raw: the head as it was sent.
        size: bytes of it.
        total: bytes of the request; -1 for chunks.
        head: what it says.
        event: the one that announces it.
        body_length: bytes; None for chunks.
        keep_alive: whether the client lets the connection stay.
        is_1_0: the client speaks HTTP/1.0.
        wants_no_body: the answer to HEAD.
        is_usual: neither of these two.
        awaits_continue: the client may wait for a word before it sends the body.
    """

    __slots__ = (
        "awaits_continue",
        "body_length",
        "event",
        "head",
        "is_1_0",
        "is_usual",
        "keep_alive",
        "raw",
        "size",
        "total",
        "wants_no_body",
    )

    def __init__(
        self,
        raw: bytes,
        head: RequestHead,
        body_length: int | None,
        *,
        keep_alive: bool,
        awaits_continue: bool,
    ) -> None:
        self.raw = raw
        self.size = len(raw)
        self.total = -1 if body_length is None else self.size + body_length
        self.head = head
        self.event = Http1Head(head, body_length == 0)
        self.body_length = body_length
        self.keep_alive = keep_alive
        self.is_1_0 = head.version == HTTP_1_0
        self.wants_no_body = head.method == "HEAD"
        self.is_usual = not self.is_1_0 and not self.wants_no_body
        self.awaits_continue = awaits_continue


UNREAD: Final = Framing(
    b"\0",  # no head begins so
    RequestHead("", b"", (), version=HTTP_1_1, authority=b"", content_length=None),
    None,
    keep_alive=False,
    awaits_continue=False,
)
"""Stands for a head that has not come, or could not be read, while its refusal is written."""


class HeadMemo:
    """Heads by their bytes, for connections with the same limits.

    Args:
        most: heads that are kept. When there are more, all are forgotten: those in use come back
            with the next request, and nobody can make us spend more than that.

    Attributes:
        known: head bytes to what they mean.
    """

    __slots__ = ("_most", "known")

    MOST_BYTES: Final = 2 << 10  # longer heads seldom come twice, and would fill the memory

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self.known: dict[bytes, Framing] = {}

    def keep(self, raw: bytes, framing: Framing) -> None:
        """Remember a valid head."""
        if len(raw) <= self.MOST_BYTES:
            if len(self.known) >= self._most:
                self.known.clear()
            self.known[raw] = framing


def parse_head(raw: bytes, limits: Http1Limits) -> Framing:
    """Read a head.

    Args:
        raw: from the first line to the empty one.
        limits: of the connection.

    Raises:
        BrokenRule: it cannot be accepted; for malformed lines and limits the first in its order.
    """
    match = _HEAD.fullmatch(raw)
    shortest = min(limits.max_request_line, limits.max_header_field, limits.max_header_bytes)
    if match is None or len(raw) > shortest:
        HeadLines(limits).advance(raw, 0)  # says what is wrong
    if match is None:
        raise BrokenRule(400, "malformed head")
    method, target, minor, section = match.groups()
    pairs = _NAME_AND_VALUE.findall(section)
    if len(pairs) > limits.max_header_fields:
        raise BrokenRule(431, f"more than {limits.max_header_fields} header fields")
    headers: Headers = tuple([(name.lower(), value.rstrip(_BLANKS)) for name, value in pairs])
    version = HTTP_1_1 if minor == b"1" else HTTP_1_0
    return _framing(raw, method.decode(), target, headers, version)


def _framing(raw: bytes, method: str, raw_target: bytes, headers: Headers, version: str) -> Framing:
    fields = dict(headers)
    if len(fields) != len(headers):
        _refuse_repeated(headers)
    target, authority = _target(method, raw_target)
    host = _host(fields, version)
    length = _body_length(fields, version)
    head = RequestHead(
        method,
        target,
        headers,
        version=version,
        authority=host if authority is None else authority,
        content_length=length if b"content-length" in fields else None,
    )
    asks = fields.get(b"expect", b"").lower() == b"100-continue"
    return Framing(
        raw,
        head,
        length,
        keep_alive=_keep_alive(headers, version) if b"connection" in fields else version > HTTP_1_0,
        awaits_continue=asks and version == HTTP_1_1 and length != 0,
    )


def _refuse_repeated(headers: Headers) -> None:
    names = [name for name, _ in headers]
    for name in _ONLY_ONCE:
        if names.count(name) > 1:
            raise BrokenRule(400, f"the header {name.decode()} stands more than once")


def _target(method: str, raw: bytes) -> tuple[bytes, bytes | None]:
    """The target in origin form, and the authority if it names one."""
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
    match = _ABSOLUTE.fullmatch(raw)
    if match is None or _HOST.fullmatch(match[1]) is None:
        raise BrokenRule(400, "malformed request target")
    # It outranks the Host, which must be there and valid all the same (RFC 9112, 3.2.2).
    authority, rest = match.groups()
    if rest.startswith(b"/"):
        return rest, authority
    return (b"*" if method == "OPTIONS" and not rest else b"/" + rest), authority


def _host(fields: dict[bytes, bytes], version: str) -> bytes:
    host = fields.get(b"host")
    if host is None:
        if version == HTTP_1_1:
            raise BrokenRule(400, "the header host is missing")
        return b""
    if _HOST.fullmatch(host) is None:
        raise BrokenRule(400, "the header host is malformed")
    return host


def _body_length(fields: dict[bytes, bytes], version: str) -> int | None:
    """Bytes of the body, 0 when none is announced; None for chunks."""
    coding = fields.get(b"transfer-encoding")
    raw = fields.get(b"content-length")
    if coding is not None:
        if raw is not None:
            raise BrokenRule(400, "content-length and transfer-encoding exclude each other")
        if version == HTTP_1_0:
            raise BrokenRule(400, "HTTP/1.0 knows no transfer-encoding")
        if coding.lower() != b"chunked":
            _refuse_coding(coding)
        return None
    if raw is None:
        return 0
    if not raw.isdigit() or len(raw) > _MOST_DIGITS or int(raw) > _MOST_LENGTH:
        raise BrokenRule(400, "content-length is no number, or too large a one")
    return int(raw)


def _refuse_coding(coding: bytes) -> None:
    """A coding under the chunks is merely unknown; without the chunks the body has no end."""
    *others, last = [name.strip(_BLANKS).lower() for name in coding.split(b",")]
    if last == b"chunked" and others and b"chunked" not in others and all(others):
        raise BrokenRule(501, "the only transfer-encoding known is chunked")
    raise BrokenRule(400, "transfer-encoding must be chunked")


def _keep_alive(headers: Headers, version: str) -> bool:
    words: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            words.update(word.strip(_BLANKS).lower() for word in value.split(b","))
    return b"close" not in words and (version == HTTP_1_1 or b"keep-alive" in words)
