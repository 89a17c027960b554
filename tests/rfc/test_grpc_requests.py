"""The protocol's document, "Requests": what a server must take, and what it must refuse."""

import gzip

import pytest
from hyperframe import frame as frames

from penstock.protocols import grpc
from penstock.protocols.grpc import GrpcError
from penstock.protocols.heads import RequestHead
from tests.rfc import wire
from tests.rfc.grpc_link import Case, Sentences, call, message
from tests.rfc.grpc_service import MOST, Served, served

OK, INVALID_ARGUMENT, RESOURCE_EXHAUSTED = 0, 3, 8
UNIMPLEMENTED, INTERNAL = 12, 13

table = Sentences()
add = table.add


def timeout_of(raw: bytes) -> float | None:
    """What the core makes of a ``grpc-timeout``."""
    head = RequestHead(
        "POST",
        b"/a.B/Echo",
        (*call()[4:], (b"grpc-timeout", raw)),
        version="2",
        authority=b"a",
        content_length=None,
    )
    return grpc.check_request(head).timeout


def echoed(door: Served, *more: wire.Field, stream: int = 1) -> dict[bytes, bytes]:
    """The fields of a call that is answered, as its handler sees them."""
    heard = door.link.ask(stream, call(b"/a.B/Echo", *more))
    assert heard.status == OK
    return dict(door.service.heads[-1])


# The call's definition


@add("Requests: a call is a head, its messages and an end")
def _(door: Served) -> None:
    heard = door.link.ask(1)
    assert heard.order == ["HEADERS", "DATA", "HEADERS", "END"]
    assert heard.messages == [b"abc"]
    assert heard.status == OK


@add("Requests: a head may be cut into CONTINUATION frames")
def _(door: Served) -> None:
    block = wire.block(call())
    door.link.send(
        wire.headers(1, block[:10], whole=False),
        wire.continuation(1, block[10:30], whole=False),
        wire.continuation(1, block[30:]),
        wire.data(1, message(), end=True),
    )
    assert door.link.answer(1).messages == [b"abc"]


@add("Requests: the method is POST")
def _(door: Served) -> None:
    heard = door.link.ask(1, wire.changed(call(), b":method", b"PUT"))
    assert heard.fields[b":status"] == b"405"
    assert heard.fields[b"allow"] == b"POST"


@add("Requests: the scheme is http or https")
def _(door: Served) -> None:
    for stream, scheme in ((1, b"http"), (3, b"https")):
        assert door.link.ask(stream, wire.changed(call(), b":scheme", scheme)).status == OK


@add("Requests: the path is case-sensitive")
def _(door: Served) -> None:
    for stream, path in ((1, b"/a.b/Echo"), (3, b"/a.B/echo"), (5, b"/A.B/ECHO")):
        assert door.link.ask(stream, call(path)).status == UNIMPLEMENTED


@add("Requests: the path is a service and a method")
def _(door: Served) -> None:
    for index, path in enumerate(
        (b"/", b"/a.B", b"/a.B/", b"//Echo", b"/a.B/Echo/", b"/a.B/Ec/ho")
    ):
        assert door.link.ask(2 * index + 1, call(path)).status == UNIMPLEMENTED


@add("Requests: the authority may be left out where host stands for it")
def _(door: Served) -> None:
    fields = wire.changed(call(b"/a.B/Echo", (b"host", b"example.org")), b":authority", None)
    assert door.link.ask(1, fields).status == OK


@add("Requests: te trailers shows proxies that do not fit")
def _(door: Served) -> None:
    assert door.link.ask(1, wire.changed(call(), b"te", None)).status == INTERNAL


# The time-out


@add("Requests: a time-out is up to eight digits and a unit")
def _(door: Served) -> None:
    units = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
    for unit, seconds in units.items():
        for digits in (b"1", b"00000007", b"99999999"):
            assert timeout_of(digits + unit) == pytest.approx(int(digits) * seconds)


