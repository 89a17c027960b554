"""Requests that break one rule of HTTP each, as the bytes that go over the socket.

A case starts from a legal request and changes one thing. ``MOST_BYTES`` and the short time limits
are those of the service in ``conftest.py``.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass

from tests.kit.http1 import pairs, request

MOST_BYTES = 1 << 20
GOOD = pairs(x="1")
EMPTY = b"{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One bad request.

    Attributes:
        rule: what is broken, in words; the test's id.
        data: what is sent.
        status: the answers that are right; none when the connection just ends.
        stays: whether the connection must still be good afterwards; else it must be closed.
    """

    rule: str
    data: bytes
    status: tuple[int, ...] = (400,)
    stays: bool = False


def _line(rule: str, line: bytes, *status: int, stays: bool = False) -> Case:
    data = b"%s\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (line, len(GOOD), GOOD)
    return Case(rule=rule, data=data, status=status or (400,), stays=stays)


def _target(rule: str, target: bytes, *status: int, stays: bool = False) -> Case:
    return _line(rule, b"POST %s HTTP/1.1" % target, *status, stays=stays)


def _field(rule: str, *fields: bytes, status: int = 400, stays: bool = False) -> Case:
    return Case(rule=rule, data=request(GOOD, *fields), status=(status,), stays=stays)


def _host(rule: str, host: bytes) -> Case:
    return Case(rule=rule, data=request(GOOD, host=host))


def _length(rule: str, value: bytes, *status: int) -> Case:
    data = request(EMPTY, b"Content-Length: " + value, length=False)
    return Case(rule=rule, data=data, status=status or (400,))


def chunked(body: bytes, coding: bytes = b"chunked", *fields: bytes) -> bytes:
    """A request whose body is given chunk by chunk, as it stands here."""
    return request(body, b"Transfer-Encoding: " + coding, *fields, length=False)


def _coding(rule: str, coding: bytes, *status: int) -> Case:
    return Case(rule=rule, data=chunked(b"2\r\n{}\r\n0\r\n\r\n", coding), status=status or (400,))


def _chunk(rule: str, body: bytes) -> Case:
    return Case(rule=rule, data=chunked(body))


def _packed(rule: str, encoding: bytes, body: bytes, status: int, stays: bool = True) -> Case:
    data = request(body, b"Content-Encoding: " + encoding)
    return Case(rule=rule, data=data, status=(status,), stays=stays)


