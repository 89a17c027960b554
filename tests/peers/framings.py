"""Requests whose end two readers may see in different places, for proxies to pass on if they will.

Each is one connection's bytes: a request, and behind or inside it a hidden one. Whoever reads the
hidden one as a request of its own while the one in front did not has been smuggled to.
"""

from __future__ import annotations

import json

HOST = b"Host: localhost\r\n"
POST = b"POST /echo/prediction HTTP/1.1\r\n" + HOST
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def question(nonce: str) -> bytes:
    return json.dumps({"key": ["x"], "value": [nonce]}).encode()


def request(nonce: str, *fields: bytes) -> bytes:
    """A proper request."""
    body = question(nonce)
    head = POST + b"Content-Length: %d\r\n" % len(body)
    return head + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


def _length(value: bytes) -> bytes:
    return b"Content-Length: " + value + b"\r\n"


def ambiguous(hidden: bytes) -> dict[str, bytes]:
    """What is ambiguous about a request -> its bytes, with ``hidden`` in them."""
    own = question("count-own")
    chunk = b"%x\r\n%s\r\n" % (len(own), own)
    last = b"0\r\n\r\n"
    whole = _length(b"%d" % len(chunk + last + hidden))
    short = _length(b"%d" % len(own))
    inside = _length(b"%d" % len(hidden))
    return {
        "length and chunks, length is short": (
            POST + short + CHUNKED + b"\r\n" + chunk + last + hidden
        ),
        "length and chunks, length is all": POST
        + whole
        + CHUNKED
        + b"\r\n"
        + chunk
        + last
        + hidden,
        "chunks and length": POST + CHUNKED + whole + b"\r\n" + chunk + last + hidden,
        "two lengths": POST + short + inside + b"\r\n" + own + hidden,
        "two lengths in one": POST + _length(b"%d, %d" % (len(own), len(hidden))) + b"\r\n" + own,
        "a signed length": POST + _length(b"+%d" % len(own)) + b"\r\n" + own + hidden,
        "a hexadecimal length": POST + _length(b"0x%x" % len(own)) + b"\r\n" + own + hidden,
        "another coding": (
            POST + whole + b"Transfer-Encoding: xchunked\r\n\r\n" + chunk + last + hidden
        ),
        "two codings": POST
        + b"Transfer-Encoding: chunked, identity\r\n\r\n"
        + chunk
        + last
        + hidden,
        "chunked twice": POST + CHUNKED + CHUNKED + b"\r\n" + chunk + last + hidden,
        "a blank before the colon": (
            POST + whole + b"Transfer-Encoding : chunked\r\n\r\n" + chunk + last + hidden
        ),
        "a control before the value": (
            POST + whole + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + chunk + last + hidden
        ),
        "a folded field": (
            POST + whole + b"X-A: b\r\n Transfer-Encoding: chunked\r\n\r\n" + chunk + last + hidden
        ),
        "bare line feeds": (
            POST + whole + b"X-A: b\nTransfer-Encoding: chunked\r\n\r\n" + chunk + last + hidden
        ),
        "a bare carriage return": (
            POST + whole + b"X-A: b\rTransfer-Encoding: chunked\r\n\r\n" + chunk + last + hidden
        ),
        "chunks in HTTP/1.0": (
            POST.replace(b"HTTP/1.1", b"HTTP/1.0")
            + b"Connection: keep-alive\r\n"
            + CHUNKED
            + b"\r\n"
            + chunk
            + last
            + hidden
        ),
        "a chunk size beyond 64 bits": (
            POST + CHUNKED + b"\r\n1" + b"0" * 15 + chunk + last + hidden
        ),
        "a chunk size with 0x": POST + CHUNKED + b"\r\n0x" + chunk + last + hidden,
        "a line feed in an extension": (
            POST + CHUNKED + b"\r\n" + chunk.replace(b"\r\n", b";a\nb\r\n", 1) + last + hidden
        ),
        "a chunk without its end": (POST + CHUNKED + b"\r\n" + chunk[:-2] + b"XX" + last + hidden),
        "framing in trailers": (
            POST + CHUNKED + b"\r\n" + chunk + b"0\r\n" + inside + CHUNKED + b"\r\n" + hidden
        ),
        "GET with a body": b"GET /livez HTTP/1.1\r\n" + HOST + inside + b"\r\n" + hidden,
        "HEAD with a body": b"HEAD /livez HTTP/1.1\r\n" + HOST + inside + b"\r\n" + hidden,
        "GET with chunks": (
            b"GET /livez HTTP/1.1\r\n"
            + HOST
            + CHUNKED
            + b"\r\n%x\r\n%s\r\n" % (len(hidden), hidden)
            + last
        ),
        "a body for an unknown path": (
            b"POST /nothing HTTP/1.1\r\n" + HOST + inside + b"\r\n" + hidden
        ),
        "a body for a wrong method": (
            b"PUT /echo/prediction HTTP/1.1\r\n" + HOST + inside + b"\r\n" + hidden
        ),
        "a body that is awaited": POST + inside + b"Expect: 100-continue\r\n\r\n" + hidden,
        "an upgrade to HTTP/2": (
            b"GET /livez HTTP/1.1\r\n"
            + HOST
            + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            + b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
            + hidden
        ),
        "two hosts": POST + b"Host: other\r\n" + short + b"\r\n" + own + hidden,
    }
