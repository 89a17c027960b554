"""Requests that break one rule each, with their status, and whether h11 accepts them.

``h11_takes`` marks requests that only Penstock refuses. h11 refuses all others, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.protocols.http1.driving import chunked, request


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    rule: str
    data: bytes
    status: int = 400
    h11_accepts: bool = False


def _line(rule: str, line: bytes, status: int = 400, *, h11_accepts: bool = False) -> Bad:
    return Bad(rule=rule, data=request(line=line), status=status, h11_accepts=h11_accepts)


def _target(rule: str, target: bytes, status: int = 400, *, h11_accepts: bool = True) -> Bad:
    return _line(rule, b"GET %b HTTP/1.1" % target, status, h11_accepts=h11_accepts)


def _field(rule: str, *fields: bytes, status: int = 400, h11_accepts: bool = False) -> Bad:
    return Bad(rule=rule, data=request(b"", *fields), status=status, h11_accepts=h11_accepts)


def _host(rule: str, *hosts: bytes, h11_accepts: bool = False) -> Bad:
    return Bad(rule=rule, data=request(b"", *hosts, host=b""), h11_accepts=h11_accepts)


def _length(rule: str, *lengths: bytes, h11_accepts: bool = False) -> Bad:
    fields = [b"Content-Length: " + length for length in lengths]
    return Bad(rule=rule, data=request(b"{}", *fields), h11_accepts=h11_accepts)


def _coding(rule: str, *codings: bytes, status: int = 400) -> Bad:
    fields = [b"Transfer-Encoding: " + coding for coding in codings]
    return Bad(rule=rule, data=request(b"2\r\n{}\r\n0\r\n\r\n", *fields), status=status)


def _chunk(rule: str, body: bytes, *, h11_accepts: bool = False) -> Bad:
    return Bad(rule=rule, data=chunked(body), h11_accepts=h11_accepts)


REQUEST_LINES = [
    _line("no version", b"GET /"),
    _line("version 0.9", b"GET / HTTP/0.9", 505, h11_accepts=True),
    _line("version 1.2", b"GET / HTTP/1.2", 505, h11_accepts=True),
    _line("version 2.0", b"GET / HTTP/2.0", 505, h11_accepts=True),
    _line("the preface of HTTP/2", b"PRI * HTTP/2.0", 505, h11_accepts=True),
    _line("two digits of version", b"GET / HTTP/1.10"),
    _line("version without its minor", b"GET / HTTP/1"),
    _line("version in small letters", b"GET / http/1.1"),
    _line("another protocol", b"GET / RTSP/1.1"),
    _line("a blank at the line's end", b"GET / HTTP/1.1 "),
    _line("two blanks before the target", b"GET  / HTTP/1.1"),
    _line("two blanks behind the target", b"GET /  HTTP/1.1"),
    _line("a tab between the words", b"GET\t/ HTTP/1.1"),
    _line("a blank before the method", b" GET / HTTP/1.1"),
    _line("a tab before the method", b"\tGET / HTTP/1.1"),
    _line("a method that is no token", b"GE(T / HTTP/1.1"),
    _line("a colon in the method", b"GE:T / HTTP/1.1"),
    _line("no method", b"/ HTTP/1.1"),
    _line("a blank in the target", b"GET /a b HTTP/1.1"),
    _line("a tab in the target", b"GET /a\tb HTTP/1.1"),
    _line("NUL in the target", b"GET /a\0b HTTP/1.1"),
    _line("a control character in the target", b"GET /a\x01b HTTP/1.1"),
    _line("DEL in the target", b"GET /a\x7fb HTTP/1.1"),
    _line("a vertical tab as the blank", b"GET\x0b/ HTTP/1.1"),
    _line("letters beyond ASCII in the target", b"GET /\xc3\xa9 HTTP/1.1"),
    _line("letters beyond ASCII in the method", b"G\xc3\x89T / HTTP/1.1"),
    _line("a bare CR in the line", b"GET /a\rb HTTP/1.1"),
    _line("a bare CR before the line's end", b"GET / HTTP/1.1\r"),
    Bad(rule="a bare CR at the line's end", data=b"GET / HTTP/1.1\rHost: x\r\n\r\n"),
    Bad(rule="bare LF at all ends", data=b"GET / HTTP/1.1\nHost: x\n\n", h11_accepts=True),
    Bad(rule="bare LF at one end", data=b"GET / HTTP/1.1\nHost: x\r\n\r\n", h11_accepts=True),
    Bad(
        rule="bare LF at the head's end", data=b"GET / HTTP/1.1\r\nHost: x\r\n\n", h11_accepts=True
    ),
    Bad(rule="two empty lines before", data=b"\r\n\r\n" + request()),
    Bad(rule="an empty line of LF before", data=b"\n" + request()),
    Bad(rule="an empty line of CR before", data=b"\r" + request()),
    Bad(rule="a TLS greeting", data=b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(99)),
    Bad(rule="bytes of nothing known", data=b"\0\1\2\3\r\n\r\n"),
    _line("a line over its limit", b"GET /" + b"a" * 8179 + b" HTTP/1.1", 414, h11_accepts=True),
    Bad(rule="a line without an end", data=b"GET /" + b"a" * 20_000, status=414, h11_accepts=True),
]

TARGETS = [
    _target("* with GET", b"*"),
    _target("no slash", b"a/b"),
    _target("an authority with GET", b"x:80"),
    _line("CONNECT with an authority", b"CONNECT x:80 HTTP/1.1", h11_accepts=True),
    _line("CONNECT with a path", b"CONNECT / HTTP/1.1", h11_accepts=True),
    _target("a fragment", b"/a#b"),
    _target("another scheme", b"ftp://x/a"),
    _target("a scheme alone", b"http:"),
    _target("no authority", b"http:///a"),
    _target("a user in the authority", b"http://a@x/"),
    _target("a backslash in the authority", b"http://x\\y/"),
    _target("a fragment in the absolute form", b"http://x/#a"),
    _target("a port in the target that is no number", b"http://x:a/"),
]

FIELDS = [
    _field(
        "a head over 16 KiB",
        *[b"X-%d: %b" % (n, b"a" * 999) for n in range(17)],
        status=431,
        h11_accepts=True,
    ),
    _field("101 fields", *[b"X-%d: a" % n for n in range(100)], status=431, h11_accepts=True),
    _field("a field over 8 KiB", b"X: " + b"a" * 8190, status=431, h11_accepts=True),
    _field("a name over 8 KiB", b"X" * 9000 + b": a", status=431, h11_accepts=True),
    Bad(
        rule="a field without an end",
        data=b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000,
        status=431,
        h11_accepts=True,
    ),
    _field("a blank in a name", b"X y: a"),
    _field("a blank before the colon", b"X : a"),
    _field("a tab before the colon", b"X\t: a"),
    _field("no name", b": a"),
    _field("no colon", b"Xa"),
    _field("a name that is no token", b"X(: a"),
    _field("a name in quotes", b'"X": a'),
    _field("letters beyond ASCII in a name", b"X\xc3\xa9: a"),
    _field("a folded field", b"X: a\r\n b", h11_accepts=True),
    _field("a field folded with a tab", b"X: a\r\n\tb", h11_accepts=True),
    _field("a field folded to nothing", b"X: a\r\n \r\nY: b", h11_accepts=True),
    Bad(rule="a blank before the first field", data=b"GET / HTTP/1.1\r\n Host: x\r\n\r\n"),
    _field("NUL in a value", b"X: a\0b"),
    _field("a control character in a value", b"X: a\x01b", h11_accepts=True),
    _field("DEL in a value", b"X: a\x7fb", h11_accepts=True),
    _field("a bare CR in a value", b"X: a\rb"),
    _field("a bare CR at a value's end", b"X: a\r"),
    _field("a bare LF in a value", b"X: a\nTransfer-Encoding: chunked", h11_accepts=True),
    _field("a bare LF at a field's end", b"X: a\nY: b", h11_accepts=True),
]

HOSTS = [
    _host("no host"),
    _host("two hosts alike", b"Host: x", b"Host: x"),
    _host("two hosts", b"Host: x", b"host: y"),
    _host("an empty host", b"Host:", h11_accepts=True),
    _host("a list of hosts", b"Host: x, y", h11_accepts=True),
    _host("a blank in a host", b"Host: a b", h11_accepts=True),
    _host("a path in a host", b"Host: a/b", h11_accepts=True),
    _host("a user in a host", b"Host: a@b", h11_accepts=True),
    _host("a port that is no number", b"Host: a:b", h11_accepts=True),
    _host("a port alone", b"Host: :80", h11_accepts=True),
    _host("two ports", b"Host: a:1:2", h11_accepts=True),
    _host("an address without brackets", b"Host: ::1", h11_accepts=True),
    _host("half a bracket", b"Host: [::1", h11_accepts=True),
    _host("a backslash in a host", b"Host: a\\b", h11_accepts=True),
    Bad(
        rule="two hosts in HTTP/1.0",
        data=request(b"", b"Host: x", line=b"GET / HTTP/1.0"),
    ),
    Bad(
        rule="an absolute target without a host",
        data=request(line=b"GET http://x/ HTTP/1.1", host=b""),
    ),
]

FRAMING = [
    _length("a length with a sign", b"+2"),
    _length("a negative length", b"-2"),
    _length("a length in hex", b"0x2"),
    _length("a list of lengths alike", b"2, 2", h11_accepts=True),
    _length("a list of lengths", b"2, 3"),
    _length("a length of nothing", b""),
    _length("a length with letters", b"2a"),
    _length("a length with a blank inside", b"2 2"),
    _length("a length with an underscore", b"0_2"),
    _length("a length with a fraction", b"2.0"),
    _length("a length in other digits", b"\xd9\xa2"),
    _length("a length over 2^64", b"99999999999999999999", h11_accepts=True),
    _length("a length of 2^63", b"9223372036854775808", h11_accepts=True),
    _length("a length of very many digits", b"0" * 5000 + b"2"),
    _length("two lengths alike", b"2", b"2", h11_accepts=True),
    _length("two lengths", b"2", b"3"),
    Bad(
        rule="a length and chunks",
        data=chunked(b"2\r\n{}\r\n0\r\n\r\n", b"Content-Length: 12"),
        h11_accepts=True,
    ),
    _coding("another coding", b"gzip"),
    _coding("another coding under chunks", b"gzip, chunked", status=501),
    _coding("chunked twice", b"chunked, chunked"),
    _coding("chunked before the last", b"chunked, gzip"),
    _coding("identity", b"identity"),
    _coding("a parameter", b"chunked;q=1"),
    _coding("chunked in quotes", b'"chunked"'),
    _coding("chunked behind a control character", b"\x0bchunked"),
    _coding("chunked before a control character", b"chunked\x0c"),
    _coding("a part of the word", b"xchunked"),
    _coding("nothing", b""),
    _coding("an empty item", b", chunked"),
    _coding("two fields", b"chunked", b"chunked"),
    _coding("two fields, one of them identity", b"chunked", b"identity"),
    Bad(
        rule="chunks in HTTP/1.0",
        data=request(
            b"2\r\n{}\r\n0\r\n\r\n", b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0"
        ),
        h11_accepts=True,
    ),
]

CHUNKS = [
    _chunk("a size of 17 digits", b"0000000000000000" + b"2\r\n{}\r\n0\r\n\r\n", h11_accepts=True),
    _chunk("a size over 64 bits", b"FFFFFFFFFFFFFFFFF\r\n{}\r\n", h11_accepts=True),
    _chunk("no size", b"\r\n{}\r\n0\r\n\r\n"),
    _chunk("a size like 0x2", b"0x2\r\n{}\r\n0\r\n\r\n"),
    _chunk("a size with a sign", b"+2\r\n{}\r\n0\r\n\r\n"),
    _chunk("a negative size", b"-2\r\n{}\r\n0\r\n\r\n"),
    _chunk("a blank before the size", b" 2\r\n{}\r\n0\r\n\r\n"),
    _chunk("a blank behind the size", b"2 \r\n{}\r\n0\r\n\r\n", h11_accepts=True),
    _chunk("a size that is no hex", b"g\r\n{}\r\n0\r\n\r\n"),
    _chunk("an underscore in a size", b"0_2\r\n{}\r\n0\r\n\r\n"),
    _chunk("bare LF behind the size", b"2\n{}\r\n0\r\n\r\n"),
    _chunk("bare CR behind the size", b"2\r{}\r\n0\r\n\r\n"),
    _chunk("bare LF behind the data", b"2\r\n{}\n0\r\n\r\n"),
    _chunk("bare CR behind the data", b"2\r\n{}\r0\r\n\r\n"),
    _chunk("no line end behind the data", b"2\r\n{}0\r\n\r\n"),
    _chunk("a chunk longer than its size", b"2\r\n{}x\r\n0\r\n\r\n"),
    _chunk("bare LF at the end", b"2\r\n{}\r\n0\r\n\n", h11_accepts=True),
    _chunk("NUL in an extension", b"2;a=\0\r\n{}\r\n0\r\n\r\n", h11_accepts=True),
    _chunk("bare LF in an extension", b"2;a=\nb\r\n{}\r\n0\r\n\r\n"),
    _chunk("bare CR in an extension", b"2;a=\rb\r\n{}\r\n0\r\n\r\n", h11_accepts=True),
    _chunk("an extension over its limit", b"2;" + b"a" * 256 + b"\r\n{}\r\n", h11_accepts=True),
    _chunk("an extension without an end", b"2;" + b"a" * 20_000, h11_accepts=True),
    _chunk("a trailer that is no field", b"0\r\nX y: z\r\n\r\n"),
    _chunk("a folded trailer", b"0\r\nX: a\r\n b\r\n\r\n", h11_accepts=True),
    _chunk("bare LF in the trailers", b"0\r\nX: a\nY: b\r\n\r\n", h11_accepts=True),
    _chunk("trailers over 8 KiB", b"0\r\n" + b"X: %b\r\n" % (b"a" * 99) * 90, h11_accepts=True),
    _chunk("101 trailers", b"0\r\n" + b"X: a\r\n" * 101 + b"\r\n", h11_accepts=True),
    _chunk("over 65,536 chunks", b"1\r\n \r\n" * 65_537 + b"0\r\n\r\n", h11_accepts=True),
]

BAD_REQUESTS = [*REQUEST_LINES, *TARGETS, *FIELDS, *HOSTS, *FRAMING, *CHUNKS]
