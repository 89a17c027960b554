"""The protocol's document, "Requests" and "Responses": what our client must say and take."""

import gzip
import re

import pytest

from penstock.protocols import grpc
from penstock.protocols.status import GrpcCode
from tests.rfc import wire
from tests.rfc.grpc_link import Case, Sentences, message
from tests.rfc.grpc_peer import HEAD, OK, Called, answer, called, only, status

GRPC_KIND = (b"content-type", b"application/grpc")

table = Sentences()
add = table.add


def head_of(peer: Called, stream: int = 1) -> list[wire.Field]:
    """The head of a request."""
    return peer.asked(stream).heads[0]


# Requests


@add("Requests: a client's head defines the call")
def _(peer: Called) -> None:
    peer.first(seconds=None)
    fields = dict(head_of(peer))
    assert fields[b":method"] == b"POST"
    assert fields[b":scheme"] == b"http"
    assert re.fullmatch(rb"/[\w.]+/\w+", fields[b":path"])
    assert fields[b"te"] == b"trailers"
    assert fields[b"content-type"].startswith(b"application/grpc")
    assert b"grpc-timeout" not in fields


@add("Requests: a client's reserved fields stand first")
def _(peer: Called) -> None:
    peer.first()
    names = [name for name, _ in head_of(peer)]
    assert [name.startswith(b":") for name in names] == sorted(
        (name.startswith(b":") for name in names), reverse=True
    )


@add(
    "Requests: a client's time-out stands right behind the reserved fields",
)
def _(peer: Called) -> None:
    peer.first()
    names = [name for name, _ in head_of(peer)]
    assert names.index(b"grpc-timeout") == sum(name.startswith(b":") for name in names)


@add("Requests: a client tells the time that is left, in up to eight digits")
def _(peer: Called) -> None:
    peer.first(seconds=4.0)
    raw = dict(head_of(peer))[b"grpc-timeout"]
    assert re.fullmatch(rb"[1-9][0-9]{0,7}[HMSmun]", raw)
    assert 3.0 < grpc.parse_timeout(raw) <= 4.1


@add("Requests: a client sends a message with its prefix and ends with it")
def _(peer: Called) -> None:
    peer.first(b"ask")
    heard = peer.asked()
    assert heard.messages == [b"ask"]
    assert heard.order == ["HEADERS", "DATA", "END"]


@add("Requests: a client sends an empty message, too")
def _(peer: Called) -> None:
    peer.first(b"")
    assert peer.asked().messages == [b""]


@add("Requests: a large message goes as its windows allow and ends with its last frame")
def _(peer: Called) -> None:
    peer.first(b"x" * 100_000)
    heard = peer.asked()
    assert heard.messages == [b"x" * 100_000]
    assert heard.order == ["HEADERS", *["DATA"] * (len(heard.order) - 2), "END"]


@add("User Agents: a client says what it is")
def _(peer: Called) -> None:
    peer.first()
    assert dict(head_of(peer))[b"user-agent"].startswith(b"penstock")


@add("Compression: a client that can read no compressed answer says so, and sends none")
def _(peer: Called) -> None:
    peer.first()
    fields = dict(head_of(peer))
    assert fields[b"grpc-accept-encoding"] == b"identity"
    assert b"grpc-encoding" not in fields


# Responses


@add("Responses: a client takes a head, a message and trailers")
def _(peer: Called) -> None:
    assert peer.played(answer(1)).reply() == b"good"


@add("Responses: a client takes any kind of application/grpc and any metadata")
def _(peer: Called) -> None:
    head = (
        (b":status", b"200"),
        (b"grpc-accept-encoding", b"gzip"),
        (b"content-type", b"application/grpc+proto"),
        (b"x-a", b"\xc3\xa4"),
        (b"x-a", b""),
        (b"x-bin", b"no base64!"),
    )
    assert peer.played(answer(1, trailers=(*OK, *head[3:]), head=head)).reply() == b"good"


