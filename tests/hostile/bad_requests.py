"""Requests and calls that a service must refuse, as the bytes on the socket.

The rules of HTTP/1.1 itself are in ``tests.protocols.http1.bad_requests``, and those of HTTP/2 in
the rows of ``tests.rfc``; here are those that depend on a service's routes, limits and messages.
``MOST_BYTES`` is the limit of the service in ``conftest.py``.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tests.kit import frames as f
from tests.kit.frames import StreamContent, message
from tests.kit.http1 import pairs, request
from tests.kit.http2 import METHOD, Link, call
from tests.kit.pipeline import encode
from tests.protocols.http1.bad_requests import BAD_REQUESTS
from tests.rfc import (
    test_rfc9113_3_4_framing,
    test_rfc9113_5_streams,
    test_rfc9113_6_7_frames,
    test_rfc9113_8_messages,
)
from tests.rfc.peer import Case

MOST_BYTES = 1 << 20
GOOD = pairs(x="1")
TARGET = b"POST /uci/prediction HTTP/1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """One bad request over HTTP/1.1.

    Attributes:
        rule: the broken rule, in words.
        data: the bytes sent.
        status: the answer's status.
        stays: whether the connection must stay open; else it must be closed.
    """

    rule: str
    data: bytes
    status: int
    stays_open: bool = False


def _line(line: bytes, status: int) -> Bad:
    data = b"%s\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (line, len(GOOD), GOOD)
    return Bad(rule=line.decode(), data=data, status=status, stays_open=True)


def _compressed(
    rule: str, encoding: bytes, body: bytes, status: int, *, stays_open: bool = True
) -> Bad:
    data = request(body, b"Content-Encoding: " + encoding)
    return Bad(rule=rule, data=data, status=status, stays_open=stays_open)


TOO_LARGE = b"Content-Length: %d" % (MOST_BYTES + 1)
COMPRESSED = gzip.compress(GOOD)
HTTP = [
    *[
        # To the pipeline's route: for another one the body would not be read.
        Bad(
            rule=bad.rule,
            data=bad.data.replace(b"POST /a/b HTTP/1.1", TARGET).replace(
                b"Host: x", b"Host: localhost"
            ),
            status=bad.status,
        )
        for bad in BAD_REQUESTS
    ],
    _line(b"BREW /uci/prediction HTTP/1.1", 405),
    _line(b"BREW / HTTP/1.1", 404),
    _line(b"GET /uci/prediction HTTP/1.1", 405),
    _line(b"POST /livez HTTP/1.1", 405),
    *[
        _line(b"POST %s HTTP/1.1" % target, 404)
        for target in (
            *(b"/ucis", b"/uci/prediction/x", b"/uci/prediction/", b"//prediction", b"/uci/a%2fb"),
            *(b"/uci/a%5cb", b"/uci/a%00b", b"/uci/a%0ab", b"/uci/%ff", b"/uci/..", b"/uci/%2e%2e"),
            *(b"/./prediction", b"/v2/repository/models/uci/load", b"/v2/shutdown/now", b"/admin"),
        )
    ],
    _line(b"POST /uci/pred%zz HTTP/1.1", 400),
    _line(b"POST /uci/pred%2 HTTP/1.1", 400),
    Bad(
        rule="a body announced over the limit",
        data=request(b"", TOO_LARGE, length=False),
        status=413,
    ),
    Bad(
        rule="a body announced over the limit, asking first",
        data=request(b"", b"Expect: 100-continue", TOO_LARGE, length=False),
        status=413,
    ),
    Bad(
        rule="a body found over the limit",
        data=request(
            b"110000\r\n" + b" " * 0x110000 + b"\r\n0\r\n\r\n",
            b"Transfer-Encoding: chunked",
            length=False,
        ),
        status=413,
    ),
    _compressed("an unknown content encoding", b"br", GOOD, 415),
    _compressed("two content encodings", b"gzip, gzip", GOOD, 415),
    _compressed(
        "two content encoding fields",
        b"gzip\r\nContent-Encoding: gzip",
        GOOD,
        415,
        stays_open=False,
    ),
    _compressed("an empty content encoding", b"", GOOD, 415),
    _compressed("gzip that is none", b"gzip", GOOD, 400),
    _compressed("gzip that is cut off", b"gzip", COMPRESSED[:-3], 400),
    _compressed("gzip with bytes behind it", b"gzip", COMPRESSED + b"x", 400),
    _compressed("gzip with a wrong checksum", b"gzip", COMPRESSED[:-8] + bytes(8), 400),
    _compressed("two gzip members", b"gzip", COMPRESSED * 2, 400),
    _compressed(
        "gzip of far too much", b"gzip", gzip.compress(bytes(64 << 20)), 413, stays_open=False
    ),
]


def http2_rules() -> Iterator[tuple[Case, bytes]]:
    """Rules of RFC 9113 that are broken, or kept, by the sent bytes alone."""
    for module in (
        test_rfc9113_3_4_framing,
        test_rfc9113_5_streams,
        test_rfc9113_6_7_frames,
        test_rfc9113_8_messages,
    ):
        for case in module.table.cases:
            sent = case.sent()
            if sent is not None:
                yield case, sent


OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED = 0, 3, 4
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 12, 13, 14
MESSAGE = encode({"key": ["x"], "value": ["1"]})
GZIP = (b"grpc-encoding", b"gzip")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCall:
    """One bad gRPC call.

    Attributes:
        rule: the broken rule, in words.
        status: the grpc-status of the answer; None where it has none.
        text: part of the answer's message.
        path, more, body, ends: the path, fields and body sent, and whether the stream is ended.
    """

    rule: str
    status: int | None
    text: str = ""
    path: bytes = METHOD.encode()
    more: tuple[f.Field, ...] = ()
    body: bytes = message(MESSAGE)
    ends: bool = True

    def play(self, link: Link) -> StreamContent:
        """Send the call, and return its answer."""
        stream = link.open(call(self.path, *self.more))
        link.send(f.body(stream, self.body, end=self.ends))
        return link.answer(stream)


NO_MESSAGE = "the call has no message"
LATE = "no message arrived in time"
HALF = b"\0\0\0\0\x09abc"
CALLS = [
    BadCall(rule="no message", status=INVALID_ARGUMENT, body=b"", text=NO_MESSAGE),
    BadCall(rule="half a prefix", status=INVALID_ARGUMENT, body=b"\0\0\0", text=NO_MESSAGE),
    BadCall(rule="half a message", status=INVALID_ARGUMENT, body=HALF, text=NO_MESSAGE),
    BadCall(rule="none in time", status=DEADLINE_EXCEEDED, body=b"", ends=False, text=LATE),
    BadCall(rule="half in time", status=DEADLINE_EXCEEDED, body=HALF, ends=False, text=LATE),
    BadCall(
        rule="a message announced over the limit",
        status=RESOURCE_EXHAUSTED,
        body=b"\0" + struct.pack(">I", MOST_BYTES + 1),
    ),
    BadCall(
        rule="a message that expands over the limit",
        status=RESOURCE_EXHAUSTED,
        more=(GZIP,),
        body=message(gzip.compress(bytes(8 << 20)), flag=1),
    ),
    BadCall(rule="compressed, but not said how", status=INTERNAL, body=message(MESSAGE, flag=1)),
    BadCall(rule="gzip that is none", status=INTERNAL, more=(GZIP,), body=message(b"x", flag=1)),
    BadCall(rule="an unknown compression", status=UNIMPLEMENTED, more=((b"grpc-encoding", b"br"),)),
    *[
        BadCall(rule=f"the path {path!r}", status=UNIMPLEMENTED, path=path)
        for path in (
            METHOD.encode() + b"s",
            b"/inference.GRPCInferenceService/Infer",
            b"/grpc.channelz.v1.Channelz/GetServers",
            b"/" + METHOD.encode(),
        )
    ],
    BadCall(rule="metadata that is no base64", status=INTERNAL, more=((b"x-bin", b"***"),)),
    *[
        BadCall(rule=f"the timeout {value!r}", status=status, more=((b"grpc-timeout", value),))
        for value, status in {
            **dict.fromkeys((b"", b"1", b"S", b"1x", b"-1S", b"soon", b"\xff"), INVALID_ARGUMENT),
            b"99999999H": OK,
            b"0S": DEADLINE_EXCEEDED,
        }.items()
    ],
]
