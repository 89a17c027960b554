from __future__ import annotations

import pytest

from penstock.protocols.heads import Headers, RequestHead, ResponseHead
from penstock.protocols.http2 import messages
from penstock.protocols.http2.codes import MalformedMessage
from penstock.protocols.http2.messages import check_field

from . import peers

Fields = list[tuple[bytes, bytes]]


def request_head(fields: Fields) -> RequestHead:
    return messages.request_head([check_field(*field) for field in fields])


def response_head(fields: Fields) -> ResponseHead:
    return messages.response_head([check_field(*field) for field in fields])


def trailers(fields: Fields) -> Headers:
    return messages.trailers([check_field(*field) for field in fields])


def test_a_head_says_what_was_asked_for() -> None:
    head = request_head([*peers.POST, (b"content-length", b"12"), (b"x-a", b"b")])
    assert (head.method, head.path, head.query) == ("POST", b"/a", b"b=c")
    assert (head.authority, head.version, head.content_length) == (b"host:80", "2", 12)
    assert head.headers == ((b"content-length", b"12"), (b"x-a", b"b"))


def test_crumbs_of_a_cookie_are_joined_where_the_first_was() -> None:
    head = request_head(
        [*peers.GET, (b"cookie", b"a=1"), (b"x", b"y"), (b"cookie", b"b=2"), (b"cookie", b"c=3")]
    )
    assert head.headers == ((b"cookie", b"a=1; b=2; c=3"), (b"x", b"y"))


def test_the_host_field_stands_in_for_the_authority() -> None:
    fields = [*peers.GET[:3], (b"host", b"[::1]:8000")]
    assert request_head(fields).authority == b"[::1]:8000"


def without(name: bytes) -> list[tuple[bytes, bytes]]:
    return [field for field in peers.GET if field[0] != name]


def replaced(name: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    return [(n, value if n == name else v) for n, v in peers.GET]


@pytest.mark.parametrize(
    "fields",
    [
        without(b":method"),
        without(b":scheme"),
        without(b":path"),
        without(b":authority"),
        [*peers.GET, peers.GET[0]],
        [(b"x", b"y"), *peers.GET],
        [*peers.GET, (b":status", b"200")],
        [*peers.GET, (b":unknown", b"1")],
        replaced(b":path", b""),
        replaced(b":path", b"a"),
        replaced(b":path", b"/a#b"),
        replaced(b":path", b"/%zz"),
        replaced(b":path", b"/\xc3\xa9"),
        replaced(b":path", b"*"),
        replaced(b":method", b"G T"),
        replaced(b":authority", b""),
        replaced(b":authority", b"user@host"),
        replaced(b":authority", b"host:port"),
        replaced(b":scheme", b"1x"),
        replaced(b":method", b"CONNECT"),
        [*peers.GET, (b"host", b"other")],
        [*peers.GET, (b"host", b"host:80"), (b"host", b"host:80")],
        [*peers.GET, (b"X", b"y")],
        [*peers.GET, (b"", b"y")],
        [*peers.GET, (b"a b", b"y")],
        [*peers.GET, (b"x", b" y")],
        [*peers.GET, (b"x", b"y\t")],
        [*peers.GET, (b"x", b"a\r\nb")],
        [*peers.GET, (b"x", b"a\0b")],
        [*peers.GET, (b"connection", b"close")],
        [*peers.GET, (b"transfer-encoding", b"chunked")],
        [*peers.GET, (b"te", b"gzip")],
        [*peers.GET, (b"content-length", b"1"), (b"content-length", b"1")],
        [*peers.GET, (b"content-length", b"+1")],
        [*peers.GET, (b"content-length", b"")],
        [*peers.GET, (b"content-length", b"9" * 30)],
    ],
)
def test_a_malformed_request_is_refused(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(MalformedMessage):
        request_head(fields)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [(b":status", b"99")],
        [(b":status", b"600")],
        [(b":status", b"2000")],
        [(b":status", b"101")],
        [(b":status", b"200"), (b":path", b"/")],
        [(b":status", b"200"), (b"content-length", b"x")],
    ],
)
def test_a_malformed_response_is_refused(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(MalformedMessage):
        response_head(fields)


def test_trailers_have_no_pseudo_headers() -> None:
    assert trailers([(b"grpc-status", b"0")]) == ((b"grpc-status", b"0"),)
    with pytest.raises(MalformedMessage):
        trailers([(b":status", b"200")])


@pytest.mark.parametrize(
    "fields", [[*peers.GET, (b"te", b"trailers")], [*peers.GET, (b"x", b"\xff\t ok")]]
)
def test_what_is_allowed_is_taken(fields: list[tuple[bytes, bytes]]) -> None:
    assert request_head(fields).method == "GET"


def test_options_may_ask_for_the_server_itself() -> None:
    fields = [(b":method", b"OPTIONS"), peers.GET[1], (b":path", b"*"), peers.GET[3]]
    assert request_head(fields).path == b"*"


def test_connect_names_its_host_alone() -> None:
    head = request_head([(b":method", b"CONNECT"), (b":authority", b"host:1")])
    assert (head.method, head.path) == ("CONNECT", b"host:1")