def _request_lines() -> list[Case]:
    return [
        _line("no version", b"POST /uci/prediction", 400, 505),
        _line("version 0.9", b"POST /uci/prediction HTTP/0.9", 400, 505),
        _line("version 1.2", b"POST /uci/prediction HTTP/1.2", 400, 505),
        _line("version 2.0", b"POST /uci/prediction HTTP/2.0", 400, 505),
        _line("version 3.0", b"POST /uci/prediction HTTP/3.0", 400, 505),
        _line("version in small letters", b"POST /uci/prediction http/1.1"),
        _line("a tab between the words", b"POST\t/uci/prediction HTTP/1.1"),
        _line("a blank before the method", b" POST /uci/prediction HTTP/1.1"),
        _line("a method that is no token", b"PO(ST /uci/prediction HTTP/1.1"),
        _line("an unknown method", b"BREW /uci/prediction HTTP/1.1"),
        _line("a blank in the target", b"POST /uci/pre diction HTTP/1.1"),
        _line("NUL in the target", b"POST /uci/pre\0diction HTTP/1.1"),
        _line("a control character in the target", b"POST /uci/pre\x01diction HTTP/1.1"),
        _line("DEL in the target", b"POST /uci/pre\x7fdiction HTTP/1.1"),
        _line("a bare CR in the line", b"POST /uci/pre\rdiction HTTP/1.1"),
        _line("letters beyond ASCII in the target", b"POST /uci/pr\xc3\xa9diction HTTP/1.1"),
        Case(rule="a bare CR at the line's end", data=b"POST / HTTP/1.1\rHost: x\r\n\r\n"),
        Case(rule="bare LF at the lines' ends", data=b"POST / HTTP/1.1\nHost: x\n\n"),
        _target("the target * with POST", b"*"),
        _target("a target without a slash", b"uci/prediction"),
        _target("an authority as target", b"x:80"),
        _target("a fragment in the target", b"/uci/prediction#x"),
        _target("a bad percent escape", b"/uci/pred%zz", stays=True),
        _target("half a percent escape", b"/uci/pred%2", stays=True),
        Case(rule="CONNECT", data=b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"),
        _target("a target over 8 KiB", b"/uci/" + b"a" * 9000, 414),
        _target("a query over 8 KiB", b"/uci/prediction?" + b"a" * 9000, 414),
        _target("a target of 200 KiB", b"/uci/" + b"a" * 200_000, 400, 414),
        Case(
            rule="a TLS greeting", data=b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(99)
        ),
        Case(rule="bytes of nothing known", data=b"\0\1\2\3\r\n\r\n"),
    ]


def _fields() -> list[Case]:
    return [
        _field(
            "a head over 16 KiB", *(b"X-%d: %s" % (n, b"a" * 999) for n in range(18)), status=431
        ),
        _field("a head of 101 fields", *(b"X-%d: a" % n for n in range(101)), status=431),
        _field("a field over 8 KiB", b"X: " + b"a" * 9000, status=431),
        _field("a field's name over 8 KiB", b"X" * 9000 + b": a", status=431),
        _field("a blank in a field's name", b"X y: a"),
        _field("a blank before the colon", b"X : a"),
        _field("a field without a name", b": a"),
        _field("a field without a colon", b"Xa"),
        _field("a field's name that is no token", b"X(: a"),
        _field("letters beyond ASCII in a field's name", b"X\xc3\xa9: a"),
        _field("a folded field", b"X: a\r\n b"),
        Case(rule="a blank before the first field", data=b"POST / HTTP/1.1\r\n Host: x\r\n\r\n"),
        _field("NUL in a value", b"X: a\0b"),
        _field("a control character in a value", b"X: a\x01b"),
        _field("DEL in a value", b"X: a\x7fb"),
        _field("a bare CR in a value", b"X: a\rb"),
        _field("a bare LF in a value", b"X: a\nb: c"),
        _host("no Host", b""),
        _host("two Hosts", b"Host: x\r\nHost: x"),
        _host("a blank in Host", b"Host: a b"),
        _host("a path in Host", b"Host: a/b"),
        _host("a user in Host", b"Host: a@b"),
        _field("an Expect that nobody knows", b"Expect: miracle", status=200, stays=True),
    ]


def _framing() -> list[Case]:
    return [
        _length("a length with a sign", b"+2"),
        _length("a negative length", b"-2"),
        _length("a length in hex", b"0x2"),
        _length("a list of lengths", b"2, 2"),
        _length("a length of nothing", b""),
        _length("a length with letters", b"2a"),
        _length("a length with an underscore", b"0_2"),
        _length("a length in other digits", b"\xd9\xa2"),
        _length("a length over 2^64", b"99999999999999999999999"),
        _length("a length over 2^63", b"9223372036854775809", 400, 413),
        _length("two lengths alike", b"2\r\nContent-Length: 2"),
        _length("two lengths unlike", b"2\r\nContent-Length: 3"),
        Case(
            rule="a length and chunks",
            data=chunked(b"2\r\n{}\r\n0\r\n\r\n", b"chunked", b"Content-Length: 12"),
        ),
        _coding("the coding gzip", b"gzip", 400, 501),
        _coding("the coding gzip under chunks", b"gzip, chunked", 400, 501),
        _coding("chunked twice", b"chunked, chunked"),
        _coding("chunked before the last coding", b"chunked, gzip"),
        _coding("the coding identity", b"identity"),
        _coding("chunked with a parameter", b"chunked;q=1"),
        _coding("chunked in quotes", b'"chunked"'),
        _coding("chunked behind a control character", b"\x0bchunked"),
        _coding("an empty coding", b""),
        _coding("two coding fields", b"chunked\r\nTransfer-Encoding: chunked"),
        Case(
            rule="chunks in HTTP/1.0",
            data=request(
                b"2\r\n{}\r\n0\r\n\r\n",
                b"Transfer-Encoding: chunked",
                version=b"HTTP/1.0",
                length=False,
            ),
        ),
        _chunk("a chunk size over 64 bits", b"FFFFFFFFFFFFFFFFF\r\n{}\r\n"),
        _chunk("no chunk size", b"\r\n{}\r\n0\r\n\r\n"),
        _chunk("a chunk size like 0x2", b"0x2\r\n{}\r\n0\r\n\r\n"),
        _chunk("a chunk size with a sign", b"+2\r\n{}\r\n0\r\n\r\n"),
        _chunk("a negative chunk size", b"-2\r\n{}\r\n0\r\n\r\n"),
        _chunk("a blank before the chunk size", b" 2\r\n{}\r\n0\r\n\r\n"),
        _chunk("a blank behind the chunk size", b"2 \r\n{}\r\n0\r\n\r\n"),
        _chunk("a chunk size that is no hex", b"g\r\n{}\r\n0\r\n\r\n"),
        _chunk("chunks with bare LF", b"2\n{}\n0\n\n"),
        _chunk("no line end behind a chunk", b"2\r\n{}0\r\n\r\n"),
        _chunk("a chunk longer than its size", b"2\r\n{}x\r\n0\r\n\r\n"),
        _chunk("NUL in a chunk extension", b"2;a=\0\r\n{}\r\n0\r\n\r\n"),
        _chunk("a trailer that is no field", b"2\r\n{}\r\n0\r\nX y: z\r\n\r\n"),
        _chunk("over 65,536 chunks", b"1\r\n \r\n" * 65_537 + b"0\r\n\r\n"),
        Case(
            rule="a body announced over the limit",
            data=request(b"", b"Content-Length: %d" % (MOST_BYTES + 1), length=False),
            status=(413,),
        ),
        Case(
            rule="a body announced over the limit, asking first",
            data=request(
                b"",
                b"Expect: 100-continue",
                b"Content-Length: %d" % (MOST_BYTES + 1),
                length=False,
            ),
            status=(413,),
        ),
        Case(
            rule="a body found over the limit",
            data=chunked(b"110000\r\n" + b" " * 0x110000 + b"\r\n0\r\n\r\n"),
            status=(413,),
        ),
    ]


def _routes() -> list[Case]:
    return [
        _line("GET of a service", b"GET /uci/prediction HTTP/1.1", 405, stays=True),
        _line("POST of a probe", b"POST /livez HTTP/1.1", 405, stays=True),
        _target("one path segment", b"/uci", 404, stays=True),
        _target("three path segments", b"/uci/prediction/x", 404, stays=True),
        _target("a slash at the end", b"/uci/prediction/", 404, stays=True),
        _target("an empty first segment", b"//prediction", 404, stays=True),
        _target("an escaped slash", b"/uci/a%2fb", 404, stays=True),
        _target("an escaped backslash", b"/uci/a%5cb", 404, stays=True),
        _target("an escaped NUL", b"/uci/a%00b", 404, stays=True),
        _target("an escaped control character", b"/uci/a%0ab", 404, stays=True),
        _target("escaped bytes that are no UTF-8", b"/uci/%ff", 404, stays=True),
        _target("two dots", b"/uci/..", 404, stays=True),
        _target("two dots, escaped", b"/uci/%2e%2e", 404, stays=True),
        _target("one dot", b"/./prediction", 404, stays=True),
        *(
            _line(
                f"the admin path {path}", b"%s %s HTTP/1.1" % (verb, path.encode()), 404, stays=True
            )
            for verb, path in (
                (b"GET", "/admin"),
                (b"GET", "/metrics/../admin"),
                (b"POST", "/v2/repository/models/uci/load"),
                (b"POST", "/v2/shutdown/now"),
                (b"GET", "/debug/pprof/profile"),
            )
        ),
    ]


def _encodings() -> list[Case]:
    packed = gzip.compress(GOOD)
    return [
        _packed("an unknown content encoding", b"br", GOOD, 415),
        _packed("deflate", b"deflate", GOOD, 415),
        _packed("two content encodings", b"gzip, gzip", GOOD, 415),
        _packed("an empty content encoding", b"", GOOD, 415),
        Case(
            rule="two content encoding fields",
            data=request(GOOD, b"Content-Encoding: gzip", b"Content-Encoding: gzip"),
            status=(415,),
        ),
        _packed("gzip that is none", b"gzip", GOOD, 400),
        _packed("gzip that is cut off", b"gzip", packed[:-3], 400),
        _packed("gzip with bytes behind it", b"gzip", packed + b"x", 400),
        _packed("gzip with a wrong checksum", b"gzip", packed[:-8] + bytes(8), 400),
        _packed("two gzip members", b"gzip", packed * 2, 400),
        _packed("gzip of far too much", b"gzip", gzip.compress(bytes(64 << 20)), 413, stays=False),
    ]


def cases() -> list[Case]:
    """Every case; rules are unique."""
    return [*_request_lines(), *_fields(), *_framing(), *_routes(), *_encodings()]
