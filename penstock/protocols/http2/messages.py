"""What makes a head or trailers well-formed: lists of fields to heads, or a refusal.

Everything here happens once per distinct header block; the connection remembers the result.

Source: RFC 9113, sections 8.1 to 8.3, and RFC 9110, sections 5.1, 5.5, 7.2 and 8.6.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from penstock.protocols.heads import HTTP_2, Headers, RequestHead, ResponseHead
from penstock.protocols.http2.codes import MalformedMessage

Fields: TypeAlias = Sequence[tuple[bytes, bytes]]

_REQUEST_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path"})
_RESPONSE_PSEUDO: Final = frozenset({b":status"})
_NO_PSEUDO: Final[frozenset[bytes]] = frozenset()
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
_SPECIAL: Final = _OF_CONNECTIONS | {b"te", b"content-length", b"host", b"cookie"}

_LOWER_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
_TOKEN: Final = _LOWER_TOKEN + b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_VISIBLE: Final = bytes(range(0x21, 0x7F))
_IN_VALUES: Final = b"\t " + _VISIBLE + bytes(range(0x80, 0x100))
_IN_TARGETS: Final = _VISIBLE.replace(b"#", b"")
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*")
_HOST: Final = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+)(?::[0-9]{0,5})?"
)
_STATUS: Final = re.compile(rb"[1-5][0-9][0-9]")
_LONGEST_LENGTH: Final = 18
"""Digits of a content-length: anything longer is no length of a body."""


def request_head(fields: Fields) -> RequestHead:
    """The head of a request.

    Raises:
        MalformedMessage: with what is wrong, in words that show none of the peer's bytes.
    """
    pseudo, headers, special = _sorted(fields, _REQUEST_PSEUDO)
    method = pseudo.get(b":method", b"")
    if not method or method.translate(None, _TOKEN):
        raise MalformedMessage("no valid :method")
    authority = _authority(pseudo.get(b":authority"), special.get(b"host", []))
    if method == b"CONNECT":
        if b":scheme" in pseudo or b":path" in pseudo:
            raise MalformedMessage("CONNECT with :scheme or :path")
        target = authority
    else:
        if not _SCHEME.fullmatch(pseudo.get(b":scheme", b"")):
            raise MalformedMessage("no valid :scheme")
        target = _target(pseudo.get(b":path", b""), method)
    return RequestHead(
        method.decode("ascii"),
        target,
        _joined_cookies(headers) if b"cookie" in special else tuple(headers),
        version=HTTP_2,
        authority=authority,
        content_length=_content_length(special),
    )


def response_head(fields: Fields) -> ResponseHead:
    """The head of a response, interim ones included.

    Raises:
        MalformedMessage: as for requests.
    """
    pseudo, headers, special = _sorted(fields, _RESPONSE_PSEUDO)
    status = pseudo.get(b":status", b"")
    if not _STATUS.fullmatch(status) or status == b"101":
        raise MalformedMessage("no valid :status")
    _content_length(special)
    return ResponseHead(int(status), tuple(headers))


def trailers(fields: Fields) -> Headers:
    """The fields behind a body.

    Raises:
        MalformedMessage: as for requests.
    """
    return tuple(_sorted(fields, _NO_PSEUDO)[1])


_Special: TypeAlias = dict[bytes, list[bytes]]


def _sorted(
    fields: Fields, known: frozenset[bytes]
) -> tuple[dict[bytes, bytes], list[tuple[bytes, bytes]], _Special]:
    """Pseudo-headers, other fields, and of these the ones with rules of their own."""
    pseudo: dict[bytes, bytes] = {}
    headers: list[tuple[bytes, bytes]] = []
    special: _Special = {}
    for field in fields:
        name, value = field
        if value and (
            value.translate(None, _IN_VALUES) or value[0] in b"\t " or value[-1] in b"\t "
        ):
            raise MalformedMessage("a field's value has bytes that are not allowed")
        if name[:1] == b":":
            if headers or name not in known or name in pseudo:
                raise MalformedMessage("a pseudo-header that is unknown, repeated or too late")
            pseudo[name] = value
            continue
        if not name or name.translate(None, _LOWER_TOKEN):
            raise MalformedMessage("a field's name is no token in lower case")
        if name in _SPECIAL:
            if name in _OF_CONNECTIONS or (name == b"te" and value.lower() != b"trailers"):
                raise MalformedMessage("a field that speaks of the connection")
            special.setdefault(name, []).append(value)
        headers.append(field)
    return pseudo, headers, special


def _authority(announced: bytes | None, hosts: list[bytes]) -> bytes:
    """The one valid host that a request is for, as ``:authority`` or ``host`` or twice the same."""
    if len(hosts) > 1:
        raise MalformedMessage("more than one host")
    if announced is None:
        if not hosts:
            raise MalformedMessage("no host")
        announced = hosts[0]
    elif hosts and hosts[0].lower() != announced.lower():
        raise MalformedMessage("host differs from :authority")
    if not _HOST.fullmatch(announced):
        raise MalformedMessage("no valid host")
    return announced


def _target(path: bytes, method: bytes) -> bytes:
    if path[:1] != b"/" and (path != b"*" or method != b"OPTIONS"):
        raise MalformedMessage("no valid :path")
    if path.translate(None, _IN_TARGETS) or _BAD_ESCAPE.search(path):
        raise MalformedMessage("no valid :path")
    return path


def _content_length(special: _Special) -> int | None:
    lengths = special.get(b"content-length")
    if lengths is None:
        return None
    if len(lengths) > 1:
        raise MalformedMessage("more than one content-length")
    digits = lengths[0]
    # isdigit() of bytes knows the ten ASCII digits only.
    if not digits.isdigit() or len(digits) > _LONGEST_LENGTH:
        raise MalformedMessage("no valid content-length")
    return int(digits)


def _joined_cookies(headers: list[tuple[bytes, bytes]]) -> Headers:
    """One cookie field, where the first crumb was; RFC 9113, section 8.2.3."""
    crumbs = b"; ".join(value for name, value in headers if name == b"cookie")
    joined: list[tuple[bytes, bytes]] = []
    for field in headers:
        if field[0] != b"cookie":
            joined.append(field)
        elif crumbs is not None:
            joined.append((b"cookie", crumbs))
            crumbs = None  # type: ignore[assignment]
    return tuple(joined)
