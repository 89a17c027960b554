"""Validates heads and trailers: header fields to heads, or a refusal.

A field is validated once, when it is decoded: the type of the pair has the result, so that a field
from the dynamic table is not validated again. Most requests are four pseudo-headers that were seen
before and ordinary fields, which the types alone show.

Source: RFC 9113, sections 8.1 to 8.3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from penstock.protocols.heads import (
    HTTP_2,
    Headers,
    RequestHead,
    ResponseHead,
    is_host,
    is_lower_token,
    is_token,
    is_trimmed_value,
    parse_length,
)
from penstock.protocols.http2.codes import MalformedMessage

Field: TypeAlias = tuple[bytes, bytes]
Fields: TypeAlias = Sequence[Field]


class Pseudo(tuple[bytes, bytes]):
    """A valid pseudo-header of a request, independent of other fields."""

    __slots__ = ()


class Special(tuple[bytes, bytes]):
    """A valid field with a rule that depends on other fields."""

    __slots__ = ()


class Malformed(tuple[bytes, bytes]):
    """A field that makes its message malformed; it still enters the dynamic table."""

    __slots__ = ()


_REQUEST_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path"})
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
_WITH_RULES: Final = _REQUEST_PSEUDO | {
    b":status",
    b"te",
    b"content-length",
    b"host",
    b"cookie",
}
_TARGET: Final = re.compile(rb"(?:[!-\"$&-~]|%[0-9A-Fa-f]{2})++")
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*")
_STATUS: Final = re.compile(rb"[1-5][0-9][0-9]")

_MOST_NAMES: Final = 512
_LONGEST_NAME: Final = 64


class _Names(dict[bytes, bool | None]):
    """Cache of names: None for ordinary, True for those with rules, False for invalid ones."""

    def __missing__(self, name: bytes) -> bool | None:
        kind: bool | None = None
        if name in _WITH_RULES:
            kind = True
        elif is_lower_token(name) is None or name in _OF_CONNECTIONS:
            kind = False
        if len(name) <= _LONGEST_NAME:
            if len(self) >= _MOST_NAMES:
                self.clear()
            self[name] = kind
        return kind


names: Final = _Names()


def check_field(name: bytes, value: bytes) -> Field:
    """Validate a field; return it as one of the types above or as a plain tuple."""
    kind = names[name]
    if kind is False or is_trimmed_value(value) is None:
        return Malformed((name, value))
    return (name, value) if kind is None else _check_value((name, value))


def _check_value(field: Field) -> Field:
    name, value = field
    fine = True
    if name == b":path":
        if value[:1] != b"/":
            return Special(field)
        fine = _TARGET.fullmatch(value) is not None
    elif name == b":method":
        if value == b"CONNECT":
            return Special(field)
        fine = is_token(value) is not None
    elif name == b":scheme":
        fine = _SCHEME.fullmatch(value) is not None
    elif name == b":authority":
        fine = is_host(value) is not None
    elif name == b"te":
        return field if value.lower() == b"trailers" else Malformed(field)
    elif name == b"content-length":
        return Special(field) if parse_length(value) is not None else Malformed(field)
    else:
        return Special(field)
    return Pseudo(field) if fine else Malformed(field)


_FOUR: Final = [Pseudo] * 4

_targets: Final[dict[tuple[Field, ...], tuple[str, bytes, bytes, bytes]]] = {}
"""Method, path, query and authority, by four valid pseudo-headers; clients repeat them."""
_MOST_TARGETS: Final = 512
_LONGEST_TARGET: Final = 512  # maximum bytes of their values

_new_head: Final = RequestHead.__new__


def request_head(fields: list[Field]) -> RequestHead:
    """Validate the head of a request.

    Raises:
        MalformedMessage: with the reason, without any of the peer's bytes.
    """
    every = tuple(fields)
    four = every[:4]
    headers = every[4:]
    length = None
    target = _targets.get(four)
    if target is None or [*map(type, headers)].count(tuple) != len(headers):
        pseudo, rest, length = _judge_request(fields)
        headers = tuple(rest)
        path, _, query = pseudo[b":path"].partition(b"?")
        target = pseudo[b":method"].decode("ascii"), path, query, pseudo[b":authority"]
        if [*map(type, four)] == _FOUR and sum([len(each) for _, each in four]) <= _LONGEST_TARGET:
            if len(_targets) >= _MOST_TARGETS:
                _targets.clear()
            _targets[four] = target
    # ``RequestHead.__init__``, inlined: half the time.
    head = _new_head(RequestHead)
    head.method, head.path, head.query, head.authority = target
    head.version = HTTP_2
    head.headers = headers
    head.fields = dict(headers)
    head.content_length = length
    return head


def _judge_request(
    fields: list[Field],
) -> tuple[dict[bytes, bytes], list[Field], int | None]:
    """Validate any request; return pseudo-headers, other fields and content-length."""
    pseudo, headers, special = _sorted(fields, _REQUEST_PSEUDO)
    if b":method" not in pseudo:
        raise MalformedMessage("no :method")
    method = pseudo[b":method"]
    pseudo[b":authority"] = _authority(pseudo.get(b":authority"), special.get(b"host", []))
    if method == b"CONNECT":
        if b":scheme" in pseudo or b":path" in pseudo:
            raise MalformedMessage("CONNECT with :scheme or :path")
        pseudo[b":path"] = pseudo[b":authority"]
    elif b":scheme" not in pseudo:
        raise MalformedMessage("no :scheme")
    else:
        path = pseudo.get(b":path", b"")
        if path[:1] != b"/" and (path != b"*" or method != b"OPTIONS"):
            raise MalformedMessage("no valid :path")
    if b"cookie" in special:
        headers = _joined_cookies(headers)
    return pseudo, headers, _content_length(special)


def response_head(fields: Fields) -> ResponseHead:
    """Validate the head of a response, interim ones included.

    Raises:
        MalformedMessage: as for requests.
    """
    pseudo, headers, special = _sorted(fields, frozenset({b":status"}))
    status = pseudo.get(b":status", b"")
    if not _STATUS.fullmatch(status) or status == b"101":
        raise MalformedMessage("no valid :status")
    _content_length(special)
    return ResponseHead(int(status), tuple(headers))


def trailers(fields: Fields) -> Headers:
    """Validate trailers.

    Raises:
        MalformedMessage: as for requests.
    """
    return tuple(_sorted(fields, frozenset())[1])


def _sorted(
    fields: Fields, known: frozenset[bytes]
) -> tuple[dict[bytes, bytes], list[Field], dict[bytes, list[bytes]]]:
    """Return pseudo-headers, other fields, and the values of ``Special`` fields by name."""
    pseudo: dict[bytes, bytes] = {}
    headers: list[Field] = []
    special: dict[bytes, list[bytes]] = {}
    for field in fields:
        kind = type(field)
        if kind is not tuple:
            name, value = field
            if kind is Malformed:
                raise MalformedMessage("a malformed header field")
            if name[:1] == b":":
                if headers or name not in known or name in pseudo:
                    raise MalformedMessage("a pseudo-header that is unknown, repeated or too late")
                pseudo[name] = value
                continue
            special.setdefault(name, []).append(value)
        headers.append(field)
    return pseudo, headers, special


def _authority(announced: bytes | None, hosts: list[bytes]) -> bytes:
    """Return the valid host of a request: ``:authority``, ``host``, or both if they are equal."""
    if len(hosts) > 1:
        raise MalformedMessage("more than one host")
    if announced is None:
        if not hosts:
            raise MalformedMessage("no host")
        announced = hosts[0]
    elif hosts and hosts[0].lower() != announced.lower():
        raise MalformedMessage("host differs from :authority")
    if is_host(announced) is None:
        raise MalformedMessage("no valid host")
    return announced


def _content_length(special: dict[bytes, list[bytes]]) -> int | None:
    lengths = special.get(b"content-length")
    if lengths is None:
        return None
    if len(lengths) > 1:
        raise MalformedMessage("more than one content-length")
    return int(lengths[0])


def _joined_cookies(headers: list[Field]) -> list[Field]:
    """Join cookie fields at the position of the first one; RFC 9113, section 8.2.3."""
    parts = b"; ".join(value for name, value in headers if name == b"cookie")
    joined: list[Field] = []
    for field in headers:
        if field[0] != b"cookie":
            joined.append(field)
        elif parts is not None:
            joined.append((b"cookie", parts))
            parts = None  # type: ignore[assignment]
    return joined
