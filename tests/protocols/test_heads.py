"""Both versions of HTTP accept and refuse the same fields, by one table."""

from __future__ import annotations

import pytest

from penstock.protocols.http1 import Http1Limits, LineCache
from penstock.protocols.http1.head import parse_head
from penstock.protocols.http1.limits import BrokenRule
from penstock.protocols.http2.codes import MalformedMessage
from penstock.protocols.http2.messages import check_field, request_head

Field = tuple[bytes, bytes]

ACCEPTED: list[Field] = [
    (b"x", b"y"),
    (b"x", b""),
    (b"x", b"a b\tc"),
    (b"x", "Zoë".encode()),
    (b"x", bytes(range(0x80, 0x100))),
    (b"!#$%&'*+-.^_`|~0a", b"y"),
    (b"content-length", b"0"),
    (b"content-length", b"007"),
    (b"content-length", b"9" * 18),
    (b"host", b"localhost"),
    (b"host", b"localhost:"),
    (b"host", b"localhost:65535"),
    (b"host", b"[::1]:80"),
    (b"host", b"a%20b"),
]
REFUSED: list[Field] = [
    (b"x", b"a\0b"),
    (b"x", b"a\rb"),
    (b"x", b"a\nb"),
    (b"x", b"a\x7fb"),
    (b"a b", b"y"),
    (b"", b"y"),
    (b"a(", b"y"),
    (b"\xc3\xa9", b"y"),
    (b"content-length", b""),
    (b"content-length", b"+1"),
    (b"content-length", b"1,1"),
    (b"content-length", b"0x1"),
    (b"content-length", b"9" * 19),
    (b"host", b""),
    (b"host", b"user@localhost"),
    (b"host", b"localhost:port"),
    (b"host", b"localhost:655350"),
    (b"host", b"a%2"),
    (b"host", b"a/b"),
    (b"host", b"\xc3\xa9"),
]


def over_http1(field: Field) -> tuple[tuple[Field, ...], bytes, int | None]:
    host = b"" if field[0] == b"host" else b"host: localhost\r\n"
    raw = b"POST / HTTP/1.1\r\n%b%b: %b\r\n\r\n" % (host, *field)
    head = parse_head(raw, Http1Limits(), LineCache())
    return tuple(f for f in head.headers if f[0] != b"host"), head.authority, head.content_length


def over_http2(field: Field) -> tuple[tuple[Field, ...], bytes, int | None]:
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/")]
    if field[0] != b"host":
        fields.append((b":authority", b"localhost"))
    head = request_head([check_field(*each) for each in (*fields, field)])
    return tuple(f for f in head.headers if f[0] != b"host"), head.authority, head.content_length


@pytest.mark.parametrize("field", ACCEPTED)
def test_both_versions_accept_a_field_with_the_same_value(field: Field) -> None:
    assert over_http1(field) == over_http2(field)


@pytest.mark.parametrize("field", REFUSED)
def test_both_versions_refuse_a_field(field: Field) -> None:
    with pytest.raises(BrokenRule):
        over_http1(field)
    with pytest.raises(MalformedMessage):
        over_http2(field)