@add("Responses: a client takes a message in frames of any border")
def _(peer: Called) -> None:
    parts = [wire.data(1, bytes([octet])) for octet in message(b"good")]
    asked = peer.played(wire.headers(1, wire.block(HEAD)), *parts)
    peer.link.send(wire.headers(1, wire.block(OK), end=True))
    assert asked.reply() == b"good"


@add("Responses: a client takes trailers in CONTINUATION frames")
def _(peer: Called) -> None:
    block = wire.block(OK)
    asked = peer.played(
        wire.headers(1, wire.block(HEAD)),
        wire.data(1, message(b"good")),
        wire.headers(1, block[:4], end=True, whole=False),
        wire.continuation(1, block[4:]),
    )
    assert asked.reply() == b"good"


@add("Responses: a client takes an error that is trailers only")
def _(peer: Called) -> None:
    failure = peer.played(only(1, *HEAD, *status(9, (b"grpc-message", b"no")))).failure()
    assert failure.status is GrpcCode.FAILED_PRECONDITION
    assert str(failure).endswith("no")


@add("Responses: a client takes every status behind messages")
def _(peer: Called) -> None:
    for index, code in enumerate(range(1, 17)):
        stream = 2 * index + 1
        asked = peer.played(answer(stream, trailers=status(code)), stream=stream)
        assert asked.code() == code


@add("Responses: a status that cannot be read is UNKNOWN")
def _(peer: Called) -> None:
    for index, raw in enumerate((b"", b"17", b"-1", b"OK", b"0x0", b"999999999999")):
        stream = 2 * index + 1
        asked = peer.played(answer(stream, trailers=((b"grpc-status", raw),)), stream=stream)
        assert asked.code() is GrpcCode.UNKNOWN


@add("Responses: a message of a status is decoded")
def _(peer: Called) -> None:
    raw = (b"grpc-message", b"50 %25 of %C3%A4%0a")
    assert str(peer.played(only(1, *HEAD, *status(9, raw))).failure()).endswith("50 % of ä\n")


@add("Responses: a message of a status that is encoded wrongly is told nevertheless")
def _(peer: Called) -> None:
    raws = (b"100% %zz sure", b"sure %", b"%C3 sure", b"\xff sure", b"%c3%28 sure")
    for index, raw in enumerate(raws):
        stream = 2 * index + 1
        fields = (*HEAD, *status(9, (b"grpc-message", raw)))
        failure = peer.played(only(stream, *fields), stream=stream).failure()
        assert failure.status is GrpcCode.FAILED_PRECONDITION
        assert "sure" in str(failure)


@add("Responses: a status is made up where the answer has none")
def _(peer: Called) -> None:
    ends = (
        answer(1, trailers=((b"x", b"1"),)),
        only(3, *HEAD),
        wire.headers(5, wire.block(HEAD)) + wire.data(5, message(b"good"), end=True),
    )
    for index, parts in enumerate(ends):
        failure = peer.played(parts, stream=2 * index + 1).failure()
        assert failure.status in (GrpcCode.UNKNOWN, GrpcCode.INTERNAL)
        assert failure.args[1]


@add("Responses: a status is made up for an answer that is not of gRPC")
def _(peer: Called) -> None:
    for index, kind in enumerate((b"text/html", b"application/json", b"")):
        stream = 2 * index + 1
        head = ((b":status", b"200"), (b"content-type", kind))
        failure = peer.played(answer(stream, b"<html>", (), head), stream=stream).failure()
        assert failure.status is GrpcCode.UNKNOWN
        assert kind.decode() in failure.args[1]


@add("Responses: interim answers are passed over")
def _(peer: Called) -> None:
    interim = wire.headers(1, wire.block([(b":status", b"103"), (b"grpc-status", b"9")]))
    assert peer.played(interim, interim, answer(1)).reply() == b"good"