@add("Requests: anything else is no time-out")
def _(door: Served) -> None:
    wrong = (b"", b"S", b"1", b"1s", b"1h", b"123456789S", b"-1S", b"+1S", b" 1S", b"1.5S", b"1SS")
    for raw in wrong:
        with pytest.raises(GrpcError):
            timeout_of(raw)
    assert door.link.ask(1, call(b"/a.B/Echo", (b"grpc-timeout", b"1x"))).status == INVALID_ARGUMENT


@add("Requests: without a time-out there is none")
def _(door: Served) -> None:
    door.link.ask(1)
    door.link.ask(3, call(b"/a.B/Echo", (b"grpc-timeout", b"20S")))
    assert door.service.timeouts == [None, 20.0]


# The content-type


@add("Requests: a content-type of application/grpc may name protobuf")
def _(door: Served) -> None:
    kinds = (b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=utf-8")
    for index, kind in enumerate(kinds):
        fields = wire.changed(call(), b"content-type", kind)
        assert door.link.ask(2 * index + 1, fields).status == OK


@add("Requests: another content-type does not get the status 200")
def _(door: Served) -> None:
    kinds = (
        b"application/json",
        b"application/grpcx",
        b"application/grpc-web",
        b"text/plain",
        None,
    )
    for index, kind in enumerate(kinds):
        fields = wire.changed(call(), b"content-type", kind)
        heard = door.link.ask(2 * index + 1, fields)
        assert heard.fields[b":status"].startswith(b"4")
        assert b"grpc-status" not in heard.fields


@add("Requests: a form of messages that we do not have is 415")
def _(door: Served) -> None:
    for stream, kind in ((1, b"application/grpc+json"), (3, b"application/grpc+own")):
        heard = door.link.ask(stream, wire.changed(call(), b"content-type", kind))
        assert heard.fields[b":status"] == b"415"


# Metadata


@add("Requests: message-type, user-agent and unknown grpc fields do no harm")
def _(door: Served) -> None:
    more = (b"grpc-message-type", b"a.C"), (b"user-agent", b"grpc-x/1"), (b"grpc-future", b"?")
    assert echoed(door, *more)[b"user-agent"] == b"grpc-x/1"


@add("Requests: custom metadata reaches the application")
def _(door: Served) -> None:
    assert echoed(door, (b"x-0_a.b", b"some ~ text"))[b"x-0_a.b"] == b"some ~ text"


@add("Requests: binary metadata may be padded or not")
def _(door: Served) -> None:
    fields = ((b"a-bin", b"YQ=="), (b"b-bin", b"YQ"), (b"c-bin", b""), (b"d-bin", b"+/+/"))
    echoed(door, *fields)
    values = dict(grpc.decode_metadata(fields))
    assert values == {"a-bin": b"a", "b-bin": b"a", "c-bin": b"", "d-bin": b"\xfb\xff\xbf"}


@add("Requests: binary metadata is cut at commas before it is decoded")
def _(door: Served) -> None:
    fields = ((b"a-bin", b"YQ,Yg==, Yw"),)
    echoed(door, *fields)
    assert [value for _, value in grpc.decode_metadata(fields)] == [b"a", b"b", b"c"]


@add("Requests: equal names keep their order")
def _(door: Served) -> None:
    door.link.ask(1, call(b"/a.B/Echo", (b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3")))
    assert [value for name, value in door.service.heads[-1] if name == b"x-a"] == [b"1", b"3"]


@add("Requests: a value that HTTP allows is no error")
def _(door: Served) -> None:
    odd = (b"x-a", b"\xc3\xa4"), (b"x-b", b""), (b"x-c", b"a\tb"), (b"x-d", b"\xff")
    assert echoed(door, *odd)[b"x-a"] == b"\xc3\xa4"


@add("Requests: names that begin with grpc are not the application's")
def _(door: Served) -> None:
    assert grpc.decode_metadata(((b"grpc-anything", b"1"), (b"x", b"2"))) == (("x", "2"),)
    with pytest.raises(ValueError, match="grpc-anything"):
        grpc.encode_metadata([("grpc-anything", "1")])


@add("Requests: a head over the limit is refused, and the connection goes on")
def _(door: Served) -> None:
    large = tuple((b"x-%d" % number, b"v" * 1000) for number in range(16))
    assert door.link.ask(1, call(b"/a.B/Echo", *large)).fields[b":status"] == b"431"
    assert door.link.ask(3).status == OK


@add("Requests: a head of 8 KiB is taken, counted as HTTP counts it")
def _(door: Served) -> None:
    echoed(door, *((b"x-%d" % number, b"v" * 964) for number in range(8)))


# Messages


@add("Requests: a length counts in the order of the network")
def _(door: Served) -> None:
    data = b"x" * 0x0201
    assert door.link.ask(1, body=message(data)).messages == [data]
    assert message(data)[:5] == b"\x00\x00\x00\x02\x01"


@add("Requests: a message may be empty")
def _(door: Served) -> None:
    assert door.link.ask(1, body=message(b"")).messages == [b""]


@add("Requests: a length over the limit is refused before the message has come")
def _(door: Served) -> None:
    door.link.send(wire.headers(1, wire.block(call())))
    door.link.send(wire.data(1, b"\x00" + (MOST + 1).to_bytes(4, "big")))
    assert door.link.answer(1).status == RESOURCE_EXHAUSTED


@add("Requests: a compressed message is unpacked by the encoding of the head")
def _(door: Served) -> None:
    fields = call(b"/a.B/Echo", (b"grpc-encoding", b"gzip"))
    heard = door.link.ask(1, fields, message(gzip.compress(b"packed"), flag=1))
    assert heard.messages == [b"packed"]


@add("Requests: a flag of 0 is a plain message whatever the encoding")
def _(door: Served) -> None:
    fields = call(b"/a.B/Echo", (b"grpc-encoding", b"gzip"))
    assert door.link.ask(1, fields, message(b"plain")).messages == [b"plain"]


@add("Requests: each message is compressed by itself")
def _(door: Served) -> None:
    fields = call(b"/a.B/Echoes", (b"grpc-encoding", b"gzip"))
    packed = [message(gzip.compress(data), flag=1) for data in (b"one", b"two")]
    heard = door.link.ask(1, fields, packed[0] + message(b"plain") + packed[1])
    assert heard.messages == [b"one", b"plain", b"two"]


@add("Requests: a flag of 1 needs an encoding")
def _(door: Served) -> None:
    packed = message(gzip.compress(b"packed"), flag=1)
    heard = door.link.ask(1, call(), packed)
    assert heard.status == INTERNAL
    assert b"without a grpc-encoding" in heard.fields[b"grpc-message"]


@add("Requests: a flag is 0 or 1")
def _(door: Served) -> None:
    for stream, flag in ((1, 2), (3, 255)):
        assert door.link.ask(stream, call(), message(flag=flag)).status == INTERNAL


# The end


@add("Requests: the end may stand on an empty DATA frame")
def _(door: Served) -> None:
    door.link.send(wire.headers(1, wire.block(call(b"/a.B/Echoes"))))
    door.link.send(wire.data(1, message()), wire.data(1, b"", end=True))
    assert door.link.answer(1).messages == [b"abc"]


@add("Requests: a stream of no messages at all is a call")
def _(door: Served) -> None:
    heard = door.link.ask(1, call(b"/a.B/Echoes"), b"")
    assert heard.messages == []
    assert heard.status == OK


@add("Requests: an end in the middle of a message fails the call")
def _(door: Served) -> None:
    assert door.link.ask(1, call(b"/a.B/Echoes"), message()[:-1]).status == INTERNAL


@add("Data Frames: their borders mean nothing")
def _(door: Served) -> None:
    door.link.send(wire.headers(1, wire.block(call(b"/a.B/Echoes"))))
    stream = message(b"one") + message(b"") + message(b"three" * 20)
    for octet in stream[:20]:
        door.link.send(wire.data(1, bytes([octet])))
    door.link.send(wire.data(1, stream[20:], end=True))
    assert door.link.answer(1).messages == [b"one", b"", b"three" * 20]


@add("Data Frames: padding is no part of a message")
def _(door: Served) -> None:
    door.link.send(wire.headers(1, wire.block(call())))
    door.link.send(wire.data(1, message()[:3], pad=7), wire.data(1, message()[3:], pad=0, end=True))
    assert door.link.answer(1).messages == [b"abc"]


@add("Stream Identification: calls on one connection are told apart by their streams")
def _(door: Served) -> None:
    for stream in (1, 3, 5):
        door.link.send(wire.headers(stream, wire.block(call(b"/a.B/Echoes"))))
    for stream in (5, 1, 3):
        door.link.send(wire.data(stream, message(b"%d" % stream), end=True))
    for stream in (1, 3, 5):
        assert door.link.answer(stream).messages == [b"%d" % stream]


# Compression


@add("Compression: an unknown encoding is UNIMPLEMENTED and the known ones are told")
def _(door: Served) -> None:
    for stream, encoding in ((1, b"deflate"), (3, b"snappy"), (5, b"zstd")):
        heard = door.link.ask(stream, call(b"/a.B/Echo", (b"grpc-encoding", encoding)))
        assert heard.status == UNIMPLEMENTED
        accepted = heard.fields[b"grpc-accept-encoding"].split(b",")
        assert encoding not in accepted
        assert set(accepted) == {b"identity", b"gzip"}
        assert b"gzip" in heard.fields[b"grpc-message"]


@add("Compression: an encoding that was told never fails for being one")
def _(door: Served) -> None:
    for stream, encoding in ((1, b"identity"), (3, b"gzip")):
        assert door.link.ask(stream, call(b"/a.B/Echo", (b"grpc-encoding", encoding))).status == OK


@add(
    "Compression: an encoding that was used though it was not told is told in the answer",
)
def _(door: Served) -> None:
    fields = call(b"/a.B/Echo", (b"grpc-encoding", b"gzip"))
    heard = door.link.ask(1, fields, message(gzip.compress(b"packed"), flag=1))
    assert b"gzip" in dict(heard.heads[0])[b"grpc-accept-encoding"].split(b",")


@add("Compression: what cannot be unpacked is INTERNAL")
def _(door: Served) -> None:
    fields = call(b"/a.B/Echo", (b"grpc-encoding", b"gzip"))
    packed = gzip.compress(b"packed")
    for index, data in enumerate((b"no gzip", packed[:-1], packed + b"x", b"")):
        assert door.link.ask(2 * index + 1, fields, message(data, flag=1)).status == INTERNAL


@add("Compression: an answer is plain whatever the caller could read")
def _(door: Served) -> None:
    fields = call(b"/a.B/Echo", (b"grpc-accept-encoding", b"gzip,deflate"))
    heard = door.link.ask(1, fields, message(b"a" * 5000))
    assert heard.messages == [b"a" * 5000]
    assert dict(heard.heads[0]).get(b"grpc-encoding", b"identity") == b"identity"


@add("Compression: what a caller can read is no matter of the call's success")
def _(door: Served) -> None:
    for stream, accepts in ((1, b""), (3, b"own"), (5, b"deflate, own ,gzip")):
        fields = call(b"/a.B/Echo", (b"grpc-accept-encoding", accepts))
        assert door.link.ask(stream, fields).status == OK


@pytest.mark.parametrize("case", table.cases, ids=lambda case: case.name)
def test_a_server_takes_what_the_document_says(case: Case, request: pytest.FixtureRequest) -> None:
    if case.missing:
        request.applymarker(pytest.mark.xfail(reason=case.missing, strict=True))
    with served() as door:
        case.play(door)
        door.connect().alive()
        assert not [one for one in door.link.others if isinstance(one, frames.GoAwayFrame)]
