"""Valid requests are read as by h11 and httptools."""

from __future__ import annotations

import h11
import httptools
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.heads import Headers
from tests.protocols.http1.driving import play

TOKEN = st.text("!#$%&'*+-.^_`|~09azAZ", min_size=1, max_size=12).map(str.encode)
VALUE = st.text("".join(map(chr, range(0x20, 0x7F))) + "\t", max_size=20).map(
    lambda text: text.strip().encode()
)
PATH = st.text("abc/._~!$&'()*+,;=:@-?", max_size=20).map(lambda text: b"/" + text.encode())
BODY = st.one_of(st.none(), st.binary(max_size=40))
FRAMING_NAMES = {
    b"host",
    b"content-length",
    b"transfer-encoding",
    b"connection",
    b"expect",
    b"upgrade",
}


@st.composite
def valid_requests(draw: st.DrawFn) -> tuple[bytes, bytes, bytes, Headers, bytes]:
    """A request's bytes, method, target, fields and body."""
    method = draw(st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS"]))
    target = draw(PATH)
    names = TOKEN.filter(lambda name: name.lower() not in FRAMING_NAMES)
    fields = [(b"Host", b"x"), *draw(st.lists(st.tuples(names, VALUE), max_size=6))]
    body = draw(BODY)
    coded = b""
    if body is not None and draw(st.booleans()):
        fields.append((b"Transfer-Encoding", b"chunked"))
        cuts = sorted(draw(st.sets(st.integers(1, max(1, len(body))), max_size=3)))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        coded = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces if p) + b"0\r\n\r\n"
    elif body is not None:
        fields.append((b"Content-Length", b"%d" % len(body)))
        coded = body
    lines = [b"%b %b HTTP/1.1" % (method, target), *(b"%b: %b" % field for field in fields)]
    headers = tuple((name.lower(), value) for name, value in fields)
    return b"\r\n".join([*lines, b"", coded]), method, target, headers, body or b""


class Collector:
    """Callbacks for httptools."""

    def __init__(self) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.strip()))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


@settings(deadline=None, max_examples=200)
@given(valid_requests())
def test_valid_requests_are_read_as_by_h11_and_httptools(
    made: tuple[bytes, bytes, bytes, Headers, bytes],
) -> None:
    raw, method, target, headers, body = made
    (head, *data), keep_alive = play([raw])
    path, _, query = target.partition(b"?")
    assert head[:4] == ("head", method.decode(), path, query)
    assert head[5] == headers
    assert b"".join(piece for _, piece, _ in data) == body
    assert keep_alive

    peer = h11.Connection(h11.SERVER)
    peer.receive_data(raw)
    request = peer.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target) == (method, target)
    assert tuple(request.headers) == headers
    theirs = b""
    while isinstance(event := peer.next_event(), h11.Data):
        theirs += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    assert theirs == body

    collector = Collector()
    parser = httptools.HttpRequestParser(collector)
    parser.feed_data(raw)
    assert collector.complete
    assert (parser.get_method(), collector.url, collector.body) == (method, target, body)
    assert tuple(collector.headers) == headers