@add("Responses: an end in the middle of a message is a failure")
def _(peer: Called) -> None:
    assert peer.played(answer(1, message(b"good")[:-1])).code() is GrpcCode.INTERNAL


@add("Responses: heads of 8 KiB are taken")
def _(peer: Called) -> None:
    more = tuple((b"x-%d" % number, b"v" * 964) for number in range(8))
    assert peer.played(answer(1, trailers=(*OK, *more), head=(*HEAD, *more))).reply() == b"good"


@add("Compression: an answer that is compressed though that was not offered is INTERNAL")
def _(peer: Called) -> None:
    head = (*HEAD, (b"grpc-encoding", b"gzip"))
    body = message(gzip.compress(b"good"), flag=1)
    assert peer.played(answer(1, body, head=head)).code() is GrpcCode.INTERNAL
    assert peer.played(answer(3, body), stream=3).code() is GrpcCode.INTERNAL
    plain = (*HEAD, (b"grpc-encoding", b"identity"))
    assert peer.played(answer(5, body, head=plain), stream=5).code() is GrpcCode.INTERNAL


@add(
    "Compression: the failure names the encoding that was used and those that can be read",
)
def _(peer: Called) -> None:
    head = (*HEAD, (b"grpc-encoding", b"gzip"))
    failure = peer.played(answer(1, message(b"x", flag=1), head=head)).failure()
    assert "gzip" in failure.args[1]
    assert "identity" in failure.args[1]


@add("Compression: a plain message beside an encoding is plain")
def _(peer: Called) -> None:
    head = (*HEAD, (b"grpc-encoding", b"gzip"))
    assert peer.played(answer(1, head=head)).reply() == b"good"


# HTTP statuses

CODES = {
    400: GrpcCode.INTERNAL,
    401: GrpcCode.UNAUTHENTICATED,
    403: GrpcCode.PERMISSION_DENIED,
    404: GrpcCode.UNIMPLEMENTED,
    429: GrpcCode.UNAVAILABLE,
    502: GrpcCode.UNAVAILABLE,
    503: GrpcCode.UNAVAILABLE,
    504: GrpcCode.UNAVAILABLE,
    **dict.fromkeys((204, 301, 405, 408, 413, 418, 431, 500, 501, 505), GrpcCode.UNKNOWN),
}


@add("HTTP statuses: an answer without a grpc-status is judged by its HTTP status")
def _(peer: Called) -> None:
    for index, (number, code) in enumerate(CODES.items()):
        stream = 2 * index + 1
        head = only(stream, (b":status", b"%d" % number), (b"content-type", b"text/html"))
        assert peer.played(head, stream=stream).code() is code


@add("HTTP statuses: a body changes nothing")
def _(peer: Called) -> None:
    head = wire.headers(1, wire.block([(b":status", b"503"), (b"content-type", b"text/html")]))
    asked = peer.played(head, wire.data(1, b"<html>", end=True))
    assert asked.code() is GrpcCode.UNAVAILABLE


@add("HTTP statuses: a grpc-status counts more than the HTTP status")
def _(peer: Called) -> None:
    head = only(1, (b":status", b"503"), GRPC_KIND, *status(7))
    assert peer.played(head).code() is GrpcCode.PERMISSION_DENIED


@add(
    "HTTP statuses: a grpc-status counts more also where a body follows",
)
def _(peer: Called) -> None:
    head = wire.block([(b":status", b"503"), GRPC_KIND, *status(7)])
    asked = peer.played(wire.headers(1, head), wire.data(1, b"", end=True))
    assert asked.code() is GrpcCode.PERMISSION_DENIED


@pytest.mark.parametrize("case", table.cases, ids=lambda case: case.name)
def test_a_client_does_what_the_document_says(case: Case, request: pytest.FixtureRequest) -> None:
    if case.missing:
        request.applymarker(pytest.mark.xfail(reason=case.missing, strict=True))
    with called() as peer:
        case.play(peer)
