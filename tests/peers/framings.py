"""Requests with ambiguous framing, for tests of request smuggling through proxies.

Each is one connection's bytes: a request, and after or inside it a hidden one. The request is
smuggled if the service reads the hidden one as a request and the proxy in front does not.
"""

from __future__ import annotations

import json

HOST = b"Host: localhost\r\n"
POST = b"POST /echo/prediction HTTP/1.1\r\n" + HOST
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def request_body(nonce: str) -> bytes:
    return json.dumps({"key": ["x"], "value": [nonce]}).encode()


def request(nonce: str, *fields: bytes) -> bytes:
    """A valid request."""
    body = request_body(nonce)
    head = POST + b"Content-Length: %d\r\n" % len(body)
    return head + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


def _length(value: bytes) -> bytes:
    return b"Content-Length: " + value + b"\r\n"


def ambiguous(hidden: bytes) -> dict[str, bytes]:
    """The kind of ambiguity -> the request's bytes, with ``hidden`` in them."""
    own = request_body("count-own")
    chunk = b"%x\r\n%s\r\n" % (len(own), own)
    chunks = chunk + b"0\r\n\r\n" + hidden
    plain = own + hidden
    whole, short, inside = (_length(b"%d" % len(part)) for part in (chunks, own, hidden))
    both = _length(b"%d, %d" % (len(own), len(hidden)))
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    upgrade += b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    # The kind of ambiguity: the header fields after Host, and the bytes after the head.
    post: dict[str, tuple[bytes, bytes]] = {
        "length and chunks, length is short": (short + CHUNKED, chunks),
        "length and chunks, length is all": (whole + CHUNKED, chunks),
        "chunks and length": (CHUNKED + whole, chunks),
        "two lengths": (short + inside, plain),
        "two lengths in one": (both, own),
        "a signed length": (_length(b"+%d" % len(own)), plain),
        "a hexadecimal length": (_length(b"0x%x" % len(own)), plain),
        "another coding": (whole + b"Transfer-Encoding: xchunked\r\n", chunks),
        "two codings": (b"Transfer-Encoding: chunked, identity\r\n", chunks),
        "chunked twice": (CHUNKED + CHUNKED, chunks),
        "a blank before the colon": (whole + b"Transfer-Encoding : chunked\r\n", chunks),
        "a control before the value": (whole + b"Transfer-Encoding: \x0bchunked\r\n", chunks),
        "a folded field": (whole + b"X-A: b\r\n Transfer-Encoding: chunked\r\n", chunks),
        "bare line feeds": (whole + b"X-A: b\nTransfer-Encoding: chunked\r\n", chunks),
        "a bare carriage return": (whole + b"X-A: b\rTransfer-Encoding: chunked\r\n", chunks),
        "a chunk size beyond 64 bits": (CHUNKED, b"1" + b"0" * 15 + chunks),
        "a chunk size with 0x": (CHUNKED, b"0x" + chunks),
        "a line feed in an extension": (CHUNKED, chunks.replace(b"\r\n", b";a\nb\r\n", 1)),
        "a chunk without its end": (CHUNKED, chunk[:-2] + b"XX" + b"0\r\n\r\n" + hidden),
        "framing in trailers": (CHUNKED, chunk + b"0\r\n" + inside + CHUNKED + b"\r\n" + hidden),
        "a body that is awaited": (inside + b"Expect: 100-continue\r\n", hidden),
        "two hosts": (b"Host: other\r\n" + short, plain),
    }
    livez = b"livez HTTP/1.1\r\n" + HOST
    whole_hidden = b"%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden)
    old = POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Connection: keep-alive\r\n"
    return {
        **{name: POST + fields + b"\r\n" + rest for name, (fields, rest) in post.items()},
        "chunks in HTTP/1.0": old + CHUNKED + b"\r\n" + chunks,
        "GET with a body": b"GET /" + livez + inside + b"\r\n" + hidden,
        "HEAD with a body": b"HEAD /" + livez + inside + b"\r\n" + hidden,
        "GET with chunks": b"GET /" + livez + CHUNKED + b"\r\n" + whole_hidden,
        "an upgrade to HTTP/2": b"GET /" + livez + upgrade + b"\r\n" + hidden,
        "a body for an unknown path": (
            b"POST /nothing HTTP/1.1\r\n" + HOST + inside + b"\r\n" + hidden
        ),
        "a body for a wrong method": (
            b"PUT /echo/prediction HTTP/1.1\r\n" + HOST + inside + b"\r\n" + hidden
        ),
    }
